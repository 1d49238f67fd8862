//! What a request would meet at a replica: time to its first token, time of each later one, GPU
//! time of its prefill. From the step-time model and the ledger's sums; some thirty operations a
//! replica and no allocation.
//!
//! The engine runs steps of at most `step_tokens_max` tokens: every decoding sequence takes one,
//! prompts share the rest in order of arrival (vLLM V1, chunked prefill).

use super::types::{Candidate, Model, Request};
use crate::engine::StepModel;

/// Window of the prefill duty in ms.
pub(super) const DUTY_WINDOW_MS: f64 = 10_000.0;

/// Most of a replica's time that prefill is taken to have; a pole lies at 1.
const DUTY_MAX: f64 = 0.95;

/// Least share of a step that is left to prompts, so that a lie in the count of decodes predicts
/// a long time and not an endless one.
const CHUNK_TOKENS_MIN: u64 = 64;

/// Larger counts than any replica has: what is above is a lie or a mistake.
const TOKENS_MAX: u64 = 1 << 32;

/// Times predicted of one replica, in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Times {
    /// To the first token, from now.
    pub(super) ttft_ms: f64,
    /// Between later tokens.
    pub(super) tpot_ms: f64,
    /// GPU time of the uncached tokens.
    pub(super) prefill_ms: f64,
}

/// A request on a pool's model: what all candidates share, computed once a pick.
#[derive(Debug)]
pub(super) struct Predictor<'m> {
    step: &'m StepModel,
    budget: u64,
    /// Dense time of a full step.
    full_ms: f64,
    prompt: u64,
    /// KV tokens that this request adds on average while it decodes.
    own_kv: f64,
}

impl<'m> Predictor<'m> {
    pub(super) fn new(model: &Model<'m>, request: &Request) -> Predictor<'m> {
        let budget = model.step_tokens_max.clamp(CHUNK_TOKENS_MIN, TOKENS_MAX);
        let prompt = request.prompt_tokens.min(TOKENS_MAX);
        Predictor {
            step: model.step,
            budget,
            full_ms: model.step.dense(budget),
            prompt,
            own_kv: prompt as f64 + 0.5 * positive(request.output_tokens, 0.0),
        }
    }

    /// Uncached tokens of the prompt at `candidate`; the last token is always computed.
    pub(super) fn uncached(&self, candidate: &Candidate) -> u64 {
        self.prompt.saturating_sub(candidate.cached_tokens).max(1)
    }

    pub(super) fn times(&self, candidate: &Candidate) -> Times {
        let step = self.step;
        let decodes = candidate.decodes.min(TOKENS_MAX);
        let kv = candidate.decode_kv_tokens.min(TOKENS_MAX) as f64;
        let pending = candidate.pending_tokens.min(TOKENS_MAX);
        let waiting = candidate.pending_requests.min(TOKENS_MAX);
        let slowness = slowness(candidate);
        let uncached = self.uncached(candidate);
        let cached = self.prompt.saturating_sub(uncached) as f64;

        let dense_decodes = step.dense(decodes);
        // Of every step while prompts are computed, besides its dense part.
        let beside =
            step.overhead_ms + step.sequence_ms * (decodes + 1) as f64 + step.kv_read_ms * kv;
        let own_attention = step.attention_ms * uncached as f64 * (cached + 0.5 * uncached as f64);
        let chunk = self.budget.saturating_sub(decodes).max(CHUNK_TOKENS_MIN);
        let todo = pending + uncached;
        let (full, rest) = (todo / chunk, todo % chunk);
        let mut ttft_ms = full as f64 * (self.full_ms + beside) + own_attention;
        if rest > 0 {
            ttft_ms += step.dense(decodes + rest) + beside;
        }
        if waiting > 0 {
            let mean = pending as f64 / waiting as f64;
            ttft_ms += step.attention_ms * pending as f64 * 0.5 * mean;
        }
        if decodes > 0 {
            // Half of the step that runs; it ends before a new prompt is looked at.
            ttft_ms += 0.5 * (dense_decodes + beside);
        }

        // At least one decode beside it: else an idle replica would pay a step's fixed time alone.
        let beside_it = decodes.max(1);
        let prefill_ms = if uncached < chunk {
            step.dense(beside_it + uncached) - step.dense(beside_it)
        } else {
            self.full_ms * uncached as f64 / self.budget as f64
        } + own_attention;

        // Those that wait decode beside this one; of their KV only the mean of the others is known.
        let beside_kv = if decodes > 0 {
            kv * (1.0 + waiting as f64 / decodes as f64)
        } else {
            waiting as f64 * self.own_kv
        };
        let all = decodes + waiting + 1;
        let decode_ms = step.dense(all)
            + step.overhead_ms
            + step.sequence_ms * all as f64
            + step.kv_read_ms * (beside_kv + self.own_kv);
        let duty = positive(candidate.prefill_duty, 0.0) + prefill_ms * slowness / DUTY_WINDOW_MS;
        Times {
            ttft_ms: ttft_ms * slowness,
            tpot_ms: decode_ms * slowness / (1.0 - duty.min(DUTY_MAX)),
            prefill_ms: prefill_ms * slowness,
        }
    }
}

/// The candidate's slowness; 1 where it says nothing sensible.
pub(super) fn slowness(candidate: &Candidate) -> f64 {
    positive(candidate.slowness, 1.0).clamp(0.05, 100.0)
}

/// `value` when it is a positive number, else `otherwise`; huge values stay finite.
pub(super) fn positive(value: f64, otherwise: f64) -> f64 {
    if value > 0.0 { value.min(1e12) } else { otherwise }
}
