-- id -> {waiting of its class before it, of its class in all[, of its group before it, group, its instance]},
-- or false if it does not wait
local row = read_row(ARGV[FIRST])
local ahead = row and call('ZRANK', key('waiting', row.class), place(row.arrival, row.id))
if not ahead then
  return finish(false)
end
local queued, before = call('ZCARD', key('waiting', row.class)), 0
for _, id in ipairs(call('ZRANGE', key('groups', row.class), 0, -1)) do
  local group = group_row(id)
  local remaining = group.count - group.pulled
  if ahead < before + remaining then
    return finish({ ahead, queued, ahead - before, group_at(group, before), group.queue })
  end
  before = before + remaining
end
return finish({ ahead, queued })
