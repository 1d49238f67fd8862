//! What a cache without end would spare: the bound that no routing passes.
//!
//! Reckoned from the workload's structure, so that a run pays a look-up a request for it, not one
//! a block.

use std::collections::HashSet;

use crate::prompt::blocks::reusable_tokens;

use super::workload::{BLOCK_TOKENS, Session, Text, Turn};

/// A cache that holds whatever has been asked or answered before.
#[derive(Debug, Default)]
pub(super) struct Endless {
    seen: HashSet<u64>,
}

impl Endless {
    /// Tokens of the prompt of turn `index` that such a cache spares; from now on it has the
    /// prompt. The answer before it counts as given.
    pub(super) fn ask(&mut self, session: &Session, index: usize) -> u64 {
        let Some(turn) = session.turns.get(index) else { return 0 };
        let before = index.checked_sub(1).and_then(|i| session.turns.get(i));
        let blocks = match (before, &session.text) {
            (Some(turn), _) => (turn.prompt_tokens + turn.output_tokens) / BLOCK_TOKENS as u32,
            (None, &Text::Shared { key, blocks, .. }) => match self.seen.insert(key) {
                true => 0,
                false => blocks,
            },
            (None, Text::Named { names, blocks_each, .. }) => {
                let known = names.iter().take_while(|name| self.seen.contains(name)).count();
                self.seen.extend(names.iter().skip(known));
                known as u32 * blocks_each
            }
        };
        (u64::from(blocks) * BLOCK_TOKENS).min(most(turn))
    }
}

fn most(turn: &Turn) -> u64 {
    reusable_tokens(u64::from(turn.prompt_tokens), BLOCK_TOKENS)
}
