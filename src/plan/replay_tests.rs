//! Runs that must end with every book empty, and the same for the same seed.

use std::collections::HashSet;

use super::*;
use crate::plan::{Crash, Mix, Outcome, Scenario, Slow, Trace};
use crate::prompt::blocks::reusable_tokens;

fn mix(rate: f64, seconds: f64) -> Mix {
    Mix {
        seed: 7,
        rate,
        seconds,
        hot: 0.0,
        long: 0.0,
        adapters: 0,
        tenants: 1,
        flood: 1.0,
        token_ms: 36.0,
    }
}

fn small() -> Scenario {
    Scenario { replicas: 4, ..Scenario::new() }
}

/// Runs to the end and checks that everything has been given back.
fn run_and_check(scenario: &Scenario, workload: &Workload, policy: Policy) -> Tally {
    let mut run = Run::new(scenario, workload, policy);
    run.finish(&mut |_| {});
    let tally = &run.tally;
    assert_eq!(tally.ended(), tally.asked, "{policy:?}: every request ends exactly once");
    assert!(run.conversations.iter().all(|c| c.phase == Phase::Idle));
    assert_eq!(tally.unfinished, 0, "{policy:?}");
    for (i, gateway) in run.gateways.iter().enumerate() {
        assert!(gateway.is_at_rest(), "{policy:?}: the books of gateway {i} are not empty");
    }
    for (i, replica) in run.replicas.iter().enumerate() {
        assert_eq!(replica.check_at_rest(), Ok(()), "{policy:?}: replica {i}");
    }
    run.tally
}

#[test]
fn every_policy_ends_every_request_once() {
    let workload = mix(30.0, 20.0).workload();
    for policy in Policy::ALL {
        let tally = run_and_check(&small(), &workload, policy);
        assert!(tally.asked > 450, "{policy:?}: {}", tally.asked);
        assert_eq!((tally.shed, tally.failed), (0, 0), "{policy:?}");
        assert!(tally.cached_tokens < tally.prompt_tokens);
    }
}

#[test]
fn crashes_and_slow_replicas_lose_nothing_from_the_books() {
    let second = 1_000_000;
    let scenario = Scenario {
        crashes: vec![
            Crash { at_us: 5 * second, replica: 0, down_us: 6 * second },
            Crash { at_us: 7 * second, replica: 1, down_us: second / 2 },
            Crash { at_us: 14 * second, replica: 0, down_us: 2 * second },
        ],
        slow: vec![Slow { replica: 2, factor: 3.0 }],
        gateways: 3,
        gossip_us: 100_000,
        ..small()
    };
    let workload = mix(25.0, 20.0).workload();
    for policy in [Policy::Cost, Policy::RoundRobin, Policy::Lmetric] {
        let tally = run_and_check(&scenario, &workload, policy);
        assert!(tally.failed > 0, "{policy:?}: a crash cuts answers off");
        assert!(tally.retried > 0, "{policy:?}: what had not begun goes elsewhere");
    }
}

#[test]
fn a_fleet_that_is_all_down_fails_what_comes() {
    let crash = |replica| Crash { at_us: 0, replica, down_us: 100_000_000 };
    let scenario = Scenario { crashes: (0..4).map(crash).collect(), ..small() };
    let tally = run_and_check(&scenario, &mix(5.0, 10.0).workload(), Policy::Cost);
    assert_eq!((tally.completed, tally.failed), (0, tally.asked));
}

#[test]
fn overload_is_shed_when_that_is_allowed() {
    let workload = mix(80.0, 20.0).workload();
    let kept = run_and_check(&small(), &workload, Policy::Cost);
    let shed = run_and_check(&Scenario { shed: true, ..small() }, &workload, Policy::Cost);
    assert_eq!(kept.shed, 0);
    assert!(shed.shed > 100, "{}", shed.shed);
    assert!(shed.good > kept.good, "{} good with shedding, {} without", shed.good, kept.good);
}

#[test]
fn adapters_wait_for_slots_and_come_back_to_them() {
    let engine = crate::engine::EngineParams::a100_8b_lora();
    let scenario = Scenario { engine, ..small() };
    let workload = Mix { adapters: 30, ..mix(15.0, 20.0) }.workload();
    let tally = run_and_check(&scenario, &workload, Policy::Cost);
    assert_eq!(tally.adapter_asked, tally.asked);
    let hit = tally.adapter_resident as f64 / tally.adapter_asked as f64;
    assert!((0.5..1.0).contains(&hit), "{hit}");
}

#[test]
fn the_same_seed_gives_the_same_json() {
    let workload = mix(40.0, 15.0).workload();
    let json = |seed| {
        let scenario = Scenario { seed, gateways: 2, gossip_us: 100_000, ..small() };
        let outcome = Outcome::of(&scenario, &workload, Policy::Cost, &mut |_| {});
        outcome.json().to_string()
    };
    assert_eq!(json(1), json(1));
    assert_ne!(json(1), json(2));
}

/// The look-up by structure against one that knows every block.
#[test]
fn the_endless_cache_is_the_sum_of_all_blocks() {
    let lines = "{\"timestamp\": 0, \"input_length\": 1500, \"output_length\": 9, \
                 \"hash_ids\": [0, 1, 2]}\n{\"timestamp\": 9, \"input_length\": 1500, \
                 \"output_length\": 9, \"hash_ids\": [0, 1, 3]}\n";
    let trace = Trace::parse(lines).expect("a trace").workload(1.0, None);
    for workload in [mix(40.0, 30.0).workload(), trace] {
        let (mut endless, mut seen) = (Endless::default(), HashSet::<BlockHash>::new());
        for session in &workload.sessions {
            let chain = session.chain();
            for (index, turn) in session.turns.iter().enumerate() {
                let prompt = &chain[..turn.prompt_blocks()];
                let known = prompt.iter().take_while(|hash| seen.contains(*hash)).count() as u64;
                let most = reusable_tokens(u64::from(turn.prompt_tokens), 16);
                assert_eq!(endless.ask(session, index), (known * 16).min(most));
                let all = (turn.prompt_tokens + turn.output_tokens) as usize / 16;
                seen.extend(chain[..all].iter().copied());
            }
        }
    }
}
