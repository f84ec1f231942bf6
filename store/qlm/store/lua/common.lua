-- What every script shares; it stands before each of them. The layout is described in redis.py.
-- Times are twenty decimal digits of nanoseconds: a Lua number cannot hold them, and as text they sort.
local PREFIX, NOW, SEED, CUTOFF = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local TTL_MS, RESULTS_MAX, EVENTS_MAX = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local LENGTHS_WINDOW = tonumber(ARGV[8])
local FIRST = 9 -- where the script's own arguments begin
local TIME_DIGITS, TOKEN_BYTES = 20, 4
local call = redis.call

local function key(kind, name)
  return PREFIX .. kind .. ':' .. name
end

local INCARNATION = call('GET', PREFIX .. 'incarnation')
if not INCARNATION then
  call('SET', PREFIX .. 'incarnation', SEED)
  INCARNATION = SEED
end

-- announcements: output is gathered, and published once per gateway when the script ends

local announced = {}

local function announce(id, slice)
  for _, watcher in ipairs(call('SMEMBERS', key('watchers', id))) do
    local slices = announced[watcher]
    if not slices then
      slices = {}
      announced[watcher] = slices
    end
    slices[#slices + 1] = slice
  end
end

local function finish(answer)
  for watcher, slices in pairs(announced) do
    call('PUBLISH', key('outputs', watcher), '[' .. table.concat(slices, ',') .. ']')
  end
  return answer
end

local function notify(instance, notice)
  call('PUBLISH', key('notices', instance), cjson.encode(notice))
end

local function wake(reason)
  call('PUBLISH', PREFIX .. 'wakeups', reason)
end

-- rows

local function note(id, what, why, instance)
  local event = cjson.encode({ NOW, what, why, instance or '' })
  if call('RPUSH', key('events', id), event) > EVENTS_MAX then
    call('LPOP', key('events', id))
  end
end

local function place(arrival, id)
  return arrival .. ':' .. id
end

local function log_tokens(id)
  return call('STRLEN', key('log', id)) / TOKEN_BYTES
end

-- A record as {fields and values, output tokens, events, incarnation}, or false.
local function record(id)
  local fields = call('HGETALL', key('request', id))
  if #fields == 0 then
    return false
  end
  return { fields, log_tokens(id), call('LRANGE', key('events', id), 0, -1), INCARNATION }
end

-- A card arrives as eight arguments.
local function read_card(at)
  return {
    id = ARGV[at], plain = ARGV[at + 1], class = ARGV[at + 2], model = ARGV[at + 3],
    arrival = ARGV[at + 4], drop_at = ARGV[at + 5], prompt_tokens = ARGV[at + 6], max_tokens = ARGV[at + 7],
  }
end
local CARD_ARGUMENTS = 8

local function count_accepted(card)
  call('SADD', PREFIX .. 'classes', card.class)
  local sums = key('class', card.class)
  call('HINCRBY', sums, 'accepted', 1)
  for _, name in ipairs({ 'prompt', 'max' }) do
    local tokens = card[name .. '_tokens']
    call('HINCRBY', sums, name .. '_tokens', tokens)
    call('HINCRBY', sums, name .. '_squares', string.format('%.0f', tokens * tokens))
  end
end

local function add(card)
  call('HSET', key('request', card.id), 'card', card.plain, 'class', card.class, 'model', card.model,
    'arrival', card.arrival, 'drop_at', card.drop_at, 'state', 'queued', 'n', 0)
  call('ZADD', PREFIX .. 'requests', 0, place(card.arrival, card.id))
  count_accepted(card)
  note(card.id, 'accepted', '')
end

local function alive(instance, session)
  return call('HGET', key('instance', instance), 'session') == session
end

-- transitions; `row` is what HMGET gave of the request

local ROW = { 'class', 'arrival', 'drop_at', 'state', 'n', 'instance', 'session', 'outcome', 'cancel' }

local function read_row(id)
  local values = call('HMGET', key('request', id), unpack(ROW))
  if not values[1] then
    return nil
  end
  local row = { id = id }
  for i, field in ipairs(ROW) do
    row[field] = values[i]
  end
  return row
end

local function wait(row)
  call('ZADD', key('waiting', row.class), 0, place(row.arrival, row.id))
  if row.drop_at ~= '' then
    call('ZADD', PREFIX .. 'drops', 0, place(row.drop_at, row.id))
  end
end

local function stop_waiting(row)
  if call('ZREM', key('waiting', row.class), place(row.arrival, row.id)) == 0 then
    return false
  end
  if row.drop_at ~= '' then
    call('ZREM', PREFIX .. 'drops', place(row.drop_at, row.id))
  end
  return true
end

local function count_lease(instance, change)
  if instance then
    call('HINCRBY', PREFIX .. 'leases', instance, change)
  end
end

local function unhold(row)
  count_lease(row.instance, -1)
  call('HDEL', key('request', row.id), 'instance', 'session')
  call('ZREM', PREFIX .. 'held', place(row.arrival, row.id))
end

local function prune()
  local ended = PREFIX .. 'ended'
  while true do
    local oldest = call('LINDEX', ended, 0)
    if not oldest then
      return
    end
    local id = string.sub(oldest, TIME_DIGITS + 2)
    local state, arrival, ended_at = unpack(call('HMGET', key('request', id), 'state', 'arrival', 'ended_at'))
    -- Redis itself may have let it go by its time to live, and a namesake may have come since.
    local ours = state == 'ended' and place(arrival, id) == oldest
    if ours and call('LLEN', ended) <= RESULTS_MAX and ended_at > CUTOFF then
      return
    end
    call('LPOP', ended)
    if ours then
      call('DEL', key('request', id), key('log', id), key('events', id))
    end
    if ours or not state or place(arrival, id) ~= oldest then
      call('ZREM', PREFIX .. 'requests', oldest)
    end
  end
end

local function slice(row, tokens, outcome, detail)
  local part = { id = row.id, offset = tokens, token_ids = {}, outcome = outcome, detail = detail }
  return (string.gsub(cjson.encode(part), '"token_ids":{}', '"token_ids":[]'))
end

-- Count the length of an answer; see length_tally.py. `lengths:<class>` is a row of 64-bit numbers: the
-- answers in it, then by bin those that came to their end, their tokens, those that did not, their tokens.
local function count_length(class, outcome, tokens)
  if tokens == 0 then
    return
  end
  local recent = key('lengths', class)
  if call('BITFIELD', recent, 'GET', 'i64', '#0')[1] >= LENGTHS_WINDOW then
    call('RENAME', recent, key('former-lengths', class))
  end
  local bin = 0
  while bin < #LENGTH_EDGES - 2 and tokens > LENGTH_EDGES[bin + 2] do
    bin = bin + 1
  end
  local slot = 1 + 4 * bin + (outcome == 'stop' and 0 or 2)
  call('BITFIELD', recent, 'INCRBY', 'i64', '#0', 1, 'INCRBY', 'i64', '#' .. slot, 1,
    'INCRBY', 'i64', '#' .. slot + 1, tokens)
end

-- End a request; `tail` is the slice to announce, if it is more than the outcome.
local function finish_request(row, outcome, detail, tail)
  if stop_waiting(row) then
    wake('removed')
  end
  unhold(row)
  call('HSET', key('request', row.id), 'state', 'ended', 'outcome', outcome, 'detail', detail, 'ended_at', NOW)
  note(row.id, 'ended', detail ~= '' and detail or outcome, row.instance)
  local tokens = log_tokens(row.id)
  if outcome == 'stop' or outcome == 'length' then
    call('HINCRBY', key('class', row.class), 'finished', 1)
  end
  count_length(row.class, outcome, tokens)
  announce(row.id, tail or slice(row, tokens, outcome, detail))
  call('DEL', key('watchers', row.id))
  call('RPUSH', PREFIX .. 'ended', place(row.arrival, row.id))
  for _, kind in ipairs({ 'request', 'log', 'events' }) do
    call('PEXPIRE', key(kind, row.id), TTL_MS)
  end
  prune()
end

local function extend(row, packed)
  if packed ~= '' then
    call('APPEND', key('log', row.id), packed)
    local first = call('HSETNX', key('request', row.id), 'first_token_at', NOW) == 1
    if first and row.drop_at ~= '' then
      local slo = cjson.decode(call('HGET', key('request', row.id), 'card')).slo.kind
      if slo == 'token' or slo == 'reading' then
        -- What its objective is about has come: it is not late any more.
        row.drop_at = ''
        call('HSET', key('request', row.id), 'drop_at', '')
      end
    end
  end
end

local function grant(row, instance, session, what)
  count_lease(row.instance, -1)
  count_lease(instance, 1)
  local n = call('HINCRBY', key('request', row.id), 'n', 1)
  call('HSET', key('request', row.id), 'state', 'running', 'instance', instance, 'session', session)
  call('ZADD', PREFIX .. 'held', 0, place(row.arrival, row.id))
  note(row.id, what, '', instance)
  return { 'granted', n, call('GET', key('log', row.id)) or '', INCARNATION }
end

-- Give a leased request back: it waits again, unless its end was asked for.
local function put_back(row, why)
  note(row.id, 'returned', why, row.instance)
  if row.cancel then
    finish_request(row, row.cancel, '')
  else
    unhold(row)
    call('HSET', key('request', row.id), 'state', 'queued')
    wait(row)
    wake('returned')
  end
end

-- Why a lease is refused: over, or held by another who lives; nil if it is not.
local function refusal(row, instance, session)
  if row.outcome then
    return { 'over', row.outcome }
  end
  if row.instance and not (row.instance == instance and row.session == session)
    and alive(row.instance, row.session) then
    return { 'held', row.instance, row.session }
  end
  return nil
end

local function is_current(row, incarnation, n)
  return row and row.instance and row.n == n and incarnation == INCARNATION
end

-- Whether a controller leads under this term; an empty incarnation asks for none.
local function leads(incarnation, n)
  return incarnation == '' or (incarnation == INCARNATION and call('HGET', PREFIX .. 'leader', 'n') == n)
end

-- groups

local function group_row(id)
  local values = call('HMGET', key('group', id), 'class', 'seq', 'count', 'pulled', 'sealed', 'created_at', 'queue')
  if not values[1] then
    return nil
  end
  return {
    id = id, class = values[1], seq = values[2], count = tonumber(values[3]), pulled = tonumber(values[4]),
    sealed = values[5], created_at = values[6], queue = values[7],
  }
end

local function arrival_at(class, rank)
  local found = call('ZRANGE', key('waiting', class), rank, rank)
  return found[1] and string.sub(found[1], 1, TIME_DIGITS) or ''
end

-- A group as {id, seq, count, pulled, sealed, created at, arrival of its head, arrival of its last, class} if
-- `rank` wait before it.
local function group_at(group, rank)
  local remaining = group.count - group.pulled
  local head = remaining > 0 and arrival_at(group.class, rank) or ''
  local last = remaining > 0 and arrival_at(group.class, rank + remaining - 1) or ''
  return {
    group.id, group.seq, group.count, group.pulled, group.sealed, group.created_at, head, last, group.class,
  }
end

-- A class's groups by seq, and the first arrival beyond them.
local function sliced(class)
  local groups, rank = {}, 0
  for i, id in ipairs(call('ZRANGE', key('groups', class), 0, -1)) do
    local group = group_row(id)
    groups[i] = group_at(group, rank)
    rank = rank + group.count - group.pulled
  end
  return groups, arrival_at(class, rank)
end
