-- metadata, outcome -> 1 if its id was unknown
local metadata = read_metadata(FIRST)
if read_row(metadata.id) then
  return reply(0)
end
add(metadata)
end_request(read_row(metadata.id), ARGV[FIRST + METADATA_ARGUMENTS], '')
return reply(1)
