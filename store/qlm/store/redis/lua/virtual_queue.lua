-- instance -> {version, groups in order, forecasts as JSON, homes as JSON}
local instance = ARGV[FIRST]
local by_id, known, groups = {}, {}, {}
for _, id in ipairs(call('LRANGE', key('queue', instance), 0, -1)) do
  local class = call('HGET', key('group', id), 'class')
  if class and not known[class] then
    known[class] = true
    for _, group in ipairs((sliced(class))) do
      by_id[group[1]] = group
    end
  end
  groups[#groups + 1] = by_id[id] -- a group that was lost leaves no gap
end
return reply({
  tonumber(call('HGET', PREFIX .. 'queues', instance) or '0'), groups,
  call('HGET', PREFIX .. 'forecasts', instance) or '', call('HGET', PREFIX .. 'homes', instance) or '',
})
