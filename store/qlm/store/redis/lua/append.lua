-- Return a slice with another detail; nil if it has no tokens, since `end_request` makes such a one itself. It is
-- text to this script: cjson would change what later versions put into it. Of two fields of a name, the last counts.
local function with_detail(slice, packed, detail)
  if packed == '' then
    return nil
  end
  return string.sub(slice, 1, -2) .. ',"detail":' .. cjson.encode(detail) .. '}'
end

-- entries of nine arguments: id, incarnation, n, offset, packed ids, outcome ('' for none), detail, slice, extensions
-- -> one word per entry
local function append(at)
  local id, incarnation, n, offset = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  local packed, outcome, detail, slice = ARGV[at + 4], ARGV[at + 5], ARGV[at + 6], ARGV[at + 7]
  local row = read_row(id)
  if not row then
    return 'unknown'
  end
  local tokens, whole = log_state(id, row.tokens, row.n, row.counted)
  if row.state == 'ended' then
    return 'ended'
  elseif is_earlier(incarnation, row.incarnation) then
    return 'unknown'
  elseif not is_current(row, incarnation, n) then
    return 'stale'
  elseif offset ~= tokens or not whole then
    return 'gap'
  end
  extend(row, packed)
  keep_extensions(key('request', id), ARGV[at + 8])
  if outcome ~= '' then
    if outcome == row.cancel and row.cancel_why and row.cancel_why ~= '' then
      -- Its holder was asked to end it, and does not know on whose behalf.
      detail, slice = row.cancel_why, with_detail(slice, packed, row.cancel_why)
    end
    end_request(row, outcome, detail, slice)
  elseif packed ~= '' then
    announce(id, slice)
  end
  return 'taken'
end

local answers = {}
for at = FIRST, #ARGV, 9 do
  answers[#answers + 1] = append(at)
end
return reply(answers)
