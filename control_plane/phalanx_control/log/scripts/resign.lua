-- A leader that stops in order leaves the record empty, so that nobody has to wait for its silence.
-- KEYS  leader     ARGV  epoch, leader id
-- Returns 1, or 0 where another one leads.
local record = redis.call('HMGET', KEYS[1], 'epoch', 'leader')
if record[1] ~= ARGV[1] or record[2] ~= ARGV[2] then
  return 0
end
redis.call('HSET', KEYS[1], 'leader', '', 'address', '')
return 1
