//! Shapes against what was published of the models.

use super::super::presets::{PRESETS, Preset};
use super::*;

fn shape(name: &str) -> Shape {
    Preset::of_name(name).expect("a preset").shape().expect("its shape")
}

#[test]
fn every_preset_has_the_published_number_of_parameters() {
    for preset in &PRESETS {
        let shape = preset.shape().expect(preset.name);
        assert_eq!(shape.parameters.total(), preset.parameters, "{}", preset.name);
        let off = (preset.parameters / 1e9 - preset.nominal_billions).abs();
        assert!(off < preset.nominal_billions * 0.03, "{}: {off}", preset.name);
    }
}

/// Active parameters as the publishers round them: 3.3 B, 37 B, 5.1 B, 12.9 B.
#[test]
fn a_token_uses_as_many_parameters_as_published() {
    let told = [
        ("qwen3-30b-a3b", 3.3e9),
        ("deepseek-r1", 37e9),
        ("gpt-oss-120b", 5.1e9),
        ("mixtral-8x7b", 12.9e9),
    ];
    for (name, active) in told {
        let (counted, table) = (shape(name).parameters.active, shape(name).parameters.vocabulary);
        // Some publishers count the embedding's table.
        let near = |x: f64| (x / active - 1.0).abs() < 0.03;
        assert!(near(counted) || near(counted + table / 2.0), "{name}: {counted}");
    }
    let dense = shape("llama-3-8b").parameters;
    assert_eq!(dense.active + dense.vocabulary / 2.0, dense.total());
}

#[test]
fn kv_of_a_token_is_that_of_the_attention() {
    // 2 x 80 layers x 8 heads x 128; dealt to 8 GPUs one head each, repeated on 16.
    let llama = shape("llama-3-70b");
    assert_eq!(llama.kv_elements_a_layer() * 80.0, 163_840.0);
    assert_eq!(llama.kv_elements_a_gpu(8), 256.0);
    assert_eq!(llama.kv_elements_a_gpu(16), 256.0);
    // 61 layers x (512 + 64), on one GPU as on eight.
    let deepseek = shape("deepseek-r1");
    assert_eq!(deepseek.kv_elements_a_layer() * 61.0, 35_136.0);
    assert_eq!(deepseek.kv_elements_a_gpu(8), deepseek.kv_elements_a_gpu(1));
    assert_eq!(deepseek.quantization.as_deref(), Some("fp8"));
}

#[test]
fn a_window_ends_what_a_layer_keeps() {
    let oss = shape("gpt-oss-120b");
    assert_eq!(oss.windowed, (18, 128));
    assert_eq!(oss.layer_tokens(100, 16), 36.0 * 112.0);
    assert_eq!(oss.layer_tokens(8000, 16), 18.0 * 8000.0 + 18.0 * 144.0);
    assert_eq!(shape("llama-3-8b").layer_tokens(17, 16), 32.0 * 32.0);
}

#[test]
fn the_text_part_of_a_model_with_eyes_is_read() {
    let text = Preset::of_name("qwen3-8b").expect("a preset").config;
    let config = format!(r#"{{"model_type": "vl", "vision_config": {{}}, "text_config": {text}}}"#);
    let read = Shape::parse("vl", &config).expect("its text part");
    assert_eq!(read.parameters, shape("qwen3-8b").parameters);
}

#[test]
fn what_cannot_be_is_refused_with_the_key() {
    let base = Preset::of_name("llama-3-8b").expect("a preset").config;
    let with = |key: &str, value: &str| {
        let mut config: Value = serde_json::from_str(base).expect("JSON");
        config[key] = serde_json::from_str(value).expect("JSON");
        Shape::parse("x", &config.to_string())
    };
    for (key, value, told) in [
        ("hidden_size", "0", "hidden_size"),
        ("hidden_size", "-4", "hidden_size"),
        ("vocab_size", "1e30", "vocab_size"),
        ("num_hidden_layers", "1000000", "num_hidden_layers"),
        ("num_key_value_heads", "7", "7 KV heads"),
        ("num_key_value_heads", "64", "64 KV heads"),
        ("layer_types", r#"["linear_attention"]"#, "linear_attention"),
        ("layer_types", r#"["full_attention"]"#, "layer_types"),
        ("index_topk", "2048", "index_topk"),
        ("ssm_state_size", "128", "ssm_state_size"),
        ("num_attention_heads", "8192", "8192 heads"),
    ] {
        let error = with(key, value).expect_err(key);
        assert!(error.contains(told), "{key}: {error}");
    }
    assert!(Shape::parse("x", "{").is_err());
    assert!(Shape::parse("x", "[]").expect_err("no object").contains("hidden_size"));
    // The largest of everything overflows nothing.
    let huge = base.replace("4096", "16777216").replace("14336", "16777216");
    assert!(Shape::parse("x", &huge).expect("large").parameters.total().is_finite());
}
