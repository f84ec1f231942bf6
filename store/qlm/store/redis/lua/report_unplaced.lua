-- instance, why, lifetime in milliseconds
local instance = ARGV[FIRST]
call('SET', key('unplaced', instance), ARGV[FIRST + 1], 'PX', ARGV[FIRST + 2])
call('SADD', PREFIX .. 'unplaced', instance)
return reply(1)
