//! How long an answer will be: a small table of a pool, learned online, keyed by the bucket of
//! `max_tokens` and the hashed tenant.
//!
//! Shared by the cores as relaxed atomics: a lost update costs one sample. A cell with few samples
//! falls back to its bucket over all tenants, then to the pool, then to 300 tokens.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Tokens of an answer where nothing is known: the mean of public chat traces.
const UNKNOWN_TOKENS: f64 = 300.0;
/// Samples that a cell needs before it is believed.
const SAMPLES_MIN: u32 = 16;
/// Samples over which a cell averages once it has that many.
const SAMPLES_MAX: u32 = 512;
/// Upper ends of the buckets of `max_tokens`; one more for above, one for none.
const BUCKETS: [u64; 8] = [8, 32, 128, 256, 512, 1024, 2048, 4096];
/// Rows of tenants; two in one row share their samples.
const TENANTS: usize = 64;
const KINDS: usize = BUCKETS.len() + 2;

/// What to expect of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Mean tokens.
    pub mean: f64,
    /// Tokens that nine of ten answers stay within.
    pub p90: f64,
}

#[derive(Debug, Default)]
struct Cell {
    samples: AtomicU32,
    mean: AtomicU64,
    p90: AtomicU64,
}

impl Cell {
    fn observe(&self, tokens: f64) {
        let samples = self.samples.load(Relaxed);
        let n = samples.saturating_add(1).min(SAMPLES_MAX);
        self.samples.store(n, Relaxed);
        let mean = f64::from_bits(self.mean.load(Relaxed));
        let mean = mean + (tokens - mean) / f64::from(n);
        self.mean.store(mean.to_bits(), Relaxed);
        // Stochastic approximation of the quantile (Robbins and Monro 1951): up by 0.9 of a step
        // when above, down by 0.1 when below; a step is a share of the mean.
        let p90 = f64::from_bits(self.p90.load(Relaxed));
        let p90 = if samples == 0 { tokens * 2.0 } else { p90 };
        let step = (mean * 4.0 / f64::from(n).sqrt()).max(1.0);
        let p90 = if tokens > p90 { p90 + 0.9 * step } else { p90 - 0.1 * step };
        self.p90.store(p90.max(1.0).to_bits(), Relaxed);
    }

    fn expected(&self) -> Option<Expected> {
        (self.samples.load(Relaxed) >= SAMPLES_MIN).then(|| {
            let mean = f64::from_bits(self.mean.load(Relaxed)).max(1.0);
            Expected { mean, p90: f64::from_bits(self.p90.load(Relaxed)).max(mean) }
        })
    }
}

/// The lengths of a pool's answers.
#[derive(Debug)]
pub struct Lengths {
    pool: Cell,
    buckets: [Cell; KINDS],
    tenants: Box<[[Cell; KINDS]]>,
}

impl Default for Lengths {
    fn default() -> Lengths {
        Lengths::new()
    }
}

impl Lengths {
    /// Nothing known yet.
    #[must_use]
    pub fn new() -> Lengths {
        let row = || std::array::from_fn(|_| Cell::default());
        Lengths {
            pool: Cell::default(),
            buckets: row(),
            tenants: (0..TENANTS).map(|_| row()).collect(),
        }
    }

    /// What to expect of an answer of at most `max_tokens` for the tenant of that hash.
    #[must_use]
    pub fn expect(&self, max_tokens: Option<u64>, tenant: u64) -> Expected {
        let kind = bucket(max_tokens);
        let own = self.cell(kind, tenant).and_then(Cell::expected);
        let known = own
            .or_else(|| self.buckets.get(kind).and_then(Cell::expected))
            .or_else(|| self.pool.expected())
            .unwrap_or(Expected { mean: UNKNOWN_TOKENS, p90: 2.0 * UNKNOWN_TOKENS });
        let most = max_tokens.map_or(f64::INFINITY, |most| most as f64);
        Expected { mean: known.mean.min(most), p90: known.p90.min(most) }
    }

    /// Enters an answer of `tokens`.
    pub fn observe(&self, max_tokens: Option<u64>, tenant: u64, tokens: u64) {
        let kind = bucket(max_tokens);
        let tokens = tokens as f64;
        self.pool.observe(tokens);
        if let Some(cell) = self.buckets.get(kind) {
            cell.observe(tokens);
        }
        if let Some(cell) = self.cell(kind, tenant) {
            cell.observe(tokens);
        }
    }

    fn cell(&self, kind: usize, tenant: u64) -> Option<&Cell> {
        self.tenants.get((tenant % TENANTS as u64) as usize)?.get(kind)
    }
}

fn bucket(max_tokens: Option<u64>) -> usize {
    let Some(most) = max_tokens else { return BUCKETS.len() + 1 };
    BUCKETS.iter().position(|&end| most <= end).unwrap_or(BUCKETS.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths from 1 to 2 x `mean`, evenly, in an order that does not repeat soon.
    fn feed(lengths: &Lengths, max_tokens: Option<u64>, tenant: u64, mean: u64, samples: u64) {
        for i in 0..samples {
            lengths.observe(max_tokens, tenant, 1 + i * 7919 % (2 * mean));
        }
    }

    #[test]
    fn nothing_known_is_the_usual_cut_to_the_limit() {
        let lengths = Lengths::new();
        assert_eq!(lengths.expect(None, 1), Expected { mean: 300.0, p90: 600.0 });
        assert_eq!(lengths.expect(Some(50), 1), Expected { mean: 50.0, p90: 50.0 });
    }

    #[test]
    fn what_has_few_samples_falls_back() {
        let lengths = Lengths::new();
        feed(&lengths, Some(100), 1, 40, 400);
        // The tenant's own; another tenant's by the bucket; another bucket's by the pool.
        for (max_tokens, tenant) in [(Some(100), 1), (Some(100), 2), (None, 2)] {
            let mean = lengths.expect(max_tokens, tenant).mean;
            assert!((34.0..46.0).contains(&mean), "{max_tokens:?} {tenant}: {mean}");
        }
        // Once it has its own samples they count.
        feed(&lengths, None, 2, 900, 400);
        assert!((800.0..1000.0).contains(&lengths.expect(None, 2).mean));
        assert!((34.0..46.0).contains(&lengths.expect(Some(100), 1).mean));
        feed(&lengths, Some(100), 2, 10, 400);
        assert!(lengths.expect(Some(100), 2).mean < 12.0);
        assert!((34.0..46.0).contains(&lengths.expect(Some(100), 1).mean));
    }

    #[test]
    fn nine_of_ten_stay_within_the_quantile() {
        let lengths = Lengths::new();
        feed(&lengths, None, 3, 500, 4000);
        let p90 = lengths.expect(None, 3).p90;
        assert!((800.0..1000.0).contains(&p90), "{p90}");
    }

    #[test]
    fn a_change_of_traffic_is_followed() {
        let lengths = Lengths::new();
        feed(&lengths, None, 3, 500, 4000);
        feed(&lengths, None, 3, 50, 2500);
        assert!(lengths.expect(None, 3).mean < 65.0, "{:?}", lengths.expect(None, 3));
    }

    #[test]
    fn every_limit_has_a_bucket() {
        let all = [Some(0), Some(8), Some(9), Some(4096), Some(4097), Some(u64::MAX), None];
        assert_eq!(all.map(bucket), [0, 0, 1, 7, 8, 8, 9]);
        let lengths = Lengths::new();
        for max_tokens in all {
            feed(&lengths, max_tokens, u64::MAX, 20, 30);
            assert!(lengths.expect(max_tokens, u64::MAX).mean.is_finite());
        }
    }
}
