-- What a gateway holds of an account, taken ahead: it tells what it gives back and wants.
-- ARGV: lease_ms, now, member, number, again, give, over, debt, free, ask, least, held, wanted; of
-- an account rate, burst, in flight at most. In thousandths: `give` goes back, `over` was spent
-- beyond what was taken, `debt` was taken while the store was away, `free` is what it still has,
-- `ask` what it wants more, of use from `least` on. `held` sequences are its own whatever happens,
-- `wanted` in all would be good.
-- The same number a second time changes nothing and has the same reply. `again`: it may be one,
-- and if its first is forgotten, nothing is given back.
-- Reply: granted; sequences held; then of each account spent, in flight.
local member, number = ARGV[3], ARGV[4]
local again, give, over = ARGV[5] ~= '', tonumber(ARGV[6]), tonumber(ARGV[7])
local debt, free, ask = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local least, held, wanted = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
-- Never more than this part of what is left: a small budget is not split.
local TOKENS_PART, SEQUENCES_PART, SEQUENCES_LEAST = 32, 8, 4
local accounts, granted, same = {}, ask, nil
local total = math.max(held, wanted)
for n = 1, #KEYS / 2 do
  local account = open(n, ARGV[11 + 3 * n], ARGV[12 + 3 * n])
  accounts[n] = account
  local ahead = redis.call('HGET', account.bucket, member)
  local score = redis.call('ZSCORE', account.leases, member)
  local there = ahead and lives(account, member, score)
  local known, had = 0, 0
  if there then
    known, had = string.match(ahead, '^(%d+):(%d+):')
    had = tonumber(had)
    if known == number then
      local sequences, tokens = string.match(ahead, '^%d+:(%d+):(%d+):')
      same = {tonumber(tokens), tonumber(sequences)}
    end
  end
  if account.burst and not same then
    if there or not again then
      account.spent = math.max(0, account.spent - give)
    end
    account.spent = math.min(account.burst, account.spent + over)
    -- What was taken without asking has come from a refill that the bucket has had too: as far as
    -- that goes it is taken out again, from the refill to come if others were faster.
    local taken = math.min(debt, account.gap)
    account.gap = account.gap - taken
    local covered = math.min(taken, account.burst - account.spent)
    account.spent = account.spent + covered
    account.owed = math.min(account.burst, account.owed + taken - covered)
    local left = (account.burst - account.spent) / 1000
    local part = math.floor(left / TOKENS_PART) * 1000 - math.max(0, free)
    granted = math.max(0, math.min(granted, part))
  end
  account.others = math.max(0, account.flight - had)
  local most = tonumber(ARGV[13 + 3 * n])
  if most then
    local spare = math.floor((most - account.others - held) / SEQUENCES_PART)
    total = math.min(total, held + (spare < SEQUENCES_LEAST and 0 or spare))
  end
end
-- Tokens are of no use without sequences, nor these without those.
if granted + free < least then
  total = held
end
if granted + free < least or total < 1 then
  granted = 0
end
local reply = same or {granted, total}
for _, account in ipairs(accounts) do
  if not same then
    account.flight = account.others + total
    account.spent = account.spent + (account.burst and granted or 0)
  end
  save(account)
  if not same then
    local ahead = string.format('%s:%.0f:%.0f:%.0f', number, total, granted,
      math.max(0, free) + granted)
    redis.call('HSET', account.bucket, member, ahead)
  end
  redis.call('ZADD', account.leases, now + lease_ms, member)
  keep(account)
  reply[#reply + 1] = account.spent
  reply[#reply + 1] = account.flight
end
return reply
