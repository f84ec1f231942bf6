-- subject, how it ended, tenant, time of its end
add_end(ARGV[FIRST], ARGV[FIRST + 1], ARGV[FIRST + 2], ARGV[FIRST + 3])
return reply(1)
