-- id, offset -> {offset of the slice, packed ids, outcome, detail, fingerprint, extensions} or false
local id = ARGV[FIRST]
local row = call('HMGET', key('request', id), 'state', 'outcome', 'detail', 'fingerprint', 'tokens', 'n',
  'counted', 'extended', 'erased')
if not row[1] then
  return reply(false)
end
local outcome, detail = row[2] or '', row[3] or ''
-- Rows of earlier versions have their fingerprint only here.
local fingerprint = row[4] or cjson.decode(call('HGET', key('request', id), 'card')).fingerprint
if row[9] and is_answer(outcome) then
  outcome = 'output_lost'
end
local tokens, whole = log_state(id, row[5], row[6], row[7])
if not whole then
  if is_answer(outcome) then
    outcome, detail = 'output_lost', lost_detail(tokens, row[5])
  end
  return reply({ 0, '', outcome, detail, fingerprint, {} })
end
local offset = math.min(math.max(tonumber(ARGV[FIRST + 1]), 0), tokens)
return reply({
  offset, call('GETRANGE', key('log', id), offset * TOKEN_BYTES, -1), outcome, detail, fingerprint,
  extensions_of(key('request', id), row[8]),
})
