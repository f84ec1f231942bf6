-- instance, session, status, its steady part, lifetime in milliseconds
local instance, session, steady = ARGV[FIRST], ARGV[FIRST + 1], ARGV[FIRST + 3]
local row = key('instance', instance)
local known = call('HMGET', row, 'session', 'steady')
if known[1] and known[1] ~= session then
  call('DEL', row)
end
call('HSET', row, 'session', session, 'status', ARGV[FIRST + 2], 'steady', steady)
call('PEXPIRE', row, ARGV[FIRST + 4])
call('SADD', PREFIX .. 'instances', instance)
if known[1] ~= session or known[2] ~= steady then
  wake('instance')
end
return reply(1)
