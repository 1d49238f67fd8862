//! From the cores to the control thread: the prompts of a pool that were dispatched and are to be
//! told to the other gateways.
//!
//! Any core puts in, the control thread takes out; nobody waits. Bounded in entries and in blocks:
//! what is over it pushes out the oldest, which is counted. While sharing is off a dispatch costs
//! one load.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crossbeam_queue::ArrayQueue;

use super::wire::CHAIN_BLOCKS_MAX;
use crate::prefix::Slot;
use crate::prompt::blocks::BlockHash;

/// Dispatches that wait for the next batch: 40,000 a second at ten batches.
const ENTRIES_MAX: usize = 4_096;
/// Blocks of those: 16 MiB of hashes.
const BLOCKS_MAX: usize = 1 << 20;

/// A prompt that was sent somewhere.
pub struct Dispatched {
    /// Where to.
    pub slot: Slot,
    /// A hash of its adapter's name; 0 = none.
    pub adapter: u64,
    /// The hashes of its full blocks.
    pub chain: Box<[BlockHash]>,
}

/// What a pool's cores have to tell.
#[derive(Default)]
pub struct Outbox {
    /// Set once, when sharing starts.
    queue: OnceLock<ArrayQueue<Dispatched>>,
    blocks: AtomicUsize,
    dropped: AtomicU64,
}

impl Outbox {
    /// From now on dispatches are kept for the other gateways.
    pub fn open(&self) {
        self.queue.get_or_init(|| ArrayQueue::new(ENTRIES_MAX));
    }

    /// A core has sent a prompt to the lane of `slot`, for the adapter with that hash if any.
    /// Nothing while sharing is off.
    pub fn dispatched(&self, slot: Slot, adapter: Option<u64>, chain: &[BlockHash]) {
        let Some(queue) = self.queue.get() else { return };
        let chain = chain.get(..CHAIN_BLOCKS_MAX).unwrap_or(chain);
        let adapter = adapter.unwrap_or(0);
        if chain.is_empty() && adapter == 0 {
            return;
        }
        let waiting = self.blocks.fetch_add(chain.len(), Relaxed) + chain.len();
        let mut over = waiting.saturating_sub(BLOCKS_MAX);
        while over > 0 {
            let Some(oldest) = queue.pop() else { break };
            over = over.saturating_sub(oldest.chain.len());
            self.drop_one(&oldest);
        }
        let new = Dispatched { slot, adapter, chain: chain.into() };
        if let Some(oldest) = queue.force_push(new) {
            self.drop_one(&oldest);
        }
    }

    fn drop_one(&self, oldest: &Dispatched) {
        self.blocks.fetch_sub(oldest.chain.len(), Relaxed);
        self.dropped.fetch_add(1, Relaxed);
    }

    /// The oldest that waits.
    #[must_use]
    pub fn take(&self) -> Option<Dispatched> {
        let taken = self.queue.get()?.pop()?;
        self.blocks.fetch_sub(taken.chain.len(), Relaxed);
        Some(taken)
    }

    /// How many were pushed out since this was last asked.
    #[must_use]
    pub fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(outbox: &Outbox) -> Vec<(Slot, usize, BlockHash)> {
        std::iter::from_fn(|| outbox.take()).map(|d| (d.slot, d.chain.len(), d.chain[0])).collect()
    }

    #[test]
    fn nothing_is_kept_until_it_is_opened() {
        let outbox = Outbox::default();
        outbox.dispatched(1, None, &[7]);
        outbox.open();
        outbox.dispatched(2, None, &[]);
        outbox.dispatched(3, None, &[8, 9]);
        assert_eq!(taken(&outbox), [(3, 2, 8)]);
        assert_eq!(outbox.take_dropped(), 0);
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let outbox = Outbox::default();
        outbox.open();
        for n in 0..ENTRIES_MAX as u128 + 10 {
            outbox.dispatched(0, None, &[n]);
        }
        let kept = taken(&outbox);
        assert_eq!((kept.len(), kept[0].2, outbox.take_dropped()), (ENTRIES_MAX, 10, 10));
    }

    #[test]
    fn the_oldest_go_when_they_are_too_long() {
        let outbox = Outbox::default();
        outbox.open();
        let most = BLOCKS_MAX / CHAIN_BLOCKS_MAX;
        for n in 0..most as u128 + 3 {
            outbox.dispatched(0, None, &vec![n; 2 * CHAIN_BLOCKS_MAX]);
        }
        let kept = taken(&outbox);
        assert_eq!(
            (kept.len(), kept[0], outbox.take_dropped()),
            (most, (0, CHAIN_BLOCKS_MAX, 3), 3)
        );
        outbox.dispatched(0, None, &[1]);
        assert_eq!(taken(&outbox).len(), 1, "what is taken or dropped makes room");
    }
}
