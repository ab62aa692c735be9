-- Stores the snapshot to start from and drops the batches before it; its own last batch stays, so the log is never empty.
-- KEYS  log, leader, snapshot     ARGV  epoch, leader id, seq, bytes of the snapshot
-- Returns {"ok"} | {"fenced", epoch, leader id}
local record = redis.call('HMGET', KEYS[2], 'epoch', 'leader')
if record[1] ~= ARGV[1] or record[2] ~= ARGV[2] then
  return {'fenced', record[1] or '0', record[2] or ''}
end
redis.call('HSET', KEYS[3], 'seq', ARGV[3], 'data', ARGV[4])
redis.call('XTRIM', KEYS[1], 'MINID', ARGV[3] .. '-0')
return {'ok'}
