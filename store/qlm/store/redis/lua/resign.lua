-- incarnation, n of the term -> 1 if it was current
if not leads(ARGV[FIRST], ARGV[FIRST + 1]) then
  return reply(0)
end
call('DEL', PREFIX .. 'leader')
wake('leader')
return reply(1)
