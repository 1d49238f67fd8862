-- Which gateways are alive: a sorted set by expiry. ARGV: lease_ms, now, name, and "bye" to leave.
-- Reply: how many there are.
for _, late in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now + lease_ms, '+inf')) do
  redis.call('ZADD', KEYS[1], 'XX', now + lease_ms, late)
end
if ARGV[4] == 'bye' then
  redis.call('ZREM', KEYS[1], ARGV[3])
else
  redis.call('ZADD', KEYS[1], now + lease_ms, ARGV[3])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('PEXPIRE', KEYS[1], lease_ms + 60000)
return redis.call('ZCARD', KEYS[1])
