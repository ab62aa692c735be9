-- Whether the log holds a batch of its leader, and a write after it, so that waiting for that write is waiting for both.
-- KEYS  log, leader     ARGV  epoch, leader id, seq
-- Returns {"ok"} | {"fenced", epoch, leader id} | {"absent"}
local record = redis.call('HMGET', KEYS[2], 'epoch', 'leader')
if record[1] ~= ARGV[1] or record[2] ~= ARGV[2] then
  return {'fenced', record[1] or '0', record[2] or ''}
end
if #redis.call('XRANGE', KEYS[1], ARGV[3] .. '-0', ARGV[3] .. '-0') == 0 then
  return {'absent'}
end
redis.call('HINCRBY', KEYS[2], 'beat', 1)
return {'ok'}
