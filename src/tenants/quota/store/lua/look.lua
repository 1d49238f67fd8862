-- For the operator. ARGV: lease_ms, now, "show" | "set" | "reset", rate, burst, thousandths in the
-- bucket from now on. One account.
-- Reply of "show": now, spent, in flight, members with expiries, ahead.
if ARGV[3] == 'reset' then
  return redis.call('DEL', KEYS[1], KEYS[2])
end
local account = open(1, ARGV[4], ARGV[5])
if ARGV[3] == 'set' then
  account.spent, account.owed = math.max(0, account.burst - tonumber(ARGV[6])), 0
  save(account)
  keep(account)
  return account.spent
end
local ahead = {}
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(name, 1, 1) == 'g' and not account.purged[name] then
    ahead[#ahead + 1] = name
    ahead[#ahead + 1] = redis.call('HGET', KEYS[1], name)
  end
end
local members = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. now, '+inf', 'WITHSCORES',
  'LIMIT', 0, 10000)
return {now, account.spent, account.flight, members, ahead}
