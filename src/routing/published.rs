//! Published cache-aware policies, written from their descriptions, for comparison. Each sees what
//! ours sees; what differs is the rule. None knows of limits, adapters' slots or a KV headroom.

use super::choose::least;
use super::predict::{Predictor, Tables};
use super::types::{Candidate, FleetView, Request, Rng};

/// LMetric: (pending + new prefill tokens) x (running + 1), the least.
pub(super) fn lmetric(request: &Request, view: &impl FleetView, rng: &mut Rng) -> Option<usize> {
    least(view, rng, |_, c| {
        let new = request.prompt_tokens.saturating_sub(c.cached_tokens);
        (c.pending_tokens as f64 + new as f64) * (c.requests as f64 + 1.0)
    })
}

/// SMG's and sglang's `cache_aware` with its defaults: where the longest queue is over the
/// shortest by 32 and by a tenth, the shortest; else the longest match above half of the prompt;
/// else the replica that holds the least.
pub(super) fn cache_aware(
    request: &Request,
    view: &impl FleetView,
    rng: &mut Rng,
) -> Option<usize> {
    const MATCH_MIN: f64 = 0.5;
    const BALANCE_ABSOLUTE: u64 = 32;
    const BALANCE_RELATIVE: f64 = 1.1;
    let (mut fewest, mut most, mut cached) = (u64::MAX, 0, 0);
    for c in (0..view.len()).map(|i| view.candidate(i)).filter(|c| c.eligible) {
        fewest = fewest.min(c.requests);
        most = most.max(c.requests);
        cached = cached.max(c.cached_tokens);
    }
    let apart = most.saturating_sub(fewest) > BALANCE_ABSOLUTE;
    if apart && most as f64 > fewest as f64 * BALANCE_RELATIVE {
        return least(view, rng, |_, c| c.requests as f64);
    }
    if cached as f64 > MATCH_MIN * request.prompt_tokens as f64 {
        // Among equal matches the shorter queue, as its tree keeps the last that was asked.
        return least(view, rng, |_, c| c.requests as f64 - c.cached_tokens as f64 * 1e6);
    }
    // What it holds is taken by what it has had lately: the tree's size is not in the view.
    least(view, rng, |_, c| c.load_tokens as f64)
}

/// Preble's E2: where more of the prompt is cached than not, exploit (the lightest of those with
/// the longest hit); else explore by the GPU time of the recent past, of this prompt, and of what
/// it evicts.
pub(super) fn preble(
    request: &Request,
    view: &impl FleetView,
    tables: &Tables,
    rng: &mut Rng,
) -> Option<usize> {
    /// Load at which a holder is too far above the lightest to be exploited.
    const IMBALANCE: f64 = 1.5;
    const WINDOW_MS: f64 = 10_000.0;
    let predictor = Predictor::new(tables, request);
    // GPU time that is owed: prefill that waits and answers in flight, each by its own rate.
    let full = tables.full_token_ms();
    let load = |c: &Candidate| {
        let past = c.prefill_duty.clamp(0.0, 1.0) * WINDOW_MS;
        let one = tables.dense(1) / 16.0;
        past + c.pending_tokens as f64 * full + c.decodes as f64 * request.output_tokens * one / 8.0
    };
    let (mut lightest, mut longest) = (f64::INFINITY, 0);
    for c in (0..view.len()).map(|i| view.candidate(i)).filter(|c| c.eligible) {
        lightest = lightest.min(load(&c));
        longest = longest.max(c.cached_tokens);
    }
    if longest.saturating_mul(2) > request.prompt_tokens {
        let exploited = least(view, rng, |_, c| {
            let balanced = load(c) <= IMBALANCE * lightest.max(1.0);
            if c.cached_tokens == longest && balanced { load(c) } else { f64::INFINITY }
        });
        if let Some(index) = exploited.filter(|&i| load(&view.candidate(i)).is_finite()) {
            let c = view.candidate(index);
            if c.cached_tokens == longest && load(&c) <= IMBALANCE * lightest.max(1.0) {
                return Some(index);
            }
        }
    }
    least(view, rng, |_, c| {
        let evicted = if c.blocks > 0 && c.blocks_used >= c.blocks { full } else { 0.0 };
        let uncached = predictor.uncached(c) as f64;
        load(c) + predictor.times(c).prefill_ms + evicted * uncached
    })
}

/// Dynamo's KV router: prefill blocks that are to be computed (overlap weight 1) beside blocks
/// that are in use; the least, temperature 0.
pub(super) fn dynamo(request: &Request, view: &impl FleetView, rng: &mut Rng) -> Option<usize> {
    const OVERLAP_WEIGHT: f64 = 1.0;
    let block = f64::from(request.block_tokens.max(1));
    least(view, rng, |_, c| {
        let new = request.prompt_tokens.saturating_sub(c.cached_tokens);
        let prefill = (c.pending_tokens as f64 + new as f64) / block;
        let decode = (c.load_tokens as f64 + request.prompt_tokens as f64) / block;
        OVERLAP_WEIGHT * prefill + decode
    })
}

/// llm-d's scorers by their default weights: prefix 3, KV use 2, queue 2; the highest sum.
pub(super) fn llm_d(request: &Request, view: &impl FleetView, rng: &mut Rng) -> Option<usize> {
    let (mut fewest, mut most) = (u64::MAX, 0);
    for c in (0..view.len()).map(|i| view.candidate(i)).filter(|c| c.eligible) {
        fewest = fewest.min(c.pending_requests);
        most = most.max(c.pending_requests);
    }
    let span = most.saturating_sub(fewest);
    least(view, rng, |_, c| {
        let prefix = c.cached_tokens as f64 / request.prompt_tokens.max(1) as f64;
        let kv = 1.0 - c.blocks_used as f64 / c.blocks.max(1) as f64;
        let queue = if span == 0 {
            1.0
        } else {
            most.saturating_sub(c.pending_requests) as f64 / span as f64
        };
        -(3.0 * prefix + 2.0 * kv + 2.0 * queue)
    })
}
