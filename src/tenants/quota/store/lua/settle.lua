-- The end of a request, once: its sequences are free, what it did not use goes back, what it used
-- beyond its reservation is taken as far as there is any.
-- ARGV: lease_ms, now, member, used in thousandths, guard; of an account rate, burst. With a guard,
-- or where no lease is found, the id is remembered: what arrives late changes nothing.
-- Reply: accounts in which it was found; then of each spent and in flight.
local member, used, guard = ARGV[3], tonumber(ARGV[4]), ARGV[5] ~= ''
local id, sequences, reserved = string.match(member, '^r(%x+):(%d+):(%d+)$')
sequences, reserved = tonumber(sequences), tonumber(reserved)
local reply = {0}
for n = 1, #KEYS / 2 do
  local account = open(n, ARGV[4 + 2 * n], ARGV[5 + 2 * n])
  local found = lives(account, member, redis.call('ZSCORE', account.leases, member))
  if found then
    reply[1] = reply[1] + 1
    account.flight = math.max(0, account.flight - sequences)
    if account.burst then
      account.spent = math.max(0, math.min(account.spent + used - reserved, account.burst))
    end
  end
  save(account)
  if found then
    redis.call('ZREM', account.leases, member)
  end
  if guard or not found then
    redis.call('ZADD', account.leases, now + lease_ms, 's' .. id)
  end
  keep(account)
  reply[#reply + 1] = account.spent
  reply[#reply + 1] = account.flight
end
return reply
