-- What all scripts begin with. An account is a pair of keys. Its bucket is a hash: `spent` in
-- thousandths of a token, `at` in ms, `flight` in sequences; `gap`, what the last time without a
-- word from anybody has brought, until `gap_end` in ms; `owed`, what was spent meanwhile without
-- asking and is gone again, which the refill pays first; and one field for what each gateway has
-- taken ahead. Its leases are a sorted set of members by expiry in ms. A member is
--   r<id>:<sequences>:<thousandths>   a request in flight
--   g<gateway>                        taken ahead; the amounts are the bucket's field of that name
--   s<id>                             settled: whatever comes late for that id changes nothing
-- A bucket that is not there is full. Every read comes before the first write, and the first write
-- is one that a full or foreign store refuses: a script that fails has changed nothing.
local lease_ms = tonumber(ARGV[1])
local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- Members that one step takes away at most, so that no step is long.
local STEP = 1000
-- Silence of so many ms may be one of a store that nobody could reach.
local GAP_MS = 100

local function sequences_of(account, member)
  local kind = string.sub(member, 1, 1)
  if kind == 'r' then
    return tonumber(string.match(member, ':(%d+):%d+$')) or 0
  elseif kind == 'g' then
    local ahead = redis.call('HGET', account.bucket, member) or ''
    account.gone[#account.gone + 1] = member
    return tonumber(string.match(ahead, '^%d+:(%d+):')) or 0
  end
  return 0
end

-- The n-th account as it stands now; `rate` in thousandths a ms, `burst` in thousandths.
local function open(n, rate, burst)
  local account = {bucket = KEYS[2 * n - 1], leases = KEYS[2 * n], rate = tonumber(rate),
    burst = tonumber(burst), gone = {}, purged = {}}
  local state = redis.call('HMGET', account.bucket, 'spent', 'at', 'flight', 'owed', 'gap',
    'gap_end')
  local spent, at = tonumber(state[1]) or 0, tonumber(state[2]) or now
  account.flight = tonumber(state[3]) or 0
  account.owed, account.gap = tonumber(state[4]) or 0, tonumber(state[5]) or 0
  account.gap_end = tonumber(state[6]) or 0
  if redis.call('ZCARD', account.leases) == 0 then
    account.flight = 0
  end
  if account.burst then
    -- A clock that was set back gives nothing in this step and goes on from there; one that was
    -- set forward gives no more than the burst.
    spent = math.min(spent, account.burst)
    local gain = math.max(0, now - at) * account.rate
    local paid = math.min(account.owed, gain)
    account.owed = account.owed - paid
    local before = spent
    spent = math.max(0, spent - (gain - paid))
    if now - at >= GAP_MS then
      account.gap, account.gap_end = before - spent, now + lease_ms
    elseif now >= account.gap_end then
      account.gap = 0
    end
  end
  account.spent = spent
  account.late = {}
  if now < at then
    account.late = redis.call('ZRANGEBYSCORE', account.leases, '(' .. now + lease_ms, '+inf',
      'LIMIT', 0, STEP)
  end
  account.expired = redis.call('ZRANGEBYSCORE', account.leases, '-inf', now, 'LIMIT', 0, STEP)
  for _, member in ipairs(account.expired) do
    account.flight = account.flight - sequences_of(account, member)
    account.purged[member] = true
  end
  account.flight = math.max(0, account.flight)
  return account
end

-- Whether a member with this score, or none, outlives this step.
local function lives(account, member, score)
  return score and not account.purged[member]
end

local function save(account)
  redis.call('HSET', account.bucket, 'spent', account.spent, 'at', now, 'flight', account.flight,
    'owed', account.owed, 'gap', account.gap, 'gap_end', account.gap_end)
  if #account.expired > 0 then
    redis.call('ZREMRANGEBYRANK', account.leases, 0, #account.expired - 1)
  end
  for _, member in ipairs(account.gone) do
    redis.call('HDEL', account.bucket, member)
  end
  for _, member in ipairs(account.late) do
    redis.call('ZADD', account.leases, 'XX', now + lease_ms, member)
  end
end

-- An idle account leaves the store once that changes nothing: full again, and nothing in flight.
local function keep(account)
  local full = account.spent + account.owed
  local full_ms = account.burst and math.ceil(full / account.rate) or 0
  redis.call('PEXPIRE', account.bucket, math.max(full_ms, lease_ms) + 60000)
  redis.call('PEXPIRE', account.leases, lease_ms + 60000)
end
