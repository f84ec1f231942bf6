-- state ('' for any), model ('' for any), limit -> records, newest arrival first
local state, model, limit = ARGV[FIRST], ARGV[FIRST + 1], tonumber(ARGV[FIRST + 2])
local index = PREFIX .. ((state == 'running' or state == 'parked') and 'held' or 'requests')
local PAGE = 256
local found, at = {}, 0
while #found < limit do
  local page = call('ZRANGE', index, at, at + PAGE - 1, 'REV')
  if #page == 0 then
    break
  end
  at = at + #page
  for _, entry in ipairs(page) do
    local id = string.sub(entry, TIME_DIGITS + 2)
    local values = call('HMGET', key('request', id), 'state', 'model')
    local fits = values[1] and (state == '' or values[1] == state) and (model == '' or values[2] == model)
    if fits and #found < limit then
      found[#found + 1] = record(id)
    end
  end
end
return reply(found)
