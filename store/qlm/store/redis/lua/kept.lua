-- -> {number of ended requests that are kept, time of the end of the oldest or ''}
local oldest = call('LINDEX', PREFIX .. 'ended', 0)
local ended_at = oldest and call('HGET', key('request', string.sub(oldest, TIME_DIGITS + 2)), 'ended_at')
return reply({ call('LLEN', PREFIX .. 'ended'), ended_at or '' })
