//! One account: its limits, and the state that outlives them.
//!
//! Limits are a configuration's and do not change; a reload makes a new [`Account`] over the same
//! state, so that a request that started under the old one settles where it reserved.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::bucket::{Bucket, Line};
use super::store::Advance;
use super::{Ask, Limits, Refused, SequenceStanding, Standing, TokenStanding};

/// Weight of the newest answer in the mean of how long answers take: an eighth.
const NEWEST_SHIFT: u32 = 3;
/// Told to a refused caller while no answer has ended yet, in milliseconds.
const RETRY_MS_DEFAULT: u64 = 1000;

/// See the module.
#[derive(Debug)]
pub struct Account {
    name: Arc<str>,
    limits: Limits,
    line: Option<Line>,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    bucket: Bucket,
    in_flight: AtomicU64,
    reserved: AtomicU64,
    spent: AtomicU64,
    answer_ms: AtomicU64,
    rejected_tokens: AtomicU64,
    rejected_concurrency: AtomicU64,
    rejected_size: AtomicU64,
    advance: Arc<Advance>,
}

/// What an account has seen, for the status page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sequences that have not ended.
    pub in_flight: u64,
    /// Tokens that they hold.
    pub reserved_tokens: u64,
    /// Tokens paid for.
    pub spent_tokens: u64,
    /// Requests refused for an empty bucket.
    pub rejected_tokens: u64,
    /// Requests refused for too many in flight.
    pub rejected_concurrency: u64,
    /// Requests refused as larger than the account can ever let pass.
    pub rejected_size: u64,
}

impl Account {
    /// A new account; its bucket is full. `name` is the tenant's id, or with `/` the key's too.
    pub fn new(name: &str, limits: Limits, now_ns: u64) -> Account {
        let line = limits.bucket().map(|(rate, burst)| Line::new(rate, burst, now_ns));
        Account { name: name.into(), limits, line, state: Arc::new(State::new()) }
    }

    /// This account under other limits: what is spent and in flight stays so.
    pub fn renewed(&self, limits: Limits, now_ns: u64) -> Account {
        let line = limits.bucket().map(|(rate, burst)| match &self.line {
            Some(line) => line.onward(rate, burst, now_ns),
            None => Line::new(rate, burst, now_ns),
        });
        match (&self.line, &line) {
            (Some(_), Some(line)) => self.state.bucket.fit(line, now_ns),
            // Unlimited until now, so that it begins with a full bucket.
            (None, Some(_)) => self.state.bucket.fill(),
            _ => {}
        }
        Account { name: Arc::clone(&self.name), limits, line, state: Arc::clone(&self.state) }
    }

    /// The tenant's id, or the tenant's and the key's with `/` between.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What this gateway has taken ahead of it, when a store that gateways share decides.
    pub(super) fn advance(&self) -> &Arc<Advance> {
        &self.state.advance
    }

    /// What it may spend.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Takes the tokens and the sequences, or nothing.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn reserve(&self, now_ns: u64, ask: &Ask) -> Result<(), Refused> {
        let taken = self.take(now_ns, ask);
        match &taken {
            Ok(()) => drop(self.state.reserved.fetch_add(ask.tokens, Relaxed)),
            Err(refused) => self.turned_away(refused),
        }
        taken
    }

    /// Counts a request that was refused.
    pub(super) fn turned_away(&self, refused: &Refused) {
        let counter = match refused {
            Refused::Tokens { .. } => &self.state.rejected_tokens,
            Refused::Concurrency { .. } => &self.state.rejected_concurrency,
            Refused::TooLarge { .. } | Refused::TooWide { .. } => &self.state.rejected_size,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts a request that a store let start which gateways share: the bucket here is not asked.
    pub(super) fn let_in(&self, ask: &Ask) {
        self.state.reserved.fetch_add(ask.tokens, Relaxed);
        self.state.in_flight.fetch_add(ask.sequences, Relaxed);
    }

    /// Counts that it has ended.
    pub(super) fn let_out(&self, ask: &Ask, used: u64) {
        lower(&self.state.reserved, ask.tokens);
        lower(&self.state.in_flight, ask.sequences);
        self.state.spent.fetch_add(used, Relaxed);
    }

    /// Ends what [`Account::reserve`] began, once: `used` of the `reserved` tokens are paid, the
    /// rest goes back. What was used beyond is taken as far as the bucket has it.
    pub fn settle(&self, now_ns: u64, reserved: u64, used: u64, sequences: u64) {
        self.give_back(now_ns, reserved, used, sequences);
        self.state.spent.fetch_add(used, Relaxed);
    }

    /// Undoes a reservation whose request another account refused.
    pub fn cancel(&self, ask: &Ask) {
        self.give_back(0, ask.tokens, 0, ask.sequences);
    }

    /// An answer took this long: what a caller is told who waits for one to end.
    pub fn answered(&self, took_ms: u64) {
        let mean = &self.state.answer_ms;
        let _ = mean.fetch_update(Relaxed, Relaxed, |old| {
            let newest = if old == 0 { took_ms } else { took_ms >> NEWEST_SHIFT };
            Some(old.saturating_sub(old >> NEWEST_SHIFT).saturating_add(newest).max(1))
        });
    }

    /// In how many milliseconds so many tokens will be there; 0 = they are, or never will be.
    pub fn until_ms(&self, now_ns: u64, tokens: u64) -> u64 {
        let line = self.line.as_ref().filter(|line| tokens <= line.burst);
        line.map_or(0, |line| self.state.bucket.until_ms(line, now_ns, tokens))
    }

    /// How it stands now.
    pub fn standing(&self, now_ns: u64) -> Standing {
        let tokens = self.line.as_ref().map(|line| {
            let (remaining, reset_ms) = self.state.bucket.level(line, now_ns);
            TokenStanding { limit: line.burst, remaining, reset_ms }
        });
        let sequences = self.limits.in_flight_max.map(|limit| {
            let taken = self.state.in_flight.load(Relaxed);
            SequenceStanding { limit, remaining: limit.saturating_sub(taken) }
        });
        Standing { tokens, sequences }
    }

    /// Takes tokens that are spent already, as far as they are there.
    pub fn overdraw(&self, now_ns: u64, tokens: u64) {
        if let Some(line) = &self.line {
            self.state.bucket.overdraw(line, now_ns, tokens);
        }
    }

    /// What it has seen. Each figure is exact; together they are of one moment only at rest.
    pub fn counts(&self) -> Counts {
        let state = &*self.state;
        Counts {
            in_flight: state.in_flight.load(Relaxed),
            reserved_tokens: state.reserved.load(Relaxed),
            spent_tokens: state.spent.load(Relaxed),
            rejected_tokens: state.rejected_tokens.load(Relaxed),
            rejected_concurrency: state.rejected_concurrency.load(Relaxed),
            rejected_size: state.rejected_size.load(Relaxed),
        }
    }

    /// Sequences first, given back when the bucket refuses.
    fn take(&self, now_ns: u64, ask: &Ask) -> Result<(), Refused> {
        if let Some(line) = self.line.as_ref().filter(|line| ask.tokens > line.burst) {
            return Err(Refused::TooLarge { burst_tokens: line.burst });
        }
        let in_flight_max = self.limits.in_flight_max.unwrap_or(u64::MAX);
        if ask.sequences > in_flight_max {
            return Err(Refused::TooWide { in_flight_max });
        }
        let more =
            |taken: u64| taken.checked_add(ask.sequences).filter(|&sum| sum <= in_flight_max);
        let taken = self.state.in_flight.fetch_update(Relaxed, Relaxed, more);
        taken.map_err(|taken| {
            let over = taken.saturating_add(ask.sequences).saturating_sub(in_flight_max);
            Refused::Concurrency { retry_after_ms: self.until_free_ms(taken, over) }
        })?;
        let Some(line) = &self.line else { return Ok(()) };
        self.state.bucket.take(line, now_ns, ask.tokens).map_err(|retry_after_ms| {
            lower(&self.state.in_flight, ask.sequences);
            Refused::Tokens { retry_after_ms }
        })
    }

    fn give_back(&self, now_ns: u64, reserved: u64, used: u64, sequences: u64) {
        if let Some(line) = &self.line {
            match (reserved.checked_sub(used), used.saturating_sub(reserved)) {
                (Some(0), _) => {}
                (Some(rest), _) => self.state.bucket.give(rest),
                (None, over) => self.state.bucket.overdraw(line, now_ns, over),
            }
        }
        lower(&self.state.reserved, reserved);
        lower(&self.state.in_flight, sequences);
    }

    /// When `over` of `taken` sequences should have ended: while each takes the recent mean, that
    /// many of them end in `over / taken` of it.
    pub(super) fn until_free_ms(&self, taken: u64, over: u64) -> u64 {
        let mean_ms = match self.state.answer_ms.load(Relaxed) {
            0 => RETRY_MS_DEFAULT,
            known => known,
        };
        let wait = u128::from(mean_ms).saturating_mul(over.into()).div_ceil(taken.max(1).into());
        u64::try_from(wait).unwrap_or(u64::MAX).max(1)
    }
}

impl State {
    fn new() -> State {
        State {
            bucket: Bucket::new(),
            in_flight: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            answer_ms: AtomicU64::new(0),
            rejected_tokens: AtomicU64::new(0),
            rejected_concurrency: AtomicU64::new(0),
            rejected_size: AtomicU64::new(0),
            advance: Arc::default(),
        }
    }
}

/// Never below zero.
fn lower(count: &AtomicU64, by: u64) {
    let _ = count.fetch_update(Relaxed, Relaxed, |old| Some(old.saturating_sub(by)));
}
