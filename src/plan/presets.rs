//! Models by name: of each published `config.json` the part that sizes depend on, word for word,
//! and the published number of parameters, which the shape must come to (`shapes_tests`).

use super::shapes::Shape;

/// A model by name.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// What `--model` takes.
    pub name: &'static str,
    /// Whose `config.json` it is.
    pub source: &'static str,
    /// Parameters of the published weights (Hugging Face's count of the safetensors; of DeepSeek
    /// without the layer that predicts further tokens).
    pub parameters: f64,
    /// Billions in the model's name, which rules of thumb count with.
    pub nominal_billions: f64,
    /// From the config.
    pub config: &'static str,
}

impl Preset {
    /// Its shape.
    ///
    /// # Errors
    /// None for the presets here: a test parses each.
    pub fn shape(&self) -> Result<Shape, String> {
        Shape::parse(self.name, self.config)
    }

    /// The preset of a name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<&'static Preset> {
        PRESETS.iter().find(|preset| preset.name == name)
    }
}

/// All of them.
pub const PRESETS: [Preset; 12] = [
    Preset {
        name: "llama-3-8b",
        source: "meta-llama/Meta-Llama-3-8B",
        parameters: 8_030_261_248.0,
        nominal_billions: 8.0,
        config: r#"{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
            "vocab_size": 128256, "tie_word_embeddings": false, "max_position_embeddings": 8192}"#,
    },
    Preset {
        name: "llama-3-70b",
        source: "meta-llama/Meta-Llama-3-70B",
        parameters: 70_553_706_496.0,
        nominal_billions: 70.0,
        config: r#"{"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
            "vocab_size": 128256, "tie_word_embeddings": false, "max_position_embeddings": 8192}"#,
    },
    Preset {
        name: "llama-3.1-8b",
        source: "meta-llama/Llama-3.1-8B",
        parameters: 8_030_261_248.0,
        nominal_billions: 8.0,
        config: r#"{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
            "vocab_size": 128256, "tie_word_embeddings": false,
            "max_position_embeddings": 131072}"#,
    },
    Preset {
        name: "llama-3.1-70b",
        source: "meta-llama/Llama-3.1-70B",
        parameters: 70_553_706_496.0,
        nominal_billions: 70.0,
        config: r#"{"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
            "vocab_size": 128256, "tie_word_embeddings": false,
            "max_position_embeddings": 131072}"#,
    },
    Preset {
        name: "llama-3.1-405b",
        source: "meta-llama/Llama-3.1-405B",
        parameters: 405_853_388_800.0,
        nominal_billions: 405.0,
        config: r#"{"model_type": "llama", "hidden_size": 16384, "num_hidden_layers": 126,
            "num_attention_heads": 128, "num_key_value_heads": 8, "intermediate_size": 53248,
            "vocab_size": 128256, "tie_word_embeddings": false,
            "max_position_embeddings": 131072}"#,
    },
    Preset {
        name: "mistral-large",
        source: "mistralai/Mistral-Large-Instruct-2411",
        parameters: 122_610_069_504.0,
        nominal_billions: 123.0,
        config: r#"{"model_type": "mistral", "hidden_size": 12288, "num_hidden_layers": 88,
            "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 28672, "vocab_size": 32768, "tie_word_embeddings": false,
            "sliding_window": null, "max_position_embeddings": 131072}"#,
    },
    Preset {
        name: "mixtral-8x7b",
        source: "mistralai/Mixtral-8x7B-v0.1",
        parameters: 46_702_792_704.0,
        nominal_billions: 47.0,
        config: r#"{"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
            "vocab_size": 32000, "tie_word_embeddings": false, "max_position_embeddings": 32768,
            "sliding_window": null, "num_local_experts": 8, "num_experts_per_tok": 2}"#,
    },
    Preset {
        name: "qwen3-8b",
        source: "Qwen/Qwen3-8B",
        parameters: 8_190_735_360.0,
        nominal_billions: 8.0,
        config: r#"{"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 12288, "vocab_size": 151936, "tie_word_embeddings": false,
            "max_position_embeddings": 40960, "sliding_window": null,
            "use_sliding_window": false}"#,
    },
    Preset {
        name: "qwen3-32b",
        source: "Qwen/Qwen3-32B",
        parameters: 32_762_123_264.0,
        nominal_billions: 32.0,
        config: r#"{"model_type": "qwen3", "hidden_size": 5120, "num_hidden_layers": 64,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 25600, "vocab_size": 151936, "tie_word_embeddings": false,
            "max_position_embeddings": 40960, "sliding_window": null,
            "use_sliding_window": false}"#,
    },
    Preset {
        name: "qwen3-30b-a3b",
        source: "Qwen/Qwen3-30B-A3B",
        parameters: 30_532_122_624.0,
        nominal_billions: 30.0,
        config: r#"{"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
            "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
            "intermediate_size": 6144, "vocab_size": 151936, "tie_word_embeddings": false,
            "max_position_embeddings": 40960, "sliding_window": null,
            "use_sliding_window": false, "num_experts": 128, "num_experts_per_tok": 8,
            "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": []}"#,
    },
    Preset {
        name: "gpt-oss-120b",
        source: "openai/gpt-oss-120b",
        parameters: 116_829_156_672.0,
        nominal_billions: 117.0,
        config: r#"{"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
            "intermediate_size": 2880, "vocab_size": 201088, "tie_word_embeddings": false,
            "max_position_embeddings": 131072, "sliding_window": 128, "layer_types":
            ["sliding_attention", "full_attention", "sliding_attention", "full_attention",
            "sliding_attention", "full_attention", "sliding_attention", "full_attention",
            "sliding_attention", "full_attention", "sliding_attention", "full_attention",
            "sliding_attention", "full_attention", "sliding_attention", "full_attention",
            "sliding_attention", "full_attention", "sliding_attention", "full_attention",
            "sliding_attention", "full_attention", "sliding_attention", "full_attention",
            "sliding_attention", "full_attention", "sliding_attention", "full_attention",
            "sliding_attention", "full_attention", "sliding_attention", "full_attention",
            "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "num_local_experts": 128, "num_experts_per_tok": 4, "quantization_config":
            {"quant_method": "mxfp4"}}"#,
    },
    Preset {
        name: "deepseek-r1",
        source: "deepseek-ai/DeepSeek-R1",
        parameters: 671_026_419_200.0,
        nominal_billions: 671.0,
        config: r#"{"model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
            "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
            "vocab_size": 129280, "tie_word_embeddings": false,
            "max_position_embeddings": 163840, "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
            "first_k_dense_replace": 3, "moe_layer_freq": 1, "q_lora_rank": 1536,
            "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128, "quantization_config": {"quant_method": "fp8"}}"#,
    },
];
