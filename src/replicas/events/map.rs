//! What one engine holds, in our own block hashes.
//!
//! The engine's name of a block is an opaque key. A stored block tells its tokens and its parent's
//! key, so that our chain ([`blocks`]) continues from the parent's hash of ours, whatever algorithm
//! and seed the engine has. A block whose parent is not known (its event was missed) cannot be
//! named: it is counted and left out, and so are its children.
//!
//! One map an engine process, that is a replica or one of its data-parallel ranks; owned by the
//! task that reads its events. Pure. Its size is bounded by the engine's own block count: an engine
//! that tells of more has lost count itself, and all that it told is forgotten.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::prompt::blocks::{self, BlockHash, Root};

use super::decode::{Adapter, BlockExtra, Event, Key, Place, Removed, Stored};

/// Keys kept for a replica whose block count is not known.
const KEYS_MAX: usize = 1 << 20;
/// Keys kept at least, however few blocks are told.
const KEYS_MIN: usize = 1 << 12;

/// Where mapped blocks go: one replica's part of the prefix index.
pub trait Sink {
    /// One more copy of the block is held.
    fn stored(&mut self, hash: BlockHash);
    /// One copy fewer.
    fn removed(&mut self, hash: BlockHash);
    /// Nothing is held.
    fn clear(&mut self);
}

/// What came of events so far; each only grows.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Blocks stored that were mapped.
    pub stored: u64,
    /// Blocks removed that had been mapped.
    pub removed: u64,
    /// Blocks removed that were not known.
    pub removed_unknown: u64,
    /// Blocks whose parent was not known.
    pub orphans: u64,
    /// Blocks with images and the like, or an adapter without a name.
    pub foreign: u64,
    /// Blocks in other memory or of another group of layers.
    pub elsewhere: u64,
    /// Blocks of another size than the pool's.
    pub other_size: u64,
    /// Events that were not understood.
    pub odd: u64,
    /// The engine cleared its cache.
    pub cleared: u64,
    /// The engine told of more blocks than it has; all was forgotten.
    pub overflows: u64,
}

struct Known {
    /// Halves of our hash, so that an entry is 32 bytes and not 48.
    ours: [u64; 2],
    copies: u32,
}

impl Known {
    fn hash(&self) -> BlockHash {
        let [high, low] = self.ours;
        BlockHash::from(high) << 64 | BlockHash::from(low)
    }
}

/// See the module.
pub struct Map {
    block_tokens: u32,
    keys_max: usize,
    /// Seeded: an engine that chooses its keys cannot choose where they fall.
    known: HashMap<Key, Known, RandomState>,
    /// Copies of all known blocks.
    live: u64,
    /// The group of layers that is followed: the first with full attention.
    group: Option<u32>,
    counts: Counts,
    chain: Vec<BlockHash>,
}

impl Map {
    /// Nothing known, for blocks of `block_tokens` (the pool's) and an engine of `blocks` blocks (0
    /// when not known).
    #[must_use]
    pub fn new(block_tokens: u32, blocks: u64) -> Map {
        let mut map = Map {
            block_tokens,
            keys_max: KEYS_MAX,
            known: HashMap::default(),
            live: 0,
            group: None,
            counts: Counts::default(),
            chain: Vec::new(),
        };
        map.set_blocks(blocks);
        map
    }

    /// The engine has `blocks` blocks; 0 when not known.
    pub fn set_blocks(&mut self, blocks: u64) {
        let blocks = usize::try_from(blocks).unwrap_or(usize::MAX);
        // As many keys as blocks would do; a quarter more costs little and forgives a wrong figure.
        self.keys_max = match blocks {
            0 => KEYS_MAX,
            _ => blocks.saturating_add(blocks / 4).clamp(KEYS_MIN, KEYS_MAX << 2),
        };
    }

    /// The pool's blocks are of `block_tokens` from now on; what is known is to be forgotten.
    pub fn set_block_tokens(&mut self, block_tokens: u32) {
        self.block_tokens = block_tokens;
    }

    /// All blocks that the engine holds and that we can name, with the number of their copies.
    #[must_use]
    pub fn held(&self) -> Vec<(BlockHash, u32)> {
        self.known.values().map(|known| (known.hash(), known.copies)).collect()
    }

    /// What came of all events so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Blocks that the engine holds and that we can name, each of its copies counted.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Different blocks among them.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.known.len()
    }

    /// Forgets all, as after a restart of the engine or a gap that nothing fills.
    pub fn clear(&mut self, sink: &mut impl Sink) {
        self.known.clear();
        self.known.shrink_to(KEYS_MIN);
        self.live = 0;
        self.group = None;
        sink.clear();
    }

    /// Makes room for what of `keys` is not known. Called with a whole batch's before its events,
    /// it also brings their entries near: one by one, each event would wait for memory alone.
    pub fn expect(&mut self, keys: &[Key]) {
        let known = keys.iter().filter(|key| self.known.contains_key(key)).count();
        let room = self.keys_max.saturating_sub(self.known.len());
        self.known.reserve((keys.len() - known).min(room));
    }

    /// Takes one event in.
    pub fn apply(&mut self, event: &Event<'_>, sink: &mut impl Sink) {
        match event {
            Event::Stored(stored) => self.stored(stored, sink),
            Event::Removed(removed) => self.removed(removed, sink),
            Event::Cleared => {
                self.counts.cleared += 1;
                self.clear(sink);
            }
            Event::Odd => self.counts.odd += 1,
            Event::Unknown => {}
        }
    }

    /// Is it of the GPU's memory and of the group that is followed?
    fn is_here(&mut self, place: Place<'_>, may_found: bool) -> bool {
        // Layers with a window or a state hold other blocks than those a prompt's hit needs whole.
        let full =
            place.kind.is_none_or(|k| k.ends_with(b"full_attention") || k == b"mla_attention");
        if !place.gpu || !full {
            return false;
        }
        match self.group {
            Some(group) => group == place.group,
            None if may_found => {
                self.group = Some(place.group);
                true
            }
            None => place.group == 0,
        }
    }

    fn stored(&mut self, event: &Stored<'_>, sink: &mut impl Sink) {
        let blocks = event.keys.len() as u64;
        if event.place.gpu && event.block_tokens != self.block_tokens {
            self.counts.other_size += blocks;
            return;
        }
        if !self.is_here(event.place, true) {
            self.counts.elsewhere += blocks;
            return;
        }
        let adapter = match event.adapter {
            Adapter::Base => None,
            Adapter::Named(name) => Some(name),
            Adapter::Nameless => {
                self.counts.foreign += blocks;
                return;
            }
        };
        let mut extra = event.extra;
        let first = extra.next(event.adapter);
        let (root, first_is_ours) = match event.parent {
            Some(parent) => match self.known.get(&parent) {
                Some(known) => (Root::behind_block(known.hash()), first == BlockExtra::None),
                None => {
                    self.counts.orphans += blocks;
                    return;
                }
            },
            None => match first {
                BlockExtra::Salt(salt) => (Root::new(adapter, Some(salt)), true),
                first => (Root::new(adapter, None), first == BlockExtra::None),
            },
        };
        // What follows a block that we cannot name has no name either.
        let mut ours = usize::from(first_is_ours);
        while ours > 0 && ours < event.keys.len() && extra.next(event.adapter) == BlockExtra::None {
            ours += 1;
        }
        let ours = ours.min(event.keys.len());
        self.counts.foreign += blocks - ours as u64;
        let size = event.block_tokens as usize;
        let tokens = event.tokens.get(..ours.saturating_mul(size)).unwrap_or_default();
        let mut chain = std::mem::take(&mut self.chain);
        chain.clear();
        blocks::of_tokens(root, tokens, size, &mut chain);
        for (key, hash) in event.keys.iter().zip(&chain) {
            self.hold(*key, *hash, sink);
        }
        self.chain = chain;
    }

    fn hold(&mut self, key: Key, hash: BlockHash, sink: &mut impl Sink) {
        if self.known.len() >= self.keys_max && !self.known.contains_key(&key) {
            self.counts.overflows += 1;
            self.clear(sink);
        }
        let ours = [(hash >> 64) as u64, hash as u64];
        let known = self.known.entry(key).or_insert(Known { ours, copies: 0 });
        known.copies = known.copies.saturating_add(1);
        self.live += 1;
        self.counts.stored += 1;
        // The hash under which its removal will be told, should the key ever stand for two.
        sink.stored(known.hash());
    }

    fn removed(&mut self, event: &Removed<'_>, sink: &mut impl Sink) {
        if !self.is_here(event.place, false) {
            self.counts.elsewhere += event.keys.len() as u64;
            return;
        }
        for key in event.keys {
            let Some(known) = self.known.get_mut(key) else {
                self.counts.removed_unknown += 1;
                continue;
            };
            sink.removed(known.hash());
            self.live = self.live.saturating_sub(1);
            self.counts.removed += 1;
            known.copies = known.copies.saturating_sub(1);
            if known.copies == 0 {
                self.known.remove(key);
            }
        }
    }
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
