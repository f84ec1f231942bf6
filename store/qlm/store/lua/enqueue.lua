-- card, watcher ('' for none) -> {1 if created, record}
local card, watcher = read_card(FIRST), ARGV[FIRST + CARD_ARGUMENTS]
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
    notify(group.queue, { kind = 'queue' })
  end
  wake('request')
end
if watcher ~= '' and state ~= 'ended' then
  call('SADD', key('watchers', card.id), watcher)
end
return finish({ created, record(card.id) })
