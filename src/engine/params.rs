//! What an engine can do, and the engines whose figures are known.

use super::step::StepModel;

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
