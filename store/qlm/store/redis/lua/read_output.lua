-- id, offset -> {offset of the slice, packed ids, outcome, detail, fingerprint} or false
local id = ARGV[FIRST]
local row = call('HMGET', key('request', id), 'state', 'outcome', 'detail', 'fingerprint')
if not row[1] then
  return reply(false)
end
local offset = math.min(math.max(tonumber(ARGV[FIRST + 1]), 0), log_tokens(id))
local packed = call('GETRANGE', key('log', id), offset * TOKEN_BYTES, -1)
-- Rows of earlier versions have their fingerprint only here.
local fingerprint = row[4] or cjson.decode(call('HGET', key('request', id), 'card')).fingerprint
return reply({ offset, packed, row[2] or '', row[3] or '', fingerprint })
