-- limit, time until which they are claimed -> {subject, how it ended, tenant, time of its end, attempts, done,
-- failures or false} of each
local ends, until_at = PREFIX .. 'ends', ARGV[FIRST + 1]
local claimed = {}
-- ';' is the character after ':'.
for _, entry in ipairs(call('ZRANGEBYLEX', ends, '-', '(' .. NOW .. ';', 'LIMIT', 0, ARGV[FIRST])) do
  local subject = string.sub(entry, TIME_DIGITS + 2)
  local row = call('HMGET', key('end', subject), 'ended_as', 'tenant', 'at', 'done', 'due', 'failures')
  call('ZREM', ends, entry)
  if row[1] and member(row[5], subject) == entry then
    call('ZADD', ends, 0, member(until_at, subject))
    call('HSET', key('end', subject), 'due', until_at)
    local attempts = call('HINCRBY', key('end', subject), 'attempts', 1)
    claimed[#claimed + 1] = { subject, row[1], row[2], row[3], attempts, row[4], row[6] }
  end
end
return reply(claimed)
