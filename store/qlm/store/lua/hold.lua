-- id, incarnation, n, what (park, resume, release), why -> 1 if the epoch is current
local id, what, why = ARGV[FIRST], ARGV[FIRST + 3], ARGV[FIRST + 4]
local row = read_row(id)
if not is_current(row, ARGV[FIRST + 1], ARGV[FIRST + 2]) then
  return finish(0)
end
if what == 'release' then
  put_back(row, why)
else
  local state = what == 'park' and 'parked' or 'running'
  if row.state ~= state then
    call('HSET', key('request', id), 'state', state)
    note(id, what == 'park' and 'evicted' or 'resumed', why, row.instance)
  end
end
return finish(1)
