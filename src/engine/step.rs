//! How long one step of an engine takes.
//!
//! `table(tokens in the step) + overhead + per sequence + KV read + prefill attention`. The
//! constants are those of an A100 (dense times: microsoft/vidur profiles; overheads: BLIS; KV read
//! and attention: roofline of the data sheet), and every one of them is a parameter. Pure.

/// The tokens of a step at which the dense part was profiled.
const DENSE_TOKENS: [u64; 7] = [1, 128, 256, 512, 1024, 2048, 4096];

/// The time of a step as a function of what is in it. All times in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct StepModel {
    /// Dense time at so many tokens a step, by rising tokens; linear in between and beyond.
    pub dense_ms: Vec<(u64, f64)>,
    /// Share by which the dense part is slower (adapters: 0.2).
    pub dense_slowdown: f64,
    /// Fixed time of a step.
    pub overhead_ms: f64,
    /// Time per sequence.
    pub sequence_ms: f64,
    /// Time to read the KV of one token.
    pub kv_read_ms: f64,
    /// Attention of one prefill token over one token of context.
    pub attention_ms: f64,
}

/// What a step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// Prefill and decode tokens.
    pub tokens: u64,
    /// Sequences, decoding or in prefill.
    pub sequences: u64,
    /// KV tokens that the decodes read.
    pub kv_tokens: u64,
    /// Sum over prefill chunks of chunk x mean context, in tokens squared.
    pub chunk_context: f64,
}

impl Step {
    /// Adds decoding sequences whose contexts sum to `kv_tokens`.
    pub fn decode(&mut self, sequences: u64, kv_tokens: u64) {
        self.tokens += sequences;
        self.sequences += sequences;
        self.kv_tokens += kv_tokens;
    }

    /// Adds a chunk of a prompt behind `context` tokens that are computed already. A token of the
    /// chunk attends to what came before and to half of the chunk.
    pub fn prefill(&mut self, chunk: u64, context: u64) {
        self.tokens += chunk;
        self.sequences += 1;
        self.chunk_context += chunk as f64 * (context as f64 + chunk as f64 / 2.0);
    }
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
            dense_slowdown: 0.0,
            overhead_ms: 2.5,
            sequence_ms: 0.008,
            kv_read_ms: kv_read_ms(163_840.0),
            // 4 x hidden 8,192 x 80 layers, halved over two GPUs.
            attention_ms: 4.0 * 8192.0 * 80.0 / 156e12 * 1e3 / 2.0,
        }
    }

    /// The 8B model with adapters: 20 % slower dense part.
    #[must_use]
    pub fn a100_8b_lora() -> StepModel {
        StepModel { dense_slowdown: 0.2, ..StepModel::a100_8b() }
    }

    /// The same with every time multiplied: a replica that is `factor` times as slow.
    #[must_use]
    pub fn slowed(&self, factor: f64) -> StepModel {
        StepModel {
            dense_ms: self.dense_ms.iter().map(|&(n, ms)| (n, ms * factor)).collect(),
            dense_slowdown: self.dense_slowdown,
            overhead_ms: self.overhead_ms * factor,
            sequence_ms: self.sequence_ms * factor,
            kv_read_ms: self.kv_read_ms * factor,
            attention_ms: self.attention_ms * factor,
        }
    }

    /// Dense time of so many tokens in one step; 0 for none.
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

    /// Time of a step.
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
    DENSE_TOKENS.into_iter().zip(dense_ms).collect()
}

/// 2.039 TB/s of the data sheet, of which 65 % is reached.
fn kv_read_ms(bytes_a_token: f64) -> f64 {
    bytes_a_token / (2.039e12 * 0.65) * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_met_between_and_beyond_its_points() {
        let model = StepModel::a100_8b();
        for (tokens, ms) in [(0, 0.0), (1, 9.76), (128, 13.28), (768, 53.925), (4096, 275.4)] {
            assert!((model.dense(tokens) - ms).abs() < 1e-9, "{tokens}: {}", model.dense(tokens));
        }
        let beyond = 275.4 + (275.4 - 144.0) / 2048.0 * 904.0;
        assert!((model.dense(5000) - beyond).abs() < 1e-9);
        assert!((StepModel::a100_8b_lora().dense(128) - 13.28 * 1.2).abs() < 1e-9);
    }

    #[test]
    fn a_step_is_the_sum_of_its_parts() {
        let model = StepModel::a100_70b_tp2();
        let mut step = Step::default();
        step.decode(2, 3000);
        step.prefill(100, 1000);
        assert_eq!((step.tokens, step.sequences, step.kv_tokens), (102, 3, 3000));
        let ms = model.dense(102)
            + 2.5
            + 3.0 * 0.008
            + 3000.0 * model.kv_read_ms
            + 100.0 * 1050.0 * model.attention_ms;
        assert!((model.ms(&step) - ms).abs() < 1e-9);
        assert!((model.slowed(3.0).ms(&step) - 3.0 * ms).abs() < 1e-6);
    }
}
