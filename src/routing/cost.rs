//! The predicted cost in time of sending a request to a replica; the least wins.
//!
//! ```text
//! w   GPU time of the uncached tokens
//! x   predicted TTFT / its limit
//! y   predicted TPOT / its limit
//! kv  share of the KV blocks in use with this request, above the headroom
//! J = x^2 + 0.5 y^2 + 10 max(0, y - max(0.80, mean y + 0.03)) + 6 w / TTFT limit + 20 kv
//!     + 5 [adapter not resident]
//! ```
//!
//! `w` is what everyone behind pays: without it hits spiral down. The hinge is relative to the
//! fleet's mean, so that it never says "all are full".

use super::predict::{Predictor, Times, positive};
use super::types::{Candidate, Decision, FleetView, Model, Pick, Request, Residency, Rng};

/// Limits where a request has none, in ms.
const TTFT_LIMIT_MS: f64 = 400.0;
const TPOT_LIMIT_MS: f64 = 50.0;

/// The weights; see the sum above.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// Of x squared.
    pub ttft: f64,
    /// Of y squared.
    pub tpot: f64,
    /// Of y above the knee.
    pub hinge: f64,
    /// The knee.
    pub knee: f64,
    /// How far above the mean the knee lies.
    pub above_mean: f64,
    /// Of w over the limit.
    pub work: f64,
    /// Of KV use above the headroom.
    pub kv: f64,
    /// Where KV use begins to cost.
    pub kv_knee: f64,
    /// Of an adapter that is not resident.
    pub adapter: f64,
    /// Costs within this of the least are ties.
    pub tie: f64,
    /// Costs within this of the least may own a prefix that nobody holds.
    pub owner: f64,
    /// Shed when the best TTFT is above this share of its limit.
    pub shed_ttft: f64,
    /// Shed when the best TPOT is above this share of its limit.
    pub shed_tpot: f64,
    /// Free.
    pub a: f64,
    /// Free.
    pub b: f64,
    /// Free.
    pub c: f64,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            ttft: 1.0,
            tpot: 0.5,
            hinge: 10.0,
            knee: 0.80,
            above_mean: 0.03,
            work: 6.0,
            kv: 20.0,
            kv_knee: 0.90,
            adapter: 5.0,
            tie: 0.001,
            owner: 0.05,
            shed_ttft: 0.7,
            shed_tpot: 1.0,
            a: 0.0,
            b: 0.0,
            c: 0.0,
        }
    }
}

/// A candidate with its terms.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scored {
    pub(super) index: usize,
    pub(super) cached: u64,
    pub(super) times: Times,
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) kv: f64,
    pub(super) adapter: f64,
    pub(super) cost: f64,
    pub(super) key: u64,
}

/// Scores the feasible candidates of `view` into `scored`.
pub(super) fn score(
    params: &Params,
    request: &Request,
    view: &impl FleetView,
    model: &Model<'_>,
    scored: &mut Vec<Scored>,
) {
    let predictor = Predictor::new(model, request);
    let ttft_limit = positive(request.ttft_limit_ms, TTFT_LIMIT_MS);
    let tpot_limit = positive(request.tpot_limit_ms, TPOT_LIMIT_MS);
    scored.clear();
    let mut sum_y = 0.0;
    for index in 0..view.len() {
        let candidate = view.candidate(index);
        if !candidate.eligible || candidate.adapter == Residency::Absent {
            continue;
        }
        let times = predictor.times(&candidate);
        let x = times.ttft_ms / ttft_limit;
        let y = times.tpot_ms / tpot_limit;
        sum_y += y.min(1.0);
        let kv = kv_after(request, &candidate, &predictor) - params.kv_knee;
        let adapter = if candidate.adapter == Residency::Loadable { params.adapter } else { 0.0 };
        scored.push(Scored {
            index,
            cached: candidate.cached_tokens,
            times,
            x,
            y,
            kv: kv.max(0.0),
            adapter,
            cost: 0.0,
            key: 0,
        });
    }
    let mean = sum_y / scored.len().max(1) as f64;
    let knee = params.knee.max(sum_y / scored.len().max(1) as f64 + params.above_mean);
    if params.a > 0.0 {
        // Marginal: the GPU time that it adds, times the pressure there.
        let decode_ms = 0.25 * positive(request.output_tokens, 300.0);
        for s in scored.iter_mut() {
            let pressure = (s.y / mean.max(0.1)).powf(params.b);
            s.cost = params.a * (s.times.prefill_ms + decode_ms) / ttft_limit * pressure
                + params.ttft * s.x.powf(params.c)
                + params.kv * s.kv
                + s.adapter
                + params.hinge * (s.y - knee).max(0.0);
        }
        return;
    }
    for s in scored.iter_mut() {
        s.cost = params.ttft * s.x * s.x
            + params.tpot * s.y * s.y
            + params.hinge * (s.y - knee).max(0.0)
            + params.work * s.times.prefill_ms / ttft_limit
            + params.kv * s.kv
            + s.adapter;
    }
}

fn kv_after(request: &Request, candidate: &Candidate, predictor: &Predictor<'_>) -> f64 {
    if candidate.blocks == 0 {
        return 0.0;
    }
    let tokens = predictor.uncached(candidate) as f64 + positive(request.output_tokens, 0.0);
    let own = tokens / f64::from(request.block_tokens.max(1));
    (candidate.blocks_used as f64 + own) / candidate.blocks as f64
}

/// Picks the least cost.
pub(super) fn pick(
    params: &Params,
    request: &Request,
    view: &impl FleetView,
    model: &Model<'_>,
    scored: &mut Vec<Scored>,
    rng: &mut Rng,
) -> Decision {
    score(params, request, view, model, scored);
    let least = scored.iter().fold(f64::INFINITY, |least, s| least.min(s.cost));
    let mut ties = 0;
    let mut best: Option<Scored> = None;
    for s in scored.iter() {
        if s.cost <= least + params.tie {
            ties += 1;
            if rng.usize(..ties) == 0 {
                best = Some(*s);
            }
        }
    }
    let Some(best) = best else { return Decision::Nobody };
    if request.may_shed && (best.x > params.shed_ttft || best.y > params.shed_tpot) {
        return Decision::Shed { retry_after_ms: 1000 };
    }
    Decision::Pick(Pick {
        replica: best.index,
        cached_tokens: best.cached,
        ttft_ms: best.times.ttft_ms,
        tpot_ms: best.times.tpot_ms,
        prefill_ms: best.times.prefill_ms,
        cost: best.cost,
        runners_up: [None; 2],
    })
}
