-- card, instance, session, whole packed log -> as lease
local card, at = read_card(FIRST), FIRST + CARD_ARGUMENTS
local instance, session, packed = ARGV[at], ARGV[at + 1], ARGV[at + 2]
local row = read_row(card.id)
if not row then
  add(card)
  row = read_row(card.id)
end
local refused = refusal(row, instance, session)
if refused then
  return finish(refused)
end
stop_waiting(row)
local tokens = log_tokens(card.id)
local tail = string.sub(packed, tokens * TOKEN_BYTES + 1)
if tail ~= '' then
  extend(row, tail)
  local ids = {}
  for i = 1, #tail, TOKEN_BYTES do
    ids[#ids + 1] = string.format('%.0f', (struct.unpack('<I4', tail, i)))
  end
  local part = cjson.encode({ id = card.id, offset = tokens })
  announce(card.id, string.sub(part, 1, -2) .. ',"token_ids":[' .. table.concat(ids, ',') .. ']}')
end
if row.cancel then
  notify(instance, { kind = 'cancel', id = card.id, outcome = row.cancel })
end
return finish(grant(row, instance, session, 'restored'))
