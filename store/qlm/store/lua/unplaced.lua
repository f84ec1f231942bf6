-- -> instance, why, ... of those that were said to have no place and do not live
local told = {}
for _, instance in ipairs(call('SMEMBERS', PREFIX .. 'unplaced')) do
  local why = call('GET', key('unplaced', instance))
  if why and call('EXISTS', key('instance', instance)) == 0 then
    told[#told + 1] = instance
    told[#told + 1] = why
  else
    call('SREM', PREFIX .. 'unplaced', instance)
    call('DEL', key('unplaced', instance))
  end
end
return finish(told)
