-- instance, session, status, its steady part, lifetime in milliseconds, session to replace ('' for none)
-- -> nothing, or {session, status, rest of the lifetime in milliseconds} of another session; unchanged then
local instance, session, steady = ARGV[FIRST], ARGV[FIRST + 1], ARGV[FIRST + 3]
local row = key('instance', instance)
local known = call('HMGET', row, 'session', 'steady', 'status')
if known[1] and known[1] ~= session then
  if known[1] ~= ARGV[FIRST + 5] then
    limit_life(row, ARGV[FIRST + 4])
    return reply({ known[1], known[3] or '', call('PTTL', row) })
  end
  call('DEL', row)
end
call('HSET', row, 'session', session, 'status', ARGV[FIRST + 2], 'steady', steady, 'lifetime', ARGV[FIRST + 4])
call('PEXPIRE', row, ARGV[FIRST + 4])
call('SADD', PREFIX .. 'instances', instance)
if known[1] ~= session or known[2] ~= steady then
  wake('instance')
end
return reply({})
