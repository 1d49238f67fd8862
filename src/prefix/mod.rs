//! The prefix index: which replica holds which blocks of a prompt.
//!
//! [`Index`] is one pool's: block hash -> the slots that hold it. Every core reads it without a
//! lock at each pick; whoever holds the writer changes it: the control thread by
//! [`Index::write`], a core at a dispatch by [`Index::dispatched`], which never waits. Pure: time
//! is an argument. A wrong answer costs a detour, never another caller's answer.
//!
//! - `depths`: a reader's walk along a chain.
//! - `directory`: what readers see of the table; `set`, `masks`: a block's holders, few or many;
//!   `ids`: their numbers.
//! - `writer`: all changes and all bounds; `table`, `stand`, `rebuild`: the table's own.
//! - `tree`: what a slot holds by dispatches, in the order of an engine's LRU; `exact`: by events.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod counters;
mod depths;
mod directory;
mod exact;
mod ids;
mod masks;
#[cfg(test)]
mod naive;
mod rebuild;
mod set;
mod stand;
mod table;
mod tree;
mod writer;

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use arc_swap::ArcSwap;
use crossbeam_queue::ArrayQueue;

use crate::prompt::blocks::BlockHash;
use counters::{Counters, add};
use directory::Directory;

pub use counters::Counts;
pub use writer::Writer;

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
    /// Different blocks that are expected, 0 = unknown: room for them from the beginning spares the
    /// table's growth. A hint, within `bytes_max`.
    pub blocks_expected: u64,
    /// How long an exact slot keeps a dispatch that no event has confirmed, in ms.
    pub speculative_ms: u64,
    /// Dispatches that wait for the writer at most.
    pub queue_max: usize,
    /// Mixed into every block's key: a random one keeps a client from choosing prompts whose
    /// blocks crowd one place.
    pub seed: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            bytes_max: 256 << 20,
            capacity_default: 8192,
            blocks_expected: 0,
            speculative_ms: 10_000,
            queue_max: 1024,
            seed: 0,
        }
    }
}

/// A dispatch that found the writer busy.
struct Waiting {
    slot: Slot,
    keys: Vec<u64>,
    now_ms: u64,
}

/// Dispatches of others that a core enters with its own at most.
const HELP_MAX: usize = 8;

/// One pool's index.
pub struct Index {
    limits: Limits,
    published: Arc<ArcSwap<Directory>>,
    /// Holder's number -> slot.
    slots: Arc<[AtomicU16]>,
    counters: Arc<Counters>,
    queue: ArrayQueue<Waiting>,
    writer: Mutex<Writer>,
}

impl Index {
    /// An empty index.
    #[must_use]
    pub fn new(limits: Limits) -> Index {
        let counters = Arc::new(Counters::default());
        let writer = Writer::new(limits, Arc::clone(&counters));
        Index {
            limits,
            published: writer.table.published(),
            slots: writer.table.ids.slots(),
            counters,
            queue: ArrayQueue::new(limits.queue_max.max(1)),
            writer: Mutex::new(writer),
        }
    }

    /// `out[slot]` = how many leading blocks of `chain` that slot holds. Lock-free.
    pub fn depths(&self, chain: &[BlockHash], out: &mut [u32]) {
        let directory = self.published.load();
        let seed = self.limits.seed;
        depths::depths(&directory, &self.slots, chain, |hash| key_of(seed, hash), out);
    }

    /// A request with this chain goes to `slot`: from any core. Enters it at once when nobody
    /// else writes, else leaves it to the next who does; never waits.
    pub fn dispatched(&self, slot: Slot, chain: &[BlockHash], now_ms: u64) {
        let mut writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let keys = chain.iter().map(|&hash| key_of(self.limits.seed, hash)).collect();
                let lost = self.queue.push(Waiting { slot, keys, now_ms }).is_err();
                return add(&self.counters.overflowed, usize::from(lost));
            }
        };
        self.drain(&mut writer, HELP_MAX);
        writer.dispatched(slot, chain, now_ms);
    }

    /// Changes the index: on the control thread, in short batches. Waits for a core that is
    /// entering its dispatch.
    pub fn write<R>(&self, change: impl FnOnce(&mut Writer) -> R) -> R {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.drain(&mut writer, self.queue.capacity());
        change(&mut writer)
    }

    fn drain(&self, writer: &mut Writer, count: usize) {
        for _ in 0..count {
            let Some(waiting) = self.queue.pop() else { return };
            writer.dispatched_keys(waiting.slot, &waiting.keys, waiting.now_ms);
        }
    }

    /// Blocks held, summed over slots.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.counters.blocks.load(Ordering::Relaxed)
    }

    /// Memory in use, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.counters.bytes.load(Ordering::Relaxed)
    }

    /// Memory in use at most, in bytes.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.limits.bytes_max as u64
    }

    /// What it has counted.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counters.counts()
    }
}

/// A block's key: 64 bits of its hash and the seed, never 0, which is nobody's. Every bit of it
/// depends on every bit of both, so that hashes that were chosen to stand together do not.
#[inline]
fn key_of(seed: u64, hash: BlockHash) -> u64 {
    let (low, high) = (hash as u64 ^ seed, (hash >> 64) as u64 ^ seed.rotate_left(32));
    // Two odd constants (the digits of pi) keep a half of zeros from hiding the other.
    let (low, high) = (low ^ 0x243f_6a88_85a3_08d3, high ^ 0x1319_8a2e_0370_7345);
    let product = u128::from(low) * u128::from(high);
    (product as u64 ^ (product >> 64) as u64).max(1)
}

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod tests;
