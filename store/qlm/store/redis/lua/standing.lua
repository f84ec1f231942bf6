-- instance -> {1 if asked to drain, cancellations for its present session as id, outcome, ...}
local instance = ARGV[FIRST]
local session, drain = unpack(call('HMGET', key('instance', instance), 'session', 'drain'))
local cancels = {}
if session then
  for _, entry in ipairs(call('ZRANGE', PREFIX .. 'held', 0, -1)) do
    local id = string.sub(entry, TIME_DIGITS + 2)
    local row = read_row(id)
    if row and row.cancel and row.instance == instance and row.session == session then
      cancels[#cancels + 1] = id
      cancels[#cancels + 1] = row.cancel
    end
  end
end
return reply({ drain and 1 or 0, cancels })
