-- class, first rank, limit -> ids of its waiting requests, oldest arrival first
local first, limit = tonumber(ARGV[FIRST + 1]), tonumber(ARGV[FIRST + 2])
local ids = {}
for _, entry in ipairs(call('ZRANGE', key('waiting', ARGV[FIRST]), first, first + limit - 1)) do
  ids[#ids + 1] = string.sub(entry, TIME_DIGITS + 2)
end
return reply(ids)
