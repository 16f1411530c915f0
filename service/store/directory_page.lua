-- Reads one page of the records: whole pages in one piece cost a hundredth of what each record by itself costs.
-- KEYS: records. ARGV: cursor, count. Answer: the next cursor, and name, text, name, text ... with a zero byte between.
local found = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
return {found[1], table.concat(found[2], '\0')}
