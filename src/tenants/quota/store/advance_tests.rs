//! The advance alone: what all cores together take of it, and what it tells the store.

use super::*;

fn limits(rate: u64, burst: u64, most: u64) -> Limits {
    Limits { tokens_per_second: Some(rate), burst_tokens: Some(burst), in_flight_max: Some(most) }
}

/// Sixteen decisions of 100 tokens every 80 ms: 200 a second.
fn busy(advance: &Advance, until_ms: u64) {
    (1..=until_ms / 5).for_each(|n| advance.decided(n * 5, 100));
}

fn filled(tokens: u64, sequences: u64) -> Advance {
    let advance = Advance::default();
    busy(&advance, 1_000);
    let message = advance.message(1_000, false).unwrap();
    advance.told(1_000, &message, Grant { tokens, sequences });
    advance
}

#[test]
fn only_a_busy_account_wants_something_ahead_and_an_idle_one_gives_it_back() {
    let advance = Advance::default();
    (0..100).for_each(|n| advance.decided(n * 1_000, 100));
    assert!(!advance.due(100_000, 3_333), "one a second");
    let advance = Advance::default();
    busy(&advance, 1_000);
    assert!(advance.due(1_000, 3_333));
    let message = advance.message(1_000, false).unwrap();
    assert_eq!(message.ask, 10_000, "of half a second, by 80 ms for sixteen: {message:?}");
    assert_eq!((message.held, message.wanted, message.least), (0, 100, 400));
    assert_eq!(advance.message(1_000, false), None, "one at a time");
    advance.told(1_000, &message, Grant { tokens: 10_000, sequences: 100 });
    assert!(!advance.due(1_001, 3_333), "it has enough");
    assert!(advance.take(300, 2));
    assert!(advance.due(7_000, 3_333), "idle");
    let message = advance.message(7_000, false).unwrap();
    assert_eq!((message.give, message.held, message.wanted, message.ask), (9_700, 2, 2, 0));
    advance.told(7_000, &message, Grant { tokens: 0, sequences: 2 });
    advance.settle(300, 100, 2);
    let message = advance.message(8_000, false).unwrap();
    assert_eq!((message.give, message.held, message.wanted), (200, 0, 0));
    advance.told(8_000, &message, Grant { tokens: 0, sequences: 0 });
    assert!(advance.at_rest(8_000) && advance.released());
}

#[test]
fn what_was_not_heard_is_said_again_before_anything_else() {
    let advance = filled(1_000, 50);
    let first = advance.message(2_000, true).unwrap();
    assert_eq!((first.give, first.again), (1_000, false));
    advance.unheard(2_000);
    assert!(!advance.released() && advance.due(2_200, 3_333));
    let again = advance.message(2_200, false).unwrap();
    assert_eq!(again, Message { again: true, ..first });
    advance.told(2_200, &again, Grant { tokens: 0, sequences: 0 });
    assert!(advance.released());
}

#[test]
fn threads_together_take_exactly_what_there_is() {
    let advance = filled(7_000, 900);
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..1_000 {
                    taken.fetch_add(advance.take(10, 1).into(), Relaxed);
                }
            });
        }
    });
    assert_eq!((taken.load(Relaxed), advance.holds()), (700, (0, 700, 900)));
}

#[test]
fn what_a_request_used_beyond_is_told() {
    let advance = filled(100, 50);
    assert!(advance.take(100, 1));
    advance.settle(100, 130, 1);
    let message = advance.message(2_000, false).unwrap();
    assert_eq!((message.over, message.debt, message.give, message.free), (30, 0, 0, 0));
    advance.told(2_000, &message, Grant { tokens: 0, sequences: 0 });
    assert_eq!(advance.holds().0, 0);
}

#[test]
fn alone_it_spends_what_it_has_and_its_part_of_the_refill() {
    const SECOND: u64 = 1_000_000_000;
    let advance = filled(1_000, 50);
    let limits = [limits(400, 8_000, 20)];
    let ask = |tokens| Ask { id: 1, tokens, sequences: 1 };
    let alone =
        |at_ns, tokens| advance.take_alone((at_ns, 10 * SECOND), 4, limits.iter(), &ask(tokens));
    assert_eq!(alone(10 * SECOND, 1_000), Ok(true));
    let refused = alone(10 * SECOND, 50);
    assert_eq!(refused, Err(Refused::Tokens { retry_after_ms: 500 }), "100 a second are ours");
    assert_eq!(alone(10 * SECOND + SECOND / 2, 50), Ok(true));
    // However long it lasts, no more than our part of the burst gathers.
    assert_eq!(alone(1_000 * SECOND, 2_001), Err(Refused::Tokens { retry_after_ms: 10 }));
    assert_eq!(alone(1_000 * SECOND, 2_000), Ok(true));
    let message = advance.message(1_000_000, true).unwrap();
    assert_eq!((message.debt, message.give), (2_050, 0), "the store is told");
    assert_eq!(advance.holds().1, 3);
}

#[test]
fn alone_a_gateway_has_its_part_of_the_sequences() {
    let advance = Advance::default();
    let limits = [Limits { in_flight_max: Some(20), ..Limits::default() }];
    let ask = Ask { id: 1, tokens: 9, sequences: 1 };
    let alone = || advance.take_alone((5, 1), 4, limits.iter(), &ask);
    advance.opened(2);
    assert_eq!([alone(), alone(), alone()], [Ok(false); 3]);
    assert!(matches!(alone(), Err(Refused::Concurrency { .. })), "five, two of them from before");
    advance.closed(2);
    assert_eq!(alone(), Ok(false));
}
