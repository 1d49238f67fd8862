//! Enters what a replica tells into its [`Signals`](super::Signals): load gauges each second, facts
//! when it has come (back).
//!
//! Nothing here stops or bends traffic. A page that is late, missing or impossible leaves the last
//! reading where it is, and its age grows. Runs on the control thread.

use std::sync::Arc;

use super::exposition::{self, Told};
use super::replica::Replica;
use super::signals::{Facts, Gauges, Totals};

/// Start times within so many seconds are one process.
const SAME_START_S: f64 = 1.0;
/// What a reading of a page was worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Load was told.
    Good,
    /// No answer in time, or not a page of metrics.
    Missing,
    /// The page has no load gauges.
    Silent,
    /// Gauges of values that no engine can mean.
    Odd,
}

impl Reading {
    /// For the log.
    pub(super) fn text(self) -> &'static str {
        match self {
            Reading::Good => "its load metrics are read",
            Reading::Missing => "its /metrics cannot be read",
            Reading::Silent => "its /metrics has no load gauges",
            Reading::Odd => "its load gauges have impossible values",
        }
    }
}

/// What changed with a reading.
#[derive(Debug)]
pub(super) struct Entered {
    pub reading: Reading,
    /// Lanes or blocks are others than before.
    pub shape: bool,
    /// The process is another than at the last reading.
    pub restarted: bool,
}

/// Reads pages of one replica.
#[derive(Default)]
pub(super) struct Scraper {
    started_s: Option<f64>,
}

impl Scraper {
    /// Enters a page that arrived at `now_ms`.
    pub(super) fn enter(&mut self, replica: &Replica, page: &[u8], now_ms: u64) -> Entered {
        let told = exposition::read(page);
        let restarted = match (self.started_s, told.started_s) {
            (Some(before), Some(now)) => (before - now).abs() > SAME_START_S,
            _ => false,
        };
        self.started_s = told.started_s.or(self.started_s);
        let signals = &replica.signals;
        signals.refuse(told.odd);
        if let Some(sleeping) = told.sleeping {
            signals.set_sleeping(sleeping, now_ms);
        }
        let shape = shape(replica, &told);
        if restarted {
            signals.server.forget();
            signals.by_rank.iter().for_each(Gauges::forget);
        }
        if let Some(load) = &told.server {
            signals.server.set(load, now_ms);
        }
        for (rank, load) in &told.loads {
            if let Some(gauges) = signals.by_rank.get(*rank as usize) {
                gauges.set(load, now_ms);
            }
        }
        let before = signals.totals();
        signals.set_totals(&Totals {
            preemptions: told.preemptions.unwrap_or(before.preemptions),
            prefix_queries: told.prefix_queries.unwrap_or(before.prefix_queries),
            prefix_hits: told.prefix_hits.unwrap_or(before.prefix_hits),
        });
        let reading = match (&told.server, told.odd) {
            (Some(_), 0) => Reading::Good,
            (_, 1..) => Reading::Odd,
            (None, 0) => Reading::Silent,
        };
        facts(replica, &told);
        Entered { reading, shape, restarted }
    }
}

/// Enters what decides lanes and blocks; true when it has changed.
fn shape(replica: &Replica, told: &Told) -> bool {
    let signals = &replica.signals;
    let before = (signals.ranks(), signals.block_tokens(), signals.server.blocks());
    if told.server.is_some() || !told.loads.is_empty() {
        signals.set_ranks(told.ranks);
    }
    if let Some(tokens) = told.block_tokens {
        signals.set_block_tokens(tokens);
    }
    if let Some(slots) = told.adapter_slots {
        signals.set_adapter_slots(slots);
    }
    if let Some(blocks) = told.blocks {
        signals.server.set_blocks(blocks.saturating_mul(u64::from(told.ranks.max(1))));
        signals.by_rank.iter().for_each(|gauges| gauges.set_blocks(blocks));
    }
    before != (signals.ranks(), signals.block_tokens(), signals.server.blocks())
}

/// Enters how it caches.
fn facts(replica: &Replica, told: &Told) {
    if told.prefix_caching.is_none() && told.hash_algorithm.is_none() {
        return;
    }
    update(replica, |facts| {
        facts.prefix_caching = told.prefix_caching;
        facts.hash_algorithm.clone_from(&told.hash_algorithm);
    });
}

/// Changes the facts of a replica; readers see the old or the new ones as a whole. True when they
/// are others now.
pub(super) fn update(replica: &Replica, change: impl FnOnce(&mut Facts)) -> bool {
    let before = replica.signals.facts.load_full();
    let mut facts = before.as_deref().cloned().unwrap_or_default();
    change(&mut facts);
    let changed = before.as_deref() != Some(&facts);
    if changed {
        replica.signals.facts.store(Some(Arc::new(facts)));
    }
    changed
}

/// `version` of an answer to `/version`.
pub(super) fn version(answer: &[u8]) -> Option<String> {
    let answer: serde_json::Value = serde_json::from_slice(answer).ok()?;
    let version = answer.get("version")?.as_str()?;
    let fit = version.len() <= 64 && version.bytes().all(|b| b.is_ascii_graphic());
    fit.then(|| version.to_owned())
}

#[cfg(test)]
#[path = "scrape_tests.rs"]
mod tests;
