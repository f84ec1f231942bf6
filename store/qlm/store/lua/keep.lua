-- incarnation, n of the leader, what, data, seconds to keep it -> 1, or nothing if another one leads
if not leads(ARGV[FIRST], ARGV[FIRST + 1]) then
  return finish(false)
end
call('SET', PREFIX .. ARGV[FIRST + 2], ARGV[FIRST + 3], 'EX', ARGV[FIRST + 4])
return finish(1)
