-- the first time not yet due, limit -> ids ended
local ids = {}
for i, due in ipairs(call('ZRANGE', PREFIX .. 'drops', '-', '(' .. ARGV[FIRST], 'BYLEX', 'LIMIT', 0, ARGV[FIRST + 1])) do
  ids[i] = string.sub(due, TIME_DIGITS + 2)
  finish_request(read_row(ids[i]), 'expired', '')
end
prune()
return finish(ids)
