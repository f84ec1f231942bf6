-- card, outcome -> 1 if its id was not known
local card = read_card(FIRST)
if read_row(card.id) then
  return finish(0)
end
add(card)
finish_request(read_row(card.id), ARGV[FIRST + CARD_ARGUMENTS], '')
return finish(1)
