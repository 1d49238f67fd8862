//! The blocks of a request's prompts, and the prefix memory of a replica without an engine.
//!
//! A block is [`SimConfig::block_tokens`](super::SimConfig) tokens, real ones where there is a
//! tokenizer. On the replica's thread; no I/O.

use std::cell::RefCell;

use super::call::{Call, Prompt};
use super::exact::Exact;
use super::kv_transfer;
use crate::engine::{Chain, Holding, KvCache, KvEvent};
use crate::prompt::blocks;

/// What an engine is asked to do for one prompt.
#[derive(Debug)]
pub(super) struct Part {
    /// The prompt's tokens, and those of the answer as far as a later prompt would have them.
    pub(super) ids: Vec<u32>,
    /// The chain of their blocks.
    pub(super) chain: Chain,
    pub(super) prompt_tokens: u64,
    /// Tokens of its longest answer.
    pub(super) output_tokens: u64,
    /// Answers.
    pub(super) width: u64,
    /// Tokens of the prompt whose blocks another replica has computed.
    pub(super) received_tokens: u64,
}

/// The parts of a call, one for each prompt.
pub(super) fn parts(call: &Call, exact: Option<&Exact>, block_tokens: u64) -> Vec<Part> {
    let mut hashes = Vec::new();
    let part = |(index, prompt): (usize, &Prompt)| {
        let choices = || call.choices.iter().filter(move |choice| choice.prompt == index);
        let mut ids = prompt.ids();
        let prompt_tokens = ids.len() as u64;
        if let (Some(exact), Some(_), 1) = (exact, &prompt.real, choices().count()) {
            // A word of the answer is a token of it, and many of the tokenizer's: as many of these
            // as there are of those stand for it.
            for choice in choices() {
                let text = String::from_utf8(call.text(choice, choice.tokens)).unwrap_or_default();
                let answer = exact.ids_of_text(&text);
                ids.extend(answer.into_iter().take(choice.tokens as usize));
            }
        }
        hashes.clear();
        blocks::of_tokens(call.root, &ids, block_tokens as usize, &mut hashes);
        let output_tokens = choices().map(|choice| choice.tokens).max().unwrap_or(1);
        let (chain, width) = (Chain::from(hashes.as_slice()), choices().count().max(1) as u64);
        let received_tokens = match call.leg {
            kv_transfer::Leg::Decode(_) => prompt_tokens.saturating_sub(1),
            _ => 0,
        };
        Part { ids, chain, prompt_tokens, output_tokens, width, received_tokens }
    };
    call.prompts.iter().enumerate().map(part).collect()
}

/// The prefix memory of a replica whose requests run without a model of its memory: any number of
/// them, so they hold nothing, and what they have seen is forgotten by age alone.
pub(super) struct PrefixCache {
    blocks: RefCell<KvCache>,
    block_tokens: u64,
}

impl PrefixCache {
    /// A memory of so many blocks.
    pub(super) fn new(blocks: u64, block_tokens: u64) -> PrefixCache {
        PrefixCache { blocks: RefCell::new(KvCache::new(blocks)), block_tokens }
    }

    /// Remembers the first `tokens` of a chain; returns how many were known of those that the
    /// cache may spare an engine.
    pub(super) fn visit(&self, id: u64, chain: &Chain, tokens: u64) -> u64 {
        let mut cache = self.blocks.borrow_mut();
        let reusable = blocks::reusable_tokens(tokens, self.block_tokens) / self.block_tokens;
        let reusable = chain.len().min(reusable as usize);
        let hit = cache.lookup(chain.get(..reusable).unwrap_or_default());
        let mut holding = cache.acquire(&hit);
        let full = tokens / self.block_tokens;
        if cache.take(&mut holding, full.saturating_sub(hit.blocks)) {
            cache.store(&mut holding, id, chain, full);
        }
        cache.release(&mut holding);
        hit.blocks * self.block_tokens
    }

    /// Remembers the first `tokens` of a chain whose prompt was remembered before.
    pub(super) fn extend(&self, id: u64, chain: &Chain, tokens: u64) {
        let mut cache = self.blocks.borrow_mut();
        let full = (tokens / self.block_tokens).min(chain.len() as u64);
        let hit = cache.lookup(chain.get(..full as usize).unwrap_or_default());
        let mut holding: Holding = cache.acquire(&hit);
        if cache.take(&mut holding, full - hit.blocks) {
            cache.store(&mut holding, id, chain, full);
        }
        cache.release(&mut holding);
    }

    /// Forgets everything.
    pub(super) fn reset(&self) -> bool {
        self.blocks.borrow_mut().reset()
    }

    pub(super) fn record_events(&self) {
        self.blocks.borrow_mut().record_events(true);
    }

    pub(super) fn take_events(&self, out: &mut Vec<KvEvent>) {
        self.blocks.borrow_mut().take_events(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::blocks::Root;

    fn chain(adapter: Option<&str>, ids: &[u32]) -> Chain {
        let mut hashes = Vec::new();
        blocks::of_tokens(Root::new(adapter, None), ids, 16, &mut hashes);
        hashes.into()
    }

    #[test]
    fn a_repeat_hits_all_whole_blocks_but_the_last_token() {
        let cache = PrefixCache::new(100, 16);
        let mut ids = [7; 75];
        let visit = |adapter, ids: &[u32]| cache.visit(1, &chain(adapter, ids), ids.len() as u64);
        assert_eq!(visit(None, &ids), 0);
        assert_eq!(visit(None, &ids), 64);
        assert_eq!(visit(None, &ids[..64]), 48, "the last token is always computed");
        assert_eq!(visit(Some("a"), &ids), 0, "another adapter shares nothing");
        ids[17] = 8;
        assert_eq!(visit(None, &ids), 16);
    }

    #[test]
    fn it_forgets_what_no_longer_fits() {
        let cache = PrefixCache::new(8, 16);
        let old = chain(None, &[1; 48]);
        cache.visit(1, &old, 48);
        assert_eq!(cache.visit(1, &old, 48), 32);
        for other in 2..5 {
            cache.visit(1, &chain(None, &[other; 48]), 48);
        }
        assert_eq!(cache.visit(1, &old, 48), 0);
        cache.visit(1, &chain(None, &[9; 160]), 160);
        assert_eq!(cache.visit(1, &old, 48), 32, "what is larger than all is not kept");
    }

    #[test]
    fn an_answer_is_found_by_the_next_turn() {
        let cache = PrefixCache::new(100, 16);
        let chain = chain(None, &[3; 96]);
        cache.visit(1, &chain, 40);
        cache.extend(1, &chain, 90);
        assert_eq!(cache.visit(2, &chain, 96), 80);
    }
}
