//! The index in the plainest way, maps and lists: the oracle of the real one's tests.

use std::collections::{BTreeMap, HashMap};

use super::{Limits, Mode, Slot};
use crate::prompt::blocks::BlockHash;

/// One slot's contents.
#[derive(Default)]
struct Held {
    mode: Mode,
    capacity: usize,
    /// By dispatch: block -> its place in the order of use, and the reverse, oldest first.
    places: HashMap<BlockHash, u64>,
    order: BTreeMap<u64, BlockHash>,
    /// By events: copies of each block.
    confirmed: HashMap<BlockHash, usize>,
    /// Not yet confirmed, and since when, in ms; oldest first.
    waiting: Vec<(BlockHash, u64)>,
}

impl Held {
    fn waits(&self, hash: BlockHash) -> Option<usize> {
        self.waiting.iter().position(|(waits, _)| *waits == hash)
    }

    fn holds(&self, hash: BlockHash) -> bool {
        let stored = self.places.contains_key(&hash) || self.confirmed.contains_key(&hash);
        stored || self.waits(hash).is_some()
    }

    fn shrink(&mut self) {
        while self.places.len() > self.capacity {
            let (_, hash) = self.order.pop_first().unwrap();
            self.places.remove(&hash);
        }
        let over = self.waiting.len().saturating_sub(self.capacity);
        self.waiting.drain(..over);
    }
}

/// The oracle; each method as the [`super::Writer`]'s.
pub(super) struct Naive {
    limits: Limits,
    slots: BTreeMap<Slot, Held>,
    clock: u64,
    now_ms: u64,
}

impl Naive {
    pub(super) fn new(limits: Limits) -> Naive {
        Naive { limits, slots: BTreeMap::new(), clock: 0, now_ms: 0 }
    }

    fn slot(&mut self, slot: Slot) -> &mut Held {
        let capacity = self.limits.capacity_default as usize;
        self.slots.entry(slot).or_insert_with(|| Held { capacity, ..Held::default() })
    }

    pub(super) fn depths(&self, chain: &[BlockHash], out: &mut [u32]) {
        out.fill(0);
        for (&slot, held) in &self.slots {
            let depth = chain.iter().take_while(|&&hash| held.holds(hash)).count();
            out[usize::from(slot)] = depth as u32;
        }
    }

    pub(super) fn blocks(&self) -> usize {
        let of = |held: &Held| held.places.len() + held.confirmed.len() + held.waiting.len();
        self.slots.values().map(of).sum()
    }

    pub(super) fn set_capacity(&mut self, slot: Slot, blocks: usize) {
        let held = self.slot(slot);
        held.capacity = blocks;
        held.shrink();
    }

    pub(super) fn set_mode(&mut self, slot: Slot, mode: Mode) {
        let now_ms = self.now_ms;
        let held = self.slot(slot);
        if held.mode != mode {
            let order = std::mem::take(&mut held.order);
            let capacity = held.capacity;
            *held = Held { mode, capacity, ..Held::default() };
            if mode == Mode::Exact {
                held.waiting = order.into_values().map(|hash| (hash, now_ms)).collect();
            }
        }
    }

    pub(super) fn dispatched(&mut self, slot: Slot, chain: &[BlockHash], now_ms: u64) {
        self.now_ms = now_ms;
        let mut clock = self.clock;
        let held = self.slot(slot);
        let chain = &chain[..chain.len().min(held.capacity)];
        if held.mode == Mode::Exact {
            for &hash in chain {
                if !held.holds(hash) {
                    held.waiting.push((hash, now_ms));
                }
            }
        } else {
            for &hash in chain.iter().rev() {
                clock += 1;
                if let Some(place) = held.places.insert(hash, clock) {
                    held.order.remove(&place);
                }
                held.order.insert(clock, hash);
            }
        }
        held.shrink();
        self.clock = clock;
    }

    pub(super) fn stored(&mut self, slot: Slot, hash: BlockHash) {
        let held = self.slot(slot);
        let copies: usize = held.confirmed.values().sum();
        if held.mode == Mode::Exact && copies < held.capacity {
            held.waiting.retain(|(waits, _)| *waits != hash);
            *held.confirmed.entry(hash).or_default() += 1;
        }
    }

    pub(super) fn removed(&mut self, slot: Slot, hash: BlockHash) {
        let held = self.slot(slot);
        if let Some(copies) = held.confirmed.get_mut(&hash) {
            *copies -= 1;
            if *copies == 0 {
                held.confirmed.remove(&hash);
            }
        }
    }

    pub(super) fn clear(&mut self, slot: Slot) {
        let held = self.slot(slot);
        *held = Held { mode: held.mode, capacity: held.capacity, ..Held::default() };
    }

    pub(super) fn expire(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        let limit = self.limits.speculative_ms;
        for held in self.slots.values_mut() {
            held.waiting.retain(|(_, since)| now_ms - since < limit);
        }
    }
}
