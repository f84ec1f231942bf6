-- id, incarnation, n, change (park, resume or release), why -> 1 if the epoch is current
local id, change, why = ARGV[FIRST], ARGV[FIRST + 3], ARGV[FIRST + 4]
local row = read_row(id)
if not is_current(row, ARGV[FIRST + 1], ARGV[FIRST + 2]) then
  return reply(0)
end
if change == 'release' then
  put_back(row, why)
else
  local state = change == 'park' and 'parked' or 'running'
  if row.state ~= state then
    call('HSET', key('request', id), 'state', state)
    add_event(id, change == 'park' and 'evicted' or 'resumed', why, row.instance)
  end
end
return reply(1)
