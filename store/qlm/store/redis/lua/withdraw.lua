-- metadata, outcome -> 1 if its id was unknown
local metadata = read_metadata(FIRST)
if read_row(metadata.id) then
  return reply(0)
end
add(metadata)
local row = read_row(metadata.id)
row.notify = nil -- its client knows
end_request(row, ARGV[FIRST + METADATA_ARGUMENTS], '')
return reply(1)
