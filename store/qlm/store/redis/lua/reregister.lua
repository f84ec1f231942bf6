-- metadata, instance, session, whole packed log -> as lease
local metadata, at = read_metadata(FIRST), FIRST + METADATA_ARGUMENTS
local instance, session, packed = ARGV[at], ARGV[at + 1], ARGV[at + 2]
local row = read_row(metadata.id)
if not row then
  add(metadata)
  row = read_row(metadata.id)
end
local refused = refusal(row, metadata, instance, session)
if refused then
  return reply(refused)
end
call('ZADD', PREFIX .. 'requests', 0, member(row.arrival, row.id)) -- should that have been lost
stop_waiting(row)
local tokens = drop_damaged_log(row)
local tail = string.sub(packed, tokens * TOKEN_BYTES + 1)
local log = call('GET', key('log', row.id)) or ''
-- Of an agent whose tokens are not those in the log, none is added: another one has gone on.
if tail ~= '' and string.sub(packed, 1, #log) == log then
  extend(row, tail)
  local ids = {}
  for i = 1, #tail, TOKEN_BYTES do
    ids[#ids + 1] = string.format('%.0f', (struct.unpack('<I4', tail, i)))
  end
  local part = cjson.encode({ id = metadata.id, offset = tokens })
  announce(metadata.id, string.sub(part, 1, -2) .. ',"token_ids":[' .. table.concat(ids, ',') .. ']}')
end
if row.cancel then
  notify(instance, { kind = 'cancel', id = metadata.id, outcome = row.cancel })
end
return reply(grant(row, instance, session, 'restored'))
