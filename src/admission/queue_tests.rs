//! The queue's order, its bounds, and that nobody starves, by example and by random histories.

use std::collections::HashMap;

use proptest::prelude::*;

use super::super::fair::{Counters, Share};
use super::*;

const LONG_MS: u64 = 1_000;

fn shares(all: &[(f64, u8)]) -> Counters {
    let share = |&(weight, priority)| Share { weight, priority };
    Counters::new(&all.iter().map(share).collect::<Vec<_>>())
}

fn waiting(tenant: usize, since_ms: u64, until_ms: u64) -> Waiting {
    Waiting { tenant, class: 0, tokens: 100, since_ms, until_ms }
}

fn next(queue: &Queue, counters: &Counters, now_ms: u64) -> Option<Place> {
    queue.next(now_ms, LONG_MS, counters, |_| false)
}

/// Serves the next one, and charges it.
fn serve(queue: &mut Queue, counters: &Counters, now_ms: u64) -> Option<usize> {
    let place = next(queue, counters, now_ms)?;
    assert!(queue.serve(&place, now_ms, LONG_MS, counters));
    counters.charge(place.tenant, 100, 0.0, now_ms);
    Some(place.tenant)
}

#[test]
fn priority_then_fair_shares_then_deadline() {
    let counters = shares(&[(1.0, 5), (1.0, 0), (3.0, 0)]);
    let mut queue = Queue::default();
    for _ in 0..8 {
        for tenant in 0..3 {
            queue.push(waiting(tenant, 0, 500), &counters);
        }
    }
    let order: Vec<_> = (0..16).filter_map(|_| serve(&mut queue, &counters, 10)).collect();
    assert!(!order.contains(&0), "{order:?}");
    let of = |tenant| order.iter().take(8).filter(|&&it| it == tenant).count();
    assert_eq!((of(1), of(2)), (2, 6), "by weight: {order:?}");
    assert_eq!(serve(&mut queue, &counters, 10), Some(0));

    let late = queue.push(waiting(1, 0, 900), &counters);
    let soon = queue.push(waiting(1, 5, 300), &counters);
    assert_eq!(next(&queue, &counters, 10), Some(soon));
    assert_eq!(queue.remove(&soon), Some(waiting(1, 5, 300)));
    assert_eq!(queue.remove(&soon), None);
    assert_eq!(next(&queue, &counters, 10), Some(late));
}

#[test]
fn who_comes_back_has_saved_nothing() {
    let counters = shares(&[(1.0, 0), (1.0, 0)]);
    let mut queue = Queue::default();
    counters.charge(0, 100_000, 0.0, 0);
    for _ in 0..6 {
        queue.push(waiting(0, 0, 500), &counters);
    }
    // Idle until now, and nothing on its counter: still it takes turns.
    for _ in 0..6 {
        queue.push(waiting(1, 0, 500), &counters);
    }
    let order: Vec<_> = (0..6).filter_map(|_| serve(&mut queue, &counters, 1)).collect();
    assert_eq!(order.iter().filter(|&&it| it == 0).count(), 3, "{order:?}");
    // An empty queue remembers where it stood.
    while serve(&mut queue, &counters, 1).is_some() {}
    let third = shares(&[(1.0, 0), (1.0, 0), (1.0, 0)]);
    queue.push(waiting(2, 0, 9), &third);
    assert!(third.virtual_parts(2) > 100_000);
}

#[test]
fn what_has_no_room_holds_up_its_class_only() {
    let counters = shares(&[(1.0, 0)]);
    let mut queue = Queue::default();
    queue.push(waiting(0, 0, 100), &counters);
    let other = queue.push(Waiting { class: 7, ..waiting(0, 0, 200) }, &counters);
    assert_eq!(queue.next(1, LONG_MS, &counters, |class| class == 0), Some(other));
    assert_eq!(queue.next(1, LONG_MS, &counters, |_| true), None);
    assert!(queue.has_class(7) && !queue.has_class(8));
}

#[test]
fn a_flood_makes_room_for_who_has_little() {
    let counters = shares(&[(1.0, 0), (1.0, 0), (1.0, 3)]);
    let mut queue = Queue::default();
    for i in 0..5 {
        queue.push(waiting(0, i, 100 + i), &counters);
    }
    let last = queue.pushed_out_by(1, &counters).expect("the flood's last");
    assert_eq!((last.tenant, last.until_ms), (0, 104));
    assert_eq!(queue.pushed_out_by(0, &counters), None, "it pushes nobody out");
    assert_eq!(queue.pushed_out_by(2, &counters), None, "nor does who comes behind");
    queue.push(waiting(2, 0, 100), &counters);
    for _ in 0..2 {
        queue.push(waiting(1, 0, 100), &counters);
    }
    assert_eq!(queue.pushed_out_by(1, &counters).map(|it| it.tenant), Some(0));
}

#[test]
fn before_a_request_come_as_many_tokens_as_its_share_leaves() {
    let counters = shares(&[(1.0, 0), (1.0, 0), (1.0, 3)]);
    let mut queue = Queue::default();
    for _ in 0..10 {
        queue.push(waiting(0, 0, 100), &counters);
    }
    assert_eq!(queue.tokens_before(0, &counters), 1_000);
    assert_eq!(queue.tokens_before(1, &counters), 0, "it is next");
    assert_eq!(queue.tokens_before(2, &counters), 1_000, "all come before it");
    queue.push(waiting(1, 0, 100), &counters);
    assert_eq!(queue.tokens_before(1, &counters), 200);
}

#[test]
fn the_bounds_are_of_all_cores_together() {
    let total = Total::default();
    assert!(total.enter(60, 3, 100) && !total.enter(60, 3, 100) && total.enter(40, 3, 100));
    assert!(total.enter(u64::MAX, 3, 0) && !total.enter(0, 3, 0));
    for tokens in [60, 40, u64::MAX - 100] {
        total.leave(tokens);
    }
    assert_eq!((total.requests(), total.tokens()), (0, 0));
    assert!(total.enter(500, 3, 100), "what is larger than the bound may wait alone");
    assert!(!total.enter(1, 0, 0), "nobody waits");
}

/// What may happen to a queue.
#[derive(Clone, Debug)]
enum Step {
    Push { tenant: usize, class: u64, tokens: u64, wait_ms: u64 },
    Serve,
    Leave(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..5usize, 0..2u64, 1..4_000u64, 1..3_000u64).prop_map(
            |(tenant, class, tokens, wait_ms)| Step::Push { tenant, class, tokens, wait_ms }
        ),
        3 => Just(Step::Serve),
        1 => any::<usize>().prop_map(Step::Leave),
        2 => (1..400u64).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_request_leaves_once_and_the_sums_are_what_is_there(
        steps in proptest::collection::vec(step(), 1..400),
    ) {
        let counters = shares(&[(1.0, 0), (2.0, 0), (1.0, 1), (0.5, 1), (4.0, 7)]);
        let (mut queue, mut now_ms) = (Queue::default(), 0);
        let mut there: Vec<(Place, Waiting)> = Vec::new();
        for step in steps {
            match step {
                Step::Push { tenant, class, tokens, wait_ms } => {
                    let until_ms = now_ms + wait_ms;
                    let new = Waiting { tenant, class, tokens, since_ms: now_ms, until_ms };
                    there.push((queue.push(new, &counters), new));
                }
                Step::Serve => {
                    let chosen = next(&queue, &counters, now_ms);
                    prop_assert_eq!(chosen.is_none(), there.is_empty());
                    let Some(place) = chosen else { continue };
                    let at = there.iter().position(|(other, _)| *other == place);
                    let (_, gone) = there.remove(at.expect("it waits"));
                    prop_assert!(queue.serve(&place, now_ms, LONG_MS, &counters));
                    prop_assert!(!queue.serve(&place, now_ms, LONG_MS, &counters));
                    counters.charge(gone.tenant, gone.tokens, 0.0, now_ms);
                }
                Step::Leave(which) if !there.is_empty() => {
                    let (place, gone) = there.remove(which % there.len());
                    prop_assert_eq!(queue.remove(&place), Some(gone));
                }
                Step::Leave(_) => {}
                Step::Pass(ms) => now_ms += ms,
            }
            let tokens: u64 = there.iter().map(|(_, waiting)| waiting.tokens).sum();
            prop_assert_eq!((queue.len(), queue.tokens()), (there.len(), tokens));
        }
    }

    /// While both wait, two tenants of one priority get tokens by weight, within what the largest
    /// request weighs (theorem 4.4 of the paper, with a charge at dispatch).
    #[test]
    fn tenants_that_wait_all_the_time_get_their_shares(
        weights in proptest::collection::vec(1u32..8, 2..6),
        sizes in proptest::collection::vec(1u64..4_000, 40),
    ) {
        let all: Vec<_> = weights.iter().map(|&w| (f64::from(w), 0)).collect();
        let counters = shares(&all);
        let mut queue = Queue::default();
        let mut sizes = sizes.into_iter().cycle();
        let mut push = |queue: &mut Queue, tenant, now_ms| {
            let tokens = sizes.next().unwrap_or(1);
            queue.push(Waiting { tokens, ..waiting(tenant, now_ms, now_ms + 500) }, &counters);
        };
        (0..all.len()).for_each(|tenant| (0..2).for_each(|_| push(&mut queue, tenant, 0)));
        let mut had: HashMap<usize, f64> = HashMap::new();
        for now_ms in 0..600 {
            let place = next(&queue, &counters, now_ms).expect("all wait");
            let waiting = queue.remove(&place).expect("it waits");
            counters.charge(place.tenant, waiting.tokens, 0.0, now_ms);
            *had.entry(place.tenant).or_default() += waiting.tokens as f64 / all[place.tenant].0;
            push(&mut queue, place.tenant, now_ms);
        }
        let of = |tenant: usize| had.get(&tenant).copied().unwrap_or(0.0);
        for one in 0..all.len() {
            for other in 0..all.len() {
                let apart = of(one) - of(other);
                prop_assert!(apart <= 4_000.0, "{one} is {apart} ahead of {other}");
            }
        }
    }

    /// However many come of a higher class, what has waited for long is served one time in eight.
    #[test]
    fn nobody_starves(low in 1..40usize, urgent in 1..3usize) {
        let counters = shares(&[(1.0, 0), (1.0, 1), (1.0, 9)]);
        let mut queue = Queue::default();
        for _ in 0..low {
            queue.push(waiting(2, 0, u64::MAX), &counters);
        }
        let mut now_ms = LONG_MS;
        let (mut served, mut left) = (0, low);
        while left > 0 {
            now_ms += 1;
            for i in 0..urgent {
                queue.push(waiting(i % 2, now_ms, u64::MAX), &counters);
            }
            left -= usize::from(serve(&mut queue, &counters, now_ms) == Some(2));
            served += 1;
            prop_assert!(served <= LIFT_EVERY as usize * low, "{left} of {low} left");
        }
    }
}
