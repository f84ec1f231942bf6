-- metadata without its texts, detail -> 1 if the request has ended
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
  add_event(metadata.id, 'erased', '')
end
return reply(1)
