-- incarnation, n -> 1 if that term was current
if not leads(ARGV[FIRST], ARGV[FIRST + 1]) then
  return finish(0)
end
call('DEL', PREFIX .. 'leader')
wake('leader')
return finish(1)
