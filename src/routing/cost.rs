//! The predicted cost of sending a request to a replica; the least wins.
//!
//! ```text
//! w   GPU time of the uncached tokens          d   GPU time that the later tokens add
//! x   predicted TTFT / its limit               y   predicted TPOT there / its limit
//! n   requests that run or wait there          z   share of its time that prefill had lately
//!
//! J = A (w + d) / TTFT limit x pressure + x^2 + B max(0, x - 0.8) + kv + adapter
//! ```
//!
//! The first term is what everybody else pays: work, times how hard work presses where it goes.
//! It is a product, so that a fleet that is full everywhere still sends prompts to their prefixes:
//! a sum of a pressure and of work lets pressure win just when misses hurt most, and hits spiral
//! down. Pressure is relative to the fleet's mean and bounded, so that there is no mode in which
//! everything counts as full.

use super::predict::{Predictor, Tables, Times, duty, positive};
use super::types::{Candidate, Decision, FleetView, Model, Pick, Request, Residency, Rng};

/// Limits where a request has none, in ms.
const TTFT_LIMIT_MS: f64 = 400.0;
const TPOT_LIMIT_MS: f64 = 50.0;

/// The weights of the cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    pub a: f64,
    pub b: f64,
    pub c: f64,
    pub e: f64,
    pub f: f64,
    pub g: f64,
    pub h: f64,
    pub work: f64,
    pub lo: f64,
    pub hi: f64,
    pub ttft: f64,
    pub late: f64,
    pub late_from: f64,
    pub kv: f64,
    pub kv_knee: f64,
    pub adapter: f64,
    pub wait: f64,
    pub cap: f64,
    pub scarce: f64,
    pub tie: f64,
    pub owner: f64,
    pub shed_ttft: f64,
    pub shed_tpot: f64,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            a: 20.0,
            b: 2.0,
            c: 2.0,
            e: 2.5,
            f: 2.5,
            g: 5.0,
            h: 0.0,
            work: 8.0,
            lo: 0.5,
            hi: 1.5,
            ttft: 1.0,
            late: 30.0,
            late_from: 0.8,
            kv: 20.0,
            kv_knee: 0.9,
            adapter: 15.0,
            wait: 60.0,
            cap: 0.3,
            scarce: 0.0,
            tie: 0.001,
            owner: 0.05,
            shed_ttft: 0.7,
            shed_tpot: 1.0,
        }
    }
}

/// A candidate with its terms.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scored {
    index: usize,
    cached: u64,
    times: Times,
    x: f64,
    y: f64,
    n: f64,
    s: f64,
    free: f64,
    kv: f64,
    adapter: f64,
    cost: f64,
}

/// Scores the feasible candidates of `view` into `scored`.
pub(super) fn score(
    params: &Params,
    request: &Request,
    view: &impl FleetView,
    tables: &Tables,
    scored: &mut Vec<Scored>,
    usual: &mut Usual,
) {
    let predictor = Predictor::new(tables, request);
    let ttft_limit = positive(request.ttft_limit_ms, TTFT_LIMIT_MS);
    let tpot_limit = positive(request.tpot_limit_ms, TPOT_LIMIT_MS);
    scored.clear();
    let usual_ms = usual.ms.max(1.0);
    let mut sum = (0.0, 0.0, 0.0);
    for index in 0..view.len() {
        let c = view.candidate(index);
        if !c.eligible || c.adapter == Residency::Absent {
            continue;
        }
        let times = predictor.times(&c);
        let x = times.ttft_ms / ttft_limit;
        let y = times.tpot_ms / tpot_limit;
        let free = 1.0 - duty(&c);
        let n = (c.decodes + c.pending_requests) as f64;
        let s = y * free;
        sum = (sum.0 + s, sum.1 + free, sum.2 + n);
        let kv = (kv_after(request, &c, &predictor) - params.kv_knee).max(0.0);
        let adapter = match c.adapter {
            Residency::Loadable if c.adapter_slots > 0 && c.adapters_busy >= c.adapter_slots => {
                params.wait
            }
            Residency::Loadable => params.adapter * (1.0 + params.scarce * f64::from(c.adapters_busy) / f64::from(c.adapter_slots.max(1))),
            Residency::Resident if request.adapter && c.adapter_slots > 0 && c.adapters_busy > c.adapter_slots => {
                params.wait * f64::from(c.adapters_busy - c.adapter_slots) / f64::from(c.adapters_busy)
            }
            _ => 0.0,
        };
        let cached = c.cached_tokens;
        scored.push(Scored { index, cached, times, x, y, n, s, free, kv, adapter, cost: 0.0 });
    }
    let count = scored.len().max(1) as f64;
    let (ms, mf, mn) = (sum.0 / count, sum.1 / count, sum.2 / count);
    for s in scored.iter_mut() {
        let w = s.times.prefill_ms;
        let short = ((s.s / ms.max(0.01)).powf(params.e) * (mf / s.free).powf(params.f))
            .clamp(params.lo, params.hi);
        let long = ((s.n + params.g) / (mn + params.g)).powf(params.b)
            * (s.free / mf).powf(params.h);
        let w0 = params.work * usual_ms;
        let l = w.powi(4) / (w.powi(4) + w0.powi(4));
        s.cost = params.a * (w + predictor.decode_ms) / ttft_limit
            * (short * (1.0 - l) + long * l)
            + params.ttft * s.x.powf(params.c)
            + params.late * ((s.x - params.late_from).clamp(0.0, params.cap) * l + (s.x - params.late_from).clamp(0.0, 50.0) * (1.0 - l))
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
    tables: &Tables,
    scored: &mut Vec<Scored>,
    usual: &mut Usual,
    rng: &mut Rng,
) -> Decision {
    score(params, request, view, tables, scored, usual);

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
    usual.n = (usual.n + 1.0).min(500.0);
    usual.ms += (best.times.prefill_ms - usual.ms) / usual.n;
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

#[derive(Debug, Default)]
pub(super) struct Usual {
    ms: f64,
    n: f64,
}
