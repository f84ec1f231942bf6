-- -> {leader, n, since, incarnation}, or nothing
local row = call('HMGET', PREFIX .. 'leader', 'name', 'n', 'since')
return reply(row[1] and { row[1], row[2], row[3], INCARNATION })
