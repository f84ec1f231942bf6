-- id -> record or false
return reply(record(ARGV[FIRST]))
