-- card, instance, session, group ('' for none) -> {'granted', n, log, incarnation}, {'held', ...} or {'over', outcome}
local card, at = read_card(FIRST), FIRST + CARD_ARGUMENTS
local instance, session, group = ARGV[at], ARGV[at + 1], ARGV[at + 2]
local row = read_row(card.id)
if not row then
  add(card)
  row = read_row(card.id)
end
local refused = refusal(row, instance, session)
if not refused and row.cancel then
  finish_request(row, row.cancel, '')
  refused = { 'over', row.cancel }
end
if refused then
  return finish(refused)
end
if stop_waiting(row) and group ~= '' then
  local pulled = group_row(group)
  if pulled and pulled.class == row.class and pulled.count > pulled.pulled then
    call('HINCRBY', key('group', group), 'pulled', 1)
  end
end
return finish(grant(row, instance, session, 'leased'))
