-- outcome, detail, ids... -> those that waited, and have ended now
local ended = {}
for i = FIRST + 2, #ARGV do
  local row = read_row(ARGV[i])
  if row and row.state == 'queued' then
    end_request(row, ARGV[FIRST], ARGV[FIRST + 1])
    ended[#ended + 1] = row.id
  end
end
prune()
return reply(ended)
