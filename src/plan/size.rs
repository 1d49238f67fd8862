//! What fits on a replica's GPUs: weights, what else an engine needs, KV blocks, sequences.
//!
//! Beside the reckoning of rules of thumb stands that of the engine: vLLM takes a share of each
//! GPU's memory (`gpu_memory_utilization`), subtracts weights, the peak of a profiled step and what
//! is outside of PyTorch, and divides the rest into blocks, the same number on every GPU.

use super::gpus::Gpu;
use super::shapes::{Attention, Shape};

/// How weights are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// 16 bits.
    Bits16,
    /// FP8 or INT8; embedding, head, norms and routers stay at 16 bits.
    Bits8,
    /// 4 bits with a 16-bit scale for each 128 (AWQ, GPTQ).
    Bits4,
    /// Experts at 4 bits with an 8-bit scale for each 32, all else at 16 bits (gpt-oss).
    Mxfp4,
}

impl WeightType {
    /// Bytes of a parameter, as rules of thumb have it.
    #[must_use]
    pub fn bytes(self) -> f64 {
        match self {
            WeightType::Bits16 => 2.0,
            WeightType::Bits8 => 1.0,
            WeightType::Bits4 => 0.5 + 2.0 / 128.0,
            WeightType::Mxfp4 => 0.5 + 1.0 / 32.0,
        }
    }

    /// Bytes of all parameters: which are kept how.
    #[must_use]
    pub fn bytes_of(self, shape: &Shape) -> f64 {
        let p = &shape.parameters;
        let dense = if self == WeightType::Mxfp4 { 2.0 } else { self.bytes() };
        2.0 * (p.vocabulary + p.small) + dense * p.dense + self.bytes() * p.experts
    }

    /// As `--weights` has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            WeightType::Bits16 => "fp16",
            WeightType::Bits8 => "fp8",
            WeightType::Bits4 => "int4",
            WeightType::Mxfp4 => "mxfp4",
        }
    }
}

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The model.
    pub shape: Shape,
    /// Billions of parameters as rules of thumb count them.
    pub billions: f64,
    /// Each GPU of the replica.
    pub gpu: Gpu,
    /// GPUs of the replica (tensor parallelism).
    pub gpus: u64,
    /// How weights are kept.
    pub weights: WeightType,
    /// Bytes of an element of the KV cache: 2 or 1.
    pub kv_bytes: f64,
    /// Tokens of a sequence that is to fit many times.
    pub tokens: u64,
    /// Tokens of the longest request, prompt and answer.
    pub longest_tokens: u64,
    /// Share of a GPU's memory that the engine takes.
    pub utilization: f64,
    /// Tokens of a KV block.
    pub block_tokens: u64,
    /// Sequences that the engine runs at once (`max_num_seqs`).
    pub sequences_max: u64,
    /// Tokens of a step (`max_num_batched_tokens`).
    pub step_tokens_max: u64,
    /// Bytes of a GPU for activations and what is outside of PyTorch; `None` = estimated.
    pub reserve_bytes: Option<f64>,
}

/// What fits. Bytes are of one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// What the engine takes.
    pub budget_bytes: f64,
    /// Weights.
    pub weight_bytes: f64,
    /// Peak activations of a step.
    pub activation_bytes: f64,
    /// Outside of PyTorch: context, NCCL.
    pub outside_bytes: f64,
    /// Left for KV; below 0 when the model does not fit.
    pub kv_bytes: f64,
    /// A KV block of all layers.
    pub block_bytes: f64,
    /// KV blocks.
    pub blocks: f64,
    /// Blocks of one sequence, windows counted.
    pub sequence_blocks: f64,
    /// Sequences of that length at once, by memory.
    pub sequences: f64,
    /// Share of the KV cache that the longest request takes.
    pub longest_share: f64,
}

/// Bytes a vocabulary entry and sequence at the peak of the profiled step, which samples with
/// `max_num_seqs` sequences: 38.5, by vLLM's own log of three models with 1,024 sequences on an
/// H100 (4.76 GiB with 128,256 entries, 5.56 with 151,936, 7.38 with 201,088; llm-d-benchmark).
const SAMPLING_BYTES: f64 = 38.5;
/// Outside of PyTorch on one GPU and with NCCL on several (the same log).
const OUTSIDE_BYTES: (f64, f64) = (0.13 * GIB, 0.55 * GIB);
/// 2^30.
pub const GIB: f64 = 1_073_741_824.0;

impl Question {
    /// What fits.
    #[must_use]
    pub fn size(&self) -> Size {
        let gpus = self.gpus.max(1);
        let budget_bytes = self.gpu.visible_bytes * self.utilization;
        let weight_bytes = self.weights.bytes_of(&self.shape) / gpus as f64;
        let (activation_bytes, outside_bytes) = match self.reserve_bytes {
            Some(bytes) => (bytes, 0.0),
            None => (self.activation_bytes(), self.outside_bytes()),
        };
        let kv_bytes = budget_bytes - weight_bytes - activation_bytes - outside_bytes;
        let layer_bytes = self.shape.kv_elements_a_gpu(gpus) * self.kv_bytes;
        let block_tokens = self.block_tokens.max(1) as f64;
        let block_bytes = layer_bytes * self.shape.layers as f64 * block_tokens;
        let blocks = (kv_bytes / block_bytes).floor().max(0.0);
        // A block here is one of all layers; of layers with a window fewer are kept.
        let layers = self.shape.layers as f64 * block_tokens;
        let of = |tokens| self.shape.layer_tokens(tokens, self.block_tokens) / layers;
        let sequence_blocks = of(self.tokens);
        let longest_share =
            if blocks > 0.0 { of(self.longest_tokens) / blocks } else { f64::INFINITY };
        Size {
            budget_bytes,
            weight_bytes,
            activation_bytes,
            outside_bytes,
            kv_bytes,
            block_bytes,
            blocks,
            sequence_blocks,
            sequences: (blocks / sequence_blocks).floor(),
            longest_share,
        }
    }

    /// The larger of a forward pass over a full step and of sampling for all sequences.
    fn activation_bytes(&self) -> f64 {
        let shape = &self.shape;
        let sampling = SAMPLING_BYTES * self.sequences_max as f64 * shape.vocabulary as f64;
        let wide = 2.0 * shape.feed_forward as f64 / self.gpus.max(1) as f64;
        let forward = self.step_tokens_max as f64 * 2.0 * (wide + 4.0 * shape.hidden as f64);
        sampling.max(forward)
    }

    fn outside_bytes(&self) -> f64 {
        if self.gpus > 1 { OUTSIDE_BYTES.1 } else { OUTSIDE_BYTES.0 }
    }

    /// The smallest number of GPUs, of those that make tensor-parallel groups, on which the longest
    /// request fits.
    #[must_use]
    pub fn gpus_needed(&self) -> Option<u64> {
        [1, 2, 4, 8, 16, 32].into_iter().find(|&gpus| {
            let size = Question { gpus, ..self.clone() }.size();
            size.kv_bytes > 0.0 && size.longest_share <= 1.0
        })
    }

    /// KV bytes of one sequence by the rule of thumb: no blocks, no windows, none twice.
    #[must_use]
    pub fn sequence_bytes(&self) -> f64 {
        let elements = self.shape.kv_elements_a_layer() * self.shape.layers as f64;
        elements * self.tokens as f64 * self.kv_bytes
    }

    /// Weights by the blueprint's rule: parameters x bytes x 1.20.
    #[must_use]
    pub fn thumb_weight_gb(&self, weights: WeightType) -> f64 {
        self.billions * weights.bytes() * THUMB_OVERHEAD
    }

    /// Memory of all GPUs as it is sold, in GB.
    #[must_use]
    pub fn sold_gb(&self) -> f64 {
        self.gpu.sold_gb * self.gpus as f64
    }

    /// What the KV cache repeats on each GPU: how often a token is kept.
    #[must_use]
    pub fn copies(&self) -> f64 {
        let gpus = self.gpus.max(1);
        let all = self.shape.kv_elements_a_gpu(gpus) * gpus as f64;
        all / self.shape.kv_elements_a_layer()
    }

    /// Whether the cache is a latent, which tensor parallelism repeats.
    #[must_use]
    pub fn is_latent(&self) -> bool {
        matches!(self.shape.attention, Attention::Latent { .. })
    }
}

/// The blueprint's share for context and buffers.
pub const THUMB_OVERHEAD: f64 = 1.20;

/// Sequences by a rule of thumb, all in GB: what is left over, divided.
#[must_use]
pub fn thumb_sequences(memory_gb: f64, weights_gb: f64, sequence_gb: f64) -> f64 {
    // The last digits of a sum of decimal fractions are noise: 492.0000000000001 is 492.
    let left = ((memory_gb - weights_gb) * 1e9).round() / 1e9;
    (left / sequence_gb).floor().max(0.0)
}

/// To two digits after the point, as the blueprint prints its GB.
#[must_use]
pub fn two_digits(gb: f64) -> f64 {
    (gb * 100.0).round() / 100.0
}

#[cfg(test)]
#[path = "size_tests.rs"]
mod tests;
