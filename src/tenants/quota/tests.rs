//! Histories against a plain model, and threads that spend from one account at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;
/// Histories begin here, so that a clock can be set back.
const BEGIN: u64 = 100 * HOUR;

fn ask(tokens: u64, sequences: u64) -> Ask {
    Ask { id: 0, tokens, sequences }
}

fn limits(rate: u64, burst: u64, in_flight_max: Option<u64>) -> Limits {
    Limits { tokens_per_second: Some(rate), burst_tokens: Some(burst), in_flight_max }
}

fn left(account: &Account, now_ns: u64) -> u64 {
    account.standing(now_ns).tokens.expect("limited").remaining
}

/// A step of a history.
#[derive(Clone, Debug)]
enum Step {
    Reserve {
        tokens: u64,
        sequences: u64,
    },
    /// Ends one of those under way, by index; `used` is a share of what it reserved, in percent.
    Settle {
        which: prop::sample::Index,
        used: u64,
    },
    Wait {
        ns: u64,
    },
    /// The clock jumps.
    Jump {
        ns: i64,
    },
}

fn reserve() -> impl Strategy<Value = Step> {
    (0u64..150, 1u64..4).prop_map(|(tokens, sequences)| Step::Reserve { tokens, sequences })
}

fn settle() -> impl Strategy<Value = Step> {
    (any::<prop::sample::Index>(), 0u64..130).prop_map(|(which, used)| Step::Settle { which, used })
}

fn wait() -> impl Strategy<Value = Step> {
    prop_oneof![0..SECOND / 10, 0..10 * SECOND].prop_map(|ns| Step::Wait { ns })
}

fn jump() -> impl Strategy<Value = Step> {
    let hour = HOUR as i64;
    (-hour..=hour).prop_map(|ns| Step::Jump { ns })
}

/// The bucket as one would write it down: a level, filled before each look at it.
struct Model {
    rate: u64,
    burst: i128,
    level: i128,
    given: i128,
    in_flight: u64,
    in_flight_max: u64,
}

impl Model {
    fn fill(&mut self, now_ns: u64) {
        let given = i128::from(now_ns - BEGIN) * i128::from(self.rate) / i128::from(SECOND);
        self.level = (self.level + given - self.given).min(self.burst);
        self.given = given;
    }

    fn reserve(&mut self, ask: &Ask) -> bool {
        let passes = self.in_flight + ask.sequences <= self.in_flight_max
            && i128::from(ask.tokens) <= self.level;
        if passes {
            self.in_flight += ask.sequences;
            self.level -= i128::from(ask.tokens);
        }
        passes
    }

    fn settle(&mut self, ask: &Ask, used: u64) {
        self.in_flight -= ask.sequences;
        let rest = i128::from(ask.tokens) - i128::from(used);
        self.level = (self.level + rest).clamp(0, self.burst);
    }
}

/// Ends everything: nothing is in flight, nothing is reserved.
fn end(account: &Account, now_ns: u64, live: Vec<Ask>) {
    for ask in live {
        account.settle(now_ns, ask.tokens, ask.tokens, ask.sequences);
    }
    let counts = account.counts();
    assert_eq!((counts.in_flight, counts.reserved_tokens), (0, 0));
}

fn tokens_of(ask: &Ask, percent: u64) -> u64 {
    ask.tokens * percent / 100
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// While the clock only goes on, every decision and every level are the model's.
    #[test]
    fn an_account_is_the_plain_model(
        (rate, burst, most) in (1u64..500, 1u64..200, 1u64..6),
        steps in vec(prop_oneof![3 => reserve(), 2 => settle(), 2 => wait()], 1..200),
    ) {
        let account = Account::new("t", limits(rate, burst, Some(most)), BEGIN);
        let level = i128::from(burst);
        let (in_flight, given) = (0, 0);
        let mut model =
            Model { rate, burst: level, level, given, in_flight, in_flight_max: most };
        let (mut now, mut live) = (BEGIN, Vec::new());
        for step in steps {
            model.fill(now);
            match step {
                Step::Reserve { tokens, sequences } => {
                    let ask = ask(tokens, sequences);
                    let reserved = account.reserve(now, &ask).is_ok();
                    prop_assert_eq!(reserved, model.reserve(&ask));
                    if reserved {
                        live.push(ask);
                    }
                }
                Step::Settle { which, used } if !live.is_empty() => {
                    let ask = live.swap_remove(which.index(live.len()));
                    let used = tokens_of(&ask, used);
                    account.settle(now, ask.tokens, used, ask.sequences);
                    model.settle(&ask, used);
                }
                Step::Wait { ns } => now += ns,
                _ => {}
            }
            model.fill(now);
            prop_assert_eq!(i128::from(left(&account, now)), model.level);
            prop_assert_eq!(account.counts().in_flight, model.in_flight);
            let reserved: u64 = live.iter().map(|ask| ask.tokens).sum();
            prop_assert_eq!(account.counts().reserved_tokens, reserved);
        }
        end(&account, now, live);
    }

    /// Whatever the clock does: the level stays within its bounds, what it shows is what can be
    /// spent, a refusal's time is enough, and no jump freezes the bucket for its own length.
    #[test]
    fn no_jump_of_the_clock_breaks_an_account(
        (rate, burst) in (1u64..500, 1u64..200),
        steps in vec(prop_oneof![4 => reserve(), 2 => settle(), 2 => wait(), 1 => jump()], 1..200),
    ) {
        let account = Account::new("t", limits(rate, burst, None), BEGIN);
        let (mut now, mut live) = (BEGIN, Vec::new());
        for step in steps {
            let before = left(&account, now);
            prop_assert!(before <= burst);
            match step {
                Step::Reserve { tokens, sequences } => {
                    let ask = ask(tokens, sequences);
                    let reserved = account.reserve(now, &ask);
                    prop_assert_eq!(reserved.is_ok(), tokens <= before);
                    match reserved {
                        Ok(()) => {
                            prop_assert_eq!(left(&account, now), before - tokens);
                            live.push(ask);
                        }
                        Err(Refused::Tokens { retry_after_ms }) => {
                            let longest_ms = (burst * 1000).div_ceil(rate) + 61_000;
                            prop_assert!((1..=longest_ms).contains(&retry_after_ms));
                            let later = now + retry_after_ms * 1_000_000;
                            prop_assert!(left(&account, later) >= tokens);
                        }
                        Err(refused) => {
                            prop_assert_eq!(refused, Refused::TooLarge { burst_tokens: burst });
                        }
                    }
                }
                Step::Settle { which, used } if !live.is_empty() => {
                    let ask = live.swap_remove(which.index(live.len()));
                    let used = tokens_of(&ask, used);
                    account.settle(now, ask.tokens, used, ask.sequences);
                    prop_assert!(left(&account, now) <= before + ask.tokens.saturating_sub(used));
                }
                Step::Wait { ns } => now += ns,
                Step::Jump { ns } => now = now.saturating_add_signed(ns).max(HOUR),
                Step::Settle { .. } => {}
            }
            let in_flight: u64 = live.iter().map(|ask| ask.sequences).sum();
            prop_assert_eq!(account.counts().in_flight, in_flight);
        }
        end(&account, now, live);
    }

    /// A reload changes what may be spent from then on, and forgives nothing.
    #[test]
    fn what_is_spent_stays_spent_when_limits_change(
        (rate, burst, spent) in (1u64..500, 1u64..10_000, 0u64..10_000),
        (rate_then, burst_then, waited) in (1u64..500, 1u64..10_000, 0..20 * SECOND),
    ) {
        let spent = spent.min(burst);
        let old = Account::new("t", limits(rate, burst, None), BEGIN);
        let asked = ask(spent, 1);
        prop_assert_eq!(old.reserve(BEGIN, &asked), Ok(()));
        let new = old.renewed(limits(rate_then, burst_then, None), BEGIN);
        prop_assert_eq!(left(&new, BEGIN), burst_then.saturating_sub(spent));
        let filled = u128::from(waited) * u128::from(rate_then) / u128::from(SECOND);
        let owed = u128::from(spent.min(burst_then)).saturating_sub(filled);
        prop_assert_eq!(u128::from(left(&new, BEGIN + waited)), u128::from(burst_then) - owed);
        // Who reserved under the old limits settles in the same books.
        old.settle(BEGIN + waited, spent, 0, 1);
        prop_assert_eq!(new.counts(), Counts::default());
    }
}

#[test]
fn a_new_account_is_full_and_refuses_what_it_can_never_hold() {
    let account = Account::new("t", limits(10, 100, Some(3)), BEGIN);
    assert_eq!(account.reserve(BEGIN, &ask(101, 1)), Err(Refused::TooLarge { burst_tokens: 100 }));
    assert_eq!(account.reserve(BEGIN, &ask(1, 4)), Err(Refused::TooWide { in_flight_max: 3 }));
    assert_eq!(account.reserve(BEGIN, &ask(100, 3)), Ok(()));
    let refused = account.reserve(BEGIN, &ask(1, 1));
    assert!(matches!(refused, Err(Refused::Concurrency { .. })), "{refused:?}");
    account.settle(BEGIN, 100, 100, 3);
    let refused = account.reserve(BEGIN, &ask(25, 1));
    assert_eq!(refused, Err(Refused::Tokens { retry_after_ms: 2500 }));
    let standing = account.standing(BEGIN + SECOND);
    let tokens = TokenStanding { limit: 100, remaining: 10, reset_ms: 9000 };
    assert_eq!(standing.tokens, Some(tokens));
    assert_eq!(standing.sequences, Some(SequenceStanding { limit: 3, remaining: 3 }));
    let counts = account.counts();
    assert_eq!((counts.rejected_size, counts.rejected_concurrency), (2, 1));
    assert_eq!((counts.rejected_tokens, counts.spent_tokens), (1, 100));
}

#[test]
fn a_burst_is_ten_seconds_unless_it_is_set_and_without_a_rate_nothing_is_limited() {
    let rate = Limits { tokens_per_second: Some(7), ..Limits::default() };
    assert_eq!(rate.bucket(), Some((7, 70)));
    let account = Account::new("t", Limits::default(), BEGIN);
    assert!(!account.limits().any());
    assert_eq!(account.reserve(BEGIN, &ask(u64::MAX / 2, 1 << 40)), Ok(()));
    assert_eq!(account.standing(BEGIN), Standing::default());
}

#[test]
fn the_time_to_wait_follows_how_long_answers_take() {
    let account = Account::new("t", limits(1, 1_000, Some(4)), BEGIN);
    let wait = |sequences| match account.reserve(BEGIN, &ask(0, sequences)) {
        Err(Refused::Concurrency { retry_after_ms }) => retry_after_ms,
        other => panic!("{other:?}"),
    };
    assert_eq!(account.reserve(BEGIN, &ask(0, 4)), Ok(()));
    assert_eq!(wait(4), 1000, "nothing is known yet: a second");
    (0..100).for_each(|_| account.answered(8_000));
    // Of four that take 8 s each, one ends every 2 s.
    let (one, three) = (wait(1), wait(3));
    assert!((1_900..=2_000).contains(&one) && (5_700..=6_000).contains(&three), "{one} {three}");
}

#[test]
fn a_refused_key_gives_its_tenant_everything_back() {
    let tenant = Arc::new(Account::new("t", limits(100, 1_000, Some(10)), BEGIN));
    let key = Arc::new(Account::new("t/k", limits(1, 50, Some(5)), BEGIN));
    let budget =
        Budget { tenant: Some(Arc::clone(&tenant)), key: Some(Arc::clone(&key)), who: None };
    assert_eq!(budget.burst_tokens(), Some(50));
    assert_eq!(budget.reserve(BEGIN, &ask(40, 1)), Ok(()));
    let refused = budget.reserve(BEGIN, &ask(20, 1));
    assert_eq!(refused, Err(Refused::Tokens { retry_after_ms: 10_000 }));
    assert_eq!((left(&tenant, BEGIN), left(&key, BEGIN)), (960, 10));
    assert_eq!((tenant.counts().in_flight, tenant.counts().reserved_tokens), (1, 40));
    let standing = budget.standing(BEGIN);
    assert_eq!(standing.tokens.map(|t| (t.limit, t.remaining)), Some((50, 10)));
    budget.settle(BEGIN, &ask(40, 1), 0);
    assert_eq!((left(&tenant, BEGIN), left(&key, BEGIN)), (1_000, 50));
    // The tenant is empty for a second, the key for longer: told is the longer.
    tenant.settle(BEGIN, 0, 1_000, 0);
    key.settle(BEGIN, 0, 50, 0);
    let refused = budget.reserve(BEGIN, &ask(30, 1));
    assert_eq!(refused, Err(Refused::Tokens { retry_after_ms: 30_000 }));
}

/// The last token and the last sequence are given to one thread.
#[test]
fn threads_together_spend_exactly_what_there_is() {
    const THREADS: u64 = 8;
    let account = Account::new("t", limits(1, 1_000, Some(90)), BEGIN);
    let (started, ended) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    if account.reserve(BEGIN, &ask(7, 1)).is_ok() {
                        started.fetch_add(1, Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(started.load(Relaxed), 90, "in flight ends it: 142 would have had the tokens");
    for _ in 0..90 {
        account.settle(BEGIN, 7, 0, 1);
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (account, ended) = (&account, &ended);
            scope.spawn(move || {
                for round in 0..20_000 {
                    let tokens = (thread + round) % 13;
                    if account.reserve(BEGIN, &ask(tokens, 1)).is_ok() {
                        let used = u64::from(round % 100 == 0).min(tokens);
                        account.settle(BEGIN, tokens, used, 1);
                        ended.fetch_add(used, Relaxed);
                    }
                }
            });
        }
    });
    let counts = account.counts();
    assert_eq!((counts.in_flight, counts.reserved_tokens), (0, 0));
    assert_eq!(counts.spent_tokens, ended.load(Relaxed));
    assert_eq!(left(&account, BEGIN), 1_000 - ended.load(Relaxed));
}
