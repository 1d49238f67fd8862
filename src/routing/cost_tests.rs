//! The character of the policy `cost`: where it sends what, and how it spreads.

use super::fleet::{Fleet, busy, decide, pick, send, usual};
use super::{
    Candidate, Decision, Explained, FleetView, Model, Picker, Policy, Request, Residency, Rng,
    explain,
};
use crate::engine::StepModel;

fn cost(request: &Request, fleet: &Fleet) -> usize {
    pick(Policy::Cost, request, fleet, 3)
}

fn explained(request: &Request, fleet: &Fleet) -> Vec<Explained> {
    let step = StepModel::a100_8b();
    explain(request, fleet, &Model { step: &step, step_tokens_max: 2048 })
}

#[test]
fn among_equals_the_one_that_holds_the_prefix() {
    let mut fleet = Fleet::busy(8);
    fleet.0[5].cached_tokens = 1408;
    fleet.0[2].cached_tokens = 704;
    for seed in 0..50 {
        assert_eq!(pick(Policy::Cost, &usual(), &fleet, seed), 5);
    }
}

#[test]
fn a_holder_whose_queue_would_make_it_late_gives_way() {
    let mut fleet = Fleet::busy(4);
    fleet.0[1].cached_tokens = 1408;
    fleet.0[1].pending_tokens = 8000;
    fleet.0[1].pending_requests = 6;
    assert_ne!(cost(&usual(), &fleet), 1);
    // As long as it is in time, the prefix is worth a wait.
    fleet.0[1].pending_tokens = 1500;
    fleet.0[1].pending_requests = 2;
    assert_eq!(cost(&usual(), &fleet), 1);
}

#[test]
fn a_new_prompt_goes_to_the_idle_and_not_to_the_one_that_holds_little() {
    // A miss goes by load, whatever the size of a cache (sglang pull request 14305).
    let mut fleet = Fleet::busy(3);
    fleet.0[1] = Candidate { blocks: 27_900, ..Candidate::default() };
    for seed in 0..50 {
        assert_eq!(pick(Policy::Cost, &usual(), &fleet, seed), 1);
    }
}

#[test]
fn one_loaded_replica_does_not_throw_the_others_prefixes_away() {
    // No imbalanced mode (sglang issue 32195): one slow replica, a hundred requests above the rest.
    let mut fleet = Fleet::busy(8);
    fleet.0[0] = Candidate { decodes: 200, requests: 200, decode_kv_tokens: 400_000, ..busy() };
    for holder in 1..8 {
        let mut fleet = fleet.clone();
        fleet.0[holder].cached_tokens = 1408;
        assert_eq!(cost(&usual(), &fleet), holder);
    }
}

#[test]
fn a_full_fleet_still_sends_prompts_to_their_prefixes() {
    let over = Candidate { decodes: 150, requests: 170, decode_kv_tokens: 290_000, ..busy() };
    let mut fleet = Fleet::of(8, over);
    fleet.0[3].cached_tokens = 1408;
    fleet.0[3].decodes += 8;
    assert_eq!(cost(&usual(), &fleet), 3);
}

#[test]
fn a_burst_of_siblings_prefills_its_prefix_once() {
    // llm-d-router issue 298: 32 requests with one new prefix of 8,000 tokens within 50 ms. All of
    // them are 8,000 + 32 x 64 tokens of work, which one replica does within the limit of 1,000 ms.
    for seed in 0..20 {
        let mut fleet = Fleet::busy(8);
        let mut owners = Vec::new();
        let mut rng = Rng::with_seed(seed);
        let step = StepModel::a100_8b();
        let model = Model { step: &step, step_tokens_max: 2048 };
        let mut picker = Picker::new(Policy::Cost);
        for i in 0..32 {
            let request = Request {
                prompt_tokens: 8064,
                ttft_limit_ms: 1009.0,
                owner_key: 99 + seed,
                ..usual()
            };
            let Decision::Pick(pick) = picker.pick(&request, &fleet, &model, i, &mut rng) else {
                panic!("no pick");
            };
            fleet.dispatch(&request, &pick);
            fleet.0[pick.replica].cached_tokens = 8000;
            if !owners.contains(&pick.replica) {
                owners.push(pick.replica);
            }
        }
        assert!(owners.len() <= 2, "{} replicas prefilled it", owners.len());
    }
}

#[test]
fn a_hot_prefix_gets_more_owners_as_it_grows_hotter() {
    let owners = |count: usize| {
        let mut fleet = Fleet::busy(8);
        let (mut picker, mut rng) = (Picker::new(Policy::Cost), Rng::with_seed(5));
        let step = StepModel::a100_8b();
        let model = Model { step: &step, step_tokens_max: 2048 };
        for _ in 0..count {
            let Decision::Pick(pick) = picker.pick(&usual(), &fleet, &model, 0, &mut rng) else {
                panic!("no pick");
            };
            // Its prefill is over before the next comes; it decodes on.
            let one = &mut fleet.0[pick.replica];
            one.cached_tokens = 1408;
            one.decodes += 1;
            one.requests += 1;
            one.decode_kv_tokens += 1900;
        }
        fleet.0.iter().filter(|one| one.cached_tokens > 0).count()
    };
    assert_eq!(owners(2), 1);
    assert!((2..8).contains(&owners(40)), "{}", owners(40));
    assert_eq!(owners(400), 8);
}

/// A fleet as it was scraped.
struct Stale(Fleet);

impl FleetView for Stale {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn candidate(&self, index: usize) -> Candidate {
        self.0.candidate(index)
    }

    fn lags(&self) -> bool {
        true
    }
}

#[test]
fn a_stale_view_makes_no_herd() {
    // Nothing that is sent shows: 64 unlike prompts within one scrape (dynamo issue 589).
    let mut fleet = Fleet::busy(8);
    fleet.0[4].decodes -= 10;
    let stale = Stale(fleet);
    let (mut picker, mut rng) = (Picker::new(Policy::Cost), Rng::with_seed(5));
    let step = StepModel::a100_8b();
    let model = Model { step: &step, step_tokens_max: 2048 };
    let mut counts = [0; 8];
    for _ in 0..64 {
        if let Decision::Pick(pick) = picker.pick(&usual(), &stale, &model, 0, &mut rng) {
            counts[pick.replica] += 1;
        }
    }
    assert_eq!(counts.iter().sum::<i32>(), 64);
    assert!(counts.iter().all(|&n| (5..=13).contains(&n)), "{counts:?}");
}

#[test]
fn gateways_that_do_not_speak_choose_one_owner() {
    // Each has its own luck and a slightly other view; a new prefix gets the same owner.
    let mut same = 0;
    let mut counts = vec![0; 8];
    for key in 1..=800u64 {
        let owner = |seed: u64| {
            let mut rng = Rng::with_seed(seed * 1000 + key);
            let mut fleet = Fleet::busy(8);
            for one in &mut fleet.0 {
                one.key = 0x51ed ^ (one.decodes << 7);
                one.decode_kv_tokens += rng.u64(..200);
            }
            for (i, one) in fleet.0.iter_mut().enumerate() {
                one.key = 77 + i as u64;
            }
            let request = Request { owner_key: key.wrapping_mul(0x1234_5679), ..usual() };
            pick(Policy::Cost, &request, &fleet, seed)
        };
        counts[owner(1)] += 1;
        same += u32::from((2..5).all(|gateway| owner(gateway) == owner(1)));
    }
    assert!(same >= 780, "{same} of 800 prefixes had one owner");
    let most = *counts.iter().max().unwrap_or(&0);
    assert!(most <= 130, "max/mean {:.2}: {counts:?}", f64::from(most) / 100.0);
}

#[test]
fn new_prompts_spread_evenly() {
    let mut fleet = Fleet::busy(8);
    let counts = send(&mut Picker::new(Policy::Cost), 160, &mut fleet, |i| Request {
        owner_key: (i as u64 + 1).wrapping_mul(0x9e37_79b9),
        ..usual()
    });
    assert!(counts.iter().all(|&n| (17..=23).contains(&n)), "{counts:?}");
}

/// New prompts at an idle fleet: an owner by rendezvous must not pile them up.
#[test]
fn a_burst_of_new_prompts_at_an_idle_fleet_spreads_evenly() {
    let mut fleet = Fleet::of(8, Candidate { blocks: 27_900, ..Candidate::default() });
    let counts = send(&mut Picker::new(Policy::Cost), 16, &mut fleet, |i| Request {
        prompt_tokens: 600,
        owner_key: (i as u64 + 1).wrapping_mul(0x9e37_79b9),
        ..usual()
    });
    assert_eq!(counts, [2; 8]);
}

#[test]
fn a_heavy_replica_gets_more() {
    let mut fleet = Fleet::busy(4);
    fleet.0[2].weight = 2.0;
    let counts = begin(&mut fleet, 300);
    let running = |i: usize| fleet.0[i].decodes as f64;
    let share = running(2) / (running(0) + running(1) + running(3)) * 3.0;
    assert!((1.5..2.6).contains(&share), "{share}: {counts:?}");
}

/// Sends `count` unlike prompts one after the other; each decodes on.
fn begin(fleet: &mut Fleet, count: usize) -> Vec<usize> {
    let (mut picker, mut rng) = (Picker::new(Policy::Cost), Rng::with_seed(5));
    let step = StepModel::a100_8b();
    let model = Model { step: &step, step_tokens_max: 2048 };
    let mut counts = vec![0; fleet.0.len()];
    for _ in 0..count {
        let Decision::Pick(pick) = picker.pick(&usual(), fleet, &model, 0, &mut rng) else {
            panic!("no pick");
        };
        counts[pick.replica] += 1;
        let one = &mut fleet.0[pick.replica];
        one.decodes += 1;
        one.requests += 1;
        one.decode_kv_tokens += 1900;
        one.load_tokens += 2040;
    }
    counts
}

#[test]
fn a_slow_replica_gets_less() {
    let mut fleet = Fleet::of(4, Candidate::default());
    fleet.0[2].slowness = 3.0;
    let counts = begin(&mut fleet, 200);
    assert!(counts[2] * 5 < counts[0], "{counts:?}");
}

#[test]
fn long_prompts_keep_to_themselves() {
    let long = Request { prompt_tokens: 32_768, ttft_limit_ms: 4715.0, ..usual() };
    let mut fleet = Fleet::busy(8);
    // Where others like it went: few decode there, prefill had most of the time.
    fleet.0[6] = Candidate {
        decodes: 6,
        requests: 6,
        decode_kv_tokens: 12_000,
        load_tokens: 12_000,
        prefill_duty: 0.85,
        ..busy()
    };
    for seed in 0..50 {
        assert_eq!(pick(Policy::Cost, &long, &fleet, seed), 6, "the long one");
        assert_ne!(pick(Policy::Cost, &usual(), &fleet, seed), 6, "a usual one");
    }
    // It would rather wait behind another than stop sixty answers.
    fleet.0[6].pending_tokens = 32_768;
    fleet.0[6].pending_requests = 1;
    assert_eq!(cost(&long, &fleet), 6);
    // Where all are long none is: then it goes where it is soonest.
    for one in &mut fleet.0 {
        one.load_tokens = one.requests * 30_000;
    }
    assert_ne!(cost(&long, &fleet), 6);
}

#[test]
fn adapters_go_where_they_are_or_where_a_slot_is_free() {
    let with =
        |adapter, adapters_busy| Candidate { adapter, adapters_busy, adapter_slots: 8, ..busy() };
    let request = Request { adapter: true, ..usual() };
    let (resident, loadable, absent) =
        (Residency::Resident, Residency::Loadable, Residency::Absent);
    let cases: [(&str, Vec<Candidate>, usize); 4] = [
        ("resident", vec![with(loadable, 2), with(resident, 8), with(absent, 0)], 1),
        ("a free slot", vec![with(loadable, 8), with(loadable, 7), with(absent, 0)], 1),
        ("more free slots", vec![with(loadable, 7), with(loadable, 2)], 1),
        ("one that waits itself", vec![with(resident, 12), with(loadable, 3)], 1),
    ];
    for (name, candidates, wanted) in cases {
        assert_eq!(cost(&request, &Fleet(candidates)), wanted, "{name}");
    }
    let nowhere = Fleet(vec![with(absent, 0)]);
    assert_eq!(decide(Policy::Cost, &request, &nowhere, 1), Decision::Nobody);
    // Without an adapter slots say nothing.
    assert_eq!(cost(&usual(), &Fleet(vec![with(resident, 12)])), 0);
}

#[test]
fn a_prompt_goes_only_where_it_fits() {
    let small = Candidate { blocks: 100, ..Candidate::default() };
    let large = Candidate { blocks: 200, ..busy() };
    assert_eq!(cost(&usual(), &Fleet(vec![small, large])), 1);
    let why = explained(&usual(), &Fleet(vec![small, large]));
    assert_eq!(why[0].infeasible, Some("the prompt does not fit in its KV blocks"));
    assert_eq!(why[1].infeasible, None);
    // Blocks that are nearly gone cost.
    let mut fleet = Fleet::of(2, Candidate { blocks: 3400, blocks_used: 1000, ..busy() });
    fleet.0[0].blocks_used = 3300;
    assert_eq!(cost(&usual(), &fleet), 1);
}

#[test]
fn it_is_held_while_nobody_has_room() {
    let request = Request { may_hold: true, ..usual() };
    let full = Candidate { blocks: 3400, blocks_used: 3390, ..busy() };
    let mut fleet = Fleet::of(2, full);
    assert!(held(&request, full));
    assert!(matches!(decide(Policy::Cost, &usual(), &fleet, 1), Decision::Pick(_)));
    fleet.0[1].blocks_used = 2000;
    assert!(
        matches!(decide(Policy::Cost, &request, &fleet, 1), Decision::Pick(p) if p.replica == 1)
    );
    // The same of adapters without a slot.
    let waiting =
        Candidate { adapter: Residency::Loadable, adapters_busy: 8, adapter_slots: 8, ..busy() };
    let request = Request { adapter: true, ..request };
    assert!(held(&request, waiting));
}

#[test]
fn a_batch_without_a_free_seat_is_late_by_the_answers_that_must_end() {
    let full = Candidate { decodes: 250, pending_requests: 10, requests: 260, ..busy() };
    let seated = Candidate { sequences_max: 256, ..full };
    let times = |one: Candidate| match decide(Policy::Cost, &usual(), &Fleet::of(1, one), 1) {
        Decision::Pick(pick) => (pick.ttft_ms, pick.tpot_ms),
        other => panic!("{other:?}"),
    };
    // Five of 256 answers must end before it is its turn.
    let ((free_ms, _), (late_ms, tpot_ms)) = (times(full), times(seated));
    let answers_ms = 5.0 * usual().output_tokens * tpot_ms / 256.0;
    assert!((late_ms - free_ms - answers_ms).abs() < 1.0, "{free_ms} {late_ms} {answers_ms}");
    // Where all are young, a good part of an answer: 1 s old of 300 tokens.
    let young = Candidate { decode_age_ms: 1_000.0, ..seated };
    let answer_ms = usual().output_tokens * tpot_ms;
    let wait_ms = answer_ms - 2_000.0 + 5.0 * 2_000.0 / 256.0;
    assert!((times(young).0 - free_ms - wait_ms).abs() < 1.0, "{answer_ms}");
    let old = Candidate { decode_age_ms: 1e6, ..seated };
    assert_eq!(times(old), times(seated));
    let one_free = Candidate { pending_requests: 5, ..seated };
    assert_eq!(times(one_free), times(Candidate { sequences_max: 0, ..one_free }));
    let mut fleet = Fleet::of(2, seated);
    fleet.0[1].pending_requests = 0;
    assert_eq!(cost(&usual(), &fleet), 1);
}

#[test]
fn headroom_is_kept_where_others_run() {
    let request = Request { may_hold: true, headroom: 0.15, ..usual() };
    let nearly = Candidate { blocks: 3400, blocks_used: 2890, ..busy() };
    assert!(held(&request, nearly));
    assert!(!held(&Request { headroom: 0.0, ..request }, nearly));
    // What is alone there may have it all.
    assert!(!held(&request, Candidate { requests: 0, ..nearly }));
}

fn held(request: &Request, one: Candidate) -> bool {
    matches!(decide(Policy::Cost, request, &Fleet::of(2, one), 1), Decision::Hold(_))
}

#[test]
fn the_runners_up_are_the_next_best() {
    let mut fleet = Fleet::busy(4);
    for (index, cached) in [(0, 300), (1, 1400), (2, 900), (3, 0)] {
        fleet.0[index].cached_tokens = cached;
    }
    let Decision::Pick(pick) = decide(Policy::Cost, &usual(), &fleet, 1) else { panic!("no pick") };
    assert_eq!(pick.replica, 1);
    assert_eq!(pick.runners_up.map(|other| other.map(|(index, _)| index)), [Some(2), Some(0)]);
    let all = explained(&usual(), &fleet);
    assert_eq!(pick.runners_up[0], Some((2, all[2].cost)));
    assert!(pick.cost < all[2].cost && all[2].cost < all[0].cost);
}

#[test]
fn predictions_are_the_engines_formula_at_rest() {
    // An idle replica: one step of 1,736 tokens, and its fixed parts.
    let step = StepModel::a100_8b();
    let all = explained(&usual(), &Fleet(vec![Candidate::default()]));
    let alone = step.dense(1736) + 2.0 + 0.008 + step.attention_ms * 1736.0 * 868.0;
    assert!((all[0].ttft_ms - alone).abs() < 1e-6, "{} {alone}", all[0].ttft_ms);
    let decode = step.dense(1) + 2.0 + 0.008 + step.kv_read_ms * (1736.0 + 148.5);
    assert!((all[0].tpot_ms - decode).abs() < 1e-6, "{} {decode}", all[0].tpot_ms);
    // Twice the chunks, twice the steps.
    let long = Request { prompt_tokens: 4096, ..usual() };
    let all = explained(&long, &Fleet(vec![Candidate::default()]));
    let steps = 2.0 * (step.dense(2048) + 2.008) + step.attention_ms * 4096.0 * 2048.0;
    assert!((all[0].ttft_ms - steps).abs() < 1e-6, "{} {steps}", all[0].ttft_ms);
}

/// What has ended before the next request comes leaves nothing behind.
#[test]
fn requests_one_after_the_other_stay_with_their_prefix() {
    let mut fleet = Fleet::of(4, Candidate { blocks: 27_900, ..Candidate::default() });
    fleet.0[2].cached_tokens = 1408;
    let (mut picker, mut rng) = (Picker::new(Policy::Cost), Rng::with_seed(5));
    let step = StepModel::a100_8b();
    let model = Model { step: &step, step_tokens_max: 2048 };
    for n in 0..500 {
        let decision = picker.pick(&usual(), &fleet, &model, n, &mut rng);
        assert!(matches!(decision, Decision::Pick(pick) if pick.replica == 2), "request {n}");
    }
}

/// Blocks that are known wrongly must not turn a request away.
#[test]
fn a_prompt_beyond_all_blocks_is_the_engines_to_judge() {
    let mut fleet = Fleet::busy(3);
    let huge = Request { prompt_tokens: 27_900 * 16, ..usual() };
    assert!(cost(&huge, &fleet) < 3);
    assert!(explained(&huge, &fleet).iter().all(|one| one.infeasible.is_some()));
    // Where one has room it is asked.
    fleet.0[1].blocks = 100_000;
    assert_eq!(cost(&huge, &fleet), 1);
}
