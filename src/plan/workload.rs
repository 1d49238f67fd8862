//! What comes to the fleet: sessions of one or more turns, with lengths and the hashes of their
//! blocks. Made before a run, the same for every policy; read-only in it.

use std::sync::Arc;

use crate::prompt::blocks::BlockHash;

use super::random::mix;

/// Tokens of a block in every workload. Engines have blocks of these or of a multiple.
pub const BLOCK_TOKENS: u64 = 16;

/// One request of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Tokens of the prompt, with all of the session before it.
    pub prompt_tokens: u32,
    /// Tokens of the answer.
    pub output_tokens: u32,
}

/// The blocks of a session's text, prompts and answers; a turn's prompt is the beginning of it.
/// Hashes stand for contents: equal where the contents are, different elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    /// A beginning that sessions with the same key share, then what is the session's own.
    Shared {
        /// Whose beginning.
        key: u64,
        /// Blocks of the beginning.
        blocks: u32,
        /// Names the session's own part.
        own: u64,
    },
    /// The trace's names of longer blocks, each for itself and all before it.
    Named {
        /// The names.
        names: Box<[u64]>,
        /// KV blocks that each stands for.
        blocks_each: u32,
        /// Names what follows the named blocks.
        own: u64,
    },
}

/// A conversation: each turn begins some time after the answer before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// When its first turn comes.
    pub start_us: u64,
    /// The adapter it asks for; 0 = none.
    pub adapter: u32,
    /// Whose it is, from 0.
    pub tenant: u32,
    /// Its turns in order, at least one.
    pub turns: Box<[Turn]>,
    /// Its blocks.
    pub text: Text,
}

/// All sessions of a run, by start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// The sessions.
    pub sessions: Vec<Session>,
    /// When the last request may come.
    pub end_us: u64,
    /// Time between the end of an answer and the session's next turn.
    pub think_us: u64,
    /// What a token of an answer is thought to take that did not come.
    pub token_us: u64,
}

impl Turn {
    /// Full blocks of the prompt, of so many tokens.
    #[must_use]
    pub fn prompt_blocks(&self, block_tokens: u64) -> usize {
        (u64::from(self.prompt_tokens) / block_tokens.max(1)) as usize
    }
}

impl Workload {
    /// Tokens of the longest request, with its answer.
    #[must_use]
    pub fn longest_tokens(&self) -> u64 {
        let turns = self.sessions.iter().flat_map(|session| &session.turns);
        let tokens = turns.map(|t| u64::from(t.prompt_tokens) + u64::from(t.output_tokens));
        tokens.max().unwrap_or(0)
    }
}

impl Session {
    /// Hashes of all full blocks of its text.
    #[must_use]
    pub fn chain(&self) -> Arc<[BlockHash]> {
        let last = self.turns.last();
        let tokens = last.map_or(0, |t| u64::from(t.prompt_tokens) + u64::from(t.output_tokens));
        let blocks = (tokens / BLOCK_TOKENS) as usize;
        match &self.text {
            Text::Shared { key, blocks: shared, own } => {
                let shared = (*shared as usize).min(blocks);
                let owned = (shared..blocks).map(|i| hash(*own, i));
                (0..shared).map(|i| hash(*key, i)).chain(owned).collect()
            }
            Text::Named { names, blocks_each, own } => {
                let each = (*blocks_each).max(1) as usize;
                // The last name stands for a part of a block; the answer behind it is not in it.
                let prompt = last.map_or(0, |turn| turn.prompt_blocks(BLOCK_TOKENS));
                let block = |i: usize| match names.get(i / each) {
                    Some(&name) if i < prompt => hash(name, i % each),
                    _ => hash(*own, i),
                };
                (0..blocks).map(block).collect()
            }
        }
    }
}

/// A chain as engines see it whose blocks have `block_tokens`, a multiple of [`BLOCK_TOKENS`]: a
/// hash stands for all before it, so that the last of those that make a block stands for it.
#[must_use]
pub fn in_blocks_of(chain: Arc<[BlockHash]>, block_tokens: u64) -> Arc<[BlockHash]> {
    let each = (block_tokens / BLOCK_TOKENS).max(1) as usize;
    if each == 1 {
        return chain;
    }
    chain.chunks_exact(each).filter_map(|blocks| blocks.last().copied()).collect()
}

/// A hash that no other (`key`, `index`) has, but for chance.
fn hash(key: u64, index: usize) -> BlockHash {
    let low = mix(key.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let high = low.rotate_left(32) ^ key;
    BlockHash::from(high) << 64 | BlockHash::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(text: Text, turns: &[(u32, u32)]) -> Session {
        let turn = |&(prompt_tokens, output_tokens)| Turn { prompt_tokens, output_tokens };
        Session {
            start_us: 0,
            adapter: 0,
            tenant: 0,
            turns: turns.iter().map(turn).collect(),
            text,
        }
    }

    #[test]
    fn sessions_share_the_beginning_and_nothing_else() {
        let of = |key, own| {
            session(Text::Shared { key, blocks: 3, own }, &[(100, 20), (200, 33)]).chain()
        };
        let (a, b, c) = (of(1, 10), of(1, 11), of(2, 12));
        assert_eq!(a.len(), 233 / 16);
        assert_eq!(a[..3], b[..3]);
        let differ = |x: &[BlockHash], y: &[BlockHash]| x.iter().all(|h| !y.contains(h));
        assert!(differ(&a[3..], &b[3..]) && differ(&a, &c));
        assert_eq!(a, of(1, 10));
    }

    #[test]
    fn a_named_block_is_many_blocks() {
        let of = |names: &[u64], own| {
            let text = Text::Named { names: names.into(), blocks_each: 32, own };
            session(text, &[(1100, 100)]).chain()
        };
        let (a, b) = (of(&[7, 8, 9], 1), of(&[7, 8, 10], 2));
        assert_eq!(a.len(), 75);
        assert_eq!(a[..64], b[..64]);
        assert!(a[64..].iter().zip(&b[64..]).all(|(x, y)| x != y));
    }

    #[test]
    fn larger_blocks_are_the_same_where_all_in_them_is() {
        let of = |own| {
            let text = Text::Shared { key: 1, blocks: 7, own };
            in_blocks_of(session(text, &[(200, 30)]).chain(), 32)
        };
        let (a, b) = (of(10), of(11));
        // 230 tokens are seven blocks of 32; seven of 16 that both have fill three.
        assert_eq!((a.len(), &a[..3]), (7, &b[..3]));
        assert!(a[3..].iter().zip(&b[3..]).all(|(x, y)| x != y));
    }

    #[test]
    fn one_text_has_no_block_twice() {
        let text = Text::Shared { key: 5, blocks: 40, own: 6 };
        let mut chain = session(text, &[(30_000, 2000)]).chain().to_vec();
        let all = chain.len();
        chain.sort_unstable();
        chain.dedup();
        assert_eq!(chain.len(), all);
    }
}
