-- id, watcher, 1 to watch or 0 to stop -> number of other watchers
local id, watcher = ARGV[FIRST], ARGV[FIRST + 1]
local watchers = key('watchers', id)
if ARGV[FIRST + 2] == '0' then
  call('SREM', watchers, watcher)
elseif (call('HGET', key('request', id), 'state') or 'ended') ~= 'ended' then
  call('SADD', watchers, watcher)
end
return reply(call('SCARD', watchers) - call('SISMEMBER', watchers, watcher))
