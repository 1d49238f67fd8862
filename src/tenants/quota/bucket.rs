//! A token bucket in one word.
//!
//! The generic cell rate algorithm with time counted in tokens. A [`Line`] says how many tokens the
//! rate has given up to a moment; the word says up to which of them all is spent. The bucket's
//! level is therefore `burst - (spent_to - earned(now))`, between nothing and the burst:
//!
//! * a reservation moves `spent_to` forward by its tokens, a refund back by the same, so that whole
//!   tokens go in and out without rounding;
//! * the word knows no rate: when a reload changes rate or burst, a new line goes on where the old
//!   one stood, and what was spent stays spent;
//! * one compare-and-swap decides, so any number of cores together spend exactly what there is.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Where a new account's count of tokens begins: far from both ends of the word, whatever a clock
/// does. At the highest rate of a configuration, 10^9 a second, the upper end is 430 years away.
const START: u64 = 1 << 62;
/// A reader whose time is older than the bucket's, by less than this, was merely late: it finds the
/// bucket empty. Beyond, the clock was set back, and the bucket goes on, empty, from there.
const LATE_SECONDS: u64 = 60;
const NS_PER_SECOND: i128 = 1_000_000_000;

/// Up to which of the earned tokens all is spent. Relaxed order is enough: the word alone decides,
/// and no other memory hangs on it.
#[derive(Debug)]
pub(super) struct Bucket {
    spent_to: AtomicU64,
}

/// How many tokens a rate has given up to a moment, and how many may lie unspent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Tokens a second, at least 1.
    pub rate: u64,
    /// Tokens.
    pub burst: u64,
    base: u64,
    base_ns: u64,
}

impl Line {
    /// The line of a new account: its bucket is full.
    pub(super) fn new(rate: u64, burst: u64, now_ns: u64) -> Line {
        Line { rate: rate.max(1), burst, base: START, base_ns: now_ns }
    }

    /// The line that goes on from here with another rate and burst.
    pub(super) fn onward(&self, rate: u64, burst: u64, now_ns: u64) -> Line {
        Line { rate: rate.max(1), burst, base: self.earned(now_ns), base_ns: now_ns }
    }

    /// Whole tokens given up to a moment.
    fn earned(&self, now_ns: u64) -> u64 {
        let ns = i128::from(now_ns) - i128::from(self.base_ns);
        let tokens = ns.saturating_mul(self.rate.into()).div_euclid(NS_PER_SECOND);
        let earned = i128::from(self.base).saturating_add(tokens);
        u64::try_from(earned.max(0)).unwrap_or(u64::MAX)
    }

    /// From `now_ns` until `earned` tokens have been given, in milliseconds, rounded up.
    fn until_ms(&self, earned: u64, now_ns: u64) -> u64 {
        let tokens = i128::from(earned) - i128::from(self.base);
        // Rounded up: `div_euclid` rounds down, and so does minus it of minus.
        let ns = -(-tokens.saturating_mul(NS_PER_SECOND)).div_euclid(self.rate.into());
        let at_ns = i128::from(self.base_ns).saturating_add(ns);
        let wait_ns = at_ns.saturating_sub(now_ns.into()).max(0);
        u64::try_from(-(-wait_ns).div_euclid(1_000_000)).unwrap_or(u64::MAX)
    }

    /// The word as it counts at this moment: tokens beyond the burst are lost, and a clock that
    /// was set back leaves the bucket empty, not in debt for as long as the clock was wrong.
    fn settled(&self, spent_to: u64, earned: u64) -> u64 {
        let empty = earned.saturating_add(self.burst);
        let late = self.rate.saturating_mul(LATE_SECONDS);
        match spent_to > empty.saturating_add(late) {
            true => empty,
            false => spent_to.max(earned),
        }
    }
}

impl Bucket {
    pub(super) fn new() -> Bucket {
        Bucket { spent_to: AtomicU64::new(START) }
    }

    /// Takes tokens, or says in how many milliseconds they will be there.
    pub(super) fn take(&self, line: &Line, now_ns: u64, tokens: u64) -> Result<(), u64> {
        let earned = line.earned(now_ns);
        let mut seen = self.spent_to.load(Relaxed);
        loop {
            let from = line.settled(seen, earned);
            let to = from.saturating_add(tokens);
            let passes = tokens == 0 || to.saturating_sub(earned) <= line.burst;
            // A refusal writes only what a clock that was set back demands.
            let next = if passes { to } else { from.min(seen) };
            let written = next == seen || self.swap(&mut seen, next);
            match (written, passes) {
                (false, _) => {}
                (true, true) => return Ok(()),
                (true, false) => {
                    return Err(line.until_ms(to.saturating_sub(line.burst), now_ns).max(1));
                }
            }
        }
    }

    /// Takes tokens that are spent already, as far as the bucket has them.
    pub(super) fn overdraw(&self, line: &Line, now_ns: u64, tokens: u64) {
        let earned = line.earned(now_ns);
        let empty = earned.saturating_add(line.burst);
        self.change(|seen| {
            let from = line.settled(seen, earned);
            from.saturating_add(tokens).min(empty.max(from))
        });
    }

    /// Gives tokens back that were taken; the bucket never holds more than its burst.
    pub(super) fn give(&self, tokens: u64) {
        self.change(|seen| seen.saturating_sub(tokens));
    }

    /// No debt is carried into a smaller burst.
    pub(super) fn fit(&self, line: &Line, now_ns: u64) {
        let empty = line.earned(now_ns).saturating_add(line.burst);
        self.change(|seen| seen.min(empty));
    }

    /// A full bucket for a new line.
    pub(super) fn fill(&self) {
        self.spent_to.store(START, Relaxed);
    }

    /// In how many milliseconds so many tokens will be there.
    pub(super) fn until_ms(&self, line: &Line, now_ns: u64, tokens: u64) -> u64 {
        let spent_to = line.settled(self.spent_to.load(Relaxed), line.earned(now_ns));
        line.until_ms(spent_to.saturating_add(tokens).saturating_sub(line.burst), now_ns)
    }

    /// Tokens in the bucket, and milliseconds until it is full.
    pub(super) fn level(&self, line: &Line, now_ns: u64) -> (u64, u64) {
        let earned = line.earned(now_ns);
        let spent_to = line.settled(self.spent_to.load(Relaxed), earned);
        let level = line.burst.saturating_sub(spent_to.saturating_sub(earned));
        let reset_ms = if level == line.burst { 0 } else { line.until_ms(spent_to, now_ns) };
        (level, reset_ms)
    }

    fn change(&self, to: impl Fn(u64) -> u64) {
        let mut seen = self.spent_to.load(Relaxed);
        loop {
            let next = to(seen);
            if next == seen || self.swap(&mut seen, next) {
                return;
            }
        }
    }

    fn swap(&self, seen: &mut u64, next: u64) -> bool {
        match self.spent_to.compare_exchange_weak(*seen, next, Relaxed, Relaxed) {
            Ok(_) => true,
            Err(now) => {
                *seen = now;
                false
            }
        }
    }
}
