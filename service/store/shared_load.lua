-- One gateway's report for those of all gateways that serve the same workers.
-- KEYS[1] a hash: gateway -> "milliseconds number " .. report
-- ARGV gateway, number, report, for how many milliseconds a report is kept
-- A report that was overtaken by a later one of the same gateway is not taken. Returns all that are kept.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local mine = redis.call('HGET', KEYS[1], ARGV[1])
if not mine or tonumber(string.match(mine, '^%d+ (%d+) ')) < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %s ', now, ARGV[2]) .. ARGV[3])
end
local all = redis.call('HGETALL', KEYS[1])
local found = {}
for i = 1, #all, 2 do
  local stamp, from = string.match(all[i + 1], '^(%d+) %d+ ()')
  if now - stamp > tonumber(ARGV[4]) then
    redis.call('HDEL', KEYS[1], all[i])
  elseif all[i] ~= ARGV[1] then
    found[#found + 1] = string.sub(all[i + 1], from)
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return found
