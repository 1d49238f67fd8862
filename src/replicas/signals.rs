//! What a replica tells of itself: load gauges and facts, each with the time at which it was told.
//!
//! Relaxed atomics: the control thread writes them after a scrape, any thread reads them. A reader
//! decides by the age what a number is worth; the gateway's own ledger carries routing, and these
//! only correct it. Time (ms since process start) is an argument.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwapOption;

use super::events::source::Source;
use super::seats::Seats;

/// Data-parallel ranks of one server that are told apart; a server with more is one to us.
pub const RANKS_MAX: usize = 32;
/// A replica that told so long ago that it sleeps may be awake again.
const ASLEEP_MS_MAX: u64 = 10_000;

/// The load gauges of one engine: of the server, or of one of its data-parallel ranks.
#[derive(Debug, Default)]
pub struct Gauges {
    running: AtomicU64,
    waiting: AtomicU64,
    deferred: AtomicU64,
    /// Bits of an `f64`.
    kv_usage: AtomicU64,
    blocks: AtomicU64,
    at_ms: AtomicU64,
    seats: Seats,
}

/// One reading of [`Gauges`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Requests in the running batch.
    pub running: u64,
    /// Requests that wait, for whatever reason.
    pub waiting: u64,
    /// Of these for something else than room: an adapter's slot, a transfer.
    pub deferred: u64,
    /// Share of KV blocks that live requests hold, 0 to 1.
    pub kv_usage: f64,
}

impl Gauges {
    /// Enters a reading taken at `now_ms`.
    pub fn set(&self, load: &Load, now_ms: u64) {
        self.running.store(load.running, Relaxed);
        self.waiting.store(load.waiting, Relaxed);
        self.deferred.store(load.deferred, Relaxed);
        self.kv_usage.store(load.kv_usage.to_bits(), Relaxed);
        self.at_ms.store(now_ms.max(1), Relaxed);
        self.seats.enter(load, now_ms);
    }

    /// Sequences that the engine runs at once, as far as its readings show; 0 = not known.
    #[must_use]
    pub fn sequences_max(&self, now_ms: u64) -> u64 {
        self.seats.get(now_ms)
    }

    /// The engine has begun anew: what was learned of it may not hold.
    pub(super) fn forget(&self) {
        self.seats.forget();
    }

    /// The last reading and its age in ms; `None` when there was none.
    #[must_use]
    pub fn load(&self, now_ms: u64) -> Option<(Load, u64)> {
        let at_ms = self.at_ms.load(Relaxed);
        if at_ms == 0 {
            return None;
        }
        let load = Load {
            running: self.running.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
            deferred: self.deferred.load(Relaxed),
            kv_usage: f64::from_bits(self.kv_usage.load(Relaxed)),
        };
        Some((load, now_ms.saturating_sub(at_ms)))
    }

    /// KV blocks of the engine; 0 = not known.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Relaxed)
    }

    /// Enters the number of KV blocks.
    pub fn set_blocks(&self, blocks: u64) {
        self.blocks.store(blocks, Relaxed);
    }
}

/// What a replica is, as far as it tells; replaced as a whole when it has begun anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Of vLLM, such as `0.32.0`.
    pub version: Option<String>,
    /// Does it keep prefixes at all?
    pub prefix_caching: Option<bool>,
    /// How it hashes blocks, such as `sha256`.
    pub hash_algorithm: Option<String>,
    /// Where each rank publishes its KV events (`/kv_event_sources`), by rank.
    pub event_sources: Vec<Source>,
}

/// Counters of the engine itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests that lost their blocks to others.
    pub preemptions: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Of these found.
    pub prefix_hits: u64,
}

/// Everything a replica tells. See the module.
#[derive(Debug, Default)]
pub struct Signals {
    /// The whole server: its ranks summed.
    pub server: Gauges,
    /// By rank; those past [`ranks`](Self::ranks) say nothing.
    pub by_rank: [Gauges; RANKS_MAX],
    /// What it is; `None` until it told.
    pub facts: ArcSwapOption<Facts>,
    ranks: AtomicU32,
    block_tokens: AtomicU32,
    adapter_slots: AtomicU32,
    /// When it was last told to be asleep; 0 = awake.
    asleep_ms: AtomicU64,
    refused: AtomicU64,
    totals: [AtomicU64; 3],
}

impl Signals {
    /// The gauges of one rank, or of the whole server.
    #[must_use]
    pub fn gauges(&self, rank: Option<u32>) -> &Gauges {
        let one = rank.and_then(|rank| self.by_rank.get(rank as usize));
        one.unwrap_or(&self.server)
    }

    /// Data-parallel ranks behind the one address; 0 and 1 = no data parallelism.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks.load(Relaxed)
    }

    /// Enters the number of ranks.
    pub fn set_ranks(&self, ranks: u32) {
        self.ranks.store(ranks, Relaxed);
    }

    /// Tokens in a block of its KV cache; 0 = not known.
    #[must_use]
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens.load(Relaxed)
    }

    /// Enters the tokens in a block.
    pub fn set_block_tokens(&self, tokens: u32) {
        self.block_tokens.store(tokens, Relaxed);
    }

    /// Adapters that may run at once (`max_lora`); 0 = not known, or it serves none.
    #[must_use]
    pub fn adapter_slots(&self) -> u32 {
        self.adapter_slots.load(Relaxed)
    }

    /// Enters the number of adapter slots.
    pub fn set_adapter_slots(&self, slots: u32) {
        self.adapter_slots.store(slots, Relaxed);
    }

    /// Has it been put to sleep? Then `/health` is good and every request hangs. An old word of it
    /// is not believed: it may be awake, and only its metrics be out of reach.
    #[must_use]
    pub fn sleeping(&self, now_ms: u64) -> bool {
        let at_ms = self.asleep_ms.load(Relaxed);
        at_ms != 0 && now_ms.saturating_sub(at_ms) < ASLEEP_MS_MAX
    }

    /// Enters its sleep state.
    pub fn set_sleeping(&self, sleeping: bool, now_ms: u64) {
        self.asleep_ms.store(if sleeping { now_ms.max(1) } else { 0 }, Relaxed);
    }

    /// Values that it told and that no engine can mean, since the start.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Counts such values. Only the control thread writes.
    pub fn refuse(&self, values: u64) {
        self.refused.store(self.refused().wrapping_add(values), Relaxed);
    }

    /// The engine's own counters as last told.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let [preemptions, prefix_queries, prefix_hits] =
            std::array::from_fn(|i| self.totals.get(i).map_or(0, |total| total.load(Relaxed)));
        Totals { preemptions, prefix_queries, prefix_hits }
    }

    /// Enters the engine's own counters.
    pub fn set_totals(&self, totals: &Totals) {
        let values = [totals.preemptions, totals.prefix_queries, totals.prefix_hits];
        for (cell, value) in self.totals.iter().zip(values) {
            cell.store(value, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_has_an_age_and_none_is_none() {
        let signals = Signals::default();
        assert_eq!(signals.server.load(5), None);
        let load = Load { running: 3, waiting: 2, deferred: 1, kv_usage: 0.25 };
        signals.gauges(Some(1)).set(&load, 1_000);
        assert_eq!(signals.gauges(Some(1)).load(1_250), Some((load, 250)));
        assert_eq!(signals.gauges(Some(0)).load(1_250), None);
        // A rank beyond what is told apart falls to the server as a whole.
        signals.server.set(&load, 7);
        assert_eq!(signals.gauges(Some(999)).load(7), Some((load, 0)));
    }

    #[test]
    fn an_old_word_of_sleep_is_not_believed() {
        let signals = Signals::default();
        assert!(!signals.sleeping(0));
        signals.set_sleeping(true, 1_000);
        assert!(signals.sleeping(10_999) && !signals.sleeping(11_000));
        signals.set_sleeping(false, 1_001);
        assert!(!signals.sleeping(1_001));
    }
}
