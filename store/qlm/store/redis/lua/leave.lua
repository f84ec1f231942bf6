-- instance, session
if alive(ARGV[FIRST], ARGV[FIRST + 1]) then
  call('DEL', key('instance', ARGV[FIRST]))
  wake('instance')
end
return reply(1)
