-- id, outcome, why ('' for no reason) -> record or false
local id, outcome, why = ARGV[FIRST], ARGV[FIRST + 1], ARGV[FIRST + 2]
local row = read_row(id)
if row and row.state ~= 'ended' then
  if row.instance and alive(row.instance, row.session) then
    if not row.cancel then
      row.cancel = outcome
      call('HSET', key('request', id), 'cancel', outcome, 'cancel_why', why)
      add_event(id, 'cancel_asked', why ~= '' and why or outcome, row.instance)
    end
    notify(row.instance, { kind = 'cancel', id = id, outcome = row.cancel })
  else
    end_request(row, row.cancel or outcome, row.cancel and (row.cancel_why or '') or why)
  end
end
return reply(record(id))
