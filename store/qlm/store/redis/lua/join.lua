-- id, address of the broker, id that may be replaced, lifetime of the membership in milliseconds
-- -> 1, or 0 if this Redis is of another deployment
local id, partner, instead_of = ARGV[FIRST], ARGV[FIRST + 1], ARGV[FIRST + 2]
local present = call('HGET', PREFIX .. 'deployment', 'id')
if present ~= id then
  if present and (present ~= instead_of or call('EXISTS', key('members', present)) == 1) then
    return reply(0)
  end
  call('HSET', PREFIX .. 'deployment', 'id', id, 'partner', partner)
end
call('SET', key('members', id), 1, 'PX', ARGV[FIRST + 3])
return reply(1)
