-- metadata, instance, session, group ('' for none) -> {'granted', n, log, incarnation}, {'held', ...},
-- {'over', outcome} or {'taken'}
local metadata, at = read_metadata(FIRST), FIRST + METADATA_ARGUMENTS
local instance, session, group = ARGV[at], ARGV[at + 1], ARGV[at + 2]
local row = read_row(metadata.id)
if not row then
  add(metadata)
  row = read_row(metadata.id)
end
local refused = refusal(row, metadata, instance, session)
if not refused and row.cancel then
  end_request(row, row.cancel, row.cancel_why or '')
  refused = { 'over', row.cancel }
end
if refused then
  return reply(refused)
end
if stop_waiting(row) and group ~= '' then
  local pulled = group_row(group)
  if pulled and pulled.class == row.class and pulled.count > pulled.pulled then
    call('HINCRBY', key('group', group), 'pulled', 1)
  end
end
return reply(grant(row, instance, session, 'leased'))
