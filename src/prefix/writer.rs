//! What changes an index: one at a time, whoever holds the lock.
//!
//! Owns every slot's contents and the table, and keeps three bounds: each slot within its engine's
//! blocks, the whole within its bytes, and each call short. When memory is short the slot with the
//! most blocks by dispatch gives up its oldest; what events say is never put out for room, it is
//! refused.

use std::sync::Arc;

use super::counters::Counters;
use super::exact::{Event, Exact};
use super::table::{Put, Table};
use super::tree::Tree;
use super::{Limits, Mode, SLOTS_MAX, Slot, key_of};
use crate::prompt::blocks::BlockHash;

/// Memory that a new block may take at most when it comes in a chain, in bytes: its lane, its key
/// in a segment, a mask.
const BLOCK_BYTES: usize = 48;
/// Memory that a new segment or a new chunk may take on top.
const CHAIN_BYTES: usize = 1024;
/// Blocks put out together when memory is short.
const EVICT_BATCH: usize = 64;
/// Homes that a running rebuild moves on with each new block, and with each upkeep: the one well
/// ahead of the table's filling, the other within a millisecond or two.
const HOMES_A_BLOCK: usize = 4;
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
            table: Table::new(),
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
        let Some(held) = self.held(slot) else { return };
        match (&mut held.contents, mode) {
            (Contents::Dispatches(tree), Mode::Exact) => {
                let mut exact = Exact::default();
                let tree = std::mem::replace(tree, Tree::new());
                tree.into_keys().for_each(|key| exact.wait(key, now_ms));
                self.replace(slot, Contents::Events(exact));
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
        let Some((capacity, id)) = self.open(slot) else { return self.refuse(keys.len()) };
        // The tail of a chain that is longer than the slot would be put out at once.
        let keys = keys.get(..capacity as usize).unwrap_or(keys);
        if !self.make_room(keys.len()) {
            return self.refuse(keys.len());
        }
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
                    let put = exact.dispatched(&mut self.table, id, key, self.now_ms);
                    refused += usize::from(put == Put::Full);
                    self.table.step(if put == Put::Present { 0 } else { HOMES_A_BLOCK });
                }
            }
        }
        self.moved(slot, blocks, bytes);
        self.refuse(refused);
        self.fit(slot);
        self.publish();
    }

    /// The engine of an exact slot has stored a block, or one more copy of it.
    pub fn stored(&mut self, slot: Slot, hash: BlockHash) {
        let key = key_of(self.limits.seed, hash);
        let Some((capacity, id)) = self.open(slot) else { return self.refuse(1) };
        if !self.make_room(1) {
            return self.refuse(1);
        }
        self.table.step(HOMES_A_BLOCK);
        self.on_event(slot, |exact, table| exact.stored(table, id, key, capacity));
    }

    /// The engine of an exact slot has put out one copy of a block.
    pub fn removed(&mut self, slot: Slot, hash: BlockHash) {
        let key = key_of(self.limits.seed, hash);
        let id = self.held(slot).and_then(|held| held.id);
        let Some(id) = id else { return self.counters.unknown_removal() };
        self.table.step(HOMES_A_BLOCK);
        let before = self.blocks;
        self.on_event(slot, |exact, table| exact.removed(table, id, key));
        let _ = before;
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
        let mut budget = EXPIRE_MAX;
        for slot in 0..self.slots.len() {
            budget -= self.expire_slot(slot as Slot, budget);
        }
        self.table.begin_if_due(self.room());
        self.table.step(HOMES_A_TICK);
        self.publish();
    }
}
