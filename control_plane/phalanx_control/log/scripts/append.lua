-- Compare-and-append: one batch and its bodies, written together or not at all.
-- KEYS  log, leader, then for each body: its key, its workspace's usage key
-- ARGV  epoch, leader id, seq, log_ms, wall_ms, schema, events, ttl_ms, cap_bytes, then for each body: bytes, capped
-- Returns {"ok"} | {"fenced", epoch, leader id} | {"order", last seq} | {"full", index of the body, from 0}
local record = redis.call('HMGET', KEYS[2], 'epoch', 'leader')
if record[1] ~= ARGV[1] or record[2] ~= ARGV[2] then
  return {'fenced', record[1] or '0', record[2] or ''}
end

local tail = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local last = tail[1] and string.match(tail[1][1], '^%d+') or '0'
if tonumber(last) + 1 ~= tonumber(ARGV[3]) then
  return {'order', last}
end

local ttl, cap = tonumber(ARGV[8]), tonumber(ARGV[9])
local width = math.max(1, math.floor(ttl / 64))
local bucket, now, used, expired = '', 0, {}, {}
if #KEYS > 2 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  bucket = string.format('%.0f', math.floor((now + ttl) / width) + 1)
end

local function load_usage(key)
  used[key], expired[key] = 0, {}
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    if tonumber(fields[i]) * width <= now then
      table.insert(expired[key], fields[i])
    else
      used[key] = used[key] + tonumber(fields[i + 1])
    end
  end
end

for i = 3, #KEYS, 2 do
  local key, data, capped = KEYS[i + 1], ARGV[i + 7], ARGV[i + 8]
  if not used[key] then load_usage(key) end
  used[key] = used[key] + #data
  if capped == '1' and used[key] > cap then
    return {'full', tostring((i - 3) / 2)}
  end
end

redis.call('XADD', KEYS[1], ARGV[3] .. '-0', 'e', ARGV[1], 'l', ARGV[2], 't', ARGV[4], 'w', ARGV[5], 'v', ARGV[6],
  'd', ARGV[7])
for i = 3, #KEYS, 2 do
  local key, data = KEYS[i + 1], ARGV[i + 7]
  redis.call('SET', KEYS[i], data, 'PX', ARGV[8])
  redis.call('HINCRBY', key, bucket, #data)
end
for key, old in pairs(expired) do
  for _, field in ipairs(old) do redis.call('HDEL', key, field) end
  redis.call('PEXPIRE', key, ttl + 2 * width)
end
return {'ok'}
