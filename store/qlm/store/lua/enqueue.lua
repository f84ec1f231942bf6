-- card, watcher ('' for none), incarnation ('' for any) -> {1 if created, record}, or nothing if it is another
local function soon_reached(group)
  local ahead = 0
  for _, id in ipairs(call('LRANGE', key('queue', group.queue), 0, -1)) do
    local counts = call('HMGET', key('group', id), 'count', 'pulled')
    ahead = ahead + tonumber(counts[1]) - tonumber(counts[2])
    if ahead > UNTOLD_AHEAD then
      return false
    elseif id == group.id then
      return true
    end
  end
  return true
end

local card, watcher = read_card(FIRST), ARGV[FIRST + CARD_ARGUMENTS]
local incarnation = ARGV[FIRST + CARD_ARGUMENTS + 1]
if incarnation ~= '' and incarnation ~= INCARNATION then
  return finish(false)
end
local state = call('HGET', key('request', card.id), 'state')
local created = 0
if not state then
  created, state = 1, 'queued'
  add(card)
  wait(card)
  local newest = call('ZRANGE', key('groups', card.class), -1, -1)[1]
  local group = newest and group_row(newest)
  if group and group.sealed == '0' and group.queue ~= '' then
    call('HINCRBY', key('group', newest), 'count', 1)
    if soon_reached(group) then
      notify(group.queue, { kind = 'queue' })
    end
  end
  wake('request')
end
if watcher ~= '' and state ~= 'ended' then
  call('SADD', key('watchers', card.id), watcher)
end
return finish({ created, record(card.id) })
