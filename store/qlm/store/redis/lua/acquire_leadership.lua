-- name, lifetime in milliseconds -> {leader, n, since, incarnation}
local name, leader = ARGV[FIRST], PREFIX .. 'leader'
limit_life(leader, ARGV[FIRST + 1])
local row = call('HMGET', leader, 'name', 'n', 'since')
if not row[1] then
  row = { name, call('INCR', PREFIX .. 'terms'), NOW }
  call('HSET', leader, 'name', name, 'n', row[2], 'since', NOW)
end
if row[1] == name then
  call('PEXPIRE', leader, ARGV[FIRST + 1])
end
return reply({ row[1], row[2], row[3], INCARNATION })
