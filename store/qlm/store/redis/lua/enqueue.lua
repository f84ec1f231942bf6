-- metadata, watcher ('' for none), incarnation ('' for any) -> {1 if created, record}, or nothing if it is not current
local function is_near_front(group)
  local waiting = 0
  for _, id in ipairs(call('LRANGE', key('queue', group.queue), 0, -1)) do
    local counts = call('HMGET', key('group', id), 'count', 'pulled')
    waiting = waiting + (tonumber(counts[1]) or 0) - (tonumber(counts[2]) or 0)
    if waiting > NOTIFY_WITHIN then
      return false
    elseif id == group.id then
      return true
    end
  end
  return true
end

-- Enter a known request again in what tells where it is, should that have been lost.
local function repair(row)
  call('ZADD', PREFIX .. 'requests', 0, member(row.arrival, row.id))
  if row.instance then
    call('ZADD', PREFIX .. 'held', 0, member(row.arrival, row.id))
  elseif row.state == 'queued' then
    wait(row)
  end
end

local metadata, watcher = read_metadata(FIRST), ARGV[FIRST + METADATA_ARGUMENTS]
local incarnation = ARGV[FIRST + METADATA_ARGUMENTS + 1]
if incarnation ~= '' and incarnation ~= INCARNATION then
  return reply(false)
end
local row = read_row(metadata.id)
local created = 0
if not row then
  created, row = 1, { state = 'queued' }
  add(metadata)
  wait(metadata)
  local newest = call('ZRANGE', key('groups', metadata.class), -1, -1)[1]
  local group = newest and group_row(newest)
  local joins = group and group.sealed == '0' and group.queue ~= ''
  if joins then
    call('HINCRBY', key('group', newest), 'count', 1)
    if is_near_front(group) then
      notify(group.queue, { kind = 'queue' })
    end
  end
  wake(joins and 'joined' or 'request')
elseif is_same_request(row, metadata) and not row.outcome then
  repair(row)
end
if watcher ~= '' and row.state ~= 'ended' and is_same_request(row, metadata) then
  call('SADD', key('watchers', metadata.id), watcher)
end
return reply({ created, record(metadata.id) })
