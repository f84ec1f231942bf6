-- -> 1 after a write
call('SET', PREFIX .. 'probe', NOW, 'PX', TTL_MS)
return reply(1)
