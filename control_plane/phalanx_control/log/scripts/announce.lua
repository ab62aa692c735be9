-- A replica says that it lives and which schema version it reads.
-- KEYS  replicas     ARGV  replica, schema, ttl_ms
-- Returns the least schema version among the replicas that live, this one included. Those that fell silent are forgotten.
local time = redis.call('TIME')
local now, ttl = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000), tonumber(ARGV[3])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f', now + ttl))
redis.call('PEXPIRE', KEYS[1], ttl)
local least = tonumber(ARGV[2])
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local schema, until_ms = string.match(fields[i + 1], '^(%d+) (%d+)$')
  if tonumber(until_ms) <= now then
    redis.call('HDEL', KEYS[1], fields[i])
  else
    least = math.min(least, tonumber(schema))
  end
end
return least
