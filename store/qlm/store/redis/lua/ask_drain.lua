-- instance -> 1 if it is alive
local instance = ARGV[FIRST]
if call('EXISTS', key('instance', instance)) == 0 then
  return reply(0)
end
call('HSET', key('instance', instance), 'drain', 1)
notify(instance, { kind = 'drain' })
return reply(1)
