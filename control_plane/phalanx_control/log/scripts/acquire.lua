-- Takes over leadership, if nothing has changed since the caller looked.
-- KEYS  leader     ARGV  epoch seen, beat seen, least epoch, new leader id, address
-- Returns the new epoch, or 0 where the record has moved on.
local record = redis.call('HMGET', KEYS[1], 'epoch', 'beat')
local epoch, beat = record[1] or '0', record[2] or '0'
if epoch ~= ARGV[1] or beat ~= ARGV[2] then
  return 0
end
local new = math.max(tonumber(epoch), tonumber(ARGV[3])) + 1
redis.call('HSET', KEYS[1], 'epoch', string.format('%.0f', new), 'leader', ARGV[4], 'beat', '0', 'address', ARGV[5])
return new
