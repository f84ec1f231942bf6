-- id of a deployment, lifetime of the membership in milliseconds -> 1, or 0 if this Redis is not of that deployment
local id = ARGV[FIRST]
if call('HGET', PREFIX .. 'deployment', 'id') ~= id then
  return reply(0)
end
call('SET', key('members', id), 1, 'PX', ARGV[FIRST + 1])
return reply(1)
