//! How one replica's (or rank's) blocks are known, and what came of its events: what the status
//! page and the metrics show. One writer, the task that follows the events; anyone reads it,
//! relaxed.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use super::check::Check;
use super::map::Counts;

/// How a replica's blocks are known. Never silent: every change is a line in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// By its own events.
    Exact,
    /// By our own dispatches: it has no events, or they are of no use.
    Approximate(Why),
    /// By the text of our own dispatches: prompts are not tokenized.
    Text,
}

/// Why a replica is not known by its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// No source is configured, and it tells none.
    NotConfigured,
    /// Its source cannot be reached.
    Unreachable,
    /// It is connected, and has told nothing yet.
    Unheard,
    /// Its first events were missed, or some that nothing replays; it is exact again once most of
    /// its blocks have been replaced, or at its restart.
    Incomplete,
    /// Its blocks are of another size than the pool's.
    BlockSize,
    /// Its events tell another rank than the one that was asked for.
    OtherRank,
    /// What it reports of its hits does not agree with its events.
    Mismatch,
}

/// Each mode with its number.
const MODES: [Mode; 9] = [
    Mode::Approximate(Why::NotConfigured),
    Mode::Approximate(Why::Unreachable),
    Mode::Approximate(Why::Unheard),
    Mode::Approximate(Why::Incomplete),
    Mode::Approximate(Why::BlockSize),
    Mode::Approximate(Why::OtherRank),
    Mode::Approximate(Why::Mismatch),
    Mode::Exact,
    Mode::Text,
];

impl Mode {
    /// The value of a metric's `mode` label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Exact => "exact",
            Mode::Approximate(_) => "approximate",
            Mode::Text => "text",
        }
    }

    /// For logs and the status page; empty when there is nothing to explain.
    #[must_use]
    pub fn reason(self) -> &'static str {
        let Mode::Approximate(why) = self else { return "" };
        match why {
            Why::NotConfigured => "no KV events",
            Why::Unreachable => "its KV events cannot be reached",
            Why::Unheard => "no KV event has been heard yet",
            Why::Incomplete => "its first KV events were not heard, or some were missed",
            Why::BlockSize => "its blocks are of another size than the pool's",
            Why::OtherRank => "its KV events are of another data-parallel rank",
            Why::Mismatch => "its KV events do not agree with the cached tokens that it reports",
        }
    }
}

/// What happened to a subscription, beside the blocks it told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// A message was taken.
    Message,
    /// A message came too late, or twice.
    Stale,
    /// Messages were missing.
    Gap,
    /// A replay was asked for.
    Replay,
    /// A replay failed.
    ReplayFailed,
    /// The engine is a new process.
    Restart,
    /// All that was known was forgotten because events were lost for good.
    Purge,
    /// A message was not understood.
    Garbage,
    /// A message was of another rank.
    OtherRank,
    /// The connection was lost, or could not be made.
    Disconnect,
}

const HAPPENED: [&str; 10] = [
    "message",
    "stale",
    "gap",
    "replay",
    "replay_failed",
    "restart",
    "purge",
    "garbage",
    "other_rank",
    "disconnect",
];
const BLOCKS: [&str; 10] = [
    "stored",
    "removed",
    "removed_unknown",
    "orphan",
    "foreign",
    "elsewhere",
    "other_size",
    "odd_event",
    "cleared",
    "overflow",
];

/// See the module.
#[derive(Debug, Default)]
pub struct State {
    mode: AtomicU8,
    happened: [AtomicU64; HAPPENED.len()],
    blocks: [AtomicU64; BLOCKS.len()],
    live: AtomicU64,
    heard_ms: AtomicU64,
    /// Whether what is known agrees with what the engine reports; cores write it.
    pub check: Check,
}

impl State {
    /// How its blocks are known.
    #[must_use]
    pub fn mode(&self) -> Mode {
        let number = usize::from(self.mode.load(Relaxed));
        MODES.get(number).copied().unwrap_or(Mode::Approximate(Why::NotConfigured))
    }

    /// Sets how its blocks are known; true when that is a change.
    pub fn set_mode(&self, mode: Mode) -> bool {
        let number = MODES.iter().position(|known| *known == mode).unwrap_or(0) as u8;
        self.mode.swap(number, Relaxed) != number
    }

    /// Counts something.
    pub fn count(&self, what: Happened) {
        if let Some(cell) = self.happened.get(what as usize) {
            cell.fetch_add(1, Relaxed);
        }
    }

    /// Shows what the map counts, the blocks it knows now, and when the engine was last heard.
    pub fn show(&self, counts: Counts, live: u64, now_ms: u64) {
        let all = [
            counts.stored,
            counts.removed,
            counts.removed_unknown,
            counts.orphans,
            counts.foreign,
            counts.elsewhere,
            counts.other_size,
            counts.odd,
            counts.cleared,
            counts.overflows,
        ];
        for (cell, value) in self.blocks.iter().zip(all) {
            cell.store(value, Relaxed);
        }
        self.live.store(live, Relaxed);
        self.heard_ms.store(now_ms, Relaxed);
    }

    /// Everything that is counted, by name: what happened, and to how many blocks.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let happened = HAPPENED.iter().zip(&self.happened);
        let all = happened.chain(BLOCKS.iter().zip(&self.blocks));
        all.map(|(name, cell)| (*name, cell.load(Relaxed)))
    }

    /// One of them; 0 for an unknown name.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        self.counters().find(|(known, _)| *known == name).map_or(0, |(_, value)| value)
    }

    /// Blocks known by events, copies counted.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.live.load(Relaxed)
    }

    /// When its events were last heard, in ms since process start; 0 = never.
    #[must_use]
    pub fn heard_ms(&self) -> u64 {
        self.heard_ms.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_kept_and_changes_told() {
        let state = State::default();
        assert_eq!(state.mode(), Mode::Approximate(Why::NotConfigured));
        for mode in MODES.into_iter().rev() {
            assert!(state.set_mode(mode));
            assert!(!state.set_mode(mode));
            assert_eq!(state.mode(), mode);
            assert_eq!(mode.reason().is_empty(), !matches!(mode, Mode::Approximate(_)));
        }
    }

    #[test]
    fn counters_have_their_names() {
        let state = State::default();
        state.count(Happened::Message);
        state.count(Happened::Disconnect);
        let counts = Counts { stored: 7, overflows: 3, other_size: 2, ..Counts::default() };
        state.show(counts, 5, 11);
        let found = |name: &str| state.counter(name);
        assert_eq!((found("message"), found("disconnect"), found("gap")), (1, 1, 0));
        assert_eq!((found("stored"), found("other_size"), found("overflow")), (7, 2, 3));
        assert_eq!((state.live(), state.heard_ms(), found("novel")), (5, 11, 0));
        assert_eq!(state.counters().count(), HAPPENED.len() + BLOCKS.len());
    }
}
