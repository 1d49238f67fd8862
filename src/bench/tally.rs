//! Counts and histograms of one side of a bench. Owned by one thread; no I/O, no clock.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use super::failure::{Failure, Kind};

/// The largest time told apart, in microseconds: an hour.
const MICROS_MAX: u64 = 3_600_000_000;

/// With three digits 176.4 and 176.5 ms are one bucket, and what a gateway adds is less than that.
const DIGITS: u8 = 4;

/// A histogram of times: microseconds, four significant digits.
#[derive(Clone, Debug)]
pub struct Histo(Histogram<u64>);

impl Default for Histo {
    fn default() -> Histo {
        Histo(Histogram::new_with_bounds(1, MICROS_MAX, DIGITS).expect("the bounds are in range"))
    }
}

impl Histo {
    pub(super) fn record_ns(&mut self, ns: u64) {
        self.0.saturating_record(ns / 1000);
    }

    fn add(&mut self, other: &Histo) {
        self.0.add(&other.0).expect("the bounds are equal");
    }

    /// Number of entries.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Mean in milliseconds; 0 of nothing.
    #[must_use]
    pub fn mean_ms(&self) -> f64 {
        self.0.mean() / 1000.0
    }

    /// Standard deviation in milliseconds.
    #[must_use]
    pub fn std_ms(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.0.stdev() / 1000.0 }
    }

    /// Quantile `q` (0 to 1) in milliseconds; 0 of nothing.
    #[must_use]
    pub fn quantile_ms(&self, q: f64) -> f64 {
        // A bucket is told by its upper end, which can lie above the largest entry.
        self.0.value_at_quantile(q).min(self.0.max()) as f64 / 1000.0
    }

    /// Largest in milliseconds.
    #[must_use]
    pub fn max_ms(&self) -> f64 {
        self.0.max() as f64 / 1000.0
    }
}

/// What one answer measured; times in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    /// From due to the first content event; none of a whole body.
    pub(super) ttft_ns: Option<u64>,
    /// Time per output token after the first; none of a single token.
    pub(super) tpot_ns: Option<u64>,
    /// Content events.
    pub(super) events: u64,
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) cached_tokens: u64,
}

/// What one side of a bench measured.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Requests whose answer was right.
    pub completed: u64,
    /// The others by kind: how many, and the first one's detail.
    pub failures: BTreeMap<Kind, (u64, String)>,
    /// Due to the first content event, of streams.
    pub ttft: Histo,
    /// Between two content events, of all streams.
    pub itl: Histo,
    /// Time per output token after the first, of streams.
    pub tpot: Histo,
    /// Due to the end of the answer.
    pub total: Histo,
    /// Due to sent: the generator's own lateness.
    pub lateness: Histo,
    /// Tokens of the prompts, as the server counts them.
    pub input_tokens: u64,
    /// Of these, found in the prefix cache.
    pub cached_tokens: u64,
    /// Tokens of the answers.
    pub output_tokens: u64,
    /// Content events.
    pub events: u64,
}

impl Tally {
    pub(super) fn complete(&mut self, total_ns: u64, measured: &Measured) {
        self.completed += 1;
        self.total.record_ns(total_ns);
        if let Some(ns) = measured.ttft_ns {
            self.ttft.record_ns(ns);
        }
        if let Some(ns) = measured.tpot_ns {
            self.tpot.record_ns(ns);
        }
        self.events += measured.events;
        self.input_tokens += measured.input_tokens;
        self.cached_tokens += measured.cached_tokens;
        self.output_tokens += measured.output_tokens;
    }

    pub(super) fn fail(&mut self, failure: Failure) {
        self.failures.entry(failure.kind).or_insert((0, failure.detail)).0 += 1;
    }

    /// Requests that failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failures.values().map(|(count, _)| count).sum()
    }

    pub(super) fn add(&mut self, other: Tally) {
        self.completed += other.completed;
        for (kind, (count, detail)) in other.failures {
            self.failures.entry(kind).or_insert((0, detail)).0 += count;
        }
        self.ttft.add(&other.ttft);
        self.itl.add(&other.itl);
        self.tpot.add(&other.tpot);
        self.total.add(&other.total);
        self.lateness.add(&other.lateness);
        self.input_tokens += other.input_tokens;
        self.cached_tokens += other.cached_tokens;
        self.output_tokens += other.output_tokens;
        self.events += other.events;
    }
}
