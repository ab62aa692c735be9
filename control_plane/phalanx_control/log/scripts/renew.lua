-- The leader's beat.
-- KEYS  leader     ARGV  epoch, leader id
-- Returns {"ok"} | {"fenced", epoch, leader id}
local record = redis.call('HMGET', KEYS[1], 'epoch', 'leader')
if record[1] ~= ARGV[1] or record[2] ~= ARGV[2] then
  return {'fenced', record[1] or '0', record[2] or ''}
end
redis.call('HINCRBY', KEYS[1], 'beat', 1)
return {'ok'}
