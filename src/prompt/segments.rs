//! A core's memory of texts that were encoded before: parts between cuts, with their ids.
//!
//! Chats repeat their system prompt, their tools and all turns but the last, and a part between
//! two cuts has the same ids wherever it stands. Found by a hash that is keyed with a secret of
//! the process, and then compared as text: no crafted collision can give one tenant the ids of
//! another's. Two generations: what is used stays in the younger one; when that is full the older
//! one is forgotten at once. Owned by one core, no locks; memory is bounded and allocated once, so
//! forgetting costs nothing.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::OnceLock;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::tokenizer::Tokenizer;

/// Shorter parts are encoded faster than they are looked up.
pub(super) const PART_BYTES_MIN: usize = 48;
/// No part takes more than this share of the cache.
const SHARE: usize = 64;
/// Bytes of one place in the table, with what the table needs beside it.
const SLOT_BYTES: usize = 48;
/// Bytes that a part and its ids take on average, to size the table.
const PART_BYTES_MEAN: usize = 512;

/// What a cache did, and holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Parts whose ids were here.
    pub hits: u64,
    /// Parts that had to be encoded.
    pub misses: u64,
    /// Times the older half was forgotten.
    pub turns: u64,
    /// Bytes of texts, ids and tables that are held now.
    pub bytes: usize,
}

/// The cache of one core, for all models that it serves.
pub struct SegmentCache {
    young: Generation,
    old: Generation,
    /// Bytes that a generation may hold.
    generation_max: usize,
    stats: CacheStats,
}

impl SegmentCache {
    /// A cache of at most `bytes_max` bytes; 0 stores nothing.
    pub fn new(bytes_max: usize) -> SegmentCache {
        let generation_max = bytes_max / 2;
        SegmentCache {
            young: Generation::default(),
            old: Generation::default(),
            generation_max,
            stats: CacheStats::default(),
        }
    }

    /// What it did so far, and holds.
    pub fn stats(&self) -> CacheStats {
        CacheStats { bytes: self.young.bytes() + self.old.bytes(), ..self.stats }
    }

    /// Appends the ids of `part` if they are known; says whether they were.
    pub(super) fn get(&mut self, tokenizer: &Tokenizer, part: &str, ids: &mut Vec<u32>) -> bool {
        let key = key(tokenizer, part);
        if let Some(known) = self.young.get(key, tokenizer.tag(), part) {
            ids.extend_from_slice(known);
            self.stats.hits += 1;
            return true;
        }
        let start = ids.len();
        let Some(known) = self.old.get(key, tokenizer.tag(), part) else {
            self.stats.misses += 1;
            return false;
        };
        ids.extend_from_slice(known);
        self.stats.hits += 1;
        // What is used goes on to the next generation.
        self.keep(key, tokenizer.tag(), part, ids.get(start..).unwrap_or_default());
        true
    }

    /// Remembers that `ids` are those of `part`.
    pub(super) fn put(&mut self, tokenizer: &Tokenizer, part: &str, ids: &[u32]) {
        self.keep(key(tokenizer, part), tokenizer.tag(), part, ids);
    }

    fn keep(&mut self, key: u64, tag: u32, part: &str, ids: &[u32]) {
        let bytes = part.len() + size_of_val(ids) + SLOT_BYTES;
        if bytes > self.generation_max.saturating_mul(2) / SHARE {
            return;
        }
        if !self.young.has_room(bytes, self.generation_max) {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
            self.stats.turns += 1;
        }
        self.young.put(key, tag, part, ids, self.generation_max);
    }
}

/// Where a part is. All of these are places in the two arenas.
#[derive(Debug, Clone, Copy)]
struct Slot {
    tag: u32,
    text_at: u32,
    text_len: u32,
    ids_at: u32,
    ids_len: u32,
}

/// Parts, their ids, and the table of both.
#[derive(Default)]
struct Generation {
    table: HashMap<u64, Slot, BuildHasherDefault<AsItIs>>,
    text: Vec<u8>,
    ids: Vec<u32>,
}

impl Generation {
    fn get(&self, key: u64, tag: u32, part: &str) -> Option<&[u32]> {
        let slot = self.table.get(&key)?;
        let text = self.text.get(slot.text_at as usize..)?.get(..slot.text_len as usize)?;
        if slot.tag != tag || text != part.as_bytes() {
            return None;
        }
        self.ids.get(slot.ids_at as usize..)?.get(..slot.ids_len as usize)
    }

    fn put(&mut self, key: u64, tag: u32, part: &str, ids: &[u32], bytes_max: usize) {
        if self.text.capacity() == 0 {
            // Address space, not memory, until it is written; growing later would copy megabytes.
            self.text.reserve_exact(bytes_max);
            self.ids.reserve_exact(bytes_max / size_of::<u32>());
            self.table.reserve(bytes_max / PART_BYTES_MEAN);
        }
        let places = (
            u32::try_from(self.text.len()),
            u32::try_from(part.len()),
            u32::try_from(self.ids.len()),
            u32::try_from(ids.len()),
        );
        let (Ok(text_at), Ok(text_len), Ok(ids_at), Ok(ids_len)) = places else { return };
        self.text.extend_from_slice(part.as_bytes());
        self.ids.extend_from_slice(ids);
        self.table.insert(key, Slot { tag, text_at, text_len, ids_at, ids_len });
    }

    fn has_room(&self, bytes: usize, bytes_max: usize) -> bool {
        self.bytes().saturating_add(bytes) <= bytes_max
            && self.table.len() < (bytes_max / PART_BYTES_MEAN).max(1)
    }

    fn bytes(&self) -> usize {
        self.text.len() + size_of_val(self.ids.as_slice()) + self.table.len() * SLOT_BYTES
    }

    fn clear(&mut self) {
        self.table.clear();
        self.text.clear();
        self.ids.clear();
    }
}

fn key(tokenizer: &Tokenizer, part: &str) -> u64 {
    static SECRET: OnceLock<u64> = OnceLock::new();
    // Without the system's random numbers the text is still compared; only misses can be forced.
    let secret = SECRET.get_or_init(|| getrandom::u64().unwrap_or_default());
    xxh3_64_with_seed(part.as_bytes(), secret ^ (u64::from(tokenizer.tag()) << 32))
}

/// For tables whose keys are hashes already.
#[derive(Default)]
pub(crate) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[cfg(test)]
#[path = "segments_tests.rs"]
mod tests;
