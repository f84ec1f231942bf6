-- key behind the prefix -> its text, or nothing
return reply(call('GET', PREFIX .. ARGV[FIRST]))
