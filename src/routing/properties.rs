//! What holds for every policy, whatever it sees.

use proptest::prelude::*;

use super::fleet::{Fleet, usual};
use super::{
    Candidate, Decision, FleetView, Model, Picker, Policy, Request, Residency, Rng, explain,
};
use crate::engine::StepModel;

fn any_count() -> impl Strategy<Value = u64> {
    prop_oneof![0..5u64, 0..100_000u64, Just(u64::MAX), Just(u64::MAX / 2), any::<u64>()]
}

fn any_float() -> impl Strategy<Value = f64> {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e300, 1e-300, -0.0];
    prop_oneof![0.0..2.0f64, proptest::sample::select(odd.to_vec())]
}

fn any_residency() -> impl Strategy<Value = Residency> {
    let all = vec![Residency::Resident, Residency::Loadable, Residency::Absent];
    proptest::sample::select(all)
}

prop_compose! {
    fn any_candidate()(
        eligible in any::<bool>(),
        counts in proptest::array::uniform10(any_count()),
        key in any::<u64>(),
        floats in proptest::array::uniform5(any_float()),
        adapter in any_residency(),
        slots in (0..20u32, 0..20u32),
    ) -> Candidate {
        Candidate {
            key,
            eligible,
            cached_tokens: counts[0],
            pending_tokens: counts[1],
            pending_requests: counts[2],
            decodes: counts[3],
            decode_kv_tokens: counts[4],
            decode_age_ms: floats[4],
            requests: counts[5],
            load_tokens: counts[6],
            blocks: counts[7],
            blocks_used: counts[8],
            sequences_max: counts[9],
            prefill_duty: floats[0],
            adapter,
            adapters_busy: slots.0,
            adapter_slots: slots.1,
            slowness: floats[1],
            weight: floats[2],
            ramp: floats[3],
        }
    }
}

prop_compose! {
    fn any_request()(
        prompt_tokens in any_count(),
        output_tokens_max in any_count(),
        floats in proptest::array::uniform3(any_float()),
        block_tokens in prop_oneof![Just(0u32), Just(16), any::<u32>()],
        owner_key in any::<u64>(),
        flags in any::<[bool; 3]>(),
    ) -> Request {
        Request {
            prompt_tokens,
            output_tokens: floats[0] * 300.0,
            output_tokens_max,
            block_tokens,
            ttft_limit_ms: floats[1] * 400.0,
            tpot_limit_ms: floats[2] * 50.0,
            adapter: flags[0],
            owner_key,
            may_hold: flags[1],
            headroom: if flags[2] { floats[0] } else { 0.15 },
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_it_sees_it_picks_an_eligible_one_and_the_same_again(
        candidates in proptest::collection::vec(any_candidate(), 0..12),
        request in any_request(),
        seed in any::<u64>(),
    ) {
        let fleet = Fleet(candidates);
        let step = StepModel::a100_8b();
        let model = Model { step: &step, step_tokens_max: 2048 };
        for policy in Policy::ALL {
            let run = || {
                let mut picker = Picker::new(policy);
                let mut rng = Rng::with_seed(seed);
                // Twice, so that what it remembers is in it.
                let first = picker.pick(&request, &fleet, &model, 0, &mut rng);
                (first, picker.pick(&request, &fleet, &model, 5, &mut rng))
            };
            let (first, second) = run();
            prop_assert_eq!(&format!("{:?}", (first, second)), &format!("{:?}", run()));
            for decision in [first, second] {
                match decision {
                    Decision::Pick(pick) => {
                        prop_assert!(fleet.0[pick.replica].eligible);
                        let times = [pick.ttft_ms, pick.tpot_ms, pick.prefill_ms, pick.cost];
                        prop_assert!(times.iter().all(|t| t.is_finite()), "{policy:?} {pick:?}");
                        let others = pick.runners_up.iter().flatten();
                        prop_assert!(others.clone().all(|&(i, _)| i != pick.replica));
                    }
                    Decision::Hold(pick) => {
                        prop_assert!(request.may_hold && policy == Policy::Cost);
                        prop_assert!(fleet.0[pick.replica].eligible);
                    }
                    Decision::Nobody if policy == Policy::Cost => {}
                    Decision::Nobody => prop_assert!(fleet.0.iter().all(|c| !c.eligible)),
                }
            }
        }
    }

    #[test]
    fn the_explanation_is_of_the_pick(
        candidates in proptest::collection::vec(any_candidate(), 1..12),
        request in any_request(),
    ) {
        let fleet = Fleet(candidates);
        let request = Request { may_hold: false, owner_key: 0, ..request };
        let step = StepModel::a100_8b();
        let model = Model { step: &step, step_tokens_max: 2048 };
        let explained = explain(&request, &fleet, &model);
        prop_assert_eq!(explained.len(), fleet.len());
        for one in &explained {
            let sum: f64 = one.terms.iter().map(|(_, term)| term).sum();
            prop_assert_eq!(sum, one.cost);
        }
        let feasible = explained.iter().filter(|one| one.infeasible.is_none());
        let least = feasible.map(|one| one.cost).fold(f64::INFINITY, f64::min);
        let mut rng = Rng::with_seed(1);
        match Picker::new(Policy::Cost).pick(&request, &fleet, &model, 0, &mut rng) {
            // Blocks alone turn nobody away.
            Decision::Pick(pick) if least.is_infinite() => {
                let why = explained[pick.replica].infeasible;
                prop_assert_eq!(why, Some("the prompt does not fit in its KV blocks"));
            }
            Decision::Pick(pick) => {
                prop_assert!(explained[pick.replica].infeasible.is_none());
                prop_assert_eq!(explained[pick.replica].cost, pick.cost);
                prop_assert!(pick.cost <= least + 1e-4);
            }
            other => {
                prop_assert_eq!(other, Decision::Nobody);
                prop_assert!(explained.iter().all(|one| one.infeasible.is_some()));
            }
        }
    }

    /// A fleet and limits that are all so many times as slow: nothing is better or worse.
    #[test]
    fn only_ratios_of_times_matter(
        loads in proptest::collection::vec((0..120u64, 0..4000u64, 0..1736u64), 2..20),
        factor in 0.25..4.0f64,
    ) {
        let candidate = |&(decodes, pending_tokens, cached_tokens): &(u64, u64, u64)| Candidate {
            decodes,
            pending_tokens,
            cached_tokens,
            decode_kv_tokens: decodes * 1900,
            pending_requests: u64::from(pending_tokens > 0),
            requests: decodes + u64::from(pending_tokens > 0),
            ..Candidate::default()
        };
        let fleet = Fleet(loads.iter().map(candidate).collect());
        let slow = Fleet(fleet.0.iter().map(|c| Candidate { slowness: factor, ..*c }).collect());
        let step = StepModel::a100_8b();
        let model = Model { step: &step, step_tokens_max: 2048 };
        let costs = |fleet: &Fleet, factor: f64| {
            let request = Request {
                ttft_limit_ms: 400.0 * factor,
                tpot_limit_ms: 50.0 * factor,
                ..usual()
            };
            let all = explain(&request, fleet, &model);
            all.iter().map(|one| one.cost).collect::<Vec<_>>()
        };
        for (one, other) in costs(&fleet, 1.0).iter().zip(costs(&slow, factor)) {
            prop_assert!((one - other).abs() <= 1e-9 * one.abs().max(1.0), "{one} {other}");
        }
    }
}

#[test]
fn nobody_is_there() {
    for policy in Policy::ALL {
        let none = Fleet(Vec::new());
        assert!(none.is_empty());
        assert_eq!(super::fleet::decide(policy, &usual(), &none, 1), Decision::Nobody);
        let down = Fleet::of(3, Candidate { eligible: false, ..Candidate::default() });
        assert_eq!(super::fleet::decide(policy, &usual(), &down, 1), Decision::Nobody);
    }
}

#[test]
fn names_are_read_back() {
    for policy in Policy::ALL {
        assert_eq!(Policy::of_name(policy.name()), Some(policy));
    }
    assert_eq!(Policy::of_name("random"), None);
}
