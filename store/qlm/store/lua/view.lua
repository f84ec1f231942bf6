-- -> {classes as {class, queued, sums, groups, ungrouped arrival}, statuses, queues as {instance, version, ids}}
local classes, statuses, queues = {}, {}, {}
for _, class in ipairs(call('SMEMBERS', PREFIX .. 'classes')) do
  local queued = call('ZCARD', key('waiting', class))
  local groups, ungrouped = sliced(class)
  if queued > 0 or #groups > 0 then
    local sums = call('HMGET', key('class', class), 'accepted', 'prompt_tokens', 'max_tokens', 'finished', 'output_tokens')
    for i = 1, 5 do
      sums[i] = tonumber(sums[i] or '0')
    end
    classes[#classes + 1] = { class, queued, sums, groups, ungrouped }
  end
end
for _, instance in ipairs(call('SMEMBERS', PREFIX .. 'instances')) do
  local status = call('HGET', key('instance', instance), 'status')
  if status then
    statuses[#statuses + 1] = status
  else
    call('SREM', PREFIX .. 'instances', instance)
  end
end
local versions = call('HGETALL', PREFIX .. 'queues')
for i = 1, #versions, 2 do
  local ids = call('LRANGE', key('queue', versions[i]), 0, -1)
  queues[#queues + 1] = { versions[i], tonumber(versions[i + 1]), ids }
end
return finish({ classes, statuses, queues })
