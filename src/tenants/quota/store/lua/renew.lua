-- Leases live on. One that the store has lost, by its own restart or by the pause of its owner, is
-- there again; its tokens are not taken a second time.
-- ARGV: lease_ms, now, number of accounts; an account: rate, burst; then members.
-- Reply: leases that were there again.
local count = tonumber(ARGV[3])
local first, members, settled = 4 + 2 * count, {}, {}
for i = first, #ARGV do
  members[#members + 1] = ARGV[i]
  settled[#settled + 1] = 's' .. string.match(ARGV[i], '^r(%x+)')
end
local again = 0
for n = 1, count do
  local account = open(n, ARGV[2 + 2 * n], ARGV[3 + 2 * n])
  local known = redis.call('ZMSCORE', account.leases, unpack(members))
  local over = redis.call('ZMSCORE', account.leases, unpack(settled))
  local adds = {}
  for i, member in ipairs(members) do
    if not lives(account, settled[i], over[i]) then
      adds[#adds + 1] = now + lease_ms
      adds[#adds + 1] = member
      if not lives(account, member, known[i]) then
        account.flight = account.flight + tonumber(string.match(member, ':(%d+):%d+$'))
        again = again + 1
      end
    end
  end
  save(account)
  if #adds > 0 then
    redis.call('ZADD', account.leases, unpack(adds))
  end
  keep(account)
end
return again
