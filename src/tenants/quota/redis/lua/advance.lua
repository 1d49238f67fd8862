-- What a gateway holds of an account, taken ahead: it tells what it gives back and what it wants.
-- ARGV: lease_ms, now, member, number, again, give, debt, free, ask, least, held, wanted; an account:
-- rate, burst, in flight at most. In thousandths: `give` goes back, `debt` was spent while we were
-- away, `free` is what it still has, `ask` what it wants more, of use from `least` on. `held`
-- sequences are its own whatever happens, `wanted` in all would be good.
-- The same number a second time changes nothing and has the same reply. `again`: it may be one,
-- and if its first is forgotten, nothing is given back.
-- Reply: granted; sequences held; debt that was not covered; then of each account spent, in flight.
local member, number = ARGV[3], ARGV[4]
local again, give, debt = ARGV[5] ~= '', tonumber(ARGV[6]), tonumber(ARGV[7])
local free, ask, least = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local held, wanted = tonumber(ARGV[11]), tonumber(ARGV[12])
-- Never more than this part of what is left: a small budget is not split.
local TOKENS_PART, SEQUENCES_PART, SEQUENCES_LEAST = 32, 8, 4
local accounts, granted, short, same = {}, ask, 0, nil
local total = math.max(held, wanted)
for n = 1, #KEYS / 2 do
  local account = open(n, ARGV[10 + 3 * n], ARGV[11 + 3 * n])
  accounts[n] = account
  local ahead = redis.call('HGET', account.bucket, member)
  local score = redis.call('ZSCORE', account.leases, member)
  local there = ahead and lives(account, member, score)
  local known, had = 0, 0
  if there then
    known, had = string.match(ahead, '^(%d+):(%d+):')
    had = tonumber(had)
    if known == number then
      local g, t, s = string.match(ahead, '^%d+:(%d+):(%d+):(%d+):')
      same = {tonumber(s), tonumber(g), tonumber(t)}
    end
  end
  if account.burst and not same then
    if there or not again then
      account.spent = math.max(0, account.spent - give)
    end
    local covered = math.min(debt, account.burst - account.spent)
    account.spent = account.spent + covered
    short = math.max(short, debt - covered)
    local left = (account.burst - account.spent) / 1000
    local part = math.floor(left / TOKENS_PART) * 1000 - math.max(0, free)
    granted = math.max(0, math.min(granted, part))
  end
  account.others = math.max(0, account.flight - had)
  local most = tonumber(ARGV[12 + 3 * n])
  if most then
    local spare = math.floor((most - account.others - held) / SEQUENCES_PART)
    total = math.min(total, held + (spare < SEQUENCES_LEAST and 0 or spare))
  end
end
if granted + free < least or total < 1 then
  granted = 0
end
local reply = same or {granted, total, short}
for _, account in ipairs(accounts) do
  if not same then
    account.flight = account.others + total
    account.spent = account.spent + (account.burst and granted or 0)
  end
  save(account)
  if not same then
    local ahead = string.format('%s:%.0f:%.0f:%.0f:%.0f', number, total, short, granted,
      math.max(0, free) + granted)
    redis.call('HSET', account.bucket, member, ahead)
  end
  redis.call('ZADD', account.leases, now + lease_ms, member)
  keep(account)
  reply[#reply + 1] = account.spent
  reply[#reply + 1] = account.flight
end
return reply
