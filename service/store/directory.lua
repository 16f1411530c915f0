-- Writes records of tenants and keys, and says so to those who follow.
-- KEYS: records, changes, head. ARGV: an epoch to begin if there is none, ttl_ms, then n x (name, text; empty: gone).
local records, changes, head = KEYS[1], KEYS[2], KEYS[3]
redis.call('HSETNX', head, 'epoch', ARGV[1])
local version = redis.call('HINCRBY', head, 'version', 1)
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', records, ARGV[i])
  else
    redis.call('HSET', records, ARGV[i], ARGV[i + 1])
  end
  redis.call('ZADD', changes, version, ARGV[i])
end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[2]) end
return version
