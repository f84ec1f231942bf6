-- metadata without its texts, detail -> 1 if the request has ended

-- Leave no detail in the event of an end: it may quote its client.
local function forget_detail(id, outcome)
  local events = key('events', id)
  for at, text in ipairs(call('LRANGE', events, 0, -1)) do
    local event = cjson.decode(text)
    if event[2] == 'ended' then
      event[3] = outcome
      call('LSET', events, at - 1, cjson.encode(event))
    end
  end
end

local metadata = read_metadata(FIRST)
local row = read_row(metadata.id)
if not row or row.state ~= 'ended' or not is_same_request(row, metadata) then
  return reply(0)
end
local hash = key('request', metadata.id)
if call('HEXISTS', hash, 'erased') == 0 then
  drop_extensions(hash)
  call('DEL', key('log', metadata.id))
  call('HSET', hash, 'card', metadata.plain, 'tokens', 0, 'detail', ARGV[FIRST + METADATA_ARGUMENTS], 'erased', 1)
  forget_detail(metadata.id, row.outcome)
  add_event(metadata.id, 'erased', '')
end
return reply(1)
