-- -> {classes, statuses, queues as {instance, version, ids, forecasts as JSON, homes as JSON},
--     instances and how many leases each has}, each class as
-- {class, queued, sums, groups, ungrouped arrival, newest arrival, extensions, prompts, two rows of lengths}
local SUMS = { 'accepted', 'kept', 'prompt_tokens', 'prompt_squares', 'max_tokens', 'max_squares', 'finished',
  'extended' }

-- Return the sums of a class, all 0 if one is no number, and whether it has extensions.
local function sums_of(class)
  local sums, whole = call('HMGET', key('class', class), unpack(SUMS)), true
  local extended = table.remove(sums)
  for i = 1, #sums do
    sums[i] = sums[i] or '0'
    whole = whole and tonumber(sums[i])
  end
  if whole then
    return sums, extended
  end
  set_aside(key('class', class))
  return sums_of(class)
end

local classes, statuses, queues = {}, {}, {}
for _, class in ipairs(call('SMEMBERS', PREFIX .. 'classes')) do
  local queued = call('ZCARD', key('waiting', class))
  local groups, ungrouped = sliced(class)
  if queued > 0 or #groups > 0 then
    local sums, extended = sums_of(class)
    classes[#classes + 1] = {
      class, queued, sums, groups, ungrouped, arrival_at(class, queued - 1),
      extensions_of(key('class', class), extended), call('GET', key('prompts', class)) or '',
      call('GET', key('former-lengths', class)) or '', call('GET', key('lengths', class)) or '',
    }
  else -- it costs nothing from now on
    call('SREM', PREFIX .. 'classes', class)
    call('HSET', key('class', class), 'idle_since', NOW)
    call('ZADD', PREFIX .. 'idle', 0, member(NOW, class))
  end
end
-- What was learned from the requests of a class lives as long as results; ';' sorts behind ':'.
for _, entry in ipairs(call('ZRANGE', PREFIX .. 'idle', '-', '(' .. CUTOFF .. ';', 'BYLEX', 'LIMIT', 0, 100)) do
  local class = string.sub(entry, TIME_DIGITS + 2)
  -- Earlier versions use a class without a change of this entry.
  local since = call('HGET', key('class', class), 'idle_since')
  if since == string.sub(entry, 1, TIME_DIGITS) and call('SISMEMBER', PREFIX .. 'classes', class) == 0 then
    call('DEL', key('class', class), key('prompts', class), key('lengths', class), key('former-lengths', class))
  end
  call('ZREM', PREFIX .. 'idle', entry)
end
for _, instance in ipairs(call('SMEMBERS', PREFIX .. 'instances')) do
  local status, lifetime_ms = unpack(call('HMGET', key('instance', instance), 'status', 'lifetime'))
  if status then
    limit_life(key('instance', instance), lifetime_ms)
    statuses[#statuses + 1] = status
  else
    call('SREM', PREFIX .. 'instances', instance)
  end
end
local versions = call('HGETALL', PREFIX .. 'queues')
for i = 1, #versions, 2 do
  local ids = call('LRANGE', key('queue', versions[i]), 0, -1)
  local forecasts = call('HGET', PREFIX .. 'forecasts', versions[i]) or ''
  local homes = call('HGET', PREFIX .. 'homes', versions[i]) or ''
  queues[#queues + 1] = { versions[i], tonumber(versions[i + 1]), ids, forecasts, homes }
end
-- Each held request has one lease: other numbers have lost some.
local leases, counted = call('HVALS', PREFIX .. 'leases'), 0
for _, count in ipairs(leases) do
  counted = counted + (tonumber(count) or 0)
end
if counted ~= call('ZCARD', PREFIX .. 'held') then
  recount_leases()
end
return reply({ classes, statuses, queues, call('HGETALL', PREFIX .. 'leases') })
