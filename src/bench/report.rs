//! What a load has measured: histograms in microseconds, counts, errors by kind.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// What one request gave.
#[derive(Debug, Default)]
pub(super) struct Answered {
    pub error: Option<String>,
    pub ttft_us: Option<u64>,
    pub gaps_us: Vec<u64>,
    pub total_us: u64,
    pub input_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub attempts: u64,
}

/// Mean and quantiles in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantiles {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

/// The measurements of one target.
#[derive(Debug)]
pub struct Report {
    /// The target's name.
    pub name: String,
    /// Length of the run in seconds.
    pub duration_s: f64,
    /// Requests whose answer was whole and right.
    pub completed: u64,
    /// Errors by kind.
    pub errors: BTreeMap<String, u64>,
    /// Input tokens by the engine's usage.
    pub input_tokens: u64,
    /// Of these, cached.
    pub cached_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Requests that needed more than one attempt.
    pub retried: u64,
    ttft: Histogram<u64>,
    itl: Histogram<u64>,
    tpot: Histogram<u64>,
    total: Histogram<u64>,
}

/// Three significant digits, up to an hour in microseconds; the bounds are constants that fit.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 3)
        .unwrap_or_else(|_| unreachable!("1 to 3.6e9 at three digits is a valid histogram"))
}

fn quantiles(h: &Histogram<u64>) -> Quantiles {
    let ms = |us: u64| us as f64 / 1e3;
    Quantiles {
        mean: h.mean() / 1e3,
        p50: ms(h.value_at_quantile(0.5)),
        p90: ms(h.value_at_quantile(0.9)),
        p99: ms(h.value_at_quantile(0.99)),
        max: ms(h.max()),
    }
}

impl Report {
    pub(super) fn new(name: &str) -> Report {
        Report {
            name: name.to_owned(),
            duration_s: 0.0,
            completed: 0,
            errors: BTreeMap::new(),
            input_tokens: 0,
            cached_tokens: 0,
            output_tokens: 0,
            retried: 0,
            ttft: histogram(),
            itl: histogram(),
            tpot: histogram(),
            total: histogram(),
        }
    }

    pub(super) fn enter(&mut self, answered: Answered) {
        if let Some(error) = answered.error {
            *self.errors.entry(error).or_default() += 1;
            return;
        }
        self.completed += 1;
        self.input_tokens += answered.input_tokens;
        self.cached_tokens += answered.cached_tokens;
        self.output_tokens += answered.output_tokens;
        self.retried += u64::from(answered.attempts > 1);
        self.total.saturating_record(answered.total_us);
        let Some(ttft) = answered.ttft_us else { return };
        self.ttft.saturating_record(ttft);
        for gap in answered.gaps_us {
            self.itl.saturating_record(gap);
        }
        if let Some(more) = answered.output_tokens.checked_sub(1).filter(|n| *n > 0) {
            self.tpot.saturating_record(answered.total_us.saturating_sub(ttft) / more);
        }
    }

    /// Requests that went wrong.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Time to the first content event of streams.
    #[must_use]
    pub fn ttft(&self) -> Quantiles {
        quantiles(&self.ttft)
    }

    /// Gaps between content events.
    #[must_use]
    pub fn itl(&self) -> Quantiles {
        quantiles(&self.itl)
    }

    /// Time per output token after the first.
    #[must_use]
    pub fn tpot(&self) -> Quantiles {
        quantiles(&self.tpot)
    }

    /// Time of whole requests.
    #[must_use]
    pub fn total(&self) -> Quantiles {
        quantiles(&self.total)
    }

    /// Requests a second that completed.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.completed as f64 / self.duration_s.max(1e-9)
    }

    /// The report with the field names of `vllm bench serve` where it has them.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut value = json!({
            "target": self.name,
            "duration": self.duration_s,
            "completed": self.completed,
            "failed": self.failed(),
            "errors": self.errors,
            "total_input_tokens": self.input_tokens,
            "total_cached_tokens": self.cached_tokens,
            "total_output_tokens": self.output_tokens,
            "retried": self.retried,
            "request_throughput": self.rate(),
            "output_throughput": self.output_tokens as f64 / self.duration_s.max(1e-9),
        });
        let groups = [
            ("ttft", self.ttft()),
            ("tpot", self.tpot()),
            ("itl", self.itl()),
            ("e2el", self.total()),
        ];
        if let Some(fields) = value.as_object_mut() {
            for (name, q) in groups {
                fields.insert(format!("mean_{name}_ms"), q.mean.into());
                fields.insert(format!("median_{name}_ms"), q.p50.into());
                fields.insert(format!("p90_{name}_ms"), q.p90.into());
                fields.insert(format!("p99_{name}_ms"), q.p99.into());
                fields.insert(format!("max_{name}_ms"), q.max.into());
            }
        }
        value
    }
}
