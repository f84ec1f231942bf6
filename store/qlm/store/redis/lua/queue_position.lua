-- id -> {waiting requests of its class before it, all of its class[, those of its group before it, group, instance]},
-- or false if it does not wait
local row = read_row(ARGV[FIRST])
local predecessors = row and call('ZRANK', key('waiting', row.class), member(row.arrival, row.id))
if not predecessors then
  return reply(false)
end
local queued, before = call('ZCARD', key('waiting', row.class)), 0
for _, group in ipairs(groups_of(row.class)) do
  local remaining = group.count - group.pulled
  if predecessors < before + remaining then
    return reply({ predecessors, queued, predecessors - before, group_at(group, before), group.queue })
  end
  before = before + remaining
end
return reply({ predecessors, queued })
