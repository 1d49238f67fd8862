//! Runs that must end with every book empty, and the same for the same seed.

use std::collections::HashSet;

use super::*;
use crate::engine::EngineParams;
use crate::plan::workload::Text;
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
    assert_eq!(run.gone, run.came, "{policy:?}: those of the warm-up too");
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
fn what_comes_in_the_warm_up_is_served_and_not_counted() {
    let workload = mix(30.0, 40.0).workload();
    let of = |warmup_us| run_and_check(&Scenario { warmup_us, ..small() }, &workload, Policy::Cost);
    let (whole, warm, nothing) = (of(0), of(20_000_000), of(40_000_000));
    assert!((0.4..0.6).contains(&(warm.asked as f64 / whole.asked as f64)), "{}", warm.asked);
    let hit = |tally: &Tally| tally.cached_tokens as f64 / tally.prompt_tokens as f64;
    assert!(hit(&warm) > hit(&whole) + 0.05, "{} {}", hit(&warm), hit(&whole));
    assert_eq!((nothing.asked, nothing.completed, nothing.prompt_tokens), (0, 0, 0));
}

/// Bursts at four gateways, each as soon as the one before is served: what they tell each other
/// each 100 ms is old by then (ai-dynamo/dynamo#589).
#[test]
fn bursts_at_four_gateways_spread_over_the_fleet() {
    const BURST: usize = 64;
    const EVERY_US: u64 = 450_000;
    let mut rng = fastrand::Rng::with_seed(4);
    let session = |start_us, own, prompt_tokens| Session {
        tenant: 0,
        start_us,
        adapter: 0,
        turns: [Turn { prompt_tokens, output_tokens: 5 }].into(),
        text: Text::Shared { key: 0, blocks: 0, own },
    };
    let starts: Vec<u64> = (1..=12).map(|n| n * EVERY_US).collect();
    let burst = starts.iter().flat_map(|&us| [us; BURST]);
    let mut sessions: Vec<_> =
        burst.map(|us| session(us + rng.u64(..3_000), rng.u64(..), rng.u32(550..650))).collect();
    sessions.sort_by_key(|session| session.start_us);
    let workload = Workload { sessions, end_us: 20_000_000, think_us: 0, token_us: 0 };
    let gossip_us = 100_000;
    let scenario = Scenario { replicas: 8, gateways: 4, gossip_us, ..Scenario::new() };
    let mut run = Run::new(&scenario, &workload, Policy::Cost);
    let mut uneven = Vec::new();
    for start_us in starts {
        let before = run.in_flight_at(start_us);
        let after = run.in_flight_at(start_us + 25_000);
        // Where the last burst went unevenly, a few of it end while this one is sent.
        let sent: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a.saturating_sub(*b)).collect();
        assert!(sent.iter().sum::<u64>() > 56, "{sent:?}");
        let most = sent.iter().max().expect("replicas");
        uneven.push(*most as f64 * 8.0 / BURST as f64);
    }
    let mean = uneven.iter().sum::<f64>() / uneven.len() as f64;
    assert!(mean <= 1.3, "{mean}: {uneven:?}");
}

impl Run<'_> {
    /// Goes on to that time; what the gateways then have in flight at each replica.
    fn in_flight_at(&mut self, until_us: u64) -> Vec<u64> {
        while let Some((us, event)) = self.agenda.next() {
            if us > until_us {
                self.agenda.at(us, event);
                break;
            }
            self.now_us = us;
            self.handle(event);
        }
        let at = |replica| self.gateways.iter().map(|g| g.own(replica).requests).sum();
        (0..self.replicas.len()).map(at).collect()
    }
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

#[test]
fn engines_of_any_block_size_end_with_empty_books_and_as_their_gateways_foretold() {
    let workload = mix(24.0, 20.0).workload();
    let profile = EngineParams::a100_8b();
    let mut hits = Vec::new();
    for block_tokens in [16, 48, 64, 256] {
        let blocks = profile.blocks * 16 / block_tokens;
        let engine = EngineParams { block_tokens, blocks, ..profile.clone() };
        let tally = run_and_check(&Scenario { engine, ..small() }, &workload, Policy::Cost);
        // What the gateway's index says of a prompt is what its replica then finds.
        let off = tally.predicted_tokens.abs_diff(tally.cached_tokens) as f64;
        assert!(off < 0.02 * tally.prompt_tokens as f64, "{block_tokens}: {off}");
        hits.push(tally.cached_tokens as f64 / tally.prompt_tokens as f64);
    }
    assert!(hits[0] > hits[3] + 0.02, "{hits:?}");
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
                let prompt = &chain[..turn.prompt_blocks(16)];
                let known = prompt.iter().take_while(|hash| seen.contains(*hash)).count() as u64;
                let most = reusable_tokens(u64::from(turn.prompt_tokens), 16);
                assert_eq!(endless.ask(session, index), (known * 16).min(most));
                let all = (turn.prompt_tokens + turn.output_tokens) as usize / 16;
                seen.extend(chain[..all].iter().copied());
            }
        }
    }
}
