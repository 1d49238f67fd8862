//! The predicted cost of sending a request to a replica; the least wins.
//!
//! ```text
//! w   GPU time of the uncached tokens            d   GPU time that the later tokens add
//! x   predicted TTFT / its limit                 s   step time with this request, by its weight
//! z   share of the time that prefill had lately  n   requests that run or wait there
//!
//! J = (w + d) / TTFT limit * pressure + 0.025 x^2 + 0.22 min(x, 0.7)^2 + 2 max(0, x - 0.7)
//!     + 5 kv + adapter
//! pressure = (s / mean s)^4 * ((1 - mean z) / max(1 - z, 0.2))^2       for the usual request
//!          = ((n + 1) / (mean n + 1))^2 * sqrt((1 - z) / (1 - mean z)) for an unusually long one
//! ```
//!
//! The first term is what everybody else pays: work, times how hard work presses where it goes.
//! It is a product, so that a fleet that is full everywhere still sends prompts to their prefixes:
//! added to work, pressure wins just when misses hurt most, and hits spiral down. It is relative to
//! the fleet's mean: there is no load at which "all are full" and affinity is off.
//!
//! The prefill of a prompt that is many times as long as usual stops whoever decodes there. So it
//! goes where few do, and rather where others like it went: those replicas have lost their decodes
//! already, and the others keep theirs. Missing its own limit counts no more than one request.
//!
//! The unit of J is one TTFT limit of GPU time at the mean pressure. The numbers are from the
//! planner (`plan replay`), where they were moved one at a time.

use super::echo::Echoes;
use super::predict::{Predictor, Tables, Times, duty, positive};
use super::types::{Candidate, FleetView, Request, Residency};

/// Limits where a request has none, in ms.
const TTFT_LIMIT_MS: f64 = 400.0;
const TPOT_LIMIT_MS: f64 = 50.0;
/// No limit is taken as shorter.
const LIMIT_MS_MIN: f64 = 0.1;
/// Weights stay within this factor of 1, either way.
const WEIGHT_MAX: f64 = 1000.0;

/// Share of the time that is left to decodes counts as at least so much: one long prompt takes all
/// of a replica's time for a while, and says little of the time after it.
const FREE_MIN: f64 = 0.2;
/// Pressure stays between these: an idle replica is no magnet, a full one no taboo.
const PRESSURE_MIN: f64 = 0.2;
const PRESSURE_MAX: f64 = 10.0;
/// Uncached tokens from this many times the usual request on are long: half of its pressure is
/// then that of a long one, and nearly all of it from twice as many on.
const LONG: f64 = 5.0;
/// Weight of x squared: with nothing else to choose by, the sooner.
const TTFT: f64 = 0.025;
/// The same on top of it for a usual request, up to where it is late: a prefix that is hot gets
/// more replicas before its first ones make it wait. Not for a long one, nor where adapters are
/// loaded: there the place counts for more than the moment.
const SOON: f64 = 0.22;
/// Where a TTFT begins to be late, and what lateness costs.
const LATE_FROM: f64 = 0.7;
const LATE: f64 = 2.0;
/// Lateness that a long request counts at most: it is one lost request and no more.
const LATE_MAX_LONG: f64 = 0.3;
/// Share of the KV blocks in use where it begins to cost, and what it costs.
const KV_FROM: f64 = 0.90;
const KV: f64 = 5.0;
/// Loading an adapter, and more with each slot that is taken: a slot is a place for a popular one.
const LOAD: f64 = 0.8;
const SLOTS: f64 = 4.0;
/// An adapter for which no slot is free waits until another's last request ends.
const NO_SLOT: f64 = 50.0;

/// Names of the terms of the cost, in the order of [`Scored::terms`].
pub(super) const TERMS: [&str; 5] = ["work", "ttft", "late", "kv", "adapter"];

/// A feasible candidate and what its cost is made of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scored {
    pub(super) index: usize,
    pub(super) cached: u64,
    pub(super) uncached: u64,
    pub(super) times: Times,
    /// Predicted time to the first token over its limit.
    pub(super) ttft: f64,
    /// It has no KV blocks, headroom kept, or no adapter slot for the request now.
    pub(super) full: bool,
    /// Identity for rendezvous.
    pub(super) key: u64,
    /// Step time over the TPOT limit, by weight.
    step: f64,
    /// Share of the time that prefill leaves.
    free: f64,
    /// Requests there, by weight.
    crowd: f64,
    terms: [f64; 5],
    pub(super) cost: f64,
}

impl Scored {
    /// The cost, term by term.
    pub(super) fn terms(&self) -> [f64; 5] {
        self.terms
    }
}

/// Why `candidate` cannot take `request` whatever the load; `None` when it can.
pub(super) fn infeasible(request: &Request, candidate: &Candidate) -> Option<&'static str> {
    let small = too_small(request, candidate);
    shut(candidate).or(small.then_some("the prompt does not fit in its KV blocks"))
}

fn shut(candidate: &Candidate) -> Option<&'static str> {
    if !candidate.eligible {
        Some("it is not up, was tried before, or does not serve the model")
    } else if candidate.adapter == Residency::Absent {
        Some("it neither has the adapter nor can load it")
    } else {
        None
    }
}

fn too_small(request: &Request, candidate: &Candidate) -> bool {
    let capacity = candidate.blocks.saturating_mul(u64::from(request.block_tokens));
    capacity > 0 && request.prompt_tokens >= capacity
}

/// Sums over the feasible candidates.
#[derive(Default)]
struct Fleet {
    count: f64,
    step: f64,
    free: f64,
    crowd: f64,
    tokens: f64,
    requests: f64,
}

impl Fleet {
    fn add(&mut self, scored: &Scored, candidate: &Candidate) {
        self.count += 1.0;
        self.step += scored.step;
        self.free += scored.free;
        self.crowd += scored.crowd;
        self.tokens += candidate.load_tokens as f64;
        self.requests += candidate.requests as f64;
    }
}

/// Scores the feasible candidates of `view` into `scored`, which is emptied first.
pub(super) fn score(
    request: &Request,
    view: &impl FleetView,
    tables: &Tables,
    (echoes, now_us): (&mut Echoes, u64),
    scored: &mut Vec<Scored>,
) {
    scored.clear();
    // Blocks that are known wrongly must not turn a request away: when none has room for it by
    // that knowledge, the engines are asked all the same.
    for roomy in [true, false] {
        if scored.is_empty() {
            gather(request, view, tables, (&mut *echoes, now_us), (roomy, &mut *scored));
        }
    }
}

fn gather(
    request: &Request,
    view: &impl FleetView,
    tables: &Tables,
    (echoes, now_us): (&mut Echoes, u64),
    (roomy, scored): (bool, &mut Vec<Scored>),
) {
    let predictor = Predictor::new(tables, request);
    let ttft_limit_ms = positive(request.ttft_limit_ms, TTFT_LIMIT_MS).max(LIMIT_MS_MIN);
    let tpot_limit_ms = positive(request.tpot_limit_ms, TPOT_LIMIT_MS).max(LIMIT_MS_MIN);
    let mut fleet = Fleet::default();
    let lags = view.lags();
    let room = 1.0 - request.headroom.clamp(0.0, 0.9);
    for index in 0..view.len() {
        let mut candidate = view.candidate(index);
        if shut(&candidate).is_some() || (roomy && too_small(request, &candidate)) {
            continue;
        }
        if lags {
            echoes.add_to(index, &mut candidate, now_us);
        }
        let times = predictor.times(&candidate);
        let weight = positive(candidate.weight, 1.0).clamp(1.0 / WEIGHT_MAX, WEIGHT_MAX);
        let free = 1.0 - duty(&candidate);
        let kv = kv_after(request, &candidate, &predictor);
        let adapter = adapter(request, &candidate);
        let one = Scored {
            index,
            cached: candidate.cached_tokens,
            uncached: predictor.uncached(&candidate),
            times,
            ttft: times.ttft_ms / ttft_limit_ms,
            full: (kv > room && candidate.requests > 0) || adapter >= NO_SLOT,
            key: candidate.key,
            step: times.tpot_ms / tpot_limit_ms * free / weight,
            free,
            crowd: candidate.decodes.saturating_add(candidate.pending_requests) as f64 / weight,
            terms: [0.0, 0.0, 0.0, KV * (kv - KV_FROM).max(0.0), adapter],
            cost: 0.0,
        };
        fleet.add(&one, &candidate);
        scored.push(one);
    }
    let means = Means::of(&fleet, request, ttft_limit_ms);
    scored.iter_mut().for_each(|one| means.sum_up(one));
}

/// What each candidate is compared with.
struct Means {
    step: f64,
    free: f64,
    crowd: f64,
    /// 1 / the uncached tokens from which a request is long.
    short: f64,
    /// 1 / the TTFT limit in ms.
    per_limit: f64,
    /// Weight of the time to the first token while it is not late.
    soon: f64,
}

impl Means {
    fn of(fleet: &Fleet, request: &Request, ttft_limit_ms: f64) -> Means {
        let count = fleet.count.max(1.0);
        // What is in flight says what is usual here; of an empty fleet this one is.
        let usual = if fleet.requests > 0.0 {
            fleet.tokens / fleet.requests
        } else {
            request.prompt_tokens as f64
        };
        Means {
            step: (fleet.step / count).max(1e-6),
            free: (fleet.free / count).max(1e-6),
            crowd: fleet.crowd / count,
            short: 1.0 / (LONG * usual.max(1.0)),
            per_limit: 1.0 / ttft_limit_ms,
            soon: if request.adapter { 0.0 } else { SOON },
        }
    }

    /// Fills in the terms that need the fleet, and the cost.
    fn sum_up(&self, one: &mut Scored) {
        let left = self.free / one.free.max(FREE_MIN);
        let step = squared(squared(one.step / self.step) * left);
        let usual = step.clamp(PRESSURE_MIN, PRESSURE_MAX);
        let longness = squared(squared(one.uncached as f64 * self.short));
        let longness = longness / (1.0 + longness);
        let pressure = if longness > 0.01 {
            let crowd = (one.crowd + 1.0) / (self.crowd + 1.0);
            let long = squared(crowd) * (one.free / self.free).sqrt();
            usual + (long - usual) * longness
        } else {
            usual
        };
        let work_ms = one.times.prefill_ms + one.times.decode_ms;
        let late = (one.ttft - LATE_FROM).max(0.0);
        let late = late + (late.min(LATE_MAX_LONG) - late) * longness;
        let work_cost = work_ms * self.per_limit * pressure;
        let [work, ttft, lateness, ..] = &mut one.terms;
        *work = work_cost;
        let soon = self.soon * (1.0 - longness);
        *ttft = TTFT * squared(one.ttft) + soon * squared(one.ttft.min(LATE_FROM));
        *lateness = LATE * late;
        one.cost = one.terms.iter().sum();
    }
}

fn squared(x: f64) -> f64 {
    x * x
}

/// Share of the candidate's KV blocks in use when the request has been answered there.
fn kv_after(request: &Request, candidate: &Candidate, predictor: &Predictor<'_>) -> f64 {
    if candidate.blocks == 0 {
        return 0.0;
    }
    let tokens = predictor.uncached(candidate) as f64 + positive(request.output_tokens, 0.0);
    let own = tokens / f64::from(request.block_tokens.max(1));
    (candidate.blocks_used as f64 + own) / candidate.blocks as f64
}

fn adapter(request: &Request, candidate: &Candidate) -> f64 {
    if !request.adapter {
        return 0.0;
    }
    let (busy, slots) = (f64::from(candidate.adapters_busy), f64::from(candidate.adapter_slots));
    match candidate.adapter {
        Residency::Loadable if slots > 0.0 && busy >= slots => NO_SLOT,
        Residency::Loadable => LOAD * (1.0 + SLOTS * busy / slots.max(1.0)),
        // More are asked for than fit: it may be one of those that wait.
        Residency::Resident if slots > 0.0 && busy > slots => NO_SLOT * (busy - slots) / busy,
        _ => 0.0,
    }
}
