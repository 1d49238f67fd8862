//! Metric cells: written by one core, read by any thread.
//!
//! # The single-writer rule
//! Each cell has one writer thread. An update is a relaxed load, an addition and a relaxed store:
//! no locked instruction and no shared line in the request path. Two writers would lose updates
//! (never memory safety). A reader sees each cell whole; cells read together may be a few updates
//! apart. Sums over cores are the reader's work: see [`super::exposition`].
//!
//! No I/O and no clock: durations are arguments.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// Gives a value a cache line of its own, so that neighbours' writers do not disturb it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct CachePadded<T>(pub T);

impl<T> std::ops::Deref for CachePadded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Counts up; wraps at 2^64.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Zero.
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// Adds; the writer only.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Adds one; the writer only.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// The count so far; any thread.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Zero.
    pub const fn new() -> Gauge {
        Gauge(AtomicI64::new(0))
    }

    /// Adds, or takes away when negative; the writer only.
    #[inline]
    pub fn add(&self, n: i64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Replaces the value; the writer only.
    #[inline]
    pub fn set(&self, n: i64) {
        self.0.store(n, Relaxed);
    }

    /// The value; any thread.
    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

/// Upper bounds of the buckets for durations, in nanoseconds: 0.1 ms to 120 s, so that both the
/// gateway's own overhead and a long prefill fall inside.
pub const DURATION_BOUNDS_NS: [u64; 22] = [
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    35_000_000,
    50_000_000,
    75_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
    20_000_000_000,
    30_000_000_000,
    60_000_000_000,
    120_000_000_000,
];

/// Durations in seconds over [`DURATION_BOUNDS_NS`].
pub type DurationHistogram = Histogram<22>;

/// Counts of values below fixed bounds, with their sum; N finite buckets and one above them.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    bounds_ns: &'static [u64; N],
    buckets: [AtomicU64; N],
    above: AtomicU64,
    sum_ns: AtomicU64,
}

/// A histogram as read at one moment; adds up over cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// Upper bounds of the finite buckets, in nanoseconds, ascending.
    pub bounds_ns: &'static [u64],
    /// Values in each bucket alone (not cumulative); one more than the bounds, for those above.
    pub counts: Vec<u64>,
    /// Sum of all values, in nanoseconds.
    pub sum_ns: u64,
}

impl Default for DurationHistogram {
    fn default() -> DurationHistogram {
        Histogram::new(&DURATION_BOUNDS_NS)
    }
}

impl<const N: usize> Histogram<N> {
    /// Empty; `bounds_ns` ascend.
    pub const fn new(bounds_ns: &'static [u64; N]) -> Histogram<N> {
        Histogram {
            bounds_ns,
            buckets: [const { AtomicU64::new(0) }; N],
            above: AtomicU64::new(0),
            sum_ns: AtomicU64::new(0),
        }
    }

    /// Counts one value, in nanoseconds; the writer only. A value equal to a bound is below it, as
    /// Prometheus' `le` says.
    #[inline]
    pub fn record_ns(&self, ns: u64) {
        let bucket = self.buckets.get(self.bounds_ns.partition_point(|&bound| bound < ns));
        let cell = bucket.unwrap_or(&self.above);
        cell.store(cell.load(Relaxed).wrapping_add(1), Relaxed);
        self.sum_ns.store(self.sum_ns.load(Relaxed).wrapping_add(ns), Relaxed);
    }

    /// Reads all cells; any thread.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let cells = self.buckets.iter().chain([&self.above]);
        HistogramSnapshot {
            bounds_ns: self.bounds_ns,
            counts: cells.map(|cell| cell.load(Relaxed)).collect(),
            sum_ns: self.sum_ns.load(Relaxed),
        }
    }
}

impl HistogramSnapshot {
    /// Adds another core's snapshot of the same bounds.
    pub fn add(&mut self, other: &HistogramSnapshot) {
        debug_assert_eq!(self.bounds_ns, other.bounds_ns);
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.wrapping_add(*theirs);
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, n| sum.wrapping_add(*n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_gauges_count() {
        let (counter, gauge) = (Counter::new(), Gauge::new());
        counter.inc();
        counter.add(41);
        gauge.add(5);
        gauge.add(-7);
        assert_eq!((counter.get(), gauge.get()), (42, -2));
        gauge.set(3);
        assert_eq!(gauge.get(), 3);
    }

    #[test]
    fn a_value_on_a_bound_is_below_it() {
        let histogram: Histogram<2> = Histogram::new(&[10, 20]);
        for ns in [0, 10, 11, 20, 21, u64::MAX / 2] {
            histogram.record_ns(ns);
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.counts, [2, 2, 2]);
        assert_eq!(snapshot.count(), 6);
        assert_eq!(snapshot.sum_ns, 62 + u64::MAX / 2);
    }

    #[test]
    fn snapshots_add_up() {
        let (one, two) = (DurationHistogram::default(), DurationHistogram::default());
        one.record_ns(1);
        two.record_ns(1);
        two.record_ns(200_000_000_000);
        let mut sum = one.snapshot();
        sum.add(&two.snapshot());
        assert_eq!((sum.count(), sum.counts[0], sum.counts[22]), (3, 2, 1));
        assert_eq!(sum.sum_ns, 200_000_000_002);
    }

    #[test]
    fn bounds_ascend_and_cells_are_apart() {
        assert!(DURATION_BOUNDS_NS.is_sorted_by(|a, b| a < b));
        assert_eq!(std::mem::align_of::<CachePadded<Counter>>(), 64);
        assert_eq!(std::mem::size_of::<CachePadded<Counter>>(), 64);
    }

    #[test]
    fn a_reader_on_another_thread_sees_every_update_in_the_end() {
        let counter = Counter::new();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..100_000).for_each(|_| counter.inc()));
            let mut before = 0;
            while before < 100_000 {
                let now = counter.get();
                assert!(now >= before);
                before = now;
                std::hint::spin_loop();
            }
        });
        assert_eq!(counter.get(), 100_000);
    }
}
