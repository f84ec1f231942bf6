-- earliest time that is not yet over, limit -> {ids of the requests that ended, 1 if there may be more to drop}
local ids = {}
for _, entry in ipairs(call('ZRANGE', PREFIX .. 'drops', '-', '(' .. ARGV[FIRST], 'BYLEX', 'LIMIT', 0, ARGV[FIRST + 1])) do
  local id = string.sub(entry, TIME_DIGITS + 2)
  local row = read_row(id)
  if row and not row.outcome then
    end_request(row, 'expired', '')
    ids[#ids + 1] = id
  end
  call('ZREM', PREFIX .. 'drops', entry)
end
return reply({ ids, prune() and 1 or 0 })
