//! A model's shape from its `config.json`: what a token leaves in the KV cache, and how many
//! parameters there are of which kind.
//!
//! Grouped-query attention keeps two vectors a KV head and layer; multi-head latent attention
//! (DeepSeek, Kimi) keeps one latent and one rotary part a layer; layers with a window keep the
//! window. A model whose layers keep another state is refused rather than miscounted.

use serde_json::Value;

/// What a layer's attention keeps of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// A key and a value for each KV head.
    Heads {
        /// KV heads of all GPUs together.
        kv_heads: u64,
        /// Elements of a head.
        head_dim: u64,
    },
    /// One compressed vector for all heads: every GPU of a tensor-parallel group keeps all of it.
    Latent {
        /// Elements: `kv_lora_rank` + `qk_rope_head_dim`.
        elements: u64,
    },
}

/// Parameters by how they are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parameters {
    /// Token embedding and output head: 16 bits in quantized checkpoints too.
    pub vocabulary: f64,
    /// Attention, dense and shared feed-forward layers.
    pub dense: f64,
    /// Routed experts.
    pub experts: f64,
    /// Norms, biases, routers: 16 bits always.
    pub small: f64,
    /// What one token uses, the embedding's table left out.
    pub active: f64,
}

impl Parameters {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.vocabulary + self.dense + self.experts + self.small
    }
}

/// Experts of a layer that has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Routed ones.
    pub all: u64,
    /// Of them, those that a token goes to.
    pub a_token: u64,
    /// Layers that have them.
    pub layers: u64,
}

/// A model's shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// How it was named.
    pub name: String,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Layers.
    pub layers: u64,
    /// Query heads.
    pub heads: u64,
    /// Tokens of the vocabulary.
    pub vocabulary: u64,
    /// Longest context that the config names.
    pub context_tokens_max: u64,
    /// What a layer keeps of a token.
    pub attention: Attention,
    /// Layers that keep no more than a window, and its tokens.
    pub windowed: (u64, u64),
    /// Widest feed-forward layer that a token passes, for activations.
    pub feed_forward: u64,
    /// Its experts.
    pub experts: Option<Experts>,
    /// Its parameters, counted from the shape.
    pub parameters: Parameters,
    /// `quantization_config.quant_method`, if it has one.
    pub quantization: Option<String>,
}

/// Largest dimension that is believed.
const DIMENSION_MAX: u64 = 1 << 24;
/// Largest number of layers that is believed.
const LAYERS_MAX: u64 = 4096;
/// Keys of models whose layers keep something besides, or instead of, a KV cache of one shape.
const OTHER_STATES: [&str; 8] = [
    "index_topk",
    "linear_num_key_heads",
    "mamba_num_heads",
    "mamba_d_state",
    "ssm_state_size",
    "hybrid_override_pattern",
    "global_head_dim",
    "full_attention_interval",
];

impl Shape {
    /// Reads a `config.json`; of a model with several parts, its text part.
    ///
    /// # Errors
    /// What is missing or cannot be, or that the model keeps a state that is not counted here.
    pub fn parse(name: &str, config: &str) -> Result<Shape, String> {
        let value: Value = serde_json::from_str(config).map_err(|error| error.to_string())?;
        let outer = value.get("quantization_config");
        let config = Config(value.get("text_config").unwrap_or(&value));
        if let Some(key) = OTHER_STATES.iter().find(|key| config.is_set(key)) {
            return Err(format!("layers of this model keep more than KV (`{key}`): not counted"));
        }
        let (hidden, layers) = (config.need("hidden_size")?, config.need("num_hidden_layers")?);
        if layers > LAYERS_MAX {
            return Err(format!("`num_hidden_layers` is {layers}: more than {LAYERS_MAX}"));
        }
        let heads = config.need("num_attention_heads")?;
        let attention = config.attention(hidden, heads)?;
        let (parameters, experts) = config.parameters(hidden, layers, heads, attention)?;
        let method = config.0.get("quantization_config").or(outer);
        let method = method.and_then(|q| q.get("quant_method")).and_then(Value::as_str);
        let expert_width = config.expert_width().saturating_mul(
            experts.map_or(0, |e| e.a_token).saturating_add(config.maybe("n_shared_experts")),
        );
        Ok(Shape {
            name: name.to_owned(),
            hidden,
            layers,
            heads,
            vocabulary: config.need("vocab_size")?,
            context_tokens_max: config.maybe("max_position_embeddings"),
            attention,
            windowed: config.windowed(layers)?,
            feed_forward: if experts.is_some() {
                expert_width
            } else {
                config.need("intermediate_size")?
            },
            experts,
            parameters,
            quantization: method.map(str::to_owned),
        })
    }

    /// Elements that a layer keeps of a token, all GPUs of a group together, none twice.
    #[must_use]
    pub fn kv_elements_a_layer(&self) -> f64 {
        match self.attention {
            Attention::Heads { kv_heads, head_dim } => 2.0 * kv_heads as f64 * head_dim as f64,
            Attention::Latent { elements } => elements as f64,
        }
    }

    /// Elements that one of `gpus` keeps of a token in a layer. KV heads are dealt out until each
    /// GPU has one; then they are repeated. A latent is on every GPU.
    #[must_use]
    pub fn kv_elements_a_gpu(&self, gpus: u64) -> f64 {
        match self.attention {
            Attention::Heads { kv_heads, head_dim } => {
                2.0 * kv_heads.div_ceil(gpus.max(1)) as f64 * head_dim as f64
            }
            Attention::Latent { elements } => elements as f64,
        }
    }

    /// Layer-tokens that a sequence keeps: every token in full layers, the window in the others,
    /// in whole blocks.
    #[must_use]
    pub fn layer_tokens(&self, tokens: u64, block_tokens: u64) -> f64 {
        let block = block_tokens.max(1);
        let whole = |tokens: u64| tokens.div_ceil(block) as f64 * block as f64;
        let (windowed, window) = self.windowed;
        // A window that begins within a block keeps that block too.
        let kept = whole(tokens).min(whole(window) + block as f64);
        let full = self.layers.saturating_sub(windowed) as f64;
        full * whole(tokens) + windowed as f64 * kept
    }

    /// `GQA`, `MHA` or `MLA`, in words.
    #[must_use]
    pub fn attention_words(&self) -> String {
        match self.attention {
            Attention::Heads { kv_heads, head_dim } => format!(
                "{}: {kv_heads} KV heads of {head_dim} for {} heads",
                if kv_heads < self.heads { "GQA" } else { "MHA" },
                self.heads
            ),
            Attention::Latent { elements } => {
                format!("MLA: a latent of {elements} for {} heads, on every GPU", self.heads)
            }
        }
    }
}

/// A config with checked look-ups.
struct Config<'a>(&'a Value);

impl Config<'_> {
    fn is_set(&self, key: &str) -> bool {
        self.0.get(key).is_some_and(|value| !value.is_null())
    }

    /// A dimension; 0 when it is absent.
    fn maybe(&self, key: &str) -> u64 {
        self.0.get(key).and_then(Value::as_u64).filter(|&n| n <= DIMENSION_MAX).unwrap_or(0)
    }

    fn need(&self, key: &str) -> Result<u64, String> {
        match self.0.get(key).and_then(Value::as_u64) {
            Some(n) if (1..=DIMENSION_MAX).contains(&n) => Ok(n),
            Some(n) => Err(format!("`{key}` is {n}: not between 1 and {DIMENSION_MAX}")),
            None => Err(format!("`{key}` is missing: is this the config.json of a model?")),
        }
    }

    fn kind(&self) -> &str {
        self.0.get("model_type").and_then(Value::as_str).unwrap_or_default()
    }

    fn attention(&self, hidden: u64, heads: u64) -> Result<Attention, String> {
        if self.is_set("kv_lora_rank") {
            let elements =
                self.need("kv_lora_rank")?.saturating_add(self.need("qk_rope_head_dim")?);
            return Ok(Attention::Latent { elements });
        }
        let kv_heads = if self.is_set("num_key_value_heads") {
            self.need("num_key_value_heads")?
        } else {
            heads
        };
        if kv_heads > heads || !heads.is_multiple_of(kv_heads) {
            return Err(format!("{heads} heads do not share {kv_heads} KV heads"));
        }
        let head_dim =
            if self.is_set("head_dim") { self.need("head_dim")? } else { hidden / heads };
        if head_dim == 0 {
            return Err(format!("{heads} heads in {hidden} elements"));
        }
        Ok(Attention::Heads { kv_heads, head_dim })
    }

    /// Layers with a window, and the window.
    fn windowed(&self, layers: u64) -> Result<(u64, u64), String> {
        let window = self.maybe("sliding_window");
        let off = self.0.get("use_sliding_window").and_then(Value::as_bool) == Some(false);
        let kinds = self.0.get("layer_types").and_then(Value::as_array);
        let Some(kinds) = kinds else {
            return Ok(if window == 0 || off { (0, 0) } else { (layers, window) });
        };
        let mut windowed = 0;
        for kind in kinds {
            match kind.as_str() {
                Some("full_attention") => {}
                Some("sliding_attention") => windowed += 1,
                _ => return Err(format!("layers of kind {kind} keep no KV cache: not counted")),
            }
        }
        if kinds.len() as u64 != layers || (windowed > 0 && window == 0) {
            return Err("`layer_types` fits neither the layers nor the window".to_owned());
        }
        Ok((windowed, window))
    }

    fn expert_width(&self) -> u64 {
        let width = self.maybe("moe_intermediate_size");
        if width > 0 { width } else { self.maybe("intermediate_size") }
    }

    fn experts(&self, layers: u64) -> Option<Experts> {
        let keys = ["num_local_experts", "num_experts", "n_routed_experts"];
        let all = keys.iter().map(|key| self.maybe(key)).find(|&n| n > 1)?;
        let a_token = self.maybe("num_experts_per_tok").clamp(1, all);
        let step = self.maybe("decoder_sparse_step").max(self.maybe("moe_layer_freq")).max(1);
        let dense = self.0.get("mlp_only_layers").and_then(Value::as_array).map_or(0, Vec::len);
        let behind = layers.saturating_sub(self.maybe("first_k_dense_replace"));
        Some(Experts { all, a_token, layers: (behind / step).saturating_sub(dense as u64) })
    }

    /// Counts parameters as models of Llama's family have them: gated feed-forward layers of three
    /// matrices, two norms a layer and one at the end.
    fn parameters(
        &self,
        hidden: u64,
        layers: u64,
        heads: u64,
        attention: Attention,
    ) -> Result<(Parameters, Option<Experts>), String> {
        let of = |n: u64| n as f64;
        let (width, layers_f, oss) = (of(hidden), of(layers), self.kind() == "gpt_oss");
        let (matrices, mut small) = self.attention_parameters(hidden, heads, attention)?;
        small += 2.0 * width;
        let table = of(self.need("vocab_size")?) * width;
        let tied = self.0.get("tie_word_embeddings").and_then(Value::as_bool) == Some(true);
        let experts = self.experts(layers);
        let sparse = of(experts.map_or(0, |e| e.layers));
        let mut counted = Parameters {
            vocabulary: if tied { table } else { 2.0 * table },
            dense: layers_f * matrices,
            experts: 0.0,
            small: layers_f * small + width,
            active: 0.0,
        };
        if sparse < layers_f {
            let dense = 3.0 * width * of(self.need("intermediate_size")?);
            counted.dense += (layers_f - sparse) * dense;
        }
        counted.active = counted.dense + counted.small + table;
        if let Some(Experts { all, a_token, .. }) = experts {
            let one = 3.0 * width * of(self.expert_width());
            let shared = of(self.maybe("n_shared_experts")) * one;
            let bias = if oss { 2.0 * of(self.expert_width()) + width } else { 0.0 };
            // A router's matrix; DeepSeek's and gpt-oss's have a bias an expert.
            let biased = oss || self.is_set("n_routed_experts");
            let router = of(all) * (width + if biased { 1.0 } else { 0.0 });
            counted.dense += sparse * shared;
            counted.experts = sparse * of(all) * one;
            counted.small += sparse * (router + of(all) * bias);
            counted.active += sparse * (shared + of(a_token) * (one + bias) + router);
        }
        Ok((counted, experts))
    }

    /// Matrices of a layer's attention, and what is small of it.
    fn attention_parameters(
        &self,
        hidden: u64,
        heads: u64,
        attention: Attention,
    ) -> Result<(f64, f64), String> {
        let (width, heads) = (hidden as f64, heads as f64);
        match attention {
            Attention::Heads { kv_heads, head_dim } => {
                let (kv, head) = (kv_heads as f64, head_dim as f64);
                let matrices = 2.0 * width * heads * head + 2.0 * width * kv * head;
                let bias = heads * head + 2.0 * kv * head;
                let small = match self.kind() {
                    // Norms of query and key heads.
                    "qwen3" | "qwen3_moe" => 2.0 * head,
                    "qwen2" | "qwen2_moe" => bias,
                    // Biases of all four matrices, and a sink a head.
                    "gpt_oss" => bias + width + heads,
                    _ => 0.0,
                };
                Ok((matrices, small))
            }
            Attention::Latent { .. } => {
                let of = |key: &str| self.need(key).map(|n| n as f64);
                let (latent, rope) = (of("kv_lora_rank")?, of("qk_rope_head_dim")?);
                let (plain, value) = (of("qk_nope_head_dim")?, of("v_head_dim")?);
                let query = heads * (plain + rope);
                let rank = self.maybe("q_lora_rank") as f64;
                let queries = if rank > 0.0 { rank * (width + query) } else { width * query };
                let keys = width * (latent + rope) + latent * heads * (plain + value);
                Ok((queries + keys + heads * value * width, rank + latent))
            }
        }
    }
}

#[cfg(test)]
#[path = "shapes_tests.rs"]
mod tests;
