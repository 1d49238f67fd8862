//! Does what we believe an engine holds agree with what it reports?
//!
//! Every finished request whose engine tells `cached_tokens` is held against our prediction. A
//! wrong template, salt, tokenizer or hash does not bend a prediction a little: the hits that we
//! predict do not happen at all, or those that happen we never predict. Sums over a window tell
//! that apart from the odd eviction. Any core writes it, relaxed; a sample is one atomic update.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Samples of a window.
const WINDOW: u64 = 32;
/// A sample in which both figures are below this says nothing.
const TOKENS_MIN: u64 = 64;
/// More of one sample does not count, so that one long prompt does not decide, and no sum runs over
/// its bits.
const TOKENS_MAX: u64 = 1 << 20;
/// Below this share of the other sum, a sum is "none of it".
const SHARE_MIN: f64 = 0.1;
/// Above this share both ways, the two agree again.
const SHARE_AGREES: f64 = 0.5;

/// What a window of requests told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The index does not match the engine: predicted hits do not happen.
    NoHits,
    /// The index does not match the engine: hits happen that an exact index never predicted.
    Unforeseen,
    /// It matches again.
    Agrees,
}

impl Verdict {
    /// For logs.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Verdict::NoHits => {
                "the index does not match the engine: predicted hits do not happen (another \
                 template, tokenizer, salt or hash?)"
            }
            Verdict::Unforeseen => {
                "the index does not match the engine: its hits are not predicted (another \
                 template, tokenizer or salt?)"
            }
            Verdict::Agrees => "the index matches the engine again",
        }
    }
}

/// One replica's (or rank's) agreement. See the module.
#[derive(Debug, Default)]
pub struct Check {
    /// The open window: samples (8 bits), predicted and reported tokens (28 each).
    window: AtomicU64,
    mismatched: AtomicBool,
    /// Tokens in all samples.
    predicted: AtomicU64,
    reported: AtomicU64,
}

impl Check {
    /// A request has finished: `predicted` tokens were expected in the cache, `reported` were, by
    /// the engine's count; `exact`: the prediction came from the engine's own events. A verdict is
    /// given when it changes.
    pub fn observe(&self, exact: bool, predicted: u64, reported: u64) -> Option<Verdict> {
        self.predicted.fetch_add(predicted, Relaxed);
        self.reported.fetch_add(reported, Relaxed);
        if predicted.max(reported) < TOKENS_MIN {
            return None;
        }
        let (samples, ours, theirs) = self.add(predicted.min(TOKENS_MAX), reported.min(TOKENS_MAX));
        if samples < WINDOW {
            return None;
        }
        let none = |part: u64, of: u64| (part as f64) < SHARE_MIN * of as f64;
        let most = |part: u64, of: u64| part as f64 >= SHARE_AGREES * of as f64;
        let found = if none(theirs, ours) {
            Verdict::NoHits
        } else if exact && none(ours, theirs) {
            Verdict::Unforeseen
        } else if most(theirs, ours) && (!exact || most(ours, theirs)) {
            Verdict::Agrees
        } else {
            return None;
        };
        let mismatch = found != Verdict::Agrees;
        (self.mismatched.swap(mismatch, Relaxed) != mismatch).then_some(found)
    }

    /// Adds a sample; a full window is returned, once, and a new one begins.
    fn add(&self, predicted: u64, reported: u64) -> (u64, u64, u64) {
        let open = |window: u64| (window >> 56, window >> 28 & 0xfff_ffff, window & 0xfff_ffff);
        let sum = |window: u64| {
            let (samples, ours, theirs) = open(window);
            (samples + 1, ours + predicted, theirs + reported)
        };
        let next = |window: u64| {
            let (samples, ours, theirs) = sum(window);
            Some(if samples < WINDOW { samples << 56 | ours << 28 | theirs } else { 0 })
        };
        let before = self.window.fetch_update(Relaxed, Relaxed, next);
        sum(before.unwrap_or_else(|window| window))
    }

    /// Is the index known not to match the engine?
    #[must_use]
    pub fn is_mismatched(&self) -> bool {
        self.mismatched.load(Relaxed)
    }

    /// The engine is another process now: what was found of the old one is forgotten.
    pub fn reset(&self) {
        self.window.store(0, Relaxed);
        self.mismatched.store(false, Relaxed);
    }

    /// Cached tokens predicted and reported, summed over all requests.
    #[must_use]
    pub fn tokens(&self) -> (u64, u64) {
        (self.predicted.load(Relaxed), self.reported.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(check: &Check, exact: bool, predicted: u64, reported: u64) -> Vec<Verdict> {
        (0..WINDOW).filter_map(|_| check.observe(exact, predicted, reported)).collect()
    }

    #[test]
    fn agreement_says_nothing() {
        let check = Check::default();
        for (predicted, reported) in [(1000, 1000), (1000, 700), (700, 1000), (10, 0), (0, 10)] {
            assert_eq!(window(&check, true, predicted, reported), [], "{predicted} {reported}");
        }
        assert!(!check.is_mismatched());
    }

    #[test]
    fn hits_that_do_not_happen_are_told_once() {
        let check = Check::default();
        assert_eq!(window(&check, false, 1600, 0), [Verdict::NoHits]);
        assert_eq!(window(&check, false, 1600, 32), []);
        assert!(check.is_mismatched());
        assert_eq!(window(&check, false, 1600, 400), [], "neither one nor the other");
        assert!(check.is_mismatched());
        assert_eq!(window(&check, false, 1600, 1600), [Verdict::Agrees]);
        assert!(!check.is_mismatched());
        assert_eq!(check.tokens(), (1600 * 4 * WINDOW, (32 + 400 + 1600) * WINDOW));
    }

    #[test]
    fn unforeseen_hits_count_against_an_exact_index_only() {
        let check = Check::default();
        assert_eq!(window(&check, false, 0, 1600), []);
        assert_eq!(window(&check, true, 0, 1600), [Verdict::Unforeseen]);
        check.reset();
        assert!(!check.is_mismatched());
    }

    #[test]
    fn an_odd_eviction_is_no_verdict_and_sums_do_not_run_over() {
        let check = Check::default();
        for i in 0..WINDOW * 20 {
            let reported = if i % 3 == 0 { 0 } else { 2000 };
            assert_eq!(check.observe(true, 2000, reported), None);
        }
        assert_eq!(window(&check, true, u64::MAX >> 8, 0), [Verdict::NoHits]);
        assert_eq!(window(&check, true, 1 << 40, 1 << 40), [Verdict::Agrees]);
        assert_eq!(window(&check, true, 0, u64::MAX >> 8), [Verdict::Unforeseen]);
    }
}
