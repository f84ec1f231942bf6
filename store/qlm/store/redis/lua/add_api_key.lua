-- id, API key
call('HSET', PREFIX .. 'api_keys', ARGV[FIRST], ARGV[FIRST + 1])
return reply(1)
