//! The engine of one replica as a pure model: continuous batching with chunked prefill over paged
//! KV memory, in virtual time.
//!
//! Time is an argument (microseconds from any origin); no clock, no I/O, no thread of its own. A
//! step takes `table(tokens in the step) + overhead + per sequence + KV read + prefill attention`;
//! the constants are those of an A100 (dense times: microsoft/vidur profiles; overheads: BLIS; KV
//! read and attention: roofline of the data sheet). It holds the blocks of the whole answer from
//! admission on, so it never preempts.

use std::collections::VecDeque;

/// Tokens in a KV block.
pub const BLOCK_TOKENS: u64 = 16;

/// What a replica can do; every number is a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineParams {
    /// Dense time in ms at so many tokens a step; linear in between and beyond.
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
    /// KV blocks of 16 tokens.
    pub blocks: u64,
    /// `max_num_batched_tokens`.
    pub step_tokens_max: u64,
    /// `max_num_seqs`.
    pub sequences_max: u64,
}

impl EngineParams {
    /// An 8B model on one A100-80G.
    #[must_use]
    pub fn a100_8b() -> EngineParams {
        let dense = [9.76, 13.28, 19.62, 34.85, 73.0, 144.0, 275.4];
        EngineParams {
            dense_ms: table(dense),
            dense_slowdown: 0.0,
            overhead_ms: 2.0,
            sequence_ms: 0.008,
            kv_read_ms: kv_read_ms(131_072.0),
            // 4 x hidden 4,096 x 32 layers FLOP at half of 312 TFLOP/s.
            attention_ms: 4.0 * 4096.0 * 32.0 / 156e12 * 1e3,
            blocks: 27_900,
            step_tokens_max: 2048,
            sequences_max: 256,
        }
    }

    /// A 70B model on two A100-80G by tensor parallelism.
    #[must_use]
    pub fn a100_70b_tp2() -> EngineParams {
        // 160 all-reduces a step of 0.012 ms + 9.2e-5 ms a token.
        let reduce = |tokens: u64| 160.0 * (0.012 + 9.2e-5 * tokens as f64);
        let dense = [45.5, 62.9, 88.6, 177.2, 352.9, 651.8, 1292.0];
        EngineParams {
            dense_ms: table(dense).into_iter().map(|(n, ms)| (n, ms + reduce(n))).collect(),
            overhead_ms: 2.5,
            kv_read_ms: kv_read_ms(163_840.0),
            // 4 x hidden 8,192 x 80 layers, halved over two GPUs.
            attention_ms: 4.0 * 8192.0 * 80.0 / 156e12 * 1e3 / 2.0,
            blocks: 3400,
            ..EngineParams::a100_8b()
        }
    }

    /// The 8B model with adapters: 20 % slower dense part, fewer blocks.
    #[must_use]
    pub fn a100_8b_lora() -> EngineParams {
        EngineParams { dense_slowdown: 0.2, blocks: 26_000, ..EngineParams::a100_8b() }
    }

    fn dense(&self, tokens: u64) -> f64 {
        let Some(&(mut n0, mut ms0)) = self.dense_ms.first() else { return 0.0 };
        if tokens == 0 {
            return 0.0;
        }
        let mut slope = 0.0;
        for &(n1, ms1) in self.dense_ms.get(1..).unwrap_or_default() {
            slope = (ms1 - ms0) / (n1 - n0) as f64;
            if tokens <= n1 {
                break;
            }
            (n0, ms0) = (n1, ms1);
        }
        let ms = ms0 + slope * tokens.saturating_sub(n0) as f64;
        ms * (1.0 + self.dense_slowdown)
    }
}

fn table(dense_ms: [f64; 7]) -> Vec<(u64, f64)> {
    [1, 128, 256, 512, 1024, 2048, 4096].into_iter().zip(dense_ms).collect()
}

fn kv_read_ms(bytes_a_token: f64) -> f64 {
    bytes_a_token / (2.039e12 * 0.65) * 1e3
}

/// A request as the engine sees it.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The caller's name for it.
    pub id: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Leading ones that need no computing.
    pub cached_tokens: u64,
    /// Tokens that it will generate, at least 1.
    pub output_tokens: u64,
    /// Sequences that it decodes side by side (`n` choices of all prompts).
    pub width: u64,
}

#[derive(Debug)]
struct Sequence {
    work: Work,
    prefilled: u64,
    generated: u64,
    /// Prompt tokens in the running step; 0 = it decodes (or waits for budget).
    chunk: u64,
    in_step: bool,
}

impl Sequence {
    fn blocks(&self) -> u64 {
        let Work { prompt_tokens, output_tokens, width, .. } = self.work;
        prompt_tokens.saturating_add(output_tokens.saturating_mul(width)).div_ceil(BLOCK_TOKENS)
    }

    fn prompt_left(&self) -> u64 {
        self.work.prompt_tokens.saturating_sub(self.prefilled)
    }
}

/// One engine.
#[derive(Debug)]
pub struct Engine {
    params: EngineParams,
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    blocks_used: u64,
    /// When the running step ends.
    step_ends_us: Option<u64>,
}

/// What a step brought for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The request.
    pub id: u64,
    /// Tokens of each of its sequences so far.
    pub generated: u64,
}

impl Engine {
    /// An idle engine.
    #[must_use]
    pub fn new(params: EngineParams) -> Engine {
        Engine {
            params,
            running: Vec::new(),
            waiting: VecDeque::new(),
            blocks_used: 0,
            step_ends_us: None,
        }
    }

    /// Queues a request at `now_us`; an idle engine begins a step at once. One that can never fit
    /// waits until it is aborted, as in vLLM.
    pub fn submit(&mut self, now_us: u64, work: Work) {
        let prefilled = work.cached_tokens.min(work.prompt_tokens.saturating_sub(1));
        let work =
            Work { output_tokens: work.output_tokens.max(1), width: work.width.max(1), ..work };
        let fresh = Sequence { work, prefilled, generated: 0, chunk: 0, in_step: false };
        self.waiting.push_back(fresh);
        if self.step_ends_us.is_none() {
            self.begin_step(now_us);
        }
    }

    /// Drops a request wherever it is; its blocks are free at once.
    pub fn abort(&mut self, id: u64) {
        self.waiting.retain(|s| s.work.id != id);
        if let Some(at) = self.running.iter().position(|s| s.work.id == id) {
            let gone = self.running.swap_remove(at);
            self.blocks_used = self.blocks_used.saturating_sub(gone.blocks());
        }
    }

    /// When [`advance`](Self::advance) has something to do; `None` = idle.
    #[must_use]
    pub fn next_us(&self) -> Option<u64> {
        self.step_ends_us
    }

    /// Ends every step that is over by `now_us` and begins the next ones; adds to `out` what they
    /// brought, in order.
    pub fn advance(&mut self, now_us: u64, out: &mut Vec<Progress>) {
        while let Some(ends_us) = self.step_ends_us.filter(|&ends| ends <= now_us) {
            self.step_ends_us = None;
            for sequence in self.running.iter_mut().filter(|s| s.in_step) {
                sequence.in_step = false;
                sequence.prefilled += std::mem::take(&mut sequence.chunk);
                if sequence.prompt_left() == 0 {
                    sequence.generated += 1;
                    let Sequence { work, generated, .. } = *sequence;
                    out.push(Progress { id: work.id, generated });
                }
            }
            let mut freed = 0;
            self.running.retain(|s| {
                let done = s.generated >= s.work.output_tokens;
                freed += if done { s.blocks() } else { 0 };
                !done
            });
            self.blocks_used = self.blocks_used.saturating_sub(freed);
            self.begin_step(ends_us);
        }
    }

    /// Requests that hold blocks.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.running.len() as u64
    }

    /// Requests that wait for blocks or a place.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Share of the blocks that live requests hold, 0 to 1.
    #[must_use]
    pub fn kv_usage(&self) -> f64 {
        self.blocks_used as f64 / self.params.blocks.max(1) as f64
    }

    /// Decodes first, then prompts by order of arrival, then admission; FCFS, as vLLM V1.
    fn begin_step(&mut self, now_us: u64) {
        let mut budget = self.params.step_tokens_max;
        let mut cost = StepCost::default();
        for sequence in self.running.iter_mut().filter(|s| s.prompt_left() == 0) {
            if budget >= sequence.work.width {
                budget -= sequence.work.width;
                sequence.in_step = true;
                cost.decode(sequence);
            }
        }
        for sequence in self.running.iter_mut().filter(|s| s.prompt_left() > 0) {
            budget -= cost.prefill(sequence, budget);
        }
        while budget > 0 && self.sequences() < self.params.sequences_max {
            let Some(next) = self.waiting.front() else { break };
            if self.blocks_used.saturating_add(next.blocks()) > self.params.blocks {
                break;
            }
            let Some(mut next) = self.waiting.pop_front() else { break };
            self.blocks_used += next.blocks();
            budget -= cost.prefill(&mut next, budget);
            self.running.push(next);
        }
        if cost.tokens > 0 {
            let step_us = (cost.ms(&self.params) * 1e3).round() as u64;
            self.step_ends_us = Some(now_us.saturating_add(step_us.max(1)));
        }
    }

    fn sequences(&self) -> u64 {
        self.running.iter().map(|s| s.work.width).sum()
    }
}

#[derive(Default)]
struct StepCost {
    tokens: u64,
    sequences: u64,
    kv_tokens: u64,
    chunk_context: f64,
}

impl StepCost {
    fn decode(&mut self, sequence: &Sequence) {
        let width = sequence.work.width;
        self.tokens += width;
        self.sequences += width;
        self.kv_tokens += width * (sequence.work.prompt_tokens + sequence.generated);
    }

    /// Takes a chunk of the prompt into the step; returns its tokens.
    fn prefill(&mut self, sequence: &mut Sequence, budget: u64) -> u64 {
        let chunk = sequence.prompt_left().min(budget);
        if chunk > 0 {
            sequence.chunk = chunk;
            sequence.in_step = true;
            self.tokens += chunk;
            self.sequences += 1;
            // A token of the chunk attends to what came before and to half of the chunk.
            let context = sequence.prefilled as f64 + chunk as f64 / 2.0;
            self.chunk_context += chunk as f64 * context;
        }
        chunk
    }

    fn ms(&self, params: &EngineParams) -> f64 {
        params.dense(self.tokens)
            + params.overhead_ms
            + params.sequence_ms * self.sequences as f64
            + params.kv_read_ms * self.kv_tokens as f64
            + params.attention_ms * self.chunk_context
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(id: u64, prompt_tokens: u64, output_tokens: u64) -> Work {
        Work { id, prompt_tokens, cached_tokens: 0, output_tokens, width: 1 }
    }

    fn run(engine: &mut Engine) -> Vec<(u64, Progress)> {
        let (mut log, mut out) = (Vec::new(), Vec::new());
        while let Some(us) = engine.next_us() {
            engine.advance(us, &mut out);
            log.extend(out.drain(..).map(|p| (us, p)));
        }
        log
    }

    #[test]
    fn the_calibration_points_come_out() {
        let mut small = Engine::new(EngineParams::a100_8b());
        small.submit(0, work(1, 16, 1000));
        let log = run(&mut small);
        let rate = 999.0 / ((log[999].0 - log[0].0) as f64 / 1e6);
        assert!((80.0..88.0).contains(&rate), "single stream on 8B: {rate} tokens/s, want 84");

        let mut big = Engine::new(EngineParams::a100_70b_tp2());
        big.submit(0, work(1, 1800, 1));
        let ttft_ms = run(&mut big)[0].0 as f64 / 1e3;
        assert!((590.0..690.0).contains(&ttft_ms), "cold 1,800 tokens on 70B: {ttft_ms} ms");
    }

    #[test]
    fn cached_tokens_and_company_change_the_time_as_they_must() {
        let ttft = |cached_tokens, others: u64| {
            let mut engine = Engine::new(EngineParams::a100_8b());
            for id in 0..others {
                engine.submit(0, work(id, 16, 10_000));
            }
            let mut out = Vec::new();
            engine.advance(1_000_000, &mut out);
            let begin = 1_000_000;
            engine.submit(begin, Work { cached_tokens, ..work(99, 2000, 1) });
            loop {
                let us = engine.next_us().expect("busy");
                out.clear();
                engine.advance(us, &mut out);
                if out.iter().any(|p| p.id == 99) {
                    return us - begin;
                }
            }
        };
        assert!(ttft(1900, 0) < ttft(0, 0) / 4);
        assert!(ttft(0, 100) > ttft(0, 0));
    }

    #[test]
    fn a_full_pool_makes_requests_wait_and_an_abort_lets_them_in() {
        let mut engine = Engine::new(EngineParams { blocks: 20, ..EngineParams::a100_8b() });
        engine.submit(0, work(1, 160, 100));
        engine.submit(0, work(2, 160, 10));
        assert_eq!((engine.running(), engine.waiting()), (1, 1));
        assert!(engine.kv_usage() > 0.8);
        engine.abort(1);
        assert_eq!((engine.running(), engine.kv_usage()), (0, 0.0));
        let log = run(&mut engine);
        assert_eq!(log.len(), 10);
        assert!(log.iter().all(|(_, p)| p.id == 2));
        assert_eq!((engine.running(), engine.waiting(), engine.kv_usage()), (0, 0, 0.0));
    }

    #[test]
    fn the_same_work_gives_the_same_log() {
        let log = || {
            let mut engine = Engine::new(EngineParams::a100_8b_lora());
            for id in 0..300 {
                engine.submit(id * 1000, work(id, 100 + id * 13 % 3000, 1 + id % 50));
            }
            run(&mut engine)
        };
        let first = log();
        assert_eq!(first, log());
        assert_eq!(first.len() as u64, (0..300).map(|id| 1 + id % 50).sum::<u64>());
        assert!(first.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }
}
