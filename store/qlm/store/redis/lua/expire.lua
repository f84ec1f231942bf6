-- earliest time that is not yet over, limit -> ids of the requests that ended
local ids = {}
for i, entry in ipairs(call('ZRANGE', PREFIX .. 'drops', '-', '(' .. ARGV[FIRST], 'BYLEX', 'LIMIT', 0, ARGV[FIRST + 1])) do
  ids[i] = string.sub(entry, TIME_DIGITS + 2)
  end_request(read_row(ids[i]), 'expired', '')
end
prune()
return reply(ids)
