//! One engine as a model in virtual time: what vLLM V1 does with requests, without a GPU.
//!
//! Pure: time is an argument (microseconds from any origin). `sim` runs it by the clock, `plan` as
//! fast as it can, and `routing` predicts with its [`StepModel`].

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod step;

use std::sync::Arc;

pub use step::{Step, StepModel};

use crate::prompt::blocks::BlockHash;

/// What a replica can do; every number is a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineParams {
    /// The time of a step.
    pub step: StepModel,
    /// Tokens in a KV block.
    pub block_tokens: u64,
    /// KV blocks.
    pub blocks: u64,
    /// Most tokens in a step: `max_num_batched_tokens`.
    pub step_tokens_max: u64,
    /// Most sequences that run: `max_num_seqs`.
    pub sequences_max: u64,
    /// Adapters that are resident at once; 0 = the engine serves none.
    pub adapter_slots: u32,
    /// Time until an adapter that was not resident can be used, in ms.
    pub adapter_load_ms: f64,
}

impl EngineParams {
    /// An 8B model on one A100-80G.
    #[must_use]
    pub fn a100_8b() -> EngineParams {
        EngineParams {
            step: StepModel::a100_8b(),
            block_tokens: 16,
            blocks: 27_900,
            step_tokens_max: 2048,
            sequences_max: 256,
            adapter_slots: 0,
            adapter_load_ms: 0.0,
        }
    }

    /// A 70B model on two A100-80G by tensor parallelism.
    #[must_use]
    pub fn a100_70b_tp2() -> EngineParams {
        EngineParams { step: StepModel::a100_70b_tp2(), blocks: 3400, ..EngineParams::a100_8b() }
    }

    /// The 8B model with room for 8 adapters: slower, and with fewer blocks.
    #[must_use]
    pub fn a100_8b_lora() -> EngineParams {
        EngineParams {
            step: StepModel::a100_8b_lora(),
            blocks: 26_000,
            adapter_slots: 8,
            adapter_load_ms: 150.0,
            ..EngineParams::a100_8b()
        }
    }
}

/// A request as the engine sees it.
#[derive(Clone, Debug)]
pub struct Work {
    /// The caller's name for it, unique while it lives.
    pub id: u64,
    /// Chained hashes of the full blocks of the prompt, and of the answer behind it as far as it is
    /// known. A block beyond the chain is computed, but nobody finds it again.
    pub hashes: Arc<[BlockHash]>,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens that each of its sequences will generate, at least 1.
    pub output_tokens: u64,
    /// Sequences that it decodes side by side (`n` choices), at least 1.
    pub width: u64,
    /// Its adapter; 0 = the base model.
    pub adapter: u32,
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
