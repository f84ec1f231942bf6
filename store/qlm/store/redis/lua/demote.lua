-- metadata, incarnation, n, why -> 1 if the request waits in that class now, or ends because it was cancelled

-- Count a request whose first token came in time, if its objective is about that.
local function count_kept(row, metadata)
  local slo = cjson.decode(metadata.plain).slo
  local first = call('HGET', key('request', row.id), 'first_token_at')
  if slo.kind == 'token' and first and span_s(row.arrival, first) <= slo.ttft_ms / 1000 then
    call('HINCRBY', key('class', metadata.class), 'kept', 1)
  end
end

local metadata, at = read_metadata(FIRST), FIRST + METADATA_ARGUMENTS
local row = read_row(metadata.id)
if not row then
  add(metadata)
  wait(read_row(metadata.id))
  wake('returned')
  return reply(1)
end
if row.outcome or not is_same_request(row, metadata) then
  return reply(0)
end
if row.instance and not is_current(row, ARGV[at], ARGV[at + 1]) then
  return reply(0)
end
stop_waiting(row)
if row.class ~= metadata.class then
  call('HSET', key('request', metadata.id), 'card', metadata.plain, 'class', metadata.class)
  count_accepted(metadata)
  count_kept(row, metadata)
  row.class = metadata.class
end
put_back(row, ARGV[at + 2])
return reply(1)
