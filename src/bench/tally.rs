//! Counts and histograms of one side of a bench. Owned by one thread; no I/O, no clock.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::Slo;
use super::failure::{Failure, Kind};
use super::series::{Became, Series};

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

    /// All of it: `counts[i]` entries lie at most at `us[i]` and above `us[i - 1]`, exact to four
    /// digits.
    #[must_use]
    pub fn json(&self) -> Value {
        let (mut us, mut counts) = (Vec::new(), Vec::new());
        for bucket in self.0.iter_recorded() {
            us.push(bucket.value_iterated_to().min(self.0.max()));
            counts.push(bucket.count_since_last_iteration());
        }
        json!({ "us": us, "counts": counts })
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
    /// Requests that were sent, or could not be: all that were due.
    pub sent: u64,
    /// Requests whose answer was right.
    pub completed: u64,
    /// Requests that were given up on purpose before their answer had ended.
    pub cancelled: u64,
    /// Of the completed ones, those within the limit of the first token.
    pub ttft_ok: u64,
    /// Those within the limit of the later ones.
    pub tpot_ok: u64,
    /// Those within both.
    pub good: u64,
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
    /// All of this by time.
    pub series: Series,
}

impl Tally {
    /// For a run that begins at `origin_ns`.
    pub(super) fn from(origin_ns: u64) -> Tally {
        Tally { series: Series::from(origin_ns), ..Tally::default() }
    }

    /// A request was due.
    pub(super) fn send(&mut self, due_ns: u64) {
        self.sent += 1;
        self.series.count(due_ns, Became::Due);
    }

    /// A content event came; `gap_ns` since the one before it.
    pub(super) fn event(&mut self, at_ns: u64, gap_ns: Option<u64>) {
        if let Some(gap_ns) = gap_ns {
            self.itl.record_ns(gap_ns);
        }
        self.series.event(at_ns, gap_ns);
    }

    /// An answer that was due at `due_ns` has ended and is right.
    pub(super) fn complete(&mut self, due_ns: u64, end_ns: u64, measured: &Measured, slo: &Slo) {
        self.completed += 1;
        self.series.count(end_ns, Became::Completed);
        let total_ns = end_ns.saturating_sub(due_ns);
        self.total.record_ns(total_ns);
        // The first that is seen of a whole body is all of it.
        let ttft_ok = Slo::allows(slo.ttft_ms, measured.ttft_ns.unwrap_or(total_ns));
        let tpot_ok = Slo::allows(slo.tpot_ms, measured.tpot_ns.unwrap_or(0));
        self.ttft_ok += u64::from(ttft_ok);
        self.tpot_ok += u64::from(tpot_ok);
        self.good += u64::from(ttft_ok && tpot_ok);
        if let Some(ns) = measured.ttft_ns {
            self.ttft.record_ns(ns);
            self.series.first(due_ns, ns);
        }
        if let Some(ns) = measured.tpot_ns {
            self.tpot.record_ns(ns);
        }
        self.events += measured.events;
        self.input_tokens += measured.input_tokens;
        self.cached_tokens += measured.cached_tokens;
        self.output_tokens += measured.output_tokens;
    }

    pub(super) fn cancel(&mut self, at_ns: u64) {
        self.cancelled += 1;
        self.series.count(at_ns, Became::Cancelled);
    }

    pub(super) fn fail(&mut self, at_ns: u64, failure: Failure) {
        self.series.count(at_ns, Became::Failed);
        self.failures.entry(failure.kind).or_insert((0, failure.detail)).0 += 1;
    }

    /// Requests that failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failures.values().map(|(count, _)| count).sum()
    }

    /// Requests that had not ended when the run was.
    #[must_use]
    pub fn unfinished(&self) -> u64 {
        self.sent.saturating_sub(self.completed + self.cancelled + self.failed())
    }

    /// Shares of the requests, but for those given up on purpose, that were within the limit of
    /// the first token, within that of the later ones, and within both. One that failed is within
    /// none. All of nothing.
    #[must_use]
    pub fn within(&self) -> [f64; 3] {
        let all = self.sent.saturating_sub(self.cancelled);
        let share = |n: u64| if all == 0 { 1.0 } else { n as f64 / all as f64 };
        [self.ttft_ok, self.tpot_ok, self.good].map(share)
    }

    pub(super) fn add(&mut self, other: Tally) {
        self.sent += other.sent;
        self.completed += other.completed;
        self.cancelled += other.cancelled;
        self.ttft_ok += other.ttft_ok;
        self.tpot_ok += other.tpot_ok;
        self.good += other.good;
        self.series.add(other.series);
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
