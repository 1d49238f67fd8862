//! What goes into an engine and what comes out.

use super::Chain;
use crate::prompt::blocks::BlockHash;

/// A request as the engine sees it.
#[derive(Clone, Debug)]
pub struct Work {
    /// The caller's name for it, unique while it lives.
    pub id: u64,
    /// Chained hashes of the full blocks of the prompt, and of the answer behind it as far as it is
    /// known. A block beyond the chain is computed, but nobody finds it again.
    pub hashes: Chain,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens that each of its sequences will generate, at least 1.
    pub output_tokens: u64,
    /// Sequences that it decodes side by side (`n` choices), at least 1.
    pub width: u64,
    /// Its adapter; 0 = the base model.
    pub adapter: u32,
    /// Leading tokens of the prompt whose blocks another engine has computed: it gets them when it
    /// is admitted, and computes the rest, at least one token. 0 = it computes the prompt.
    pub received_tokens: u64,
}

/// What a step brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The first token of a request.
    First {
        /// The request.
        id: u64,
        /// When.
        at_us: u64,
        /// Leading tokens of its prompt that came from the cache when it was admitted.
        cached_tokens: u64,
    },
    /// The last token of a request; it holds nothing any more.
    Finished {
        /// The request.
        id: u64,
        /// When.
        at_us: u64,
    },
}

/// What happened to the blocks of the prefix cache, as the engine publishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks of a request were stored: `count` of its chain from `first_block` on.
    Stored {
        /// The request.
        id: u64,
        /// Index into [`Work::hashes`].
        first_block: u32,
        /// Number of blocks.
        count: u32,
    },
    /// A copy of this block was evicted.
    Removed(BlockHash),
    /// The cache was reset.
    Cleared,
}
