//! The prompt as the engine will know it: messages -> template -> tokens -> block hashes.
//!
//! Pure functions of bytes, tables and a time that the caller gives: no I/O on the path of a
//! request, no clock, no locks. Tables are loaded off the cores and shared; caches belong to the
//! core that uses them.

pub mod blocks;
pub mod standing;
pub mod template;

use blocks::BlockHash;

/// What the count of a prompt stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// The engine's own tokens.
    Exact,
    /// Its text is exact, its images and sounds are estimated.
    Media,
    /// Estimated from the bytes of its text.
    Estimate,
}

impl Basis {
    /// Its name in metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Basis::Exact => "exact",
            Basis::Media => "media",
            Basis::Estimate => "estimate",
        }
    }
}

/// What is known of the prompts of one call before any replica has seen it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Tokens of all prompts together, as the engine's `usage.prompt_tokens` will say.
    pub tokens: u64,
    /// Tokens of the longest of them: what the context must hold.
    pub longest: u64,
    /// What these counts stand on.
    pub basis: Basis,
    /// Chained hashes of the first prompt: of its token blocks, or of chunks of its text when
    /// `block_tokens` is 0.
    pub hashes: Vec<BlockHash>,
    /// Tokens in a block.
    pub block_tokens: u32,
}
