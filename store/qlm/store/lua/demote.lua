-- card, incarnation, n, why -> 1 if the request waits in the card's class now, or ends since that was asked for
local card, at = read_card(FIRST), FIRST + CARD_ARGUMENTS
local row = read_row(card.id)
if not row then
  add(card)
  wait(read_row(card.id))
  wake('returned')
  return finish(1)
end
if row.outcome or (row.instance and not is_current(row, ARGV[at], ARGV[at + 1])) then
  return finish(0)
end
stop_waiting(row)
if row.class ~= card.class then
  call('HSET', key('request', card.id), 'card', card.plain, 'class', card.class)
  count_accepted(card)
  row.class = card.class
end
put_back(row, ARGV[at + 2])
return finish(1)
