//! The cores' end of what goes to the collector: which requests are traced, and bounded queues that
//! never block. What finds its queue full is dropped and counted.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crossbeam_queue::ArrayQueue;

use super::context::{Parent, SAMPLED};
use super::request::Request;
use super::trace::Trace;
use crate::config::Otel;
use crate::usage::Copy;

/// Traces that wait for the collector: some 10 MB, and two seconds at 2,000 requests a second.
const TRACES_MAX: usize = 4096;
/// Records that wait for it: some 10 MB.
const RECORDS_MAX: usize = 16_384;

/// Bits of a trace id that decide (W3C Trace Context level 2, 5.2; OpenTelemetry's consistent
/// probability sampling): its last 56.
const DECIDING: u32 = 56;

/// A request that has ended, with its spans.
pub(super) type Ended = Box<(Trace, Request)>;

/// What became of spans, or of records, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The collector has them.
    pub exported: u64,
    /// The collector was away for too long.
    pub dropped: u64,
    /// The collector did not want them.
    pub refused: u64,
}

/// Cells behind [`Counts`].
#[derive(Debug, Default)]
pub(super) struct Cells {
    pub(super) exported: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) refused: AtomicU64,
}

impl Cells {
    fn read(&self) -> Counts {
        let Cells { exported, dropped, refused } = self;
        let [exported, dropped, refused] = [exported, dropped, refused].map(|n| n.load(Relaxed));
        Counts { exported, dropped, refused }
    }
}

/// What all threads share.
pub struct Traces {
    /// A trace that begins here is recorded if its deciding bits are not below this.
    threshold: u64,
    pub(super) traces: ArrayQueue<Ended>,
    pub(super) records: ArrayQueue<Box<[u8]>>,
    pub(super) spans: Cells,
    pub(super) logs: Cells,
    /// 1: the last batch reached the collector.
    pub(super) up: AtomicU64,
}

impl Traces {
    /// Empty queues.
    #[must_use]
    pub fn new(config: &Otel) -> Traces {
        let range = (1_u64 << DECIDING) as f64;
        Traces {
            threshold: ((1.0 - config.sample_ratio.clamp(0.0, 1.0)) * range) as u64,
            traces: ArrayQueue::new(TRACES_MAX),
            records: ArrayQueue::new(RECORDS_MAX),
            spans: Cells::default(),
            logs: Cells::default(),
            up: AtomicU64::new(0),
        }
    }

    /// The context of a request that begins now: the caller's trace, with its decision, or one of
    /// its own. The span is ours.
    pub fn begin(&self, parent: Option<&Parent>, mut random: impl FnMut() -> u64) -> Parent {
        let span_id = random().max(1);
        match parent {
            Some(parent) => Parent { span_id, ..*parent },
            None => {
                let (high, low) = (random(), random().max(1));
                let decides = low & ((1 << DECIDING) - 1);
                let flags = if decides >= self.threshold { SAMPLED } else { 0 };
                Parent { trace_id: u128::from(high) << 64 | u128::from(low), span_id, flags }
            }
        }
    }

    /// Takes over a request that has ended.
    pub fn ended(&self, trace: Trace, request: Request) {
        let spans = trace.spans.len() as u64 + 1;
        if self.traces.push(Box::new((trace, request))).is_err() {
            self.spans.dropped.fetch_add(spans, Relaxed);
        }
    }

    /// Takes a line of the usage log over.
    pub fn record(&self, line: &[u8]) {
        if self.records.push(line.into()).is_err() {
            self.logs.dropped.fetch_add(1, Relaxed);
        }
    }

    /// What takes lines of the usage log over.
    pub fn copy(self: &Arc<Traces>) -> Copy {
        let to = Arc::clone(self);
        Box::new(move |line| to.record(line))
    }

    /// Did the last batch reach the collector?
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up.load(Relaxed) == 1
    }

    /// Spans so far.
    #[must_use]
    pub fn spans(&self) -> Counts {
        self.spans.read()
    }

    /// Copies of usage records so far.
    #[must_use]
    pub fn logs(&self) -> Counts {
        self.logs.read()
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::tests::request;
    use super::*;

    fn traces(sample_ratio: f64) -> Traces {
        let (host, path) = ("h".to_owned(), String::new());
        let service_name = "expedite".to_owned();
        Traces::new(&Otel { host, port: 1, path, sample_ratio, service_name })
    }

    #[test]
    fn a_callers_decision_goes_before_ours() {
        for ratio in [0.0, 1.0] {
            let traces = traces(ratio);
            for flags in [0, SAMPLED] {
                let parent = Parent { trace_id: 5, span_id: 6, flags };
                let begun = traces.begin(Some(&parent), || 9);
                assert_eq!(begun, Parent { trace_id: 5, span_id: 9, flags });
            }
            let begun = traces.begin(None, || 0);
            assert_eq!(begun.is_sampled(), ratio > 0.0);
            assert!(begun.trace_id != 0 && begun.span_id != 0, "zero is no id");
        }
    }

    #[test]
    fn a_share_of_what_begins_here_is_recorded() {
        let (traces, mut random) = (traces(0.25), fastrand::Rng::with_seed(7));
        let sampled = (0..40_000).filter(|_| traces.begin(None, || random.u64(..)).is_sampled());
        let share = sampled.count() as f64 / 40_000.0;
        assert!((share - 0.25).abs() < 0.01, "{share}");
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let traces = traces(1.0);
        for _ in 0..TRACES_MAX + 3 {
            let mut trace = Trace::new(1, None, 2, 1, 0);
            trace.stage("auth", 0, 1);
            traces.ended(trace, request());
        }
        assert_eq!(traces.spans(), Counts { dropped: 6, ..Counts::default() });
        (0..RECORDS_MAX + 2).for_each(|_| traces.record(b"{}\n"));
        assert_eq!(traces.logs().dropped, 2);
    }
}
