//! What the mix promises, on the mean of seeds and in its shares.

use super::*;
use crate::engine::EngineParams;
use crate::plan::{Outcome, Scenario};
use crate::routing::Policy;

fn mix(seed: u64) -> Mix {
    Mix {
        seed,
        rate: 332.0,
        seconds: 50.0,
        hot: 0.0,
        long: 0.0,
        adapters: 0,
        tenants: 1,
        flood: 1.0,
        token_ms: 36.0,
    }
}

/// The figures that the laws are set for, on the mean of seeds, at a load that the fleet carries.
#[test]
fn prompts_answers_rate_and_reuse_are_as_stated() {
    let seeds = 1..=6;
    let mut sums = [0.0; 4];
    for seed in seeds.clone() {
        let workload = mix(seed).workload();
        let scenario = Scenario { seed, ..Scenario::new() };
        let outcome = Outcome::of(&scenario, &workload, Policy::Preble, &mut |_| {});
        let rate = outcome.offered_rps;
        let figures = [
            rate,
            outcome.prompt_tokens_mean,
            outcome.output_tokens_mean,
            outcome.endless_hit_ratio,
        ];
        sums.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure / 6.0);
    }
    let [rate, prompt, output, endless] = sums;
    assert!((327.0..337.0).contains(&rate), "{rate} requests a second");
    assert!((1710.0..1762.0).contains(&prompt), "{prompt} tokens a prompt");
    assert!((294.0..300.0).contains(&output), "{output} tokens an answer");
    assert!((0.78..0.80).contains(&endless), "{endless} of the prompts could be spared");
}

#[test]
fn a_session_is_the_same_at_every_rate() {
    let (slow, fast) = (mix(3).workload(), Mix { rate: 400.0, ..mix(3) }.workload());
    let texts = |workload: &Workload| -> Vec<Text> {
        workload.sessions.iter().map(|session| session.text.clone()).collect()
    };
    let (slow, fast) = (texts(&slow), texts(&fast));
    assert!(slow.len() < fast.len());
    let shared = slow.iter().filter(|text| fast.contains(text)).count();
    assert!(shared * 10 > slow.len() * 9, "{shared} of {}", slow.len());
}

#[test]
fn sessions_come_in_order_and_in_time() {
    let workload = mix(1).workload();
    assert!(workload.sessions.windows(2).all(|two| two[0].start_us <= two[1].start_us));
    assert!(workload.sessions.iter().all(|s| s.start_us < workload.end_us));
    let half = workload.sessions.iter().filter(|s| s.start_us < workload.end_us / 2).count();
    assert!(half > workload.sessions.len() / 2, "turns of older sessions come first");
}

#[test]
fn hot_long_and_adapters_are_shares_of_the_traffic() {
    let hot = Mix { hot: 0.8, ..mix(1) }.workload();
    let mut keys: Vec<u64> = hot
        .sessions
        .iter()
        .filter_map(|s| match s.text {
            Text::Shared { key, .. } => Some(key),
            Text::Named { .. } => None,
        })
        .collect();
    keys.sort_unstable();
    let most = keys.chunk_by(|a, b| a == b).map(<[u64]>::len).max().unwrap_or(0);
    let share = most as f64 / keys.len() as f64;
    assert!((0.78..0.82).contains(&share), "{share}");

    let long = Mix { long: 0.01, ..mix(1) }.workload();
    let requests: usize = long.sessions.iter().map(|s| s.turns.len()).sum();
    let longs = long.sessions.iter().filter(|s| s.turns[0].prompt_tokens == LONG_TOKENS).count();
    let share = longs as f64 / requests as f64;
    assert!((0.007..0.013).contains(&share), "{share}");

    let adapters = Mix { adapters: 60, ..mix(1) }.workload();
    let used: std::collections::HashSet<u32> =
        adapters.sessions.iter().map(|s| s.adapter).collect();
    assert!(used.len() == 60 && !used.contains(&0));
    assert!(EngineParams::a100_8b_lora().adapter_slots > 0);
}
