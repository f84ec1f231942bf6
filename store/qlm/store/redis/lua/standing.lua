-- instance -> {1 if asked to drain, cancellations for its present session as id, outcome, ..., leases of that session
-- as id, incarnation, n, ...}
local instance = ARGV[FIRST]
local session, drain = unpack(call('HMGET', key('instance', instance), 'session', 'drain'))
local cancels, leases = {}, {}
if session then
  for _, entry in ipairs(call('ZRANGE', PREFIX .. 'held', 0, -1)) do
    local id = string.sub(entry, TIME_DIGITS + 2)
    local row = read_row(id)
    if row and row.instance == instance and row.session == session then
      for _, value in ipairs({ id, row.incarnation, row.n }) do
        leases[#leases + 1] = value
      end
      if row.cancel then
        cancels[#cancels + 1] = id
        cancels[#cancels + 1] = row.cancel
      end
    end
  end
end
return reply({ drain and 1 or 0, cancels, leases })
