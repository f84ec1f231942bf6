-- id of a deployment
return reply(call('DEL', key('members', ARGV[FIRST])))
