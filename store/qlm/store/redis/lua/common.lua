-- Shared beginning of every script. `qlm.store.redis.store` describes the keys.
-- Times are twenty decimal digits of nanoseconds: a Lua number cannot hold them, and strings of them sort.
local PREFIX, NOW, SEED, CUTOFF = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local TTL_MS, RESULTS_MAX, EVENTS_MAX = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local LENGTHS_WINDOW, EVENTS_WAITING_MAX = tonumber(ARGV[8]), tonumber(ARGV[9])
local FIRST = 10 -- index of the first argument of the script itself
local TIME_DIGITS, TOKEN_BYTES = 20, 4
local ASIDE, ASIDE_MS = PREFIX .. 'aside', 86400000 -- for a day

local function key(kind, name)
  return PREFIX .. kind .. ':' .. name
end

local function is_number(text)
  return text and string.find(text, '^%d+$')
end

-- Keys of the whole deployment of which the queues have what is lost with them: it is entered again when they are
-- read, which a new incarnation has the controller do. `terms` must not count from 1 again under the same one.
local READ_AGAIN = { requests = true, held = true, drops = true, classes = true, terms = true }

-- Set aside a key, if there is one, that another program wrote over.
local function set_aside(name)
  if redis.call('EXISTS', name) == 0 then
    return
  end
  local suffix = string.sub(name, #PREFIX + 1)
  local kept = ASIDE .. ':' .. suffix
  redis.call('RENAME', name, kept)
  redis.call('PEXPIRE', kept, ASIDE_MS)
  if READ_AGAIN[suffix] then
    redis.call('DEL', PREFIX .. 'incarnation')
  end
  if type(redis.pcall('INCR', ASIDE)) == 'table' then -- no number either
    redis.call('SET', ASIDE, 1)
  end
  redis.call('PEXPIRE', ASIDE, ASIDE_MS)
end

-- Return whether an error says that a key holds another type, or no number where it should.
local function is_unreadable(command, error)
  return string.find(error, 'WRONGTYPE', 1, true) or string.find(error, 'hash value is not', 1, true)
    or (command == 'INCR' and (string.find(error, 'value is not', 1, true) or string.find(error, 'overflow', 1, true)))
end

-- Call a command. What the key held counts as lost if it is unreadable: in a script that many requests share, one of
-- them would cost all of these what they ask for, and a key of all of them would cost everything.
local function call(command, name, ...)
  local answer = redis.pcall(command, name, ...)
  if type(answer) ~= 'table' or not answer.err then
    return answer
  end
  if is_unreadable(command, answer.err) then
    set_aside(name)
  end
  return redis.call(command, name, ...) -- again, since it raises what Redis says
end

-- Let a key live for at most so many milliseconds more. Redis keeps the time at which a key expires: once its clock is
-- set back, a key that is not renewed any more would live on for as long as the clock was set back.
local function limit_life(name, lifetime_ms)
  if tonumber(lifetime_ms) and call('PTTL', name) > tonumber(lifetime_ms) then
    call('PEXPIRE', name, lifetime_ms)
  end
end

local INCARNATION = call('GET', PREFIX .. 'incarnation')
if not is_number(INCARNATION) then
  set_aside(PREFIX .. 'incarnation')
  call('SET', PREFIX .. 'incarnation', SEED)
  call('DEL', PREFIX .. 'indexed') -- without the incarnation other keys may be lost as well
  INCARNATION = SEED
end

-- announcements: output is collected, and published once per gateway when the script ends

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

local function reply(answer)
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

-- extensions: optional fields of an output log or a class, each a field of its hash. One that a later version
-- wrote stays when this one writes others.

local EXTENSION = 'x.'

-- Keep extensions, given as a JSON object of JSON texts by name; '' for none.
local function keep_extensions(hash, texts)
  if texts ~= '' then
    for name, text in pairs(cjson.decode(texts)) do
      call('HSET', hash, EXTENSION .. name, text)
    end
    call('HSET', hash, 'extended', 1)
  end
end

-- Return the extensions of a hash as {name, JSON text, ...}; `extended` is that field of it.
local function extensions_of(hash, extended)
  local kept = {}
  if extended then
    local fields = call('HGETALL', hash)
    for i = 1, #fields, 2 do
      if string.sub(fields[i], 1, #EXTENSION) == EXTENSION then
        kept[#kept + 1] = string.sub(fields[i], #EXTENSION + 1)
        kept[#kept + 1] = fields[i + 1]
      end
    end
  end
  return kept
end

local function drop_extensions(hash)
  local kept = extensions_of(hash, call('HGET', hash, 'extended'))
  for i = 1, #kept, 2 do
    call('HDEL', hash, EXTENSION .. kept[i])
  end
  call('HDEL', hash, 'extended')
end

-- rows

local function add_event(id, what, why, instance)
  local event = cjson.encode({ NOW, what, why, instance or '' })
  if call('RPUSH', key('events', id), event) > EVENTS_MAX then
    call('LPOP', key('events', id))
  end
end

local function member(arrival, id)
  return arrival .. ':' .. id
end

-- Return the tokens in the output log of a request, and whether these are all that were recorded. Redis may lose
-- the log or a part of it: by eviction, or with a damaged append-only file. What is left may lack its beginning.
-- Requests of earlier versions have no recorded number. In a rolling update an agent of such a version may hold one
-- that has: `counted`, the lease whose holder records, is then not the last one (n), and more tokens are no damage.
local function log_state(id, recorded, n, counted)
  local tokens = call('STRLEN', key('log', id)) / TOKEN_BYTES
  recorded = tonumber(recorded) or tokens
  return tokens, recorded == tokens or (n ~= counted and recorded < tokens)
end

local function is_answer(outcome)
  return outcome == 'stop' or outcome == 'length'
end

local function lost_detail(tokens, recorded)
  return string.format('its output log has %d tokens, %d were recorded', tokens, recorded)
end

-- Return a record as {fields and values, output tokens, events, incarnation}, or false.
-- Extensions of its log are no part of it: they may be long.
local function record(id)
  local all, fields, at = call('HGETALL', key('request', id)), {}, {}
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, #EXTENSION) ~= EXTENSION then
      fields[#fields + 1] = all[i]
      fields[#fields + 1] = all[i + 1]
      at[all[i]] = #fields
    end
  end
  if not (at.card and at.state) then
    return false
  end
  local tokens, whole = log_state(id, fields[at.tokens], fields[at.n], fields[at.counted])
  if not whole then
    tokens = 0
    if is_answer(fields[at.outcome]) then
      fields[at.outcome] = 'output_lost'
    end
  end
  return { fields, tokens, call('LRANGE', key('events', id), 0, -1), fields[at.incarnation] or INCARNATION }
end

-- Request metadata arrives as ten arguments.
local function read_metadata(at)
  return {
    id = ARGV[at], plain = ARGV[at + 1], class = ARGV[at + 2], model = ARGV[at + 3],
    arrival = ARGV[at + 4], drop_at = ARGV[at + 5], prompt_tokens = ARGV[at + 6], max_tokens = ARGV[at + 7],
    fingerprint = ARGV[at + 8], class_extensions = ARGV[at + 9],
  }
end
local METADATA_ARGUMENTS = 10

-- Name a class as one that may have waiting requests or groups; `view` drops it when it has neither.
local function use_class(class)
  if call('SADD', PREFIX .. 'classes', class) == 1 then
    local idle_since = call('HGET', key('class', class), 'idle_since')
    if idle_since then
      call('HDEL', key('class', class), 'idle_since')
      call('ZREM', PREFIX .. 'idle', member(idle_since, class))
    end
  end
end

local function length_bin(tokens)
  local bin = 0
  while bin < #LENGTH_EDGES - 2 and tokens > LENGTH_EDGES[bin + 2] do
    bin = bin + 1
  end
  return bin
end

-- `prompts:<class>` is a row of 64-bit numbers: the accepted requests by bin of their prompt length.
local function count_accepted(metadata)
  local sums = key('class', metadata.class)
  for _, name in ipairs({ 'prompt', 'max' }) do
    local tokens = metadata[name .. '_tokens']
    call('HINCRBYFLOAT', sums, name .. '_squares', string.format('%.0f', tokens * tokens)) -- may exceed 64 bits
    call('HINCRBY', sums, name .. '_tokens', tokens)
  end
  call('HINCRBY', sums, 'accepted', 1)
  use_class(metadata.class)
  local prompts = key('prompts', metadata.class)
  call('BITFIELD', prompts, 'INCRBY', 'i64', '#' .. length_bin(tonumber(metadata.prompt_tokens)), 1)
  keep_extensions(sums, metadata.class_extensions)
end

-- Keep `ttft_ms tokens_per_s` of the reader of a request's objective, if it has one.
local function keep_reader(metadata)
  if not string.find(metadata.plain, '"reading"', 1, true) then
    return -- decoding is slow
  end
  local slo = cjson.decode(metadata.plain).slo
  if slo.kind == 'reading' then
    call('HSET', key('request', metadata.id), 'reader', slo.ttft_ms .. ' ' .. slo.tokens_per_s)
  end
end

-- Keep the tenant of a request of whose end other programs are to be notified.
local function keep_notify(metadata)
  if not string.find(metadata.plain, '"notify":true', 1, true) then
    return -- decoding is slow
  end
  local card = cjson.decode(metadata.plain)
  if (card.extensions or {}).notify == true then
    call('HSET', key('request', metadata.id), 'notify', card.tenant)
  end
end

-- Return the time from one point to a later one, seconds.
local function span_s(from, to)
  local cut = TIME_DIGITS - 9
  return tonumber(string.sub(to, 1, cut)) - tonumber(string.sub(from, 1, cut))
    + (tonumber(string.sub(to, cut + 1)) - tonumber(string.sub(from, cut + 1))) / 1e9
end

-- Keep the lateness of a reader, of whose tokens those from number `first` on arrive now, as the `Timeline` of
-- `qlm.domain.streaming` has it. Of tokens at one time, the first is the latest.
local function read_late(row, first)
  local ttft_ms, tokens_per_s = string.match(row.reader, '^(%S+) (%S+)$')
  if not (tonumber(ttft_ms) and tonumber(tokens_per_s)) then
    return -- damaged by another program
  end
  local late_s = span_s(row.arrival, NOW) - ttft_ms / 1000 - first / tokens_per_s
  if late_s > (tonumber(row.reader_late_s) or 0) then
    call('HSET', key('request', row.id), 'reader_late_s', string.format('%.9f', late_s))
  end
end

local recount_leases

-- Return true if one incarnation is earlier than another: both are digits without zeros before them.
local function is_earlier(one, other)
  return #one < #other or (#one == #other and one < other)
end

-- Return the incarnation of a new row: not that of an earlier row of the request, which Redis may have lost.
local function row_incarnation()
  local now = string.gsub(NOW, '^0+', '')
  return is_earlier(now, INCARNATION) and INCARNATION or now
end

local function add(metadata)
  count_accepted(metadata) -- first: sums that are damaged make it fail, and leave no row behind
  if call('ZREM', PREFIX .. 'held', member(metadata.arrival, metadata.id)) == 1 then
    recount_leases() -- the row of a leased request was lost
  end
  call('HSET', key('request', metadata.id), 'card', metadata.plain, 'class', metadata.class,
    'model', metadata.model,
    'arrival', metadata.arrival, 'drop_at', metadata.drop_at, 'state', 'queued', 'n', 0, 'counted', 0, 'tokens', 0,
    'incarnation', row_incarnation(), 'fingerprint', metadata.fingerprint)
  keep_reader(metadata)
  keep_notify(metadata)
  call('ZADD', PREFIX .. 'requests', 0, member(metadata.arrival, metadata.id))
  add_event(metadata.id, 'accepted', '')
end

local function alive(instance, session)
  return call('HGET', key('instance', instance), 'session') == session
end

-- transitions; `row` has the fields ROW of a request

local ROW = { 'class', 'arrival', 'drop_at', 'state', 'n', 'instance', 'session', 'outcome', 'cancel', 'fingerprint',
  'tokens', 'counted', 'reader', 'reader_late_s', 'cancel_why', 'notify', 'incarnation' }
local ROW_ALWAYS = 5 -- the first of them are in every row

-- Return the row of a request; nil if there is none, or one without what every row has.
local function read_row(id)
  local values = call('HMGET', key('request', id), unpack(ROW))
  local row, whole = { id = id }, true
  for i, field in ipairs(ROW) do
    row[field] = values[i]
    whole = whole and (values[i] or i > ROW_ALWAYS)
  end
  row.incarnation = row.incarnation or INCARNATION -- rows of earlier versions have none
  if whole and is_number(row.arrival) and is_number(row.n) and is_number(row.incarnation) then
    return row
  end
  set_aside(key('request', id))
  return nil
end

local function wait(row)
  use_class(row.class)
  call('ZADD', key('waiting', row.class), 0, member(row.arrival, row.id))
  if row.drop_at ~= '' then
    call('ZADD', PREFIX .. 'drops', 0, member(row.drop_at, row.id))
  end
end

local function stop_waiting(row)
  if call('ZREM', key('waiting', row.class), member(row.arrival, row.id)) == 0 then
    return false
  end
  if row.drop_at ~= '' then
    call('ZREM', PREFIX .. 'drops', member(row.drop_at, row.id))
  end
  return true
end

local function count_lease(instance, change)
  if instance then
    call('HINCRBY', PREFIX .. 'leases', instance, change)
  end
end

-- Count the leases of each instance anew, after rows of leased requests were lost.
function recount_leases()
  local counts = {}
  for _, entry in ipairs(call('ZRANGE', PREFIX .. 'held', 0, -1)) do
    local row = read_row(string.sub(entry, TIME_DIGITS + 2))
    if row and row.instance then
      counts[row.instance] = (counts[row.instance] or 0) + 1
    else
      call('ZREM', PREFIX .. 'held', entry)
    end
  end
  call('DEL', PREFIX .. 'leases')
  for instance, count in pairs(counts) do
    call('HSET', PREFIX .. 'leases', instance, count)
  end
end

local function drop_lease(row)
  count_lease(row.instance, -1)
  call('HDEL', key('request', row.id), 'instance', 'session')
  call('ZREM', PREFIX .. 'held', member(row.arrival, row.id))
end

local prunes_left = 200 -- of one script run, which blocks every other client

-- Drop ended requests beyond the limits, oldest ended first. Return true if there may be more of them.
local function prune()
  local ended = PREFIX .. 'ended'
  while prunes_left > 0 do
    local oldest = call('LINDEX', ended, 0)
    if not oldest then
      return false
    end
    local id = string.sub(oldest, TIME_DIGITS + 2)
    local state, arrival, ended_at = unpack(call('HMGET', key('request', id), 'state', 'arrival', 'ended_at'))
    -- Redis may have expired it already, and another request may have its id since.
    local ours = state == 'ended' and member(arrival, id) == oldest
    if ours and call('LLEN', ended) <= RESULTS_MAX and ended_at > CUTOFF then
      return false
    end
    prunes_left = prunes_left - 1
    call('LPOP', ended)
    if ours then
      call('DEL', key('request', id), key('log', id), key('events', id))
    end
    if ours or not state or member(arrival, id) ~= oldest then
      call('ZREM', PREFIX .. 'requests', oldest)
    end
  end
  return true
end

local function slice(row, tokens, outcome, detail)
  local part = { id = row.id, offset = tokens, token_ids = {}, outcome = outcome, detail = detail }
  return (string.gsub(cjson.encode(part), '"token_ids":{}', '"token_ids":[]'))
end

-- Count the length of an answer; see `qlm.store.core.length_stats`. `lengths:<class>` is a row of 64-bit numbers:
-- the answers in it, then by bin the completed answers, their tokens, the truncated answers, their tokens.
local function count_length(class, outcome, tokens)
  if tokens == 0 then
    return
  end
  local recent = key('lengths', class)
  if call('BITFIELD', recent, 'GET', 'i64', '#0')[1] >= LENGTHS_WINDOW then
    call('RENAME', recent, key('former-lengths', class))
  end
  local slot = 1 + 4 * length_bin(tokens) + (outcome == 'stop' and 0 or 2)
  call('BITFIELD', recent, 'INCRBY', 'i64', '#0', 1, 'INCRBY', 'i64', '#' .. slot, 1,
    'INCRBY', 'i64', '#' .. slot + 1, tokens)
end

-- Time for which dropped events are reported to operators: a day after the last.
local DROPPED_SHOWN_S = 86400

-- Add an event to the outbox, due at once, unless there is one of its subject, or too many wait.
local function add_end(subject, ended_as, tenant, at)
  local ends = PREFIX .. 'ends'
  if call('EXISTS', key('end', subject)) == 1 then
    return
  end
  if call('ZCARD', ends) >= EVENTS_WAITING_MAX then
    call('INCR', PREFIX .. 'ends_dropped')
    call('EXPIRE', PREFIX .. 'ends_dropped', DROPPED_SHOWN_S)
    return
  end
  call('HSET', key('end', subject), 'ended_as', ended_as, 'tenant', tenant, 'at', at, 'attempts', 0, 'done', '[]',
    'due', NOW)
  call('ZADD', ends, 0, member(NOW, subject))
end

-- End a request; `tail` is the slice to announce, if it has more than the outcome.
local function end_request(row, outcome, detail, tail)
  local tokens, whole = log_state(row.id, row.tokens, row.n, row.counted)
  if not whole and is_answer(outcome) then
    outcome, detail, tail = 'output_lost', lost_detail(tokens, row.tokens), nil
  end
  if stop_waiting(row) then
    wake('removed')
  end
  drop_lease(row)
  call('HSET', key('request', row.id), 'state', 'ended', 'outcome', outcome, 'detail', detail, 'ended_at', NOW)
  add_event(row.id, 'ended', detail ~= '' and detail or outcome, row.instance)
  use_class(row.class)
  if is_answer(outcome) then
    call('HINCRBY', key('class', row.class), 'finished', 1)
  end
  count_length(row.class, outcome, tokens)
  if row.notify then
    add_end(row.id, outcome, row.notify, NOW)
  end
  announce(row.id, tail or slice(row, tokens, outcome, detail))
  call('DEL', key('watchers', row.id), key('media', row.id))
  call('RPUSH', PREFIX .. 'ended', member(row.arrival, row.id))
  for _, kind in ipairs({ 'request', 'log', 'events' }) do
    call('PEXPIRE', key(kind, row.id), TTL_MS)
  end
  prune()
end

-- Return whether the first token decides the objective of a request; false if its card is damaged.
local function is_decided_by_first_token(id)
  local read, card = pcall(cjson.decode, call('HGET', key('request', id), 'card') or '')
  local slo = read and type(card) == 'table' and card.slo
  return type(slo) == 'table' and (slo.kind == 'token' or slo.kind == 'reading')
end

local function extend(row, packed)
  if packed ~= '' then
    row.tokens = call('APPEND', key('log', row.id), packed) / TOKEN_BYTES
    call('HSET', key('request', row.id), 'tokens', row.tokens)
    if row.reader then
      read_late(row, row.tokens - #packed / TOKEN_BYTES)
    end
    local first = call('HSETNX', key('request', row.id), 'first_token_at', NOW) == 1
    if first and row.drop_at ~= '' and is_decided_by_first_token(row.id) then
      row.drop_at = '' -- it cannot be late any more
      call('HSET', key('request', row.id), 'drop_at', '')
    end
  end
end

-- Begin the output log of a row anew if tokens are missing: they are generated again.
local function drop_damaged_log(row)
  local tokens, whole = log_state(row.id, row.tokens, row.n, row.counted)
  if whole then
    return tokens
  end
  call('DEL', key('log', row.id))
  drop_extensions(key('request', row.id))
  call('HSET', key('request', row.id), 'tokens', 0)
  row.tokens = '0'
  return 0
end

local function grant(row, instance, session, what)
  local tokens = drop_damaged_log(row)
  count_lease(row.instance, -1)
  count_lease(instance, 1)
  local n = call('HINCRBY', key('request', row.id), 'n', 1)
  call('HSET', key('request', row.id), 'state', 'running', 'instance', instance, 'session', session,
    'counted', n, 'tokens', tokens)
  call('ZADD', PREFIX .. 'held', 0, member(row.arrival, row.id))
  add_event(row.id, what, '', instance)
  local counts = call('HMGET', key('request', row.id), EXTENSION .. 'preemptions', EXTENSION .. 'engine_losses')
  return { 'granted', n, call('GET', key('log', row.id)) or '', row.incarnation, counts[1] or '0', counts[2] or '0' }
end

-- Release the lease of a request: it waits again, or ends if it was cancelled.
local function put_back(row, why)
  add_event(row.id, 'returned', why, row.instance)
  if row.cancel then
    end_request(row, row.cancel, row.cancel_why or '')
  else
    drop_lease(row)
    call('HSET', key('request', row.id), 'state', 'queued')
    wait(row)
    wake('returned')
  end
end

-- Return true unless an Idempotency-Key gave the id of a row to another body. Rows of earlier versions have no
-- fingerprint of their own.
local function is_same_request(row, metadata)
  return not row.fingerprint or row.fingerprint == metadata.fingerprint
end

-- Return why a lease is refused: another request has the id, it has ended, or another live holder has it. Nil if
-- not refused.
local function refusal(row, metadata, instance, session)
  if not is_same_request(row, metadata) then
    return { 'taken' }
  end
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
  return row and row.instance and row.n == n and incarnation == row.incarnation
end

-- Return true if this term is current; an empty incarnation needs no term.
local function leads(incarnation, n)
  return incarnation == '' or (incarnation == INCARNATION and call('HGET', PREFIX .. 'leader', 'n') == n)
end

-- groups

local function group_row(id)
  local values = call('HMGET', key('group', id), 'class', 'seq', 'count', 'pulled', 'sealed', 'created_at', 'queue')
  if not (values[1] and is_number(values[2]) and is_number(values[3]) and is_number(values[4]) and values[7]) then
    set_aside(key('group', id))
    return nil
  end
  return {
    id = id, class = values[1], seq = values[2], count = tonumber(values[3]), pulled = tonumber(values[4]),
    sealed = values[5], created_at = values[6], queue = values[7],
  }
end

-- Return the groups of a class by seq; forget those that were lost.
local function groups_of(class)
  local groups = {}
  for _, id in ipairs(call('ZRANGE', key('groups', class), 0, -1)) do
    local group = group_row(id)
    if group then
      groups[#groups + 1] = group
    else
      call('ZREM', key('groups', class), id)
    end
  end
  return groups
end

local function arrival_at(class, rank)
  local found = call('ZRANGE', key('waiting', class), rank, rank)
  return found[1] and string.sub(found[1], 1, TIME_DIGITS) or ''
end

-- Return a group as {id, seq, count, pulled, sealed, created at, arrival of its head, arrival of its last, class};
-- `rank` requests wait before it.
local function group_at(group, rank)
  local remaining = group.count - group.pulled
  local head = remaining > 0 and arrival_at(group.class, rank) or ''
  local last = remaining > 0 and arrival_at(group.class, rank + remaining - 1) or ''
  return {
    group.id, group.seq, group.count, group.pulled, group.sealed, group.created_at, head, last, group.class,
  }
end

-- Return the groups of a class by seq, and the first ungrouped arrival.
local function sliced(class)
  local groups, rank = {}, 0
  for i, group in ipairs(groups_of(class)) do
    groups[i] = group_at(group, rank)
    rank = rank + group.count - group.pulled
  end
  return groups, arrival_at(class, rank)
end
