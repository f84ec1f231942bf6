-- why -> ids of the requests whose holder was dead
local ids = {}
for _, member in ipairs(call('ZRANGE', PREFIX .. 'held', 0, -1)) do
  local id = string.sub(member, TIME_DIGITS + 2)
  local row = read_row(id)
  if row and row.instance and not alive(row.instance, row.session) then
    put_back(row, ARGV[FIRST])
    ids[#ids + 1] = id
  end
end
return finish(ids)
