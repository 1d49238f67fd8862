//! The index in the plainest way: maps, counts and an exact LRU a slot. Slow, and the oracle of
//! the fast one's tests.

use std::collections::{BTreeMap, HashMap};

use super::{Counts, Limits, Mode, SLOTS_MAX, Slot};
use crate::prompt::blocks::BlockHash;

/// One slot's contents.
#[derive(Default)]
struct Held {
    mode: Mode,
    capacity: u64,
    /// Block -> its place in the order of use (approximate).
    places: HashMap<BlockHash, u64>,
    /// The order of use, oldest first.
    order: BTreeMap<u64, BlockHash>,
    /// Copies that events have confirmed.
    confirmed: HashMap<BlockHash, u64>,
    /// Not yet confirmed -> since when, in ms.
    speculative: HashMap<BlockHash, u64>,
}

impl Held {
    fn holds(&self, hash: BlockHash) -> bool {
        self.places.contains_key(&hash)
            || self.confirmed.contains_key(&hash)
            || self.speculative.contains_key(&hash)
    }

    fn blocks(&self) -> u64 {
        (self.places.len() + self.confirmed.len() + self.speculative.len()) as u64
    }
}

/// What changes an index.
pub struct Writer {
    limits: Limits,
    slots: Vec<Held>,
    clock: u64,
    now_ms: u64,
    pub(super) counts: Counts,
}

impl Writer {
    pub(super) fn new(limits: Limits) -> Writer {
        Writer { limits, slots: Vec::new(), clock: 0, now_ms: 0, counts: Counts::default() }
    }

    fn slot(&mut self, slot: Slot) -> Option<&mut Held> {
        let index = usize::from(slot);
        if index >= SLOTS_MAX {
            self.counts.refused += 1;
            return None;
        }
        while self.slots.len() <= index {
            let capacity = self.limits.capacity_default;
            self.slots.push(Held { capacity, ..Held::default() });
        }
        self.slots.get_mut(index)
    }

    pub(super) fn depths(&self, chain: &[BlockHash], out: &mut [u32]) {
        out.fill(0);
        for (out, held) in out.iter_mut().zip(&self.slots) {
            *out = chain.iter().take_while(|&&hash| held.holds(hash)).count() as u32;
        }
    }

    pub(super) fn blocks(&self) -> u64 {
        self.slots.iter().map(Held::blocks).sum()
    }

    /// The slot's real count of blocks; 0 when it is not known.
    pub fn set_capacity(&mut self, slot: Slot, blocks: u64) {
        let blocks = if blocks == 0 { self.limits.capacity_default } else { blocks };
        if let Some(held) = self.slot(slot) {
            held.capacity = blocks;
            self.shrink(slot);
        }
    }

    /// Where the slot's contents come from. To exact, what is held becomes speculative; to
    /// approximate, all is forgotten: what events said has no order of use.
    pub fn set_mode(&mut self, slot: Slot, mode: Mode) {
        let now_ms = self.now_ms;
        let Some(held) = self.slot(slot) else { return };
        if held.mode == mode {
            return;
        }
        held.mode = mode;
        held.order.clear();
        held.confirmed.clear();
        held.speculative.clear();
        let places = std::mem::take(&mut held.places);
        if mode == Mode::Exact {
            held.speculative = places.into_keys().map(|hash| (hash, now_ms)).collect();
        }
    }

    /// A request with this chain went to `slot`: its blocks are the newest, head before tail.
    pub fn dispatched(&mut self, slot: Slot, chain: &[BlockHash], now_ms: u64) {
        self.now_ms = now_ms;
        let mut clock = self.clock;
        let Some(held) = self.slot(slot) else { return };
        if held.mode == Mode::Exact {
            for &hash in chain {
                let room = held.blocks() < held.capacity;
                if !held.confirmed.contains_key(&hash) && room {
                    held.speculative.entry(hash).or_insert(now_ms);
                }
            }
            return;
        }
        for &hash in chain.iter().rev() {
            clock += 1;
            if let Some(place) = held.places.insert(hash, clock) {
                held.order.remove(&place);
            }
            held.order.insert(clock, hash);
        }
        self.clock = clock;
        self.shrink(slot);
    }

    fn shrink(&mut self, slot: Slot) {
        let Some(held) = self.slot(slot) else { return };
        let mut evicted = 0;
        while held.places.len() as u64 > held.capacity {
            let Some((_, hash)) = held.order.pop_first() else { break };
            held.places.remove(&hash);
            evicted += 1;
        }
        self.counts.evicted += evicted;
    }

    /// The engine of an exact slot has stored a block, or one more copy of it.
    pub fn stored(&mut self, slot: Slot, hash: BlockHash) {
        let Some(held) = self.slot(slot) else { return };
        let known = held.speculative.remove(&hash).is_some() || held.confirmed.contains_key(&hash);
        if held.mode == Mode::Exact && (known || held.blocks() < held.capacity) {
            *held.confirmed.entry(hash).or_default() += 1;
        } else {
            self.counts.refused += 1;
        }
    }

    /// The engine of an exact slot has put out one copy of a block.
    pub fn removed(&mut self, slot: Slot, hash: BlockHash) {
        let Some(held) = self.slot(slot) else { return };
        match held.confirmed.get_mut(&hash) {
            Some(copies) if *copies > 1 => *copies -= 1,
            Some(_) => drop(held.confirmed.remove(&hash)),
            None => self.counts.unknown_removals += 1,
        }
    }

    /// The slot holds nothing any more: its engine has restarted or dropped its cache.
    pub fn clear(&mut self, slot: Slot) {
        let Some(held) = self.slot(slot) else { return };
        *held = Held { mode: held.mode, capacity: held.capacity, ..Held::default() };
    }

    /// Puts out what no event has confirmed in time, and does a slice of the upkeep: some times a
    /// second.
    pub fn expire(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        let limit = self.limits.speculative_ms;
        for held in &mut self.slots {
            let before = held.speculative.len();
            held.speculative.retain(|_, since| now_ms.saturating_sub(*since) < limit);
            self.counts.expired += (before - held.speculative.len()) as u64;
        }
    }
}
