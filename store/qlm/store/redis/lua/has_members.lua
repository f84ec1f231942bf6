-- id of a deployment -> 1 if one of its processes has given a sign of life lately
return reply(call('EXISTS', key('members', ARGV[FIRST])))
