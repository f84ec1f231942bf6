-- id -> record or false
return finish(record(ARGV[FIRST]))
