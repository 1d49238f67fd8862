//! What a gateway holds of a budget, taken ahead of the requests: tokens and sequences that the
//! store has given up already, so that a decision from them needs no round trip.
//!
//! All cores take from it by compare-and-swap; one at a time (`busy`) tells the store what it gives
//! back and wants. Pure: time is an argument.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};

use crate::tenants::quota::{Ask, Limits, Refused};

/// Decisions after which their pace is looked at.
const PACE_DECISIONS: u32 = 16;
/// A budget is worth taking ahead while so many decisions come within this time: four a second.
/// Fewer, and what the round trips cost is less than what others could miss meanwhile.
const HOT_MS: u64 = 4_000;
/// After the last of them it is given back.
const IDLE_MS: u64 = 5_000;
/// Taken ahead: the tokens of this time, but of so many requests at least.
const AHEAD_MS: u64 = 500;
const REQUESTS_MIN: u64 = 8;
/// Tokens for fewer than so many are not worth holding.
const REQUESTS_LEAST: u64 = 4;
/// Between two asks when the first gave nothing.
const PAUSE_MS: u64 = 100;
/// A refused caller whose wait is not known is told this, in ms.
const RETRY_MS: u64 = 1_000;

/// See the module. Tokens, sequences and milliseconds; zero at rest.
#[derive(Debug, Default)]
pub struct Advance {
    /// In the upper half the sequences that run on it, in the lower those that it has.
    sequences: AtomicU64,
    /// Tokens left; below zero when requests used more than they had reserved.
    free: AtomicI64,
    /// Sequences of this gateway, whoever let them in.
    open: AtomicU64,
    /// Spent by our own refill while the store was away, and to be told to it.
    debt: AtomicU64,
    /// Up to when that refill has run, in ns.
    away_ns: AtomicU64,
    decisions: AtomicU32,
    asked: AtomicU64,
    marked_ms: AtomicU64,
    hot_until_ms: AtomicU64,
    /// By the last [`PACE_DECISIONS`]: tokens of one, and how long they took.
    mean: AtomicU64,
    took_ms: AtomicU64,
    pub(super) seen: [Seen; 2],
    /// Somebody talks to the store about it.
    busy: AtomicBool,
    /// Something was said that may not have been heard.
    unheard: AtomicBool,
    /// Only whoever holds `busy` takes this lock, so that nobody waits for it.
    terms: Mutex<Terms>,
    next_ms: AtomicU64,
    told_ms: AtomicU64,
}

/// An account as the store last told.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Spent tokens, in thousandths.
    pub spent: AtomicU64,
    pub flight: AtomicU64,
    pub at_ms: AtomicU64,
}

/// What was said to the store.
#[derive(Debug, Default)]
struct Terms {
    number: u64,
    /// Sent, and perhaps heard: to be said again before anything new.
    unheard: Option<Message>,
}

/// What a gateway tells the store about its advance. Tokens are whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Counts messages; the same once more changes nothing.
    pub number: u64,
    /// It has been said before, perhaps unheard.
    pub again: bool,
    /// Tokens that go back.
    pub give: u64,
    /// Tokens that requests used beyond what they had reserved.
    pub over: u64,
    /// Tokens that it took for itself while the store was away.
    pub debt: u64,
    /// Tokens that it keeps.
    pub free: u64,
    /// Tokens that it wants beside those.
    pub ask: u64,
    /// With fewer than this in all, none are of use.
    pub least: u64,
    /// Sequences that are its own in any case.
    pub held: u64,
    /// Sequences that it wants in all.
    pub wanted: u64,
}

/// What the store answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Tokens beside those that it kept.
    pub tokens: u64,
    /// Sequences in all.
    pub sequences: u64,
}

fn unpack(word: u64) -> (u64, u64) {
    (word >> 32, word & u64::from(u32::MAX))
}

fn pack(used: u64, has: u64) -> u64 {
    (used.min(u32::MAX.into()) << 32) | has.min(u32::MAX.into())
}

impl Advance {
    /// Takes what a request asks for, or nothing.
    pub(super) fn take(&self, tokens: u64, sequences: u64) -> bool {
        let entered = self.sequences.fetch_update(Relaxed, Relaxed, |word| {
            let (used, has) = unpack(word);
            let used = used.saturating_add(sequences);
            (used <= has).then(|| pack(used, has))
        });
        if entered.is_err() {
            return false;
        }
        if !self.take_tokens(tokens) {
            self.leave(sequences);
            return false;
        }
        self.open.fetch_add(sequences, Relaxed);
        true
    }

    /// Ends what `take` began.
    pub(super) fn settle(&self, reserved: u64, used: u64, sequences: u64) {
        self.refund(reserved, used);
        self.leave(sequences);
        self.closed(sequences);
    }

    /// Tokens of a request that ran on them alone: what it did not use comes back.
    pub(super) fn refund(&self, reserved: u64, used: u64) {
        self.free.fetch_add(signed(reserved).saturating_sub(signed(used)), Relaxed);
    }

    /// Sequences that somebody else let in.
    pub(super) fn opened(&self, sequences: u64) {
        self.open.fetch_add(sequences, Relaxed);
    }

    /// They have ended.
    pub(super) fn closed(&self, sequences: u64) {
        let lower = |open: u64| Some(open.saturating_sub(sequences));
        let _ = self.open.fetch_update(Relaxed, Relaxed, lower);
    }

    /// The store is away: decides by what is left of the advance and by our part of the refill.
    /// Of the sequences a gateway may then have its part, or what it has taken ahead. True: from
    /// the advance as such; false: its sequences are to be told to the store when that is back.
    pub(super) fn take_alone<'l>(
        &self,
        (now_ns, away_since_ns): (u64, u64),
        gateways: u64,
        limits: impl Iterator<Item = &'l Limits>,
        ask: &Ask,
    ) -> Result<bool, Refused> {
        let gateways = gateways.max(1);
        let (mut rate, mut burst, mut most) = (u64::MAX, u64::MAX, u64::MAX);
        for limits in limits {
            if let Some((r, b)) = limits.bucket() {
                (rate, burst) = (rate.min(r), burst.min(b));
            }
            most = most.min(limits.in_flight_max.unwrap_or(u64::MAX));
        }
        if rate != u64::MAX {
            self.refill(now_ns, away_since_ns, (rate / gateways).max(1), burst / gateways);
        }
        let tokens = if rate == u64::MAX { 0 } else { ask.tokens };
        if self.take(tokens, ask.sequences) {
            return Ok(true);
        }
        let part = (most / gateways).max(1);
        let enter = |open: u64| open.checked_add(ask.sequences).filter(|sum| *sum <= part);
        if self.open.fetch_update(Relaxed, Relaxed, enter).is_err() {
            return Err(Refused::Concurrency { retry_after_ms: RETRY_MS });
        }
        if self.take_tokens(tokens) {
            return Ok(false);
        }
        self.closed(ask.sequences);
        let missing = signed(tokens).saturating_sub(self.free.load(Relaxed));
        let missing = u64::try_from(missing).unwrap_or(0);
        let wait_ms = missing.saturating_mul(1_000).div_ceil((rate / gateways).max(1));
        Err(Refused::Tokens { retry_after_ms: wait_ms.max(1) })
    }

    /// Our part of what the bucket gains while nobody can ask it: tokens a second, `burst` at most,
    /// since `away_since_ns`.
    fn refill(&self, now_ns: u64, away_since_ns: u64, rate: u64, burst: u64) {
        let seen = self.away_ns.load(Relaxed);
        let since = seen.max(away_since_ns);
        let ns = u128::from(now_ns.saturating_sub(since));
        let gained = ns.saturating_mul(rate.into()) / 1_000_000_000;
        // What is not a whole token yet stays on the clock.
        let used = gained.saturating_mul(1_000_000_000).div_ceil(rate.max(1).into());
        let next = since.saturating_add(clamped(used));
        if self.away_ns.compare_exchange(seen, next, Relaxed, Relaxed).is_err() {
            return;
        }
        let mut added = 0;
        let _ = self.free.fetch_update(Relaxed, Relaxed, |free| {
            let room = signed(burst).saturating_sub(free).max(0);
            added = signed(clamped(gained)).min(room);
            Some(free.saturating_add(added))
        });
        self.debt.fetch_add(u64::try_from(added).unwrap_or(0), Relaxed);
    }

    fn take_tokens(&self, tokens: u64) -> bool {
        let tokens = signed(tokens);
        let enough = |free: i64| {
            if tokens == 0 { Some(free) } else { (free >= tokens).then(|| free - tokens) }
        };
        self.free.fetch_update(Relaxed, Relaxed, enough).is_ok()
    }

    fn leave(&self, sequences: u64) {
        let _ = self.sequences.fetch_update(Relaxed, Relaxed, |word| {
            let (used, has) = unpack(word);
            Some(pack(used.saturating_sub(sequences), has))
        });
    }

    /// Counts a decision: how many there are says whether it is worth taking some ahead.
    pub(super) fn decided(&self, now_ms: u64, tokens: u64) {
        self.asked.fetch_add(tokens, Relaxed);
        let n = self.decisions.fetch_add(1, Relaxed);
        if n % PACE_DECISIONS != PACE_DECISIONS - 1 {
            return;
        }
        let now_ms = now_ms.max(1);
        let before_ms = self.marked_ms.swap(now_ms, Relaxed);
        let sum = self.asked.swap(0, Relaxed);
        self.mean.store((sum / u64::from(PACE_DECISIONS)).max(1), Relaxed);
        let took_ms = now_ms.saturating_sub(before_ms).max(1);
        if before_ms > 0 && took_ms <= HOT_MS {
            self.took_ms.store(took_ms, Relaxed);
            self.hot_until_ms.store(now_ms.saturating_add(IDLE_MS), Relaxed);
        }
    }

    fn hot(&self, now_ms: u64) -> bool {
        now_ms < self.hot_until_ms.load(Relaxed)
    }

    /// Tokens and spare sequences that it should have while it is hot.
    fn target(&self) -> (u64, u64) {
        let (mean, took_ms) = (self.mean.load(Relaxed), self.took_ms.load(Relaxed).max(1));
        let requests = AHEAD_MS.saturating_mul(PACE_DECISIONS.into()) / took_ms;
        let requests = requests.max(REQUESTS_MIN);
        (requests.saturating_mul(mean), requests)
    }

    /// Whether the store should be told something: it runs low, is idle, or has to be renewed.
    pub(super) fn due(&self, now_ms: u64, renew_ms: u64) -> bool {
        if self.busy.load(Relaxed) || now_ms < self.next_ms.load(Relaxed) {
            return false;
        }
        let (used, has) = unpack(self.sequences.load(Relaxed));
        let free = self.free.load(Relaxed);
        if self.unheard.load(Relaxed) {
            return true;
        }
        let renews = now_ms.saturating_sub(self.told_ms.load(Relaxed)) >= renew_ms;
        if self.hot(now_ms) {
            let (tokens, spare) = self.target();
            let low = free < signed(tokens / 2) || has.saturating_sub(used) < spare / 2;
            return low || (has > 0 && renews);
        }
        // Idle: everything goes back at once, what still runs when it ends, told now and then.
        let more = has > used || free > 0 || self.debt.load(Relaxed) > 0;
        more || (has > 0 && renews)
    }

    /// Nothing is held and nothing is to be told.
    pub(super) fn at_rest(&self, now_ms: u64) -> bool {
        !self.hot(now_ms)
            && self.sequences.load(Relaxed) == 0
            && self.free.load(Relaxed) == 0
            && self.debt.load(Relaxed) == 0
            && !self.unheard.load(Relaxed)
            && !self.busy.load(Relaxed)
    }

    /// Something was taken without asking.
    pub(super) fn owes(&self) -> bool {
        self.debt.load(Relaxed) > 0
    }

    /// The store knows of no tokens here, and of no sequences but those that run.
    pub(super) fn released(&self) -> bool {
        let (used, has) = unpack(self.sequences.load(Relaxed));
        let untold = self.free.load(Relaxed) != 0 || self.debt.load(Relaxed) != 0;
        has <= used && !untold && !self.unheard.load(Relaxed) && !self.busy.load(Relaxed)
    }

    /// What to tell the store now; `None`: somebody else is about it. Whoever gets a message ends
    /// with [`Advance::told`] or [`Advance::unheard`].
    pub(super) fn message(&self, now_ms: u64, close: bool) -> Option<Message> {
        if self.busy.swap(true, Relaxed) {
            return None;
        }
        let mut terms = self.terms.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(unheard) = terms.unheard {
            return Some(Message { again: true, ..unheard });
        }
        let (tokens, spare) = match self.hot(now_ms) && !close {
            true => self.target(),
            false => (0, 0),
        };
        // First lower what we may use, then say so: what starts meanwhile is within it.
        let mut held = 0;
        let mut wanted = 0;
        let _ = self.sequences.fetch_update(Relaxed, Relaxed, |word| {
            let (used, has) = unpack(word);
            wanted = used.saturating_add(spare);
            held = has.min(wanted);
            Some(pack(used, held))
        });
        let mut give = 0;
        let mut left = 0;
        let _ = self.free.fetch_update(Relaxed, Relaxed, |free| {
            let over = free.saturating_sub(signed(tokens));
            // A little too much is kept, or each renewal would give back and ask again.
            give = if free < 0 {
                free
            } else if tokens == 0 || over > signed(tokens) {
                over
            } else {
                0
            };
            left = free.saturating_sub(give);
            Some(left)
        });
        let overdrawn = u64::try_from(give.saturating_neg()).unwrap_or(0);
        let free = u64::try_from(left).unwrap_or(0);
        terms.number = terms.number.saturating_add(1);
        let message = Message {
            number: terms.number,
            again: false,
            give: u64::try_from(give).unwrap_or(0),
            over: overdrawn,
            debt: self.debt.swap(0, Relaxed),
            free,
            ask: tokens.saturating_sub(free),
            least: if tokens == 0 {
                0
            } else {
                self.mean.load(Relaxed).saturating_mul(REQUESTS_LEAST)
            },
            held,
            wanted,
        };
        terms.unheard = Some(message);
        self.unheard.store(true, Relaxed);
        Some(message)
    }

    /// The store has answered a message.
    pub(super) fn told(&self, now_ms: u64, message: &Message, grant: Grant) {
        let mut terms = self.terms.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        terms.unheard = None;
        self.unheard.store(false, Relaxed);
        self.free.fetch_add(signed(grant.tokens), Relaxed);
        let _ = self.sequences.fetch_update(Relaxed, Relaxed, |word| {
            let (used, _) = unpack(word);
            Some(pack(used, grant.sequences.max(used)))
        });
        let gave = message.ask == 0 || grant.tokens > 0;
        let pause_ms = if gave && grant.sequences >= message.wanted { 0 } else { PAUSE_MS };
        self.next_ms.store(now_ms.saturating_add(pause_ms), Relaxed);
        self.told_ms.store(now_ms, Relaxed);
        drop(terms);
        self.busy.store(false, Relaxed);
    }

    /// No answer came: the same must be said again, once the store is back.
    pub(super) fn unheard(&self, now_ms: u64) {
        self.next_ms.store(now_ms.saturating_add(PAUSE_MS), Relaxed);
        self.busy.store(false, Relaxed);
    }

    /// Whether the store was told within a lease's time: it must believe that this is ours.
    pub(super) fn fresh(&self, now_ms: u64, lease_ms: u64) -> bool {
        now_ms.saturating_sub(self.told_ms.load(Relaxed)) < lease_ms
    }

    /// Tokens and sequences held, for the status page and tests.
    pub(super) fn holds(&self) -> (i64, u64, u64) {
        let (used, has) = unpack(self.sequences.load(Relaxed));
        (self.free.load(Relaxed), used, has)
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn clamped(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "advance_tests.rs"]
mod tests;
