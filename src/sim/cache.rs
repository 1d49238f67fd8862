//! A replica's memory of prompts: which leading 64-byte blocks it has seen (16 pseudo tokens, so
//! one block here is one KV block of the engine).
//!
//! Two generations of block hashes stand for the LRU of a real cache: when the young one is full
//! it becomes the old one, and a hit moves a block back to the young. One a replica, on the
//! replica's thread; no I/O.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use super::token::hash;

/// Bytes of prompt text in a block.
pub(super) const BLOCK_BYTES: usize = 64;
/// Pseudo tokens in a block.
pub(super) const BLOCK_TOKENS: u64 = (BLOCK_BYTES / super::token::TOKEN_BYTES) as u64;

/// The key is a hash already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

type Blocks = HashSet<u64, BuildHasherDefault<Identity>>;

/// The block memory of one replica.
pub(super) struct PrefixCache {
    young: Blocks,
    old: Blocks,
    generation_blocks: usize,
}

impl PrefixCache {
    /// A memory of about `blocks` blocks.
    pub(super) fn new(blocks: u64) -> PrefixCache {
        let generation_blocks = usize::try_from(blocks / 2).unwrap_or(usize::MAX).max(1);
        PrefixCache { young: Blocks::default(), old: Blocks::default(), generation_blocks }
    }

    /// Remembers the prompt and returns how many of its leading tokens were known. The last token
    /// is never served from the cache, as in vLLM.
    pub(super) fn visit(&mut self, salt: u64, prompt: &[u8]) -> u64 {
        let mut parent = salt;
        let mut hits = 0;
        let mut unbroken = true;
        for block in prompt.chunks_exact(BLOCK_BYTES) {
            parent = hash(parent, block);
            let known = self.young.contains(&parent) || self.old.contains(&parent);
            unbroken &= known;
            hits += u64::from(unbroken);
            self.keep(parent);
        }
        let before_last = super::token::count(prompt).saturating_sub(1);
        hits.min(before_last / BLOCK_TOKENS) * BLOCK_TOKENS
    }

    fn keep(&mut self, block: u64) {
        if self.young.insert(block) && self.young.len() >= self.generation_blocks {
            self.old = std::mem::take(&mut self.young);
            self.young.insert(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeat_hits_all_whole_blocks_but_the_last_token() {
        let mut cache = PrefixCache::new(100);
        let prompt = vec![b'a'; 300];
        assert_eq!(cache.visit(0, &prompt), 0);
        assert_eq!(cache.visit(0, &prompt), 64);
        assert_eq!(cache.visit(0, &prompt[..256]), 48, "the last token is always computed");
        assert_eq!(cache.visit(1, &prompt), 0, "another adapter shares nothing");
        let mut other = prompt.clone();
        other[70] = b'b';
        assert_eq!(cache.visit(0, &other), 16);
    }

    #[test]
    fn it_forgets_what_no_longer_fits() {
        let mut cache = PrefixCache::new(8);
        let first = vec![b'a'; 192];
        cache.visit(0, &first);
        for seed in 1..20 {
            cache.visit(seed, &first);
        }
        assert_eq!(cache.visit(0, &first), 0);
    }
}
