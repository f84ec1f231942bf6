-- incarnation, n of the term, why -> ids of the requests with a dead holder, or nothing if the term is not current
if not leads(ARGV[FIRST], ARGV[FIRST + 1]) then
  return reply(false)
end
local ids, lost = {}, false
for _, entry in ipairs(call('ZRANGE', PREFIX .. 'held', 0, -1)) do
  local id = string.sub(entry, TIME_DIGITS + 2)
  local row = read_row(id)
  if row and row.instance and not alive(row.instance, row.session) then
    put_back(row, ARGV[FIRST + 2])
    ids[#ids + 1] = id
  end
  lost = lost or not (row and row.instance)
end
if lost then
  recount_leases()
end
return reply(ids)
