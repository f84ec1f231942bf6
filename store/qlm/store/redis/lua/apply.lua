-- incarnation, n of the term, changes as JSON: [kind, ...] each -> 1, or nothing if the term is not current
if not leads(ARGV[FIRST], ARGV[FIRST + 1]) then
  return reply(false)
end

local changed, order = {}, {}

local function mark(instance)
  if not changed[instance] then
    changed[instance] = true
    order[#order + 1] = instance
  end
end

local function take_off_queue(group)
  if group.queue ~= '' then
    call('LREM', key('queue', group.queue), 1, group.id)
    call('HINCRBY', PREFIX .. 'queues', group.queue, 1)
    call('HSET', key('group', group.id), 'queue', '')
    mark(group.queue)
  end
end

local apply = {}

function apply.create(id, class, count)
  if call('EXISTS', key('group', id)) == 1 then
    return
  end
  use_class(class)
  local last = call('ZRANGE', key('groups', class), -1, -1, 'WITHSCORES')[2]
  local seq = call('HINCRBY', key('class', class), 'groups', 1) - 1
  if last and seq <= tonumber(last) then -- the counter was lost
    seq = tonumber(last) + 1
    call('HSET', key('class', class), 'groups', seq + 1)
  end
  call('HSET', key('group', id), 'class', class, 'seq', seq, 'count', count, 'pulled', 0, 'sealed', 0,
    'created_at', NOW, 'queue', '')
  call('ZADD', key('groups', class), seq, id)
end

function apply.resize(id, count, sealed)
  local group = group_row(id)
  if group then
    call('HSET', key('group', id), 'count', math.max(count, group.pulled), 'sealed', sealed)
    if group.queue ~= '' then
      mark(group.queue)
    end
  end
end

function apply.close(id)
  local group = group_row(id)
  if group then
    take_off_queue(group)
    call('ZREM', key('groups', group.class), id)
    call('DEL', key('group', id))
  end
end

function apply.queue(instance, ids)
  local wanted, groups = {}, {}
  for _, id in ipairs(ids) do
    local group = not wanted[id] and group_row(id)
    if group then
      wanted[id] = true
      groups[#groups + 1] = group
    end
  end
  local former = call('LRANGE', key('queue', instance), 0, -1)
  local same = #former == #groups and (#groups == 0 or call('HEXISTS', PREFIX .. 'queues', instance) == 1)
  for i, group in ipairs(groups) do
    same = same and former[i] == group.id
  end
  if same then
    return
  end
  for _, group in ipairs(groups) do
    if group.queue ~= instance then
      take_off_queue(group)
    end
  end
  for _, id in ipairs(former) do
    local group = group_row(id) -- lost, perhaps; or its class has lost it
    if group and call('ZSCORE', key('groups', group.class), id) then
      call('HSET', key('group', id), 'queue', '')
    else
      call('DEL', key('group', id))
    end
  end
  call('DEL', key('queue', instance))
  for _, group in ipairs(groups) do
    call('HSET', key('group', group.id), 'queue', instance)
    call('RPUSH', key('queue', instance), group.id)
  end
  call('HINCRBY', PREFIX .. 'queues', instance, 1)
  mark(instance)
end

function apply.forecasts(instance, text)
  call('HSETNX', PREFIX .. 'queues', instance, 0)
  call('HSET', PREFIX .. 'forecasts', instance, text)
  mark(instance)
end

function apply.homes(instance, text)
  call('HSETNX', PREFIX .. 'queues', instance, 0)
  call('HSET', PREFIX .. 'homes', instance, text)
  mark(instance)
end

for _, change in ipairs(cjson.decode(ARGV[FIRST + 2])) do
  apply[change[1]](change[2], change[3], change[4])
end
for _, instance in ipairs(order) do
  notify(instance, { kind = 'queue' })
end
return reply(1)
