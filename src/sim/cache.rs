//! A replica's memory of prompts: which leading blocks of 16 tokens it has seen, so that one block
//! here is one KV block of the engine. A block of pseudo tokens is 64 bytes.
//!
//! Two generations of block hashes stand for the LRU of a real cache: when the young one is full
//! it becomes the old one, and a hit moves a block back to the young. One a replica, on the
//! replica's thread; no I/O.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use super::call::Prompt;
use super::token::hash;
use crate::prompt::blocks::reusable_tokens;

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

    /// Remembers a prompt and returns how many of its leading tokens were known.
    pub(super) fn visit_prompt(&mut self, salt: u64, prompt: &Prompt) -> u64 {
        match &prompt.real {
            // Adapter and salt are in the hashes.
            Some(real) => {
                self.visit(real.blocks.iter().map(|block| *block as u64), prompt.tokens())
            }
            None => self.visit_text(salt, &prompt.text),
        }
    }

    fn visit_text(&mut self, salt: u64, text: &[u8]) -> u64 {
        let mut parent = salt;
        let blocks = text.chunks_exact(BLOCK_BYTES).map(|block| {
            parent = hash(parent, block);
            parent
        });
        self.visit(blocks, super::token::count(text))
    }

    /// Remembers chained hashes of the blocks of a prompt of `tokens`. The last token is never
    /// served from the cache, as in vLLM.
    fn visit(&mut self, blocks: impl Iterator<Item = u64>, tokens: u64) -> u64 {
        let mut hits = 0;
        let mut unbroken = true;
        for block in blocks {
            let known = self.young.contains(&block) || self.old.contains(&block);
            unbroken &= known;
            hits += u64::from(unbroken);
            self.keep(block);
        }
        (hits * BLOCK_TOKENS).min(reusable_tokens(tokens, BLOCK_TOKENS))
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
        assert_eq!(cache.visit_text(0, &prompt), 0);
        assert_eq!(cache.visit_text(0, &prompt), 64);
        assert_eq!(cache.visit_text(0, &prompt[..256]), 48, "the last token is always computed");
        assert_eq!(cache.visit_text(1, &prompt), 0, "another adapter shares nothing");
        let mut other = prompt.clone();
        other[70] = b'b';
        assert_eq!(cache.visit_text(0, &other), 16);
    }

    #[test]
    fn it_forgets_what_no_longer_fits() {
        let mut cache = PrefixCache::new(8);
        let first = vec![b'a'; 192];
        cache.visit_text(0, &first);
        for seed in 1..20 {
            cache.visit_text(seed, &first);
        }
        assert_eq!(cache.visit_text(0, &first), 0);
    }
}
