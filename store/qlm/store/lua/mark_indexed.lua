-- incarnation, n of the leader -> 1, or nothing if another one leads
if not leads(ARGV[FIRST], ARGV[FIRST + 1]) then
  return finish(false)
end
call('SET', PREFIX .. 'indexed', NOW)
return finish(1)
