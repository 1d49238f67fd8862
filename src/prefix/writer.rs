//! What changes an index: one at a time, whoever holds the lock.
//!
//! Owns every slot's contents and the table, and keeps three bounds: each slot within its engine's
//! blocks, the whole within its bytes, and each call short. When memory is short the slot with the
//! most blocks by dispatch gives up its oldest; what events say is never put out for room, it is
//! refused.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::counters::{Counters, add};
use super::exact::{Event, Exact};
use super::table::{Put, Table};
use super::tree::Tree;
use super::{Limits, Mode, SLOTS_MAX, Slot, key_of};
use crate::prompt::blocks::BlockHash;

/// Memory that a new block may take in its slot's lists, in bytes: a key in a segment, or an
/// entry of those that wait for an event.
const BLOCK_BYTES: usize = 40;
/// Blocks put out together when memory is short.
const EVICT_BATCH: usize = 64;
/// Homes that a running rebuild moves on with each new block, and with each upkeep: the one well
/// ahead of the table's filling, the other within a millisecond or two.
const HOMES_A_BLOCK: usize = 3;
const HOMES_A_TICK: usize = 16 * 1024;
/// Speculative blocks that go in one upkeep at most.
const EXPIRE_MAX: usize = 16 * 1024;

/// By what a slot's blocks are known.
enum Contents {
    Dispatches(Tree),
    Events(Exact),
}

/// A slot.
struct Held {
    /// Its number in the table's sets, from its first block on.
    id: Option<u16>,
    /// Blocks at most.
    capacity: u64,
    contents: Contents,
}

impl Held {
    fn blocks(&self) -> usize {
        match &self.contents {
            Contents::Dispatches(tree) => tree.blocks(),
            Contents::Events(exact) => exact.blocks(),
        }
    }

    fn bytes(&self) -> usize {
        match &self.contents {
            Contents::Dispatches(tree) => tree.bytes(),
            Contents::Events(exact) => exact.bytes(),
        }
    }

    /// Bytes that the lists may grow by at the next change, beside what each block takes.
    fn more_bytes(&self) -> usize {
        match &self.contents {
            Contents::Dispatches(tree) => tree.more_bytes(),
            Contents::Events(exact) => exact.bytes() + 1024,
        }
    }
}

/// The writer.
pub struct Writer {
    limits: Limits,
    pub(super) table: Table,
    slots: Vec<Held>,
    /// Blocks by dispatch of each slot, close together for the search of the largest.
    sizes: Vec<u32>,
    /// Blocks and bytes of all slots' contents.
    blocks: usize,
    bytes: usize,
    counters: Arc<Counters>,
    /// The newest time that was given, in ms.
    now_ms: u64,
    /// Room for the keys of the chain at hand, and for those that go.
    keys: Vec<u64>,
    gone: Vec<u64>,
}

impl Writer {
    pub(super) fn new(limits: Limits, counters: Arc<Counters>) -> Writer {
        Writer {
            limits,
            table: Table::new(limits.blocks_expected, limits.bytes_max),
            slots: Vec::new(),
            sizes: Vec::new(),
            blocks: 0,
            bytes: 0,
            counters,
            now_ms: 0,
            keys: Vec::new(),
            gone: Vec::new(),
        }
    }

    /// The slot's real count of blocks; 0 when it is not known.
    pub fn set_capacity(&mut self, slot: Slot, blocks: u64) {
        let blocks = if blocks == 0 { self.limits.capacity_default } else { blocks };
        if let Some(held) = self.held(slot) {
            held.capacity = blocks;
            self.fit(slot);
            self.publish();
        }
    }

    /// Where the slot's contents come from. To exact, what it holds becomes speculative; to
    /// approximate, all of it is forgotten, since what events said has no order of use.
    pub fn set_mode(&mut self, slot: Slot, mode: Mode) {
        let now_ms = self.now_ms;
        if self.held(slot).is_none() {
            return;
        }
        let Some(held) = self.slots.get_mut(usize::from(slot)) else { return };
        match (&mut held.contents, mode) {
            (Contents::Dispatches(tree), Mode::Exact) => {
                let mut exact = Exact::default();
                let (blocks, bytes) = (tree.blocks(), tree.bytes());
                self.gone.clear();
                tree.evict(usize::MAX, &mut self.gone);
                self.gone.iter().for_each(|&key| exact.wait(key, now_ms));
                held.contents = Contents::Events(exact);
                self.account(slot, blocks, bytes);
                if self.room() == 0 {
                    self.clear(slot);
                }
            }
            (Contents::Events(_), Mode::Approximate) => {
                self.clear(slot);
                self.replace(slot, Contents::Dispatches(Tree::new()));
            }
            _ => {}
        }
        self.publish();
    }

    /// A request with this chain went to `slot`: its blocks are the newest, head before tail.
    pub fn dispatched(&mut self, slot: Slot, chain: &[BlockHash], now_ms: u64) {
        let mut keys = std::mem::take(&mut self.keys);
        keys.clear();
        keys.extend(chain.iter().map(|&hash| key_of(self.limits.seed, hash)));
        self.dispatched_keys(slot, &keys, now_ms);
        self.keys = keys;
    }

    /// The same with keys.
    pub(super) fn dispatched_keys(&mut self, slot: Slot, keys: &[u64], now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let Some((capacity, id)) = self.open(slot, keys.len()) else {
            return add(&self.counters.refused, keys.len());
        };
        // The tail of a chain that is longer than the slot would be put out at once.
        let keys = keys.get(..capacity as usize).unwrap_or(keys);
        let Some(held) = self.slots.get_mut(usize::from(slot)) else { return };
        let (blocks, bytes) = (held.blocks(), held.bytes());
        let mut refused = 0;
        match &mut held.contents {
            Contents::Dispatches(tree) => {
                let new = keys.get(tree.admit(keys)..).unwrap_or_default();
                self.table.touch(new);
                for &key in new {
                    self.table.step(HOMES_A_BLOCK);
                    refused += usize::from(self.table.put(key, id) == Put::Full);
                }
            }
            Contents::Events(exact) => {
                self.table.touch(keys);
                for &key in keys {
                    self.table.step(HOMES_A_BLOCK);
                    let put = exact.dispatched(&mut self.table, id, key, self.now_ms);
                    refused += usize::from(put == Put::Full);
                }
            }
        }
        add(&self.counters.refused, refused);
        self.account(slot, blocks, bytes);
        self.fit(slot);
        self.publish();
    }

    /// The engine of an exact slot has stored a block, or one more copy of it.
    pub fn stored(&mut self, slot: Slot, hash: BlockHash) {
        let key = key_of(self.limits.seed, hash);
        let open = self.open(slot, 1);
        let taken = open.is_some_and(|(capacity, id)| {
            self.event(slot, |exact, table| exact.stored(table, id, key, capacity))
        });
        add(&self.counters.refused, usize::from(!taken));
    }

    /// The engine of an exact slot has put out one copy of a block.
    pub fn removed(&mut self, slot: Slot, hash: BlockHash) {
        let key = key_of(self.limits.seed, hash);
        let id = self.held(slot).and_then(|held| held.id);
        let known =
            id.is_some_and(|id| self.event(slot, |exact, table| exact.removed(table, id, key)));
        add(&self.counters.unknown_removals, usize::from(!known));
    }

    /// The slot holds nothing any more: its engine has restarted or dropped its cache.
    pub fn clear(&mut self, slot: Slot) {
        let Some(held) = self.held(slot) else { return };
        let empty = match held.contents {
            Contents::Dispatches(_) => Contents::Dispatches(Tree::new()),
            Contents::Events(_) => Contents::Events(Exact::default()),
        };
        if let Some(id) = held.id.take() {
            self.table.ids.retire(id);
        }
        self.replace(slot, empty);
        self.publish();
    }

    /// Puts out what no event has confirmed in time, and does a slice of the upkeep: some times a
    /// second.
    pub fn expire(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let before_ms = (self.now_ms + 1).saturating_sub(self.limits.speculative_ms);
        let mut budget = EXPIRE_MAX;
        for slot in 0..self.slots.len() {
            let expired = self.expire_slot(slot as Slot, before_ms, usize::MAX, budget);
            add(&self.counters.expired, expired);
            budget -= expired;
        }
        self.table.prepare(0, self.room());
        self.table.step(HOMES_A_TICK);
        self.publish();
    }

    /// Blocks that the slot holds.
    #[must_use]
    pub fn blocks_of(&self, slot: Slot) -> u64 {
        self.slots.get(usize::from(slot)).map_or(0, |held| held.blocks() as u64)
    }

    /// A slot, made when it is new; none beyond [`SLOTS_MAX`].
    fn held(&mut self, slot: Slot) -> Option<&mut Held> {
        let index = usize::from(slot);
        if index >= SLOTS_MAX {
            return None;
        }
        while self.slots.len() <= index {
            let contents = Contents::Dispatches(Tree::new());
            self.slots.push(Held { id: None, capacity: self.limits.capacity_default, contents });
            self.sizes.push(0);
            self.bytes += size_of::<Held>() + size_of::<u32>();
        }
        self.slots.get_mut(index)
    }

    /// The slot's capacity and number, with room for so many new blocks; none when there is none.
    fn open(&mut self, slot: Slot, blocks: usize) -> Option<(u64, u16)> {
        let held = self.held(slot)?;
        let (capacity, more) = (held.capacity, held.more_bytes());
        let room = self.make_room(blocks.min(capacity as usize), more);
        let id = match self.held(slot)?.id {
            Some(id) if room => id,
            None if room => self.table.open(slot, self.room())?,
            _ => return None,
        };
        self.held(slot)?.id = Some(id);
        Some((capacity, id))
    }

    /// Sees to it that so many blocks find their place, and `more` bytes.
    fn make_room(&mut self, blocks: usize, more: usize) -> bool {
        self.table.step(HOMES_A_BLOCK);
        let needed = blocks * (BLOCK_BYTES + self.table.cells.cell_bytes()) + more;
        loop {
            let lanes = self.table.prepare(blocks, self.room());
            if lanes && needed <= self.room() {
                return true;
            }
            let largest = self.sizes.iter().zip(0..).max_by_key(|(size, _)| **size);
            let slot = largest.map_or(0, |(_, slot)| slot);
            if self.evict(slot, blocks.max(EVICT_BATCH)) == 0 {
                return false;
            }
        }
    }

    /// Bytes to the cap.
    fn room(&self) -> usize {
        self.limits.bytes_max.saturating_sub(self.bytes + self.table.committed_bytes())
    }

    /// Puts out so many of the slot's oldest blocks, as far as they are by dispatch. How many.
    fn evict(&mut self, slot: Slot, count: usize) -> usize {
        self.gone.clear();
        let Some(held) = self.slots.get_mut(usize::from(slot)) else { return 0 };
        let (blocks, bytes) = (held.blocks(), held.bytes());
        if let (Contents::Dispatches(tree), Some(id)) = (&mut held.contents, held.id) {
            tree.evict(count, &mut self.gone);
            self.table.touch(&self.gone);
            for &key in &self.gone {
                self.table.remove(key, id);
            }
            add(&self.counters.evicted, self.gone.len());
        }
        self.account(slot, blocks, bytes);
        self.gone.len()
    }

    /// Puts out what the slot holds beyond its capacity.
    fn fit(&mut self, slot: Slot) {
        let Some(held) = self.slots.get(usize::from(slot)) else { return };
        let capacity = usize::try_from(held.capacity).unwrap_or(usize::MAX);
        let over = held.blocks().saturating_sub(capacity);
        match held.contents {
            Contents::Dispatches(_) if over == 0 => {}
            Contents::Dispatches(_) => {
                self.evict(slot, over);
            }
            // Events take blocks out only when the engine has stored others, so dispatches must
            // find room beside what they have not yet put out.
            Contents::Events(_) => {
                let evicted = self.expire_slot(slot, 0, capacity, usize::MAX);
                add(&self.counters.evicted, evicted);
            }
        }
    }

    /// What an event does to an exact slot; whether it was known and had room.
    fn event(&mut self, slot: Slot, change: impl FnOnce(&mut Exact, &mut Table) -> Event) -> bool {
        let Some(held) = self.slots.get_mut(usize::from(slot)) else { return false };
        let (blocks, bytes) = (held.blocks(), held.bytes());
        let Contents::Events(exact) = &mut held.contents else { return false };
        let event = change(exact, &mut self.table);
        self.account(slot, blocks, bytes);
        self.publish();
        event == Event::Taken
    }

    fn expire_slot(&mut self, slot: Slot, before_ms: u64, waiting: usize, budget: usize) -> usize {
        let Some(held) = self.slots.get_mut(usize::from(slot)) else { return 0 };
        let (blocks, bytes) = (held.blocks(), held.bytes());
        let (Contents::Events(exact), Some(id)) = (&mut held.contents, held.id) else { return 0 };
        let expired = exact.expire(&mut self.table, id, before_ms, waiting, budget);
        self.account(slot, blocks, bytes);
        expired
    }

    fn replace(&mut self, slot: Slot, contents: Contents) {
        let Some(held) = self.slots.get_mut(usize::from(slot)) else { return };
        let (blocks, bytes) = (held.blocks(), held.bytes());
        held.contents = contents;
        self.account(slot, blocks, bytes);
    }

    /// Takes over what has become of a slot that had so many blocks and bytes.
    fn account(&mut self, slot: Slot, blocks: usize, bytes: usize) {
        let Some(held) = self.slots.get(usize::from(slot)) else { return };
        self.blocks = self.blocks + held.blocks() - blocks;
        self.bytes = self.bytes + held.bytes() - bytes;
        if let Some(size) = self.sizes.get_mut(usize::from(slot)) {
            *size = match held.contents {
                Contents::Dispatches(_) => held.blocks() as u32,
                Contents::Events(_) => 0,
            };
        }
    }

    /// Shows the sizes to whoever asks.
    fn publish(&self) {
        let bytes = self.bytes + self.table.bytes();
        self.counters.blocks.store(self.blocks as u64, Ordering::Relaxed);
        self.counters.bytes.store(bytes as u64, Ordering::Relaxed);
    }
}
