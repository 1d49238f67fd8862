//! How long things took in the last minute. The cores' histograms only grow; what they were is kept
//! here every few seconds, and the difference is what came since.
//!
//! Owned and written by the control thread.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::metrics::by_pool;
use super::server::View;
use super::shard::{PoolCells, Stage};
use crate::runtime::cells::{Histogram, Sum};

/// The window in ms.
pub(super) const WINDOW_MS: u64 = 60_000;
/// A sample is kept so often, in ms.
pub(super) const EVERY_MS: u64 = 5_000;

/// A pool's histograms.
#[derive(Clone, Debug, Default)]
struct PoolSums {
    ttft: Sum,
    tpot: Sum,
    queue_wait: Sum,
}

/// Everything at one time.
#[derive(Clone, Debug, Default)]
struct Sample {
    at_ms: u64,
    pools: BTreeMap<Arc<str>, PoolSums>,
    /// In the order of [`Stage::ALL`].
    stages: Vec<Sum>,
}

/// Samples of the last minute, the oldest first.
#[derive(Debug, Default)]
pub struct Recent(Mutex<VecDeque<Sample>>);

/// The last minute.
pub(super) struct Window {
    now: Sample,
    then: Sample,
}

impl Recent {
    /// Keeps a sample of now.
    pub(super) fn keep(&self, view: &View, now_ms: u64) {
        let sample = Sample::of(view, now_ms);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|old| now_ms.saturating_sub(old.at_ms) <= WINDOW_MS);
        kept.push_back(sample);
    }

    /// From the oldest sample within the window until now; before the first sample, from the start.
    pub(super) fn window(&self, view: &View, now_ms: u64) -> Window {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_within = |old: &&Sample| now_ms.saturating_sub(old.at_ms) <= WINDOW_MS;
        let then = kept.iter().find(is_within).cloned().unwrap_or_default();
        Window { now: Sample::of(view, now_ms), then }
    }
}

impl Sample {
    fn of(view: &View, at_ms: u64) -> Sample {
        let sum = |cells: &[Arc<PoolCells>], of: fn(&PoolCells) -> &Histogram| {
            let mut sum = Sum::default();
            cells.iter().for_each(|cells| sum.add(of(cells)));
            sum
        };
        let pools = by_pool(view).into_iter().map(|(name, cells)| {
            let sums = PoolSums {
                ttft: sum(&cells, |c| &c.ttft),
                tpot: sum(&cells, |c| &c.tpot),
                queue_wait: sum(&cells, |c| &c.queue_wait),
            };
            (name, sums)
        });
        let stages = Stage::ALL.iter().map(|(stage, _)| {
            let mut sum = Sum::default();
            view.shards.iter().for_each(|shard| sum.add(shard.stage(*stage)));
            sum
        });
        Sample { at_ms, pools: pools.collect(), stages: stages.collect() }
    }
}

impl Window {
    /// Its length in ms.
    pub(super) fn ms(&self) -> u64 {
        self.now.at_ms.saturating_sub(self.then.at_ms)
    }

    /// `ttft_ms`, `tpot_ms` and `queue_wait_ms` of a pool.
    pub(super) fn pool(&self, name: &str) -> [(&'static str, Value); 3] {
        let (none, never) = (PoolSums::default(), PoolSums::default());
        let now = self.now.pools.get(name).unwrap_or(&none);
        let then = self.then.pools.get(name).unwrap_or(&never);
        [
            ("ttft_ms", quantiles(&now.ttft.since(&then.ttft))),
            ("tpot_ms", quantiles(&now.tpot.since(&then.tpot))),
            ("queue_wait_ms", quantiles(&now.queue_wait.since(&then.queue_wait))),
        ]
    }

    /// Time within the gateway by stage.
    pub(super) fn overhead(&self) -> Value {
        let never = Sum::default();
        let stages = Stage::ALL.iter().zip(&self.now.stages).enumerate();
        let each = stages.map(|(at, ((_, label), now))| {
            let then = self.then.stages.get(at).unwrap_or(&never);
            ((*label).to_owned(), quantiles(&now.since(then)))
        });
        Value::Object(each.collect())
    }
}

/// In ms; null without entries.
fn quantiles(sum: &Sum) -> Value {
    // To the microsecond: more digits than a bucket knows are noise.
    let ms = |q| sum.quantile_ns(q).map(|ns| (ns / 1e3).round() / 1e3);
    json!({ "count": sum.count(), "p50": ms(0.5), "p95": ms(0.95), "p99": ms(0.99) })
}
