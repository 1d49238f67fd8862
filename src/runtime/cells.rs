//! Metric cells with one writer and any number of readers.
//!
//! A core owns its cells and changes them by a relaxed load and store, which costs no locked
//! instruction; the control thread reads them when it is scraped and sums over cores. A cell must
//! only ever be written by one thread, or counts are lost.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI64, AtomicU64, fence};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The count.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Sets it.
    pub fn set(&self, value: i64) {
        self.0.store(value, Relaxed);
    }

    /// Adds `n`, which may be negative.
    pub fn add(&self, n: i64) {
        self.set(self.get().wrapping_add(n));
    }

    /// The value.
    #[must_use]
    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

/// Upper bounds of the buckets in nanoseconds: 5 us to 120 s, 1-2.5-5.
pub const BOUNDS_NS: [u64; 23] = [
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
    120_000_000_000,
];

/// Durations in buckets.
#[derive(Debug, Default)]
pub struct Histogram {
    /// One more than the bounds: the last holds what is longer.
    buckets: [Counter; BOUNDS_NS.len() + 1],
    sum_ns: Counter,
}

impl Histogram {
    /// Enters a duration.
    pub fn observe_ns(&self, ns: u64) {
        let at = BOUNDS_NS.partition_point(|&bound| bound < ns);
        if let Some(bucket) = self.buckets.get(at) {
            bucket.inc();
        }
        self.sum_ns.add(ns);
    }
}

/// The request that an entry of a histogram's bucket came from last, where it is traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exemplar {
    /// Its trace.
    pub trace_id: u128,
    /// The entry.
    pub ns: u64,
    /// When it was entered, in ms since 1970.
    pub unix_ms: u64,
}

/// The last exemplar of each bucket. One writer; a reader that meets a change under way sees none.
#[derive(Debug, Default)]
pub struct Exemplars([ExemplarCell; BOUNDS_NS.len() + 1]);

/// A sequence lock (Boehm, "Can seqlocks get along with programming language memory models?",
/// 2012): odd while it is written.
#[derive(Debug, Default)]
struct ExemplarCell {
    version: AtomicU64,
    /// High and low half of the trace id, the entry, its time.
    words: [AtomicU64; 4],
}

impl Exemplars {
    /// Enters one.
    pub fn put(&self, new: Exemplar) {
        let at = BOUNDS_NS.partition_point(|&bound| bound < new.ns);
        let Some(cell) = self.0.get(at) else { return };
        let version = cell.version.load(Relaxed);
        cell.version.store(version.wrapping_add(1), Relaxed);
        fence(Release);
        let halves = [(new.trace_id >> 64) as u64, new.trace_id as u64];
        let words = [halves[0], halves[1], new.ns, new.unix_ms];
        cell.words.iter().zip(words).for_each(|(to, word)| to.store(word, Relaxed));
        cell.version.store(version.wrapping_add(2), Release);
    }

    /// The one of a bucket.
    #[must_use]
    pub fn get(&self, bucket: usize) -> Option<Exemplar> {
        let cell = self.0.get(bucket)?;
        let version = cell.version.load(Acquire);
        let [high, low, ns, unix_ms] = cell.words.each_ref().map(|word| word.load(Relaxed));
        fence(Acquire);
        let is_whole = version != 0 && version % 2 == 0 && cell.version.load(Relaxed) == version;
        let trace_id = u128::from(high) << 64 | u128::from(low);
        is_whole.then_some(Exemplar { trace_id, ns, unix_ms })
    }
}

/// Upper bounds of buckets of tokens, as OpenTelemetry's GenAI conventions have them.
pub const BOUNDS_TOKENS: [u64; 14] = [
    1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216,
    67_108_864,
];

/// Numbers of tokens in buckets.
#[derive(Debug, Default)]
pub struct Tokens {
    /// One more than the bounds: the last holds what is more.
    pub buckets: [Counter; BOUNDS_TOKENS.len() + 1],
    /// Sum of the numbers.
    pub sum: Counter,
}

impl Tokens {
    /// Enters a number.
    pub fn observe(&self, tokens: u64) {
        let at = BOUNDS_TOKENS.partition_point(|&bound| bound < tokens);
        if let Some(bucket) = self.buckets.get(at) {
            bucket.inc();
        }
        self.sum.add(tokens);
    }
}

/// Histograms of several cores, summed for reading.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    /// Entries per bucket, not cumulative.
    pub buckets: [u64; BOUNDS_NS.len() + 1],
    /// Sum of the durations.
    pub sum_ns: u64,
}

impl Sum {
    /// Adds one core's histogram.
    pub fn add(&mut self, of: &Histogram) {
        for (sum, bucket) in self.buckets.iter_mut().zip(&of.buckets) {
            *sum = sum.wrapping_add(bucket.get());
        }
        self.sum_ns = self.sum_ns.wrapping_add(of.sum_ns.get());
    }

    /// What came after `earlier`, which is an older sum of the same histograms. Of histograms that
    /// have begun anew since then, everything.
    #[must_use]
    pub fn since(&self, earlier: &Sum) -> Sum {
        let mut pairs = self.buckets.iter().zip(&earlier.buckets);
        if pairs.any(|(now, then)| now < then) || self.sum_ns < earlier.sum_ns {
            return self.clone();
        }
        let mut since = self.clone();
        for (now, then) in since.buckets.iter_mut().zip(&earlier.buckets) {
            *now = now.wrapping_sub(*then);
        }
        since.sum_ns = since.sum_ns.wrapping_sub(earlier.sum_ns);
        since
    }

    /// The duration in ns that the share `q` of the entries do not pass, straight between the
    /// bounds of its bucket (as `histogram_quantile` has it); past the last bound, that. `None`
    /// without entries.
    #[must_use]
    pub fn quantile_ns(&self, q: f64) -> Option<f64> {
        let rank = q.clamp(0.0, 1.0) * self.count() as f64;
        let (mut below, mut low) = (0.0, 0.0);
        for (entries, bound) in self.buckets.iter().zip(BOUNDS_NS) {
            let (entries, high) = (*entries as f64, bound as f64);
            if entries > 0.0 && below + entries >= rank {
                return Some(low + (high - low) * ((rank - below) / entries).max(0.0));
            }
            (below, low) = (below + entries, high);
        }
        (self.count() > 0).then_some(low)
    }

    /// Number of entries.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |n, b| n.wrapping_add(*b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_the_bucket_whose_bound_they_do_not_pass() {
        let h = Histogram::default();
        for ns in [0, 100_000, 100_001, 120_000_000_000, 120_000_000_001] {
            h.observe_ns(ns);
        }
        let mut sum = Sum::default();
        sum.add(&h);
        assert_eq!((sum.buckets[0], sum.buckets[4], sum.buckets[5]), (1, 1, 1));
        assert_eq!((sum.buckets[22], sum.buckets[23]), (1, 1));
        assert_eq!((sum.count(), sum.sum_ns), (5, 240_000_200_002));
    }

    #[test]
    fn quantiles_lie_within_their_bucket_and_windows_are_differences() {
        let h = Histogram::default();
        let read = || {
            let mut sum = Sum::default();
            sum.add(&h);
            sum
        };
        assert_eq!(read().quantile_ns(0.5), None);
        // Four between 1 and 2.5 ms, as far as the buckets tell.
        (0..4).for_each(|_| h.observe_ns(2_000_000));
        assert_eq!(read().quantile_ns(0.5), Some(1_750_000.0));
        assert_eq!(read().quantile_ns(1.0), Some(2_500_000.0));
        assert_eq!(read().quantile_ns(0.0), Some(1_000_000.0));
        let earlier = read();
        h.observe_ns(200_000_000_000);
        let since = read().since(&earlier);
        assert_eq!((since.count(), since.sum_ns), (1, 200_000_000_000));
        assert_eq!(since.quantile_ns(0.5), Some(120e9), "no bucket tells more");
        assert_eq!(earlier.since(&read()).count(), 4, "begun anew");
    }

    #[test]
    fn an_exemplar_is_seen_whole_in_its_bucket() {
        let cells = Exemplars::default();
        assert_eq!(cells.get(4), None);
        let new = |n: u64| Exemplar { trace_id: u128::from(n) << 64 | 7, ns: 100_000, unix_ms: n };
        cells.put(new(1));
        cells.put(new(2));
        assert_eq!((cells.get(4), cells.get(5)), (Some(new(2)), None));
        // A reader beside the writer never sees halves of two.
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (3..200_000).for_each(|n| cells.put(new(n))));
            while !writer.is_finished() {
                if let Some(seen) = cells.get(4) {
                    assert_eq!(seen, new(seen.unix_ms));
                }
            }
        });
    }

    #[test]
    fn tokens_fall_into_the_bucket_whose_bound_they_do_not_pass() {
        let tokens = Tokens::default();
        [0, 1, 2, 67_108_864, 67_108_865].into_iter().for_each(|n| tokens.observe(n));
        let at = |n: usize| tokens.buckets[n].get();
        assert_eq!((at(0), at(1), at(13), at(14), tokens.sum.get()), (2, 1, 1, 1, 134_217_732));
    }

    #[test]
    fn gauges_return_to_zero() {
        let g = Gauge::default();
        g.add(3);
        g.add(-3);
        assert_eq!(g.get(), 0);
    }
}
