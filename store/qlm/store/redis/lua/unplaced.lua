-- -> instance, why, ... of the instances reported as unplaced that are not alive
local found = {}
for _, instance in ipairs(call('SMEMBERS', PREFIX .. 'unplaced')) do
  local why = call('GET', key('unplaced', instance))
  if why and call('EXISTS', key('instance', instance)) == 0 then
    found[#found + 1] = instance
    found[#found + 1] = why
  else
    call('SREM', PREFIX .. 'unplaced', instance)
    call('DEL', key('unplaced', instance))
  end
end
return reply(found)
