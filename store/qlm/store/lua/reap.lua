-- incarnation, n of the leader, why -> ids of the requests whose holder was dead, or nothing if another one leads
if not leads(ARGV[FIRST], ARGV[FIRST + 1]) then
  return finish(false)
end
local ids = {}
for _, member in ipairs(call('ZRANGE', PREFIX .. 'held', 0, -1)) do
  local id = string.sub(member, TIME_DIGITS + 2)
  local row = read_row(id)
  if row and row.instance and not alive(row.instance, row.session) then
    put_back(row, ARGV[FIRST + 2])
    ids[#ids + 1] = id
  end
end
return finish(ids)
