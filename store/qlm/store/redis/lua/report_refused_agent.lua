-- instance, why, lifetime in milliseconds
local instance = ARGV[FIRST]
call('SET', key('refused', instance), ARGV[FIRST + 1], 'PX', ARGV[FIRST + 2])
call('SADD', PREFIX .. 'refused', instance)
return reply(1)
