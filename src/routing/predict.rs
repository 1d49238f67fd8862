//! What a request would meet at a replica: time to its first token, time of each later one, GPU
//! time of its prefill. From the step-time model and the ledger's sums; some thirty operations a
//! replica and no allocation.
//!
//! The engine runs steps of at most `step_tokens_max` tokens: every decoding sequence takes one,
//! prompts share the rest in order of arrival (vLLM V1, chunked prefill).

use super::types::{Candidate, Model, Request};
use crate::engine::StepModel;

/// Most of a replica's time that prefill is taken to have; a pole lies at 1.
const DUTY_MAX: f64 = 0.95;

/// Least share of a step that is left to prompts, so that a lie in the count of decodes predicts
/// a long time and not an endless one.
const CHUNK_TOKENS_MIN: u64 = 64;

/// Largest step that a model may have: the size of its table.
const STEP_TOKENS_MAX: u64 = 16_384;

/// Larger counts than any replica has: what is above is a lie or a mistake.
const TOKENS_MAX: u64 = 1 << 32;

/// Times predicted of one replica, in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Times {
    /// To the first token, from now.
    pub(super) ttft_ms: f64,
    /// Between later tokens of this request and of those that run there, prompts of the last
    /// seconds included and this one's not.
    pub(super) tpot_ms: f64,
    /// GPU time of the uncached tokens.
    pub(super) prefill_ms: f64,
    /// GPU time that its later tokens add to the steps they are in.
    pub(super) decode_ms: f64,
}

/// A step-time model whose dense part is a table, kept from pick to pick.
#[derive(Debug)]
pub(super) struct Tables {
    step: StepModel,
    budget: u64,
    dense: Vec<f64>,
    /// Dense time of each token beyond the table.
    slope: f64,
}

impl Tables {
    pub(super) fn new(model: &Model<'_>) -> Tables {
        let budget = model.step_tokens_max.clamp(CHUNK_TOKENS_MIN, STEP_TOKENS_MAX);
        let dense: Vec<f64> = (0..=budget).map(|tokens| model.step.dense(tokens)).collect();
        let last = dense.last().copied().unwrap_or(0.0);
        let slope = model.step.dense(budget + 1) - last;
        Tables { step: model.step.clone(), budget, dense, slope }
    }

    /// Whether these are the tables of `model`.
    pub(super) fn are_of(&self, model: &Model<'_>) -> bool {
        let budget = model.step_tokens_max.clamp(CHUNK_TOKENS_MIN, STEP_TOKENS_MAX);
        budget == self.budget && *model.step == self.step
    }

    /// Time of a prompt token in a full step, in ms.
    pub(super) fn full_token_ms(&self) -> f64 {
        self.full() / self.budget as f64
    }

    pub(super) fn dense(&self, tokens: u64) -> f64 {
        if let Some(&ms) = self.dense.get(tokens as usize) {
            return ms;
        }
        let last = self.dense.last().copied().unwrap_or(0.0);
        last + self.slope * tokens.saturating_sub(self.budget) as f64
    }

    fn full(&self) -> f64 {
        self.dense.last().copied().unwrap_or(0.0)
    }
}

/// A request on a pool's model: what all candidates share.
#[derive(Debug)]
pub(super) struct Predictor<'t> {
    tables: &'t Tables,
    prompt: u64,
    /// KV tokens that this request has on average while it decodes.
    own_kv: f64,
    /// GPU time that its later tokens add, in ms.
    decode_ms: f64,
    /// Tokens of the answer to expect.
    output: f64,
}

impl<'t> Predictor<'t> {
    pub(super) fn new(tables: &'t Tables, request: &Request) -> Predictor<'t> {
        let prompt = request.prompt_tokens.min(TOKENS_MAX);
        let output = positive(request.output_tokens, 1.0);
        let own_kv = prompt as f64 + 0.5 * output;
        let step = &tables.step;
        // What one decode more costs where a good many run.
        let dense = (tables.dense(256) - tables.dense(128)) / 128.0;
        let token_ms = dense.max(0.0) + step.sequence_ms + step.kv_read_ms * own_kv;
        Predictor { tables, prompt, own_kv, decode_ms: token_ms * output, output }
    }

    /// Uncached tokens of the prompt at `candidate`; the last token is always computed.
    pub(super) fn uncached(&self, candidate: &Candidate) -> u64 {
        self.prompt.saturating_sub(candidate.cached_tokens).max(1)
    }

    pub(super) fn times(&self, candidate: &Candidate) -> Times {
        let (tables, step) = (self.tables, &self.tables.step);
        let decodes = candidate.decodes.min(TOKENS_MAX);
        let kv = candidate.decode_kv_tokens.min(TOKENS_MAX) as f64;
        let pending = candidate.pending_tokens.min(TOKENS_MAX);
        let waiting = candidate.pending_requests.min(TOKENS_MAX);
        let uncached = self.uncached(candidate);
        let cached = self.prompt.saturating_sub(uncached) as f64;

        let dense_decodes = tables.dense(decodes);
        // Of every step while prompts are computed, besides its dense part.
        let beside =
            step.overhead_ms + step.sequence_ms * (decodes + 1) as f64 + step.kv_read_ms * kv;
        let own_attention = step.attention_ms * uncached as f64 * (cached + 0.5 * uncached as f64);
        let chunk = tables.budget.saturating_sub(decodes).max(CHUNK_TOKENS_MIN);
        let todo = pending + uncached;
        // Most prompts are one chunk: no division for them.
        let (full, rest) = if todo < chunk { (0, todo) } else { (todo / chunk, todo % chunk) };
        let mut ttft_ms = full as f64 * (tables.full() + beside) + own_attention;
        if rest > 0 {
            ttft_ms += tables.dense(decodes + rest) + beside;
        }
        if waiting > 0 {
            // Their own attention, as if all were of one length.
            let mean = pending as f64 / waiting as f64;
            ttft_ms += step.attention_ms * pending as f64 * 0.5 * mean;
        }
        // A prompt of a few bytes may be estimated at no tokens: it keeps a step running too.
        if decodes > 0 || (waiting > 0 && pending == 0) {
            // Half of the step that runs; it ends before a new prompt is looked at.
            ttft_ms += 0.5 * (tables.dense(decodes.max(1)) + beside);
        }

        // At least one decode beside it: else an idle replica would pay a step's fixed time alone.
        let alone = if decodes > 0 { dense_decodes } else { tables.dense(1) };
        let prefill_ms = if uncached < chunk {
            tables.dense(decodes.max(1) + uncached) - alone
        } else {
            tables.full() * uncached as f64 / tables.budget as f64
        } + own_attention;

        // Those that wait decode beside this one; of their KV only the mean of the others is known.
        let their_kv = if decodes > 0 {
            kv * (1.0 + waiting as f64 / decodes as f64)
        } else {
            waiting as f64 * self.own_kv
        };
        let all = decodes + waiting + 1;
        let decode_ms = tables.dense(all)
            + step.overhead_ms
            + step.sequence_ms * all as f64
            + step.kv_read_ms * (their_kv + self.own_kv);
        let slowness = slowness(candidate);
        let tpot_ms = decode_ms / (1.0 - duty(candidate));
        ttft_ms += self.seat_ms(candidate, tpot_ms);
        Times {
            ttft_ms: ttft_ms * slowness,
            tpot_ms: tpot_ms * slowness,
            prefill_ms: prefill_ms * slowness,
            decode_ms: self.decode_ms * slowness,
        }
    }

    /// Time until so many sequences have ended that this one is run, in ms. Their answers are taken
    /// to be as long as this one's and to have begun evenly: where all are young, none ends soon.
    fn seat_ms(&self, candidate: &Candidate, tpot_ms: f64) -> f64 {
        let seats = candidate.sequences_max.min(TOKENS_MAX);
        let there = candidate.decodes.saturating_add(candidate.pending_requests).min(TOKENS_MAX);
        if seats == 0 || there < seats {
            return 0.0;
        }
        let answer_ms = self.output * tpot_ms;
        let age_ms = positive(candidate.decode_age_ms, answer_ms);
        let spread_ms = answer_ms.min(2.0 * age_ms);
        answer_ms - spread_ms + (there + 1 - seats) as f64 * spread_ms / seats as f64
    }
}

/// The candidate's slowness; 1 where it says nothing sensible.
fn slowness(candidate: &Candidate) -> f64 {
    positive(candidate.slowness, 1.0).clamp(0.05, 100.0)
}

/// The candidate's prefill duty, below 1.
pub(super) fn duty(candidate: &Candidate) -> f64 {
    positive(candidate.prefill_duty, 0.0).min(DUTY_MAX)
}

/// `value` when it is a positive number, else `otherwise`; huge values stay finite.
pub(super) fn positive(value: f64, otherwise: f64) -> f64 {
    if value > 0.0 { value.min(1e12) } else { otherwise }
}
