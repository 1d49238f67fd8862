//! How long one step of an engine takes: `dense(tokens in the step) + overhead + per sequence +
//! KV read + prefill attention`.
//!
//! The presets are those of an A100: dense times from the profiles of microsoft/vidur, overheads
//! from BLIS, KV read and attention from the roofline of the data sheet. Pure arithmetic.

/// What a step has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// Tokens computed: one for each decoding sequence, and the prefill chunks.
    pub tokens: u64,
    /// Sequences that take part.
    pub sequences: u64,
    /// Tokens of KV that the decoding sequences read.
    pub kv_tokens: u64,
    /// Sum over the prefill chunks of chunk x its mean context, in tokens squared.
    pub chunk_context: f64,
}

/// The time model of one kind of replica; every number is a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct StepModel {
    /// Dense time in ms at so many tokens a step, ascending; linear in between and beyond.
    pub dense_ms: Vec<(u64, f64)>,
    /// Share by which the dense part is slower (adapters: 0.2).
    pub dense_slowdown: f64,
    /// Fixed time of a step in ms.
    pub overhead_ms: f64,
    /// Time of a step per sequence in ms.
    pub sequence_ms: f64,
    /// Time to read the KV of one token in ms.
    pub kv_read_ms: f64,
    /// Attention of one prefill token over one token of context in ms.
    pub attention_ms: f64,
}

impl StepModel {
    /// An 8B model on one A100-80G.
    #[must_use]
    pub fn a100_8b() -> StepModel {
        StepModel {
            dense_ms: table([9.76, 13.28, 19.62, 34.85, 73.0, 144.0, 275.4]),
            dense_slowdown: 0.0,
            overhead_ms: 2.0,
            sequence_ms: 0.008,
            kv_read_ms: kv_read_ms(131_072.0),
            // 4 x hidden 4,096 x 32 layers FLOP at half of 312 TFLOP/s.
            attention_ms: 4.0 * 4096.0 * 32.0 / 156e12 * 1e3,
        }
    }

    /// A 70B model on two A100-80G by tensor parallelism.
    #[must_use]
    pub fn a100_70b_tp2() -> StepModel {
        // 160 all-reduces a step of 0.012 ms + 9.2e-5 ms a token.
        let reduce = |tokens: u64| 160.0 * (0.012 + 9.2e-5 * tokens as f64);
        let dense = table([45.5, 62.9, 88.6, 177.2, 352.9, 651.8, 1292.0]);
        StepModel {
            dense_ms: dense.into_iter().map(|(n, ms)| (n, ms + reduce(n))).collect(),
            overhead_ms: 2.5,
            kv_read_ms: kv_read_ms(163_840.0),
            // 4 x hidden 8,192 x 80 layers, halved over two GPUs.
            attention_ms: 4.0 * 8192.0 * 80.0 / 156e12 * 1e3 / 2.0,
            ..StepModel::a100_8b()
        }
    }

    /// The 8B model with adapters: 20 % slower dense part.
    #[must_use]
    pub fn a100_8b_lora() -> StepModel {
        StepModel { dense_slowdown: 0.2, ..StepModel::a100_8b() }
    }

    /// Dense time in ms of `tokens` in one step; 0 for none.
    #[must_use]
    pub fn dense(&self, tokens: u64) -> f64 {
        let Some(&(mut n0, mut ms0)) = self.dense_ms.first() else { return 0.0 };
        if tokens == 0 {
            return 0.0;
        }
        let mut slope = 0.0;
        for &(n1, ms1) in self.dense_ms.get(1..).unwrap_or_default() {
            slope = (ms1 - ms0) / n1.saturating_sub(n0).max(1) as f64;
            if tokens <= n1 {
                break;
            }
            (n0, ms0) = (n1, ms1);
        }
        let ms = ms0 + slope * tokens.saturating_sub(n0) as f64;
        ms * (1.0 + self.dense_slowdown)
    }

    /// Time of `step` in ms.
    #[must_use]
    pub fn ms(&self, step: &Step) -> f64 {
        self.dense(step.tokens)
            + self.overhead_ms
            + self.sequence_ms * step.sequences as f64
            + self.kv_read_ms * step.kv_tokens as f64
            + self.attention_ms * step.chunk_context
    }
}

fn table(dense_ms: [f64; 7]) -> Vec<(u64, f64)> {
    [1, 128, 256, 512, 1024, 2048, 4096].into_iter().zip(dense_ms).collect()
}

fn kv_read_ms(bytes_a_token: f64) -> f64 {
    bytes_a_token / (2.039e12 * 0.65) * 1e3
}
