-- One decision over all accounts of a request: all take, or none.
-- ARGV: lease_ms, now, member, thousandths, sequences; an account: rate, burst, in flight at most.
-- Reply: 0 taken, 1 too few tokens, 2 too many sequences, 3 settled already; which account; wait in
-- ms; then of each account spent and in flight.
local member, cost, sequences = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local settled = 's' .. string.match(member, '^r(%x+)')
local accounts = {}
local code, which, wait, again = 0, 0, 0, false
for n = 1, #KEYS / 2 do
  local account = open(n, ARGV[3 + 3 * n], ARGV[4 + 3 * n])
  accounts[n] = account
  local known = redis.call('ZMSCORE', account.leases, member, settled)
  again = again or lives(account, member, known[1])
  if lives(account, settled, known[2]) and code == 0 then
    code, which = 3, n
  end
end
for n, account in ipairs(accounts) do
  local most = tonumber(ARGV[5 + 3 * n])
  if code ~= 0 or again then
    break
  elseif most and account.flight + sequences > most then
    code, which = 2, n
  elseif account.burst and account.spent + cost > account.burst then
    code, which = 1, n
  end
end
if code == 1 or code == 2 then
  -- Who waits as long as it is told passes every account's bucket.
  for _, account in ipairs(accounts) do
    local missing = account.burst and account.spent + cost - account.burst or 0
    if missing > 0 then
      wait = math.max(wait, math.ceil((missing + account.owed) / account.rate))
    end
  end
end
local reply = {code, which, wait}
for n, account in ipairs(accounts) do
  local takes = code == 0 and not again
  if takes then
    account.flight = account.flight + sequences
    account.spent = account.spent + (account.burst and cost or 0)
  end
  save(account)
  if takes then
    redis.call('ZADD', account.leases, now + lease_ms, member)
  end
  keep(account)
  reply[#reply + 1] = account.spent
  reply[#reply + 1] = account.flight
end
return reply
