-- instance -> {version, groups in order}
local instance = ARGV[FIRST]
local by_id, known, groups = {}, {}, {}
for i, id in ipairs(call('LRANGE', key('queue', instance), 0, -1)) do
  local class = call('HGET', key('group', id), 'class')
  if not known[class] then
    known[class] = true
    for _, group in ipairs((sliced(class))) do
      by_id[group[1]] = group
    end
  end
  groups[i] = by_id[id]
end
return reply({ tonumber(call('HGET', PREFIX .. 'queues', instance) or '0'), groups })
