//! What an index tells of itself: counts and sizes, written under the writer's lock (lost
//! dispatches by whoever loses them) and read by anyone.

use std::sync::atomic::{AtomicU64, Ordering};

/// What an index has counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Blocks put out: over a slot's capacity or over the byte cap.
    pub evicted: u64,
    /// Dispatches lost because the queue for the writer was full.
    pub overflowed: u64,
    /// Blocks not taken in: no room, a slot out of range, or an event for a slot that is not exact.
    pub refused: u64,
    /// Removals of blocks that the slot did not hold.
    pub unknown_removals: u64,
    /// Speculative blocks that no event confirmed in time.
    pub expired: u64,
}

/// The cells behind [`Counts`], and the sizes.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) evicted: AtomicU64,
    pub(super) overflowed: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) unknown_removals: AtomicU64,
    pub(super) expired: AtomicU64,
    /// Blocks held, summed over slots.
    pub(super) blocks: AtomicU64,
    /// Memory in bytes.
    pub(super) bytes: AtomicU64,
}

impl Counters {
    pub(super) fn counts(&self) -> Counts {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        Counts {
            evicted: read(&self.evicted),
            overflowed: read(&self.overflowed),
            refused: read(&self.refused),
            unknown_removals: read(&self.unknown_removals),
            expired: read(&self.expired),
        }
    }
}

/// Adds to a count.
pub(super) fn add(cell: &AtomicU64, count: usize) {
    if count > 0 {
        cell.fetch_add(count as u64, Ordering::Relaxed);
    }
}
