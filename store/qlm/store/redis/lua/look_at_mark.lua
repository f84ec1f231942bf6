-- -> {id of the deployment that uses this Redis, address of its broker}; both empty if there is none
local id, partner = unpack(call('HMGET', PREFIX .. 'deployment', 'id', 'partner'))
return reply({ id or '', partner or '' })
