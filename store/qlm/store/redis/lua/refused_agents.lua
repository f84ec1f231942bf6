-- -> instance, why, ... of the instances of which a second agent was refused
local found = {}
for _, instance in ipairs(call('SMEMBERS', PREFIX .. 'refused')) do
  local why = call('GET', key('refused', instance))
  if why then
    found[#found + 1] = instance
    found[#found + 1] = why
  else
    call('SREM', PREFIX .. 'refused', instance)
  end
end
return reply(found)
