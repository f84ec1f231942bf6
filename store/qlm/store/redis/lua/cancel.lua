-- id, outcome -> record or false
local id, outcome = ARGV[FIRST], ARGV[FIRST + 1]
local row = read_row(id)
if row and row.state ~= 'ended' then
  if row.instance and alive(row.instance, row.session) then
    if not row.cancel then
      row.cancel = outcome
      call('HSET', key('request', id), 'cancel', outcome)
      add_event(id, 'cancel_asked', outcome, row.instance)
    end
    notify(row.instance, { kind = 'cancel', id = id, outcome = row.cancel })
  else
    end_request(row, row.cancel or outcome, '')
  end
end
return reply(record(id))
