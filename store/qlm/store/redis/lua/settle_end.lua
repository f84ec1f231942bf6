-- subject, time of its end, attempts, done, time at which it is due again ('' to remove it), failures,
-- how it ended -> 1 if it was claimed so
local subject, at, attempts, done, again, failures, ended_as = unpack(ARGV, FIRST, FIRST + 6)
local row = call('HMGET', key('end', subject), 'at', 'attempts', 'due')
if row[1] ~= at or row[2] ~= attempts then
  return reply(0)
end
call('ZREM', PREFIX .. 'ends', member(row[3], subject))
if again == '' then
  call('DEL', key('end', subject))
else
  call('HSET', key('end', subject), 'done', done, 'due', again, 'failures', failures, 'ended_as', ended_as)
  call('ZADD', PREFIX .. 'ends', 0, member(again, subject))
end
return reply(1)
