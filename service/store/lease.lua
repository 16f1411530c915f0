-- One tenant's quota: takes one gateway's report in and answers it. The twin of service/store/book.py.
-- KEYS: the tenant's page, the tenant's month (same hash slot).
-- ARGV: gateway, now_ms (0: the server's own clock), grain_ms, kept slots, coarse, lease_ms, number, fresh,
--       month_spent, running, want_running, limit_running (-1: none),
--       then for requests and for tokens: limit (-1: none), want, n, n x (ago, amount) spent, m, m x (ago, amount) recall.
-- Answer: lost, held_running, month, then for requests and for tokens: held, spare, n, n x (ago, amount).
local page, month_key = KEYS[1], KEYS[2]
local gateway, now = ARGV[1], tonumber(ARGV[2])
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local grain, kept, coarse, lease = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local number, fresh, month_spent = tonumber(ARGV[7]), ARGV[8] == '1', tonumber(ARGV[9])
local running, want_running, limit_running = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local present = math.floor(now / grain)
local PAGE_TTL, MONTH_TTL = 3 * kept * grain, 40 * 86400000

local slots, before, holders, known = {r = {}, t = {}}, {r = {}, t = {}}, {}, {r = 0, t = 0}
local flat = redis.call('HGETALL', page)
for i = 1, #flat, 2 do
  local name, text = flat[i], flat[i + 1]
  local kind = string.sub(name, 1, 1)
  if kind == 'h' then
    local fields = {}
    for number_text in string.gmatch(text, '[^,]+') do fields[#fields + 1] = tonumber(number_text) end
    -- requests, tokens, running, expires_ms, number, charged slot (-1: not charged), charged requests, charged tokens
    holders[string.sub(name, 2)] = fields
  elseif kind == 'k' then
    known[string.sub(name, 2)] = tonumber(text)
  else
    local slot = tonumber(string.sub(name, 2))
    slots[kind][slot] = tonumber(text)
    before[kind][slot] = tonumber(text)
  end
end

local mine = holders[gateway]
if not mine then
  if not fresh then return {1} end
  mine = {0, 0, 0, 0, 0, -1, 0, 0}
  holders[gateway] = mine
end

local function add(kind, slot, amount)
  slots[kind][slot] = math.max((slots[kind][slot] or 0) + amount, 0)
end

if mine[6] >= 0 then
  add('r', mine[6], -mine[7])
  add('t', mine[6], -mine[8])
  mine[6], mine[7], mine[8] = -1, 0, 0
end

local asks, at = {}, 13
for _, kind in ipairs({'r', 't'}) do
  local ask = {kind = kind, limit = tonumber(ARGV[at]), want = tonumber(ARGV[at + 1]), spent = {}, recall = {}}
  at = at + 2
  for _, list in ipairs({ask.spent, ask.recall}) do
    local count = tonumber(ARGV[at])
    at = at + 1
    for _ = 1, count do
      list[#list + 1] = {tonumber(ARGV[at]), tonumber(ARGV[at + 1])}
      at = at + 2
    end
  end
  asks[#asks + 1] = ask
  local total = 0
  for _, pair in ipairs(ask.recall) do total = total + pair[2] end
  local missing = total - known[kind]
  for i = #ask.recall, 1, -1 do
    if missing > 0 then
      add(kind, present - ask.recall[i][1], math.min(ask.recall[i][2], missing))
      missing = missing - ask.recall[i][2]
    end
  end
  known[kind] = math.max(total, known[kind])
end

local month = tonumber(redis.call('GET', month_key) or '0')
if number > mine[5] then
  mine[5] = number
  if month_spent ~= 0 then
    month = redis.call('INCRBY', month_key, string.format('%.0f', month_spent))
  end
  for _, ask in ipairs(asks) do
    for _, pair in ipairs(ask.spent) do add(ask.kind, present - pair[1], pair[2]) end
  end
end
redis.call('PEXPIRE', month_key, MONTH_TTL)

local held = {r = 0, t = 0}
local others_running = 0
local gone = {}
for name, other in pairs(holders) do
  if name ~= gateway then
    if other[4] <= now and other[6] < 0 then
      local slot = math.floor(other[4] / grain)
      other[6], other[7], other[8] = slot, other[1], other[2]
      add('r', slot, other[1])
      add('t', slot, other[2])
      other[1], other[2], other[3] = 0, 0, 0
    elseif other[4] + 2 * kept * grain <= now then
      gone[#gone + 1] = name
    end
    held.r, held.t = held.r + other[1], held.t + other[2]
    others_running = others_running + other[3]
  end
end

local answer = {0, 0, month}
mine[4] = now + lease
local drop, set = {}, {}
for index, ask in ipairs(asks) do
  local ages, used = {}, 0
  for slot, amount in pairs(slots[ask.kind]) do
    if slot < present - kept then
      if before[ask.kind][slot] then drop[#drop + 1] = ask.kind .. string.format('%.0f', slot) end
    else
      used = used + amount
      ages[#ages + 1] = slot
      if before[ask.kind][slot] ~= amount then
        set[#set + 1] = ask.kind .. string.format('%.0f', slot)
        set[#set + 1] = string.format('%.0f', amount)
      end
    end
  end
  local mine_held, spare, told = 0, 0, {}
  if ask.limit >= 0 then
    local free = math.max(ask.limit - used - held[ask.kind], 0)
    mine_held = math.min(ask.want, free)
    spare = free - mine_held
    table.sort(ages)
    local group
    for _, slot in ipairs(ages) do
      if group ~= math.floor(slot / coarse) then
        group = math.floor(slot / coarse)
        told[#told + 1] = 0
        told[#told + 1] = 0
      end
      told[#told - 1] = present - slot
      told[#told] = told[#told] + slots[ask.kind][slot]
    end
  end
  mine[index] = mine_held
  answer[#answer + 1] = mine_held
  answer[#answer + 1] = spare
  answer[#answer + 1] = #told / 2
  for _, value in ipairs(told) do answer[#answer + 1] = value end
end
mine[3] = 0
if limit_running >= 0 then
  mine[3] = math.max(math.min(want_running, limit_running - others_running), running)
end
answer[2] = mine[3]

for kind, total in pairs(known) do
  if total > 0 then
    set[#set + 1] = 'k' .. kind
    set[#set + 1] = string.format('%.0f', total)
  end
end
for _, name in ipairs(gone) do drop[#drop + 1] = 'h' .. name holders[name] = nil end
for name, fields in pairs(holders) do
  local text = {}
  for i, field in ipairs(fields) do text[i] = string.format('%.0f', field) end
  set[#set + 1] = 'h' .. name
  set[#set + 1] = table.concat(text, ',')
end
if #drop > 0 then redis.call('HDEL', page, unpack(drop)) end
redis.call('HSET', page, unpack(set))
redis.call('PEXPIRE', page, PAGE_TTL)
return answer
