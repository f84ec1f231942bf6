-- incarnation, n of the term, key, data, lifetime in seconds -> 1, or nothing if the term is not current
if not leads(ARGV[FIRST], ARGV[FIRST + 1]) then
  return reply(false)
end
call('SET', PREFIX .. ARGV[FIRST + 2], ARGV[FIRST + 3], 'EX', ARGV[FIRST + 4])
return reply(1)
