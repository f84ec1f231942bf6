-- id, watcher, 1 to watch or 0 to stop, fingerprint of the request to watch -> number of other watchers
local id, watcher = ARGV[FIRST], ARGV[FIRST + 1]
local watchers = key('watchers', id)
if ARGV[FIRST + 2] == '0' then
  call('SREM', watchers, watcher)
else
  local row = read_row(id)
  if row and row.state ~= 'ended' and is_same_request(row, { fingerprint = ARGV[FIRST + 3] }) then
    call('SADD', watchers, watcher)
    if row.state == 'queued' then
      wait(row) -- the list of those that wait may have been lost
    end
  end
end
return reply(call('SCARD', watchers) - call('SISMEMBER', watchers, watcher))
