//! Tests of the engine as a whole.

use std::sync::Arc;

use super::*;

/// A chain of `shared` blocks that all with this `seed` have, and `private` ones behind it.
fn hashes(seed: u64, shared: u64, id: u64, private: u64) -> Arc<[BlockHash]> {
    let name = |from: u64, i: u64| BlockHash::from(from.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ i);
    let own = (0..private).map(|i| name(id + 1_000_003, i) | 1 << 80);
    (0..shared).map(|i| name(seed + 1, i) | 1 << 90).chain(own).collect()
}

/// Work with no block in common with others.
fn work(id: u64, prompt_tokens: u64, output_tokens: u64) -> Work {
    let hashes = hashes(0, 0, id, prompt_tokens / 16);
    Work { id, hashes, prompt_tokens, output_tokens, width: 1, adapter: 0, received_tokens: 0 }
}

fn run(engine: &mut Engine) -> Vec<Progress> {
    let mut out = Vec::new();
    while let Some(us) = engine.next_us() {
        engine.advance(us, &mut out);
        engine.check().expect("the books");
    }
    out
}

/// First token and last token of a request.
fn times(log: &[Progress], id: u64) -> (u64, u64) {
    let (mut first, mut last) = (None, None);
    for progress in log {
        match *progress {
            Progress::First { id: of, at_us, .. } if of == id => first = Some(at_us),
            Progress::Finished { id: of, at_us } if of == id => last = Some(at_us),
            _ => {}
        }
    }
    (first.expect("a first token"), last.expect("a last token"))
}

fn cached(log: &[Progress], id: u64) -> u64 {
    let of = |p: &Progress| match *p {
        Progress::First { id: of, cached_tokens, .. } if of == id => Some(cached_tokens),
        _ => None,
    };
    log.iter().find_map(of).expect("a first token")
}

fn near(measured: f64, wanted: f64, share: f64) {
    assert!((measured / wanted - 1.0).abs() < share, "{measured}, wanted {wanted}");
}

#[test]
fn what_is_empty_is_the_rest_of_each_last_block() {
    let mut engine = Engine::new(EngineParams::a100_8b());
    assert_eq!(engine.empty_tokens(), 0);
    engine.submit(0, work(1, 40, 100));
    engine.submit(0, work(2, 64, 100));
    let mut out = Vec::new();
    while engine.generated(2).is_none_or(|tokens| tokens < 3) {
        let us = engine.next_us().expect("it runs");
        engine.advance(us, &mut out);
    }
    // Both have their prompt and all but the last token of the answer: of 16, so many are left.
    let left = |prompt: u64, id: u64| {
        let tokens = prompt + engine.generated(id).expect("it runs") - 1;
        // The step under way has its block already.
        (tokens / 16 + 1) * 16 - tokens
    };
    assert_eq!(engine.empty_tokens(), left(40, 1) + left(64, 2));
    run(&mut engine);
    assert_eq!(engine.empty_tokens(), 0);
}

#[test]
fn an_idle_engine_is_as_fast_as_its_figures_say() {
    let mut engine = Engine::new(EngineParams::a100_8b());
    engine.submit(0, work(1, 16, 1001));
    let log = run(&mut engine);
    let (first, last) = times(&log, 1);
    let tpot_ms = (last - first) as f64 / 1e3 / 1000.0;
    near(tpot_ms, 9.76 + 2.0 + 0.008 + 516.0 * 131_072.0 / (2.039e9 * 0.65), 0.03);
    near(1e3 / tpot_ms, 84.0, 0.03);

    let mut engine = Engine::new(EngineParams::a100_8b());
    engine.submit(0, work(1, 1800, 1));
    let (first, _) = times(&run(&mut engine), 1);
    let dense = 73.0 + (144.0 - 73.0) / 1024.0 * 776.0;
    let attention = 4.0 * 4096.0 * 32.0 * 1800.0 * 900.0 / 156e9;
    near(first as f64 / 1e3, dense + 2.008 + attention, 0.03);

    let mut engine = Engine::new(EngineParams::a100_70b_tp2());
    engine.submit(0, work(1, 1800, 1));
    near(times(&run(&mut engine), 1).0 as f64 / 1e3, 640.0, 0.03);
}

#[test]
fn a_long_prompt_is_computed_in_chunks_beside_the_decodes() {
    let mut engine = Engine::new(EngineParams::a100_8b());
    engine.submit(0, work(1, 16, 100));
    let mut out = Vec::new();
    engine.advance(1_000_000, &mut out);
    let begin_us = engine.next_us().expect("it decodes");
    engine.submit(1_000_000, work(2, 5000, 1));
    let log = run(&mut engine);
    // 2,047 tokens in a step beside the decode, so 3 steps.
    let model = StepModel::a100_8b();
    let context = 16 + (1_000_000 / 11_768) + 1;
    let mut ms = 0.0;
    for (i, (chunk, computed)) in [(2047, 0), (2047, 2047), (906, 4094)].into_iter().enumerate() {
        let mut step = Step::default();
        step.decode(1, context + i as u64);
        step.prefill(chunk, computed);
        ms += model.ms(&step);
    }
    near((times(&log, 2).0 - begin_us) as f64 / 1e3, ms, 0.001);
}

#[test]
fn what_is_cached_is_not_computed_but_for_the_last_token() {
    let mut engine = Engine::new(EngineParams::a100_8b());
    let mut ask = |id, shared, private, prompt_tokens| {
        let hashes = hashes(1, shared, id, private);
        engine.submit(
            id * 1_000_000,
            Work {
                id,
                hashes,
                prompt_tokens,
                output_tokens: 2,
                width: 1,
                adapter: 0,
                received_tokens: 0,
            },
        );
        let log = run(&mut engine);
        (cached(&log, id), times(&log, id).0 - id * 1_000_000)
    };
    let (cold, cold_us) = ask(1, 100, 2, 1640);
    let (warm, warm_us) = ask(2, 100, 2, 1640);
    assert_eq!((cold, warm), (0, 1600));
    assert!(warm_us * 5 < cold_us, "{warm_us} {cold_us}");
    assert_eq!(ask(3, 100, 0, 1600).0, 1584, "all blocks are there, the last token is computed");
    assert_eq!(ask(4, 101, 0, 1620).0, 1600);
    assert_eq!(engine.prefix_tokens(), (1640 + 1640 + 1600 + 1620, 1600 + 1584 + 1600));
    assert_eq!(engine.kv_usage(), 0.0);
    assert!(engine.reset_prefix_cache());
    assert_eq!(engine.cached_blocks(&hashes(1, 100, 0, 0)), 0);
}

#[test]
fn what_another_engine_has_computed_is_held_and_not_computed() {
    let mut engine = Engine::new(EngineParams::a100_8b());
    let mut ask = |id: u64, received_tokens| {
        let hashes = hashes(id, 0, id, 100);
        let (prompt_tokens, output_tokens, width, adapter) = (1_600, 2, 1, 0);
        let work =
            Work { id, hashes, prompt_tokens, output_tokens, width, adapter, received_tokens };
        engine.submit(id * 1_000_000, work);
        let log = run(&mut engine);
        (cached(&log, id), times(&log, id).0 - id * 1_000_000)
    };
    let (computed, received) = (ask(1, 0), ask(2, 1_599));
    assert!(received.1 * 5 < computed.1, "{received:?} {computed:?}");
    assert_eq!((computed.0, received.0), (0, 0), "nothing of it was cached there");
    assert_eq!(engine.cached_blocks(&hashes(2, 0, 2, 100)), 100, "a next turn finds it");
    assert_eq!(engine.kv_usage(), 0.0);
}

#[test]
fn an_answer_fills_blocks_that_a_next_turn_finds() {
    let mut engine = Engine::new(EngineParams::a100_8b());
    engine.record_events(true);
    let chain = hashes(0, 0, 1, 12);
    let first = Work {
        id: 1,
        hashes: Arc::clone(&chain),
        prompt_tokens: 100,
        output_tokens: 93,
        width: 1,
        adapter: 0,
        received_tokens: 0,
    };
    engine.submit(0, first);
    run(&mut engine);
    // The last of 193 tokens has no KV: it was never an input.
    assert_eq!(engine.cached_blocks(&chain), 12);
    let mut events = Vec::new();
    engine.take_events(&mut events);
    let stored: u32 = events
        .iter()
        .map(|e| if let KvEvent::Stored { id: 1, count, .. } = e { *count } else { 0 })
        .sum();
    assert_eq!(stored, 12);
    assert!(engine.reset_prefix_cache());
    events.clear();
    engine.take_events(&mut events);
    assert_eq!(events, [], "it is published with the next step");
    engine.submit(9_000_000, work(2, 10, 1));
    run(&mut engine);
    engine.take_events(&mut events);
    assert_eq!(events, [KvEvent::Cleared]);
}

#[test]
fn without_a_block_the_last_admitted_is_preempted_and_finds_its_own_again() {
    let mut engine = Engine::new(EngineParams { blocks: 20, ..EngineParams::a100_8b() });
    // 10 + 7 blocks of answer each: together they do not fit.
    engine.submit(0, work(1, 160, 100));
    engine.submit(0, work(2, 100, 100));
    let mut log = Vec::new();
    let mut paused = None;
    while let Some(us) = engine.next_us() {
        engine.advance(us, &mut log);
        engine.check().expect("the books");
        if engine.preemptions() == 1 && paused.is_none() {
            assert_eq!((engine.running(), engine.waiting()), (1, 1));
            paused = engine.generated(2);
        }
    }
    assert_eq!(engine.preemptions(), 1);
    let (first, second) = (times(&log, 1), times(&log, 2));
    assert!(first.1 < second.1 && second.0 < first.1, "{first:?} {second:?}");
    // 6 full blocks of its prompt, and the answer's: nothing was evicted that it had.
    let paused = paused.expect("it was preempted");
    assert!(paused > 1 && paused < 100, "{paused}");
    let uninterrupted_us = (100 - paused) * 11_800;
    near((second.1 - first.1) as f64, uninterrupted_us as f64, 0.1);
}

#[test]
fn what_never_fits_waits_until_it_is_aborted() {
    let mut engine = Engine::new(EngineParams { blocks: 20, ..EngineParams::a100_8b() });
    engine.submit(0, work(1, 321, 1));
    engine.submit(1, work(2, 320, 1));
    assert_eq!((engine.next_us(), engine.waiting()), (None, 2));
    engine.abort(1);
    assert_eq!(cached(&run(&mut engine), 2), 0);
    // One that fits at first and grows beyond all there is.
    engine.submit(9_000_000, work(3, 300, 50));
    let log = run(&mut engine);
    assert_eq!((log.len(), engine.generated(3), engine.waiting()), (1, Some(21), 1));
    engine.abort(3);
    assert_eq!((engine.next_us(), engine.waiting(), engine.generated(3)), (None, 0, None));
}

#[test]
fn a_request_waits_for_its_adapter_while_others_pass() {
    let mut engine = Engine::new(EngineParams { adapter_slots: 1, ..EngineParams::a100_8b_lora() });
    for (id, adapter) in [(1, 1), (2, 2), (3, 0), (4, 1)] {
        engine.submit(0, Work { adapter, ..work(id, 100, 20) });
    }
    assert_eq!((engine.running(), engine.waiting_for_adapter()), (1, 2), "3 has passed by");
    let log = run(&mut engine);
    let load_us = 150_000;
    assert!(times(&log, 3).1 > load_us, "{:?}", times(&log, 3));
    assert!(times(&log, 3).0 < load_us, "{:?}", times(&log, 3));
    for id in [1, 4] {
        let first = times(&log, id).0;
        assert!((load_us..load_us + 100_000).contains(&first), "{id}: {first}");
    }
    let free = times(&log, 1).1.max(times(&log, 4).1);
    assert!(times(&log, 2).0 >= free + load_us, "its slot is free when the last user is done");
    assert_eq!(engine.resident_adapters().collect::<Vec<_>>(), [2]);
}

#[test]
fn choices_share_the_prompt_and_have_their_own_tails() {
    let mut engine = Engine::new(EngineParams { blocks: 100, ..EngineParams::a100_8b() });
    engine.submit(0, Work { width: 4, ..work(1, 168, 30) });
    let mut out = Vec::new();
    let prefilled = engine.next_us().expect("it runs");
    engine.advance(prefilled, &mut out);
    assert!((engine.kv_usage() - 0.14).abs() < 1e-9, "10 shared and 4 of their own");
    engine.check().expect("the books");
    out.extend(run(&mut engine));
    assert_eq!(out.len(), 2);
    assert_eq!(engine.cached_blocks(&hashes(0, 0, 1, 10)), 10);
}

/// A random hour of an engine: every book right after every operation, every request either
/// aborted or given its first and last token once; returns all that happened.
fn random_hour(seed: u64, params: EngineParams) -> (Vec<Progress>, u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut engine = Engine::new(params);
    engine.record_events(rng.bool());
    let (mut log, mut live, mut events) = (Vec::new(), Vec::<u64>::new(), Vec::new());
    let mut now_us = 0;
    for id in 0..1000 {
        match rng.u8(..10) {
            0..5 => {
                let prompt_tokens = rng.u64(1..700);
                let blocks = prompt_tokens / 16 + rng.u64(..8);
                let shared = rng.u64(..30).min(blocks);
                let hashes = hashes(rng.u64(..4), shared, id, blocks - shared);
                let width = if rng.u8(..8) == 0 { 3 } else { 1 };
                let adapter = rng.u32(..4);
                let output_tokens = rng.u64(1..120);
                let work = Work {
                    id,
                    hashes,
                    prompt_tokens,
                    output_tokens,
                    width,
                    adapter,
                    received_tokens: 0,
                };
                engine.submit(now_us, work);
                live.push(id);
            }
            5 if !live.is_empty() => engine.abort(live.swap_remove(rng.usize(..live.len()))),
            _ => {
                now_us += rng.u64(..60_000);
                let from = log.len();
                engine.advance(now_us, &mut log);
                let ends = |p: &Progress| match *p {
                    Progress::Finished { id, .. } => Some(id),
                    Progress::First { .. } => None,
                };
                live.retain(|id| !log[from..].iter().filter_map(ends).any(|over| over == *id));
                engine.take_events(&mut events);
            }
        }
        engine.check().expect("the books");
    }
    let left = run(&mut engine);
    log.extend(left);
    assert_eq!((engine.running(), engine.waiting(), engine.kv_usage()), (0, 0, 0.0));
    assert!(engine.reset_prefix_cache());
    (log, engine.preemptions())
}

#[test]
fn the_books_hold_through_a_random_hour_and_it_repeats() {
    let roomy = EngineParams { blocks: 600, ..EngineParams::a100_8b_lora() };
    // Preempts all the time; prompts in many chunks; two adapters for three.
    let tight = EngineParams {
        blocks: 80,
        step_tokens_max: 64,
        sequences_max: 12,
        adapter_slots: 2,
        ..roomy.clone()
    };
    for seed in 0..3 {
        for params in [&roomy, &tight] {
            let (log, preemptions) = random_hour(seed, params.clone());
            assert_eq!(random_hour(seed, params.clone()), (log.clone(), preemptions));
            assert!(params != &tight || preemptions > 50, "{preemptions}");
            let mut firsts = std::collections::HashSet::new();
            let mut lasts = std::collections::HashSet::new();
            for progress in &log {
                assert!(match progress {
                    Progress::First { id, .. } => firsts.insert(*id),
                    Progress::Finished { id, .. } => firsts.contains(id) && lasts.insert(*id),
                });
            }
            assert!(lasts.len() > 200, "{}", lasts.len());
        }
    }
}
