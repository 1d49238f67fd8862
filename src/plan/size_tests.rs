//! Sizes against the figures of the documents, and against what vLLM logged on GPUs.

use super::super::presets::Preset;
use super::*;

fn on(model: &str, gpu: &str, gpus: u64) -> Question {
    let preset = Preset::of_name(model).expect("a preset");
    let gpu = Gpu::of_name(gpu).expect("a GPU").clone();
    Question {
        shape: preset.shape().expect("its shape"),
        billions: preset.nominal_billions,
        gpus,
        weights: WeightType::Bits16,
        kv_bytes: 2.0,
        tokens: 8192,
        longest_tokens: 8192,
        utilization: 0.9,
        block_tokens: 16,
        sequences_max: gpu.sequences_default,
        step_tokens_max: gpu.step_tokens_default,
        reserve_bytes: None,
        gpu,
    }
}

#[test]
fn the_blueprint_is_reproduced_and_corrected() {
    let weights = WeightType::Bits8;
    let asked = Question { weights, kv_bytes: 1.0, ..on("llama-3-70b", "h100-80g", 8) };
    let weights_gb = asked.thumb_weight_gb(weights);
    assert_eq!(weights_gb, 84.0);
    assert_eq!(asked.thumb_weight_gb(WeightType::Bits16), 168.0);
    let exact = asked.sequence_bytes() / 1e9;
    assert!((exact - 1.342_177_28).abs() < 1e-9);
    assert_eq!(two_digits(exact), 1.34);
    // All memory: 414, rounded or not. What the engine takes: 367, or 366 without the rounding.
    assert_eq!(asked.sold_gb(), 640.0);
    let sequences = |memory, kv| thumb_sequences(memory, weights_gb, kv);
    assert_eq!(sequences(640.0, 1.34), 414.0);
    assert_eq!(sequences(640.0, exact), 414.0);
    assert_eq!(sequences(640.0 * 0.9, 1.34), 367.0);
    assert_eq!(sequences(640.0 * 0.9, exact), 366.0);
    assert_eq!(sequences(640.0, 2.0 * exact), 207.0);
    // The engine's own reckoning on eight cards comes out between them.
    let size = asked.size();
    assert!((330.0..400.0).contains(&size.sequences), "{size:?}");
    assert_eq!(size.sequence_blocks, 512.0);
}

/// GiB of weights and KV of one GPU that vLLM logged (llm-d-benchmark).
#[test]
fn vllm_has_logged_what_is_reckoned() {
    let llama = |weights, gpus| Question {
        weights,
        ..on(if gpus == 1 { "llama-3.1-8b" } else { "llama-3.1-70b" }, "h100-80g", gpus)
    };
    let logged = [
        (llama(WeightType::Bits16, 1), 14.99, 51.38),
        (llama(WeightType::Bits8, 2), 33.88, 32.0),
        (on("qwen3-32b", "h100-80g", 1), 61.03, 4.45),
    ];
    for (asked, weights, kv) in logged {
        let size = asked.size();
        let (w, k) = (size.weight_bytes / GIB, size.kv_bytes / GIB);
        assert!((w / weights - 1.0).abs() < 0.01, "{}: {w} of {weights}", asked.shape.name);
        assert!((k - kv).abs() < 0.3, "{}: {k} of {kv}", asked.shape.name);
    }
}

#[test]
fn one_prompt_fills_the_articles_70b_replica() {
    let asked = Question { longest_tokens: 36_000, ..on("llama-3-70b", "a100-80g", 2) };
    let size = asked.size();
    // 320 KiB a token: 11.8 GB.
    let bytes = size.longest_share * size.blocks * size.block_bytes * 2.0;
    assert!((bytes / 1e9 - 11.8).abs() < 0.05, "{bytes}");
    assert!(size.longest_share > 0.9, "{size:?}");
    assert_eq!(asked.gpus_needed(), Some(4));
    assert!(size.blocks > 1500.0 && size.blocks < 2400.0, "{}", size.blocks);
}

#[test]
fn what_does_not_fit_has_no_blocks() {
    let asked = on("llama-3.1-405b", "h100-80g", 8);
    let size = asked.size();
    assert!(size.kv_bytes < 0.0 && size.blocks == 0.0 && size.sequences == 0.0);
    assert_eq!(asked.gpus_needed(), Some(16));
    let tight = Question { utilization: 0.1, ..asked };
    assert_eq!(tight.gpus_needed(), None);
}

#[test]
fn repeated_caches_do_not_grow_with_gpus() {
    let latent = |gpus| Question {
        weights: WeightType::Bits8,
        reserve_bytes: Some(4.0 * GIB),
        ..on("deepseek-r1", "h200-141g", gpus)
    };
    assert_eq!(latent(8).copies(), 8.0);
    assert!(latent(8).is_latent());
    // More GPUs hold more tokens only by what the weights leave: never more than one GPU can.
    let (eight, many) = (latent(8).size(), latent(64).size());
    assert_eq!(eight.block_bytes, many.block_bytes);
    assert!(many.blocks * many.block_bytes < many.budget_bytes, "{many:?}");
    assert_eq!(on("llama-3-70b", "h100-80g", 16).copies(), 2.0);
    assert_eq!(on("llama-3-70b", "h100-80g", 8).copies(), 1.0);
}

#[test]
fn gpt_oss_weighs_what_it_was_seen_to() {
    let weights = WeightType::Mxfp4;
    let asked = Question { weights, ..on("gpt-oss-120b", "h100-80g", 1) };
    // 64.38 GiB logged, of which some is padding of the experts.
    let gib = asked.size().weight_bytes / GIB;
    assert!((0.93..1.0).contains(&(gib / 64.38)), "{gib}");
}
