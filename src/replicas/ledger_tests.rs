//! The ledger: what enters, moves and leaves, and that nothing stays behind.

use super::*;

fn entry(prompt: u64, cached: u64, output: u64) -> Dispatch {
    Dispatch {
        prompt_tokens: prompt,
        cached_tokens: cached,
        output_tokens: output,
        sequences: 1,
        prefill_ms: 0.0,
        adapter: None,
    }
}

/// Everything but the prefill work, which fades by time alone.
fn counts(sums: Sums) -> [u64; 7] {
    [
        sums.requests,
        sums.tokens,
        sums.pending_requests,
        sums.pending_tokens,
        sums.decodes,
        sums.decode_kv_tokens,
        sums.held_tokens,
    ]
}

#[test]
fn a_request_moves_from_prefill_to_decode_and_leaves_nothing() {
    let ledger = Arc::new(Ledger::new(2));
    let mut a = ledger.enter(0, &entry(100, 64, 20), 0);
    assert_eq!(counts(ledger.own(0)), [1, 120, 1, 36, 0, 0, 46]);
    assert!(a.is_pending());
    a.first_token(40);
    assert_eq!(counts(ledger.own(0)), [1, 120, 0, 0, 1, 110, 46]);
    a.first_token(50);
    assert_eq!(counts(ledger.own(0)), [1, 120, 0, 0, 1, 110, 46], "once is once");
    assert_eq!(ledger.own(0).decode_age_ms(100), 60.0);
    // Another core's clock may be behind.
    assert_eq!(ledger.own(0).decode_age_ms(39), 0.0);
    let b = ledger.enter(1, &entry(30, 0, 0), 0);
    assert_eq!((ledger.requests(), ledger.tokens()), (2, 150));
    drop(a);
    assert_eq!(counts(ledger.own(0)), [1, 30, 1, 30, 0, 0, 30]);
    drop(b);
    assert_eq!(counts(ledger.own(0)), [0; 7]);
}

#[test]
fn a_wrong_hint_of_the_cache_never_makes_a_negative() {
    let ledger = Arc::new(Ledger::new(1));
    let held = ledger.enter(0, &entry(10, 5_000, 4), 0);
    assert_eq!(counts(ledger.own(0)), [1, 14, 1, 0, 0, 0, 2]);
    drop(held);
    let endless = ledger.enter(0, &entry(u64::MAX, 0, u64::MAX), 0);
    drop(endless);
    // A core without a line counts nowhere, and takes nothing off.
    drop(ledger.enter(7, &entry(1, 0, 1), 0));
    assert_eq!(counts(ledger.own(0)), [0; 7]);
}

#[test]
fn prefill_work_fades() {
    let ledger = Arc::new(Ledger::new(2));
    let with = |ms| Dispatch { prefill_ms: ms, ..entry(1, 0, 1) };
    drop(ledger.enter(0, &with(1_000.0), 1_000));
    drop(ledger.enter(1, &with(500.0), 1_000));
    let at = |now_ms| ledger.own(now_ms).prefill_ms;
    assert!((at(1_000) - 1_500.0).abs() < 0.1);
    assert!((ledger.own(1_000).prefill_duty() - 0.3).abs() < 1e-4);
    assert!((at(6_000) / 1_500.0 - (-1.0_f64).exp()).abs() < 0.03, "{}", at(6_000));
    assert!(at(11_000) < at(6_000) && at(61_000) < 10.0 && at(600_000) < 0.001);
    assert!((at(999) - 1_500.0).abs() < 0.1, "a clock a moment behind is no age");
    for odd in [f64::NAN, f64::INFINITY, -5.0] {
        drop(ledger.enter(0, &with(odd), 600_000));
    }
    assert!(at(600_000) < 0.001);
    drop(ledger.enter(0, &with(f64::MAX), 600_000));
    assert_eq!(ledger.own(600_000).prefill_duty(), 1.0);
}

/// A steady load shows its own share, however it is cut into requests.
#[test]
fn a_steady_load_is_its_duty() {
    let ledger = Arc::new(Ledger::new(1));
    for now_ms in (0..60_000).step_by(100) {
        drop(ledger.enter(0, &Dispatch { prefill_ms: 40.0, ..Dispatch::default() }, now_ms));
    }
    let duty = ledger.own(60_000).prefill_duty();
    assert!((duty - 0.4).abs() < 0.02, "{duty}");
}

#[test]
fn other_gateways_count_while_they_are_heard() {
    let ledger = Arc::new(Ledger::new(1));
    let sums = |n| Sums { requests: n, pending_tokens: 10 * n, ..Sums::default() };
    let seen = |now_ms| ledger.others(now_ms).map(|it| (it.requests, it.pending_tokens));
    assert_eq!(seen(10_000), None);
    ledger.set_remote(0, sums(3), 10_000);
    ledger.set_remote(5, sums(4), 10_400);
    let _own = ledger.enter(0, &entry(1, 0, 0), 10_400);
    assert_eq!(seen(10_500), Some((7, 70)));
    assert_eq!(ledger.own(10_500).requests, 1);
    assert_eq!(ledger.requests(), 1, "what is shown is this gateway's own");
    // The first has gone silent; the other's next report leaves it out.
    ledger.set_remote(5, sums(2), 11_100);
    assert_eq!(seen(11_100), Some((2, 20)));
    assert_eq!(seen(12_100), None, "all are silent");
    ledger.set_remote(GATEWAYS_MAX, sums(1_000), 12_100);
    assert_eq!(seen(12_100), None);
}

#[test]
fn adapters_in_flight_are_counted_once_each() {
    let ledger = Arc::new(Ledger::new(2));
    let of = |adapter| Dispatch { adapter: Some(adapter), ..entry(1, 0, 1) };
    let (a, b) = (1 << 40, 2 << 40);
    let held = [ledger.enter(0, &of(a), 0), ledger.enter(1, &of(a), 0), ledger.enter(0, &of(b), 0)];
    assert_eq!(ledger.adapters(), 2);
    assert!(ledger.has_adapter(a, 2, 0) && !ledger.has_adapter(3 << 40, 2, 0));
    drop(held);
    assert_eq!(ledger.adapters(), 0);
}

/// A million requests of four cores over sixteen lanes: some end well, some are aborted before or
/// after the first token, replicas crash and come back under them, retries go elsewhere.
#[test]
fn a_million_requests_with_every_end_leave_every_entry_at_zero() {
    const LANES: usize = 16;
    const REQUESTS: u64 = 250_000;
    let lanes: Vec<_> = (0..LANES).map(|_| Arc::new(Ledger::new(4))).collect();
    std::thread::scope(|scope| {
        for core in 0..4 {
            let lanes = &lanes;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(core as u64);
                // What this core has in flight, by lane, so that a crash can end all of it.
                let mut running: Vec<Vec<InFlight>> = (0..LANES).map(|_| Vec::new()).collect();
                for n in 0..REQUESTS {
                    let mut attempts = 0;
                    loop {
                        attempts += 1;
                        let lane = rng.usize(..LANES);
                        let entry = Dispatch {
                            prompt_tokens: rng.u64(..40_000),
                            cached_tokens: rng.u64(..40_000),
                            output_tokens: rng.u64(..1_000),
                            sequences: rng.u64(1..4),
                            prefill_ms: rng.f64() * 100.0,
                            adapter: rng.bool().then(|| rng.u64(1..60) << 32),
                        };
                        let mut held = lanes[lane].enter(core, &entry, n);
                        match rng.u8(..10) {
                            // Refused or reset before an answer: elsewhere, up to three times.
                            0 | 1 if attempts < 3 => continue,
                            // The client goes while it waits.
                            2 => break,
                            // It goes in mid-stream.
                            3 => held.first_token(n),
                            // A role only, then a failure, then elsewhere.
                            4 if attempts < 3 => {
                                held.first_token(n);
                                continue;
                            }
                            _ => {
                                if rng.bool() {
                                    held.first_token(n);
                                }
                                running[lane].push(held);
                            }
                        }
                        break;
                    }
                    // One ends, or a replica dies under all of its own.
                    let lane = rng.usize(..LANES);
                    match rng.u16(..1_000) {
                        0 => running[lane].clear(),
                        1..600 => drop(running[lane].pop()),
                        _ => running[lane].iter_mut().for_each(|held| held.first_token(n)),
                    }
                }
            });
        }
    });
    for lane in &lanes {
        assert_eq!(counts(lane.own(0)), [0; 7]);
        for line in &lane.lines {
            assert_eq!(counts(line.read(0)), [0; 7], "each line by itself");
        }
        assert_eq!(lane.adapters(), 0);
    }
}
