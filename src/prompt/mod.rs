//! The prompt as the engine will know it: messages -> template -> tokens -> block hashes.
//!
//! - [`model`]: one model's way from a request body to its prompts, as text or ids.
//! - [`template`]: chat templates, rendered as vLLM and transformers render them.
//! - [`harmony`]: a chat as gpt-oss reads it.
//! - [`convert`]: `/v1/messages` and `/v1/responses` bodies as the chat that the engine makes of
//!   them; [`tree`] is the JSON that both read.
//! - [`tokenizer`]: text to ids; [`encode`]: the same in turns, part by part, through
//!   [`segments`], a core's memory of parts that it has encoded.
//! - [`work`]: all prompts of a call in turns: tokens, truncation, and the hashes of [`blocks`].
//! - [`standing`]: how far a pool's counts can be trusted, and the estimate where not.
//!
//! Pure functions of bytes, tables and a time that the caller gives: no I/O on the path of a
//! request, no clock, no locks. Tables are loaded off the cores and shared; caches belong to the
//! core that uses them. Whatever a peer sends ends in a prompt or an error, never in a panic.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod blocks;
pub mod convert;
pub mod encode;
mod escape;
pub mod harmony;
pub mod model;
pub mod segments;
pub mod standing;
pub mod template;
pub mod tokenizer;
pub mod tree;
pub mod work;

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
    /// The engine cuts them to what the context holds, and the answer's limit to what is left.
    pub cut_to_context: bool,
}
