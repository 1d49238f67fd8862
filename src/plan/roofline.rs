//! The engine model of any model on any GPU, from its shape and the data sheet: each step takes as
//! long as reading the weights or as computing with them, whichever is longer.
//!
//! The shares of the data sheet that are reached are those of the profiled A100 (`StepModel`). An
//! estimate to compare with; what a fleet does is measured (`expedite bench`).

use crate::engine::{EngineParams, StepModel};

use super::size::{Question, WeightType};

/// Of the memory's bandwidth when weights are read: 8B and 70B on A100 (9.76 and 45.5 ms a step).
const READ_SHARE: f64 = 0.8;
/// Of the FLOP/s in dense layers (144 and 652 ms for 2,048 tokens).
const DENSE_SHARE: f64 = 0.7;
/// Of the bandwidth when KV is read, and of the FLOP/s in attention, as `StepModel` has them.
const KV_READ_SHARE: f64 = 0.65;
const ATTENTION_SHARE: f64 = 0.5;
/// Tokens at which the dense part is reckoned.
const TOKENS: [u64; 8] = [1, 16, 64, 128, 256, 512, 1024, 4096];
/// An all-reduce: fixed, and of a token's hidden state over NVLink of 300 GB/s, in ms (`StepModel`
/// has 9.2e-5 ms for 8,192 elements).
const REDUCE_MS: f64 = 0.012;
const REDUCE_ELEMENT_MS: f64 = 9.2e-5 / 8192.0;
const REDUCE_LINK: f64 = 300e9;

/// The engine of a sized replica.
#[must_use]
pub fn engine(asked: &Question) -> EngineParams {
    let size = asked.size();
    let (shape, gpu, gpus) = (&asked.shape, &asked.gpu, asked.gpus.max(1) as f64);
    let p = &shape.parameters;
    // 4-bit weights are computed with in 16 bits.
    let flops = if asked.weights == WeightType::Bits8 { gpu.flops_8 } else { gpu.flops_16 };
    let all = asked.weights.bytes_of(shape);
    let experts = asked.weights.bytes() * p.experts;
    let dense_ms = |tokens: u64| {
        // Of the experts those are read that a token of the step goes to.
        let touched = shape
            .experts
            .map_or(0.0, |e| 1.0 - (1.0 - e.a_token as f64 / e.all as f64).powf(tokens as f64));
        let read = (all - experts * (1.0 - touched)) / gpus / (gpu.memory_bytes_s * READ_SHARE);
        let computed = 2.0 * p.active * tokens as f64 / gpus / (flops * DENSE_SHARE);
        let element_ms = REDUCE_ELEMENT_MS * REDUCE_LINK / gpu.link_bytes_s;
        let reduce = REDUCE_MS + element_ms * shape.hidden as f64 * tokens as f64;
        let reduces = if asked.gpus > 1 { 2.0 * shape.layers as f64 } else { 0.0 };
        read.max(computed) * 1e3 + reduces * reduce
    };
    let kv_token = size.block_bytes / asked.block_tokens.max(1) as f64;
    let attention = 4.0 * shape.hidden as f64 * shape.layers as f64;
    EngineParams {
        step: StepModel {
            dense_ms: TOKENS.into_iter().map(|tokens| (tokens, dense_ms(tokens))).collect(),
            kv_read_ms: kv_token / (gpu.memory_bytes_s * KV_READ_SHARE) * 1e3,
            attention_ms: attention / (gpu.flops_16 * ATTENTION_SHARE) * 1e3 / gpus,
            ..if asked.gpus > 1 { StepModel::a100_70b_tp2() } else { StepModel::a100_8b() }
        },
        block_tokens: asked.block_tokens,
        blocks: size.blocks as u64,
        step_tokens_max: asked.step_tokens_max,
        sequences_max: asked.sequences_max,
        ..EngineParams::a100_8b()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{gpus::Gpu, presets::Preset};
    use super::*;

    fn on(model: &str, gpu: &str, gpus: u64, weights: WeightType) -> Question {
        let preset = Preset::of_name(model).expect("a preset");
        let gpu = Gpu::of_name(gpu).expect("a GPU").clone();
        Question {
            shape: preset.shape().expect("its shape"),
            billions: preset.nominal_billions,
            gpus,
            weights,
            kv_bytes: 2.0,
            tokens: 2048,
            longest_tokens: 8192,
            utilization: 0.9,
            block_tokens: 16,
            sequences_max: 256,
            step_tokens_max: 2048,
            reserve_bytes: None,
            gpu,
        }
    }

    #[test]
    fn it_comes_near_the_profiles_it_does_not_read() {
        let pairs = [
            (on("llama-3-8b", "a100-80g", 1, WeightType::Bits16), StepModel::a100_8b()),
            (on("llama-3-70b", "a100-80g", 2, WeightType::Bits16), StepModel::a100_70b_tp2()),
        ];
        for (asked, profile) in pairs {
            let step = engine(&asked).step;
            for tokens in [1, 1024, 2048, 4096] {
                let ratio = step.dense(tokens) / profile.dense(tokens);
                assert!((0.85..1.15).contains(&ratio), "{tokens}: {ratio}");
            }
            assert!((step.kv_read_ms / profile.kv_read_ms - 1.0).abs() < 1e-9);
            assert!((step.attention_ms / profile.attention_ms - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn a_step_of_few_tokens_reads_few_experts() {
        let step = engine(&on("qwen3-30b-a3b", "h100-80g", 1, WeightType::Bits16)).step;
        assert!(step.dense(1) * 5.0 < step.dense(256), "{:?}", step.dense_ms);
        let dense = engine(&on("llama-3-8b", "h100-80g", 1, WeightType::Bits16)).step;
        assert!(dense.dense(64) < dense.dense(1) * 1.05);
    }
}
