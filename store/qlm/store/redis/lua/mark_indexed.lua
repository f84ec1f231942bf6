-- incarnation, n of the term -> 1, or nothing if the term is not current
if not leads(ARGV[FIRST], ARGV[FIRST + 1]) then
  return reply(false)
end
call('SET', PREFIX .. 'indexed', NOW)
return reply(1)
