//! The prefix index: which replica holds which blocks of a prompt.
//!
//! [`Index`] is one pool's: block hash -> the slots that hold it. Every core reads it without a
//! lock at each pick; whoever holds the writer changes it: the control thread by
//! [`Index::write`], a core at a dispatch by [`Index::dispatched`], which never waits. Pure: time
//! is an argument. A wrong answer costs a detour, never another caller's answer.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod naive;

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::prompt::blocks::BlockHash;

pub use naive::Writer;

/// A replica's (or data-parallel rank's) number in its pool; stable while it lives.
pub type Slot = u16;

/// Slots of one pool at most: numbers below this.
pub const SLOTS_MAX: usize = 4096;

/// Where a slot's contents come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Own dispatches, kept as the engine's LRU would keep them.
    #[default]
    Approximate,
    /// The engine's events; a dispatch is held for some seconds, until an event confirms it.
    Exact,
}

/// What bounds an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory of the whole index at most, in bytes.
    pub bytes_max: usize,
    /// Blocks of a slot whose real count is not known.
    pub capacity_default: u64,
    /// How long an exact slot keeps a dispatch that no event has confirmed, in ms.
    pub speculative_ms: u64,
    /// Dispatches that wait for the writer at most.
    pub queue_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            bytes_max: 256 << 20,
            capacity_default: 8192,
            speculative_ms: 10_000,
            queue_max: 1024,
        }
    }
}

/// What an index has counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Blocks put out: over a slot's capacity or over the byte cap.
    pub evicted: u64,
    /// Dispatches lost because the queue for the writer was full.
    pub overflowed: u64,
    /// Blocks not taken in: no room, or a slot out of range.
    pub refused: u64,
    /// Removals of blocks that the slot did not hold.
    pub unknown_removals: u64,
    /// Speculative blocks that no event confirmed in time.
    pub expired: u64,
}

/// One pool's index.
pub struct Index {
    limits: Limits,
    writer: Mutex<Writer>,
}

impl Index {
    /// An empty index.
    #[must_use]
    pub fn new(limits: Limits) -> Index {
        Index { limits, writer: Mutex::new(Writer::new(limits)) }
    }

    /// `out[slot]` = how many leading blocks of `chain` that slot holds.
    pub fn depths(&self, chain: &[BlockHash], out: &mut [u32]) {
        self.lock().depths(chain, out);
    }

    /// A request with this chain goes to `slot`: from any core.
    pub fn dispatched(&self, slot: Slot, chain: &[BlockHash], now_ms: u64) {
        self.lock().dispatched(slot, chain, now_ms);
    }

    /// Changes the index: on the control thread, in short batches.
    pub fn write<R>(&self, change: impl FnOnce(&mut Writer) -> R) -> R {
        change(&mut self.lock())
    }

    /// Blocks held, summed over slots.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.lock().blocks()
    }

    /// Memory in use, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lock().blocks() * 40
    }

    /// Memory in use at most, in bytes.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.limits.bytes_max as u64
    }

    /// What it has counted.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
