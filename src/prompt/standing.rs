//! How far the counts of one pool can be trusted, and what stands in for them where not.
//!
//! Two things are learned from every answer that tells its prompt's tokens: how many bytes of text
//! make a token (for prompts that are not tokenized), and whether our own exact counts equal the
//! engine's. A pool whose counts keep differing has another tokenizer or template than its engine:
//! it falls back to estimates, and says so. Written by all cores, relaxed atomics; a lost update
//! costs a sample, nothing more.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Bytes of text a token takes, until answers tell: English under the usual vocabularies.
const BYTES_A_TOKEN: f32 = 4.0;
/// The least and the most that is believed of it, so that odd prompts bend nothing.
const BYTES_A_TOKEN_RANGE: (f32, f32) = (0.5, 16.0);
/// Prompts with less text say more of the template than of the text.
const LEARN_BYTES_MIN: u64 = 64;
/// Share of a new sample: the last hundred answers count.
const SAMPLE_WEIGHT: f32 = 0.02;

/// What a count that differs adds to the strikes; one that agrees takes one off.
const STRIKE: u32 = 4;
/// At so many strikes the pool falls back: more than a fifth of its counts differ, for a while.
const STRIKES_MAX: u32 = 64;

/// What came of comparing our count with the engine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// They are equal.
    Same,
    /// They differ, as before for this kind of request.
    Differs,
    /// They differ for the first time for this kind of request: to be logged.
    DiffersAnew,
    /// They have differed too often: from here on the pool's counts are estimates.
    FellBack,
}

/// The standing of one pool. See the module.
#[derive(Debug, Default)]
pub struct Standing {
    /// Bits of an `f32`; 0 = nothing learned yet.
    bytes_a_token: AtomicU32,
    strikes: AtomicU32,
    fell_back: AtomicU32,
    /// A bit for each kind of request that has differed once.
    kinds: AtomicU32,
    same: AtomicU64,
    differing: AtomicU64,
}

impl Standing {
    /// Tokens that `text_bytes` bytes of text are expected to make.
    #[must_use]
    pub fn estimate(&self, text_bytes: u64) -> u64 {
        (text_bytes as f64 / f64::from(self.bytes_a_token())).round() as u64
    }

    /// Bytes of text a token takes, as learned so far.
    #[must_use]
    pub fn bytes_a_token(&self) -> f32 {
        match f32::from_bits(self.bytes_a_token.load(Relaxed)) {
            learned if learned > 0.0 => learned,
            _ => BYTES_A_TOKEN,
        }
    }

    /// Has any answer told how many bytes a token takes?
    #[must_use]
    pub fn has_learned(&self) -> bool {
        self.bytes_a_token.load(Relaxed) != 0
    }

    /// Learns from a prompt of `text_bytes` that was `tokens` for the engine.
    pub fn learn(&self, text_bytes: u64, tokens: u64) {
        if text_bytes < LEARN_BYTES_MIN || tokens == 0 {
            return;
        }
        let (least, most) = BYTES_A_TOKEN_RANGE;
        let sample = (text_bytes as f32 / tokens as f32).clamp(least, most);
        let known = f32::from_bits(self.bytes_a_token.load(Relaxed));
        let learned = if known > 0.0 { known + SAMPLE_WEIGHT * (sample - known) } else { sample };
        self.bytes_a_token.store(learned.to_bits(), Relaxed);
    }

    /// Compares an exact count of ours with the engine's; `kind` (0 to 31) is a class of requests.
    pub fn check(&self, ours: u64, engines: u64, kind: u32) -> Verdict {
        if ours == engines {
            self.same.fetch_add(1, Relaxed);
            let one_off = |strikes: u32| strikes.checked_sub(1);
            let _ = self.strikes.fetch_update(Relaxed, Relaxed, one_off);
            return Verdict::Same;
        }
        self.differing.fetch_add(1, Relaxed);
        let strikes = self.strikes.fetch_add(STRIKE, Relaxed).saturating_add(STRIKE);
        if strikes >= STRIKES_MAX && self.fell_back.swap(1, Relaxed) == 0 {
            return Verdict::FellBack;
        }
        let bit = 1_u32 << (kind & 31);
        match self.kinds.fetch_or(bit, Relaxed) & bit {
            0 => Verdict::DiffersAnew,
            _ => Verdict::Differs,
        }
    }

    /// Have counts differed of late? What is sent on the strength of a count is then left out.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        self.strikes.load(Relaxed) > 0
    }

    /// Have its counts differed so often that they are not believed any more?
    #[must_use]
    pub fn fell_back(&self) -> bool {
        self.fell_back.load(Relaxed) != 0
    }

    /// Answers whose count was equal to ours, and answers whose count was not.
    #[must_use]
    pub fn checked(&self) -> (u64, u64) {
        (self.same.load(Relaxed), self.differing.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_learned_and_bounded() {
        let standing = Standing::default();
        assert_eq!(standing.estimate(1000), 250);
        standing.learn(1000, 500);
        assert_eq!(standing.estimate(1000), 500);
        (0..500).for_each(|_| standing.learn(3000, 1000));
        assert!(standing.estimate(3000).abs_diff(1000) <= 1);
        (0..10_000).for_each(|_| standing.learn(1_000_000, 1));
        assert!((standing.bytes_a_token() - 16.0).abs() < 0.1);
        (0..10_000).for_each(|_| standing.learn(LEARN_BYTES_MIN - 1, 1_000));
        assert!((standing.bytes_a_token() - 16.0).abs() < 0.1, "short prompts say nothing");
        standing.learn(1000, 0);
        assert_eq!(standing.estimate(0), 0);
    }

    #[test]
    fn the_first_difference_of_each_kind_is_told() {
        let standing = Standing::default();
        assert_eq!(standing.check(5, 5, 0), Verdict::Same);
        assert!(!standing.is_doubtful());
        assert_eq!(standing.check(5, 6, 0), Verdict::DiffersAnew);
        assert!(standing.is_doubtful());
        assert_eq!(standing.check(5, 6, 0), Verdict::Differs);
        assert_eq!(standing.check(5, 6, 3), Verdict::DiffersAnew);
        assert_eq!(standing.checked(), (1, 3));
    }

    #[test]
    fn a_pool_falls_back_when_it_keeps_differing() {
        let standing = Standing::default();
        let verdicts: Vec<_> = (0..20).map(|_| standing.check(1, 2, 0)).collect();
        assert_eq!(verdicts.iter().filter(|v| **v == Verdict::FellBack).count(), 1);
        assert_eq!(verdicts[15], Verdict::FellBack);
        assert!(standing.fell_back());
    }

    #[test]
    fn rare_differences_do_no_harm() {
        let standing = Standing::default();
        for i in 0..10_000 {
            standing.check(1, if i % 10 == 0 { 2 } else { 1 }, 0);
        }
        assert!(!standing.fell_back() && !standing.is_doubtful());
        assert_eq!(standing.checked(), (9_000, 1_000));
    }
}
