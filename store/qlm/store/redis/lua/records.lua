-- state ('' for any), model ('' for any), limit, entry to begin after ('' for the newest), entries to look at
-- -> {records, newest arrival first; the last entry looked at, or '' if there are no more}
local state, model, limit = ARGV[FIRST], ARGV[FIRST + 1], tonumber(ARGV[FIRST + 2])
local after, looks = ARGV[FIRST + 3], tonumber(ARGV[FIRST + 4])
local index = PREFIX .. ((state == 'running' or state == 'parked') and 'held' or 'requests')
local from = after == '' and '+' or '(' .. after
local found = {}
local entries = call('ZRANGE', index, from, '-', 'BYLEX', 'REV', 'LIMIT', 0, looks)
for _, entry in ipairs(entries) do
  if #found == limit then
    break
  end
  local id = string.sub(entry, TIME_DIGITS + 2)
  local values = call('HMGET', key('request', id), 'state', 'model')
  if values[1] and (state == '' or values[1] == state) and (model == '' or values[2] == model) then
    found[#found + 1] = record(id)
  end
end
return reply({ found, #entries == looks and entries[looks] or '' })
