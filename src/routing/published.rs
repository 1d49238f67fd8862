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
    // Its tree's size is not in the view: what is in flight stands for it.
    least(view, rng, |_, c| c.load_tokens as f64)
}

/// Preble's E2: where more of the prompt is cached than not, exploit (the lightest of those with
/// the longest hit, unless it is far above the lightest of all); else explore by the GPU time of
/// the recent past, of this prompt, and of what it evicts.
pub(super) fn preble(
    request: &Request,
    view: &impl FleetView,
    tables: &Tables,
    rng: &mut Rng,
) -> Option<usize> {
    /// Load over that of the lightest at which a holder is no longer exploited.
    const IMBALANCE: f64 = 1.5;
    const WINDOW_MS: f64 = 10_000.0;
    /// Decodes that share a step, as a rule.
    const BATCH: f64 = 128.0;
    let predictor = Predictor::new(tables, request);
    let full_ms = tables.full_token_ms();
    // GPU time: prefill of the recent past, prefill that waits, answers that run.
    let load = |c: &Candidate| {
        let past = c.prefill_duty.clamp(0.0, 1.0) * WINDOW_MS;
        let answer_ms = request.output_tokens * tables.dense(1) / BATCH;
        past + c.pending_tokens as f64 * full_ms + c.decodes as f64 * answer_ms
    };
    let (mut lightest, mut longest) = (f64::INFINITY, 0);
    for c in (0..view.len()).map(|i| view.candidate(i)).filter(|c| c.eligible) {
        lightest = lightest.min(load(&c));
        longest = longest.max(c.cached_tokens);
    }
    if longest.saturating_mul(2) > request.prompt_tokens {
        let exploitable =
            |c: &Candidate| c.cached_tokens == longest && load(c) <= IMBALANCE * lightest.max(1.0);
        let score = |_, c: &Candidate| if exploitable(c) { load(c) } else { f64::INFINITY };
        let holder = least(view, rng, score).filter(|&i| exploitable(&view.candidate(i)));
        if holder.is_some() {
            return holder;
        }
    }
    least(view, rng, |_, c| {
        let uncached = predictor.uncached(c) as f64;
        let full = c.blocks > 0 && c.blocks_used >= c.blocks;
        let evicted_ms = if full { full_ms * uncached } else { 0.0 };
        load(c) + predictor.times(c).prefill_ms + evicted_ms
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

#[cfg(test)]
mod tests {
    use super::super::Policy;
    use super::super::fleet::{Fleet, busy, pick, usual};
    use super::*;

    /// What differs from a busy replica.
    fn fleet(changes: &[&dyn Fn(&mut Candidate)]) -> Fleet {
        let mut fleet = Fleet::busy(changes.len());
        fleet.0.iter_mut().zip(changes).for_each(|(one, change)| change(one));
        fleet
    }

    fn picks(policy: Policy, wanted: usize, changes: &[&dyn Fn(&mut Candidate)]) {
        let fleet = fleet(changes);
        for seed in 0..20 {
            let got = pick(policy, &usual(), &fleet, seed);
            assert_eq!(got, wanted, "{policy:?} of {:?}", fleet.0);
        }
    }

    #[test]
    fn lmetric_multiplies() {
        // 1,736 x 61, 336 x 91, 1,136 x 21.
        picks(
            Policy::Lmetric,
            2,
            &[&|_| (), &|c| (c.cached_tokens, c.requests) = (1400, 90), &|c| {
                (c.cached_tokens, c.requests) = (600, 20)
            }],
        );
        // Pending tokens count as the prompt's own.
        picks(
            Policy::Lmetric,
            0,
            &[&|_| (), &|c| (c.cached_tokens, c.pending_tokens) = (1400, 3000)],
        );
    }

    #[test]
    fn cache_aware_matches_above_a_half_and_balances_in_its_mode() {
        picks(
            Policy::CacheAware,
            1,
            &[&|c| c.requests = 40, &|c| (c.cached_tokens, c.requests) = (900, 70), &|c| {
                c.cached_tokens = 600
            }],
        );
        // A match below a half is none: the one that holds the least.
        picks(
            Policy::CacheAware,
            2,
            &[&|_| (), &|c| c.cached_tokens = 800, &|c| c.load_tokens = 10],
        );
        // Apart by more than 32 and a tenth: affinity is off.
        picks(
            Policy::CacheAware,
            0,
            &[&|c| c.requests = 30, &|c| (c.cached_tokens, c.requests) = (1400, 63)],
        );
    }

    #[test]
    fn preble_exploits_long_hits_and_explores_else() {
        picks(
            Policy::Preble,
            1,
            &[&|c| c.decodes = 50, &|c| c.cached_tokens = 900, &|c| c.cached_tokens = 880],
        );
        // The holder is half above the lightest: explored by load.
        picks(
            Policy::Preble,
            0,
            &[&|c| (c.decodes, c.prefill_duty) = (10, 0.05), &|c| {
                (c.cached_tokens, c.prefill_duty) = (900, 0.5)
            }],
        );
        picks(Policy::Preble, 1, &[&|c| c.cached_tokens = 100, &|c| c.prefill_duty = 0.02]);
    }

    #[test]
    fn dynamo_adds_blocks() {
        // A hit of 1,400 is worth 1,400 tokens of load.
        picks(Policy::Dynamo, 1, &[&|_| (), &|c| c.cached_tokens = 1400]);
        picks(
            Policy::Dynamo,
            0,
            &[&|_| (), &|c| (c.cached_tokens, c.load_tokens) = (1400, 60 * 2040 + 1500)],
        );
    }

    #[test]
    fn llm_d_weighs_prefix_room_and_queue() {
        picks(Policy::LlmD, 1, &[&|_| (), &|c| c.cached_tokens = 400]);
        // A hit of 0.5 (1.5 points) against an empty queue (2 points).
        picks(Policy::LlmD, 0, &[&|_| (), &|c| (c.cached_tokens, c.pending_requests) = (868, 9)]);
        picks(Policy::LlmD, 0, &[&|c| c.blocks_used = 100, &|_| ()]);
    }

    #[test]
    fn equals_share() {
        let fleet = Fleet::of(4, busy());
        for policy in [Policy::Lmetric, Policy::Dynamo, Policy::LlmD, Policy::Preble] {
            let mut counts = [0; 4];
            (0..400).for_each(|seed| counts[pick(policy, &usual(), &fleet, seed)] += 1);
            assert!(counts.iter().all(|&n| n > 60), "{policy:?}: {counts:?}");
        }
    }
}
