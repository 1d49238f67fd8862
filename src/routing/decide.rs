//! From scored candidates to an answer: one of the best, or none yet.

use super::cost::Scored;
use super::types::{Decision, Pick, Request, Rng};

/// Costs within this of the least are a tie: below what the predictions can tell apart.
const TIE: f64 = 5e-5;
/// A prefix that nobody holds may go to whoever costs at most so much more, as a share of the
/// least: several gateways then choose one owner for it, and none bends the balance.
const OWNER: f64 = 0.10;
/// Nor may it wait longer there than where it is soonest, by more than this share of its own
/// prefill: a burst of new prompts at an idle fleet costs little wherever it goes, and piles up.
const OWNER_WAIT: f64 = 0.5;

/// Decides; `scored` holds the feasible candidates, in any order.
pub(super) fn decide(request: &Request, scored: &[Scored], rng: &mut Rng) -> Decision {
    let Some(best) = best(request, scored, rng) else { return Decision::Nobody };
    let pick = Pick {
        replica: best.index,
        cached_tokens: best.cached,
        ttft_ms: best.times.ttft_ms,
        tpot_ms: best.times.tpot_ms,
        prefill_ms: best.times.prefill_ms,
        fleet_tpot_ms: mean(scored, |one| one.times.tpot_ms),
        cost: best.cost,
        runners_up: runners_up(scored, best.index),
    };
    if request.may_hold && scored.iter().all(|one| one.full) {
        return Decision::Hold(pick);
    }
    Decision::Pick(pick)
}

fn mean(scored: &[Scored], of: impl Fn(&Scored) -> f64) -> f64 {
    scored.iter().map(of).sum::<f64>() / scored.len().max(1) as f64
}

fn best<'s>(request: &Request, scored: &'s [Scored], rng: &mut Rng) -> Option<&'s Scored> {
    let least = scored.iter().fold(f64::INFINITY, |least, one| least.min(one.cost));
    let held = scored.iter().any(|one| one.cached > 0);
    if !held && request.owner_key != 0 {
        let soonest_ms = scored.iter().fold(f64::INFINITY, |ms, one| ms.min(one.times.ttft_ms));
        let near = |one: &&Scored| {
            let wait_ms = one.times.ttft_ms - soonest_ms;
            let cheap = one.cost <= least * (1.0 + OWNER) + TIE;
            one.cost <= least || cheap && wait_ms <= OWNER_WAIT * one.times.prefill_ms
        };
        let among = scored.iter().filter(near);
        return among.max_by_key(|one| rendezvous(request.owner_key, one));
    }
    let mut best = None;
    for (ties, one) in scored.iter().filter(|one| one.cost <= least + TIE).enumerate() {
        if rng.usize(..=ties) == 0 {
            best = Some(one);
        }
    }
    best
}

/// The weight of an owner for a prefix (Thaler and Ravishankar 1996): the same at every gateway
/// that knows the replica by the same key.
fn rendezvous(owner_key: u64, one: &Scored) -> u64 {
    let replica = if one.key == 0 { one.index as u64 + 1 } else { one.key };
    mix(owner_key ^ mix(replica))
}

/// The finalizer of SplitMix64 (Steele et al. 2014).
fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Index and cost.
type RunnerUp = (usize, f64);

/// The two least but for the chosen one.
fn runners_up(scored: &[Scored], chosen: usize) -> [Option<RunnerUp>; 2] {
    let mut second: Option<RunnerUp> = None;
    let mut third = None;
    for one in scored.iter().filter(|one| one.index != chosen) {
        let this = Some((one.index, one.cost));
        let before = |other: Option<RunnerUp>| other.is_none_or(|(_, cost)| one.cost < cost);
        if before(second) {
            (second, third) = (this, second);
        } else if before(third) {
            third = this;
        }
    }
    [second, third]
}
