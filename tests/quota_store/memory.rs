//! The store in memory against the model that the shared one is held to.
//!
//! Rates are whole tokens a millisecond, so that both count without a rest. Here no lease runs
//! out: who has begun ends it. A clock that is set back is each store's own matter: the one leaves
//! the bucket as it is, the other empty (the module's own tests hold it to that).

use std::sync::Arc;

use expedite::tenants::quota::{Account, Ask, Budget, Limits, Refused};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::quota_model::{self, Model};

const FOR_EVER_MS: u64 = 1 << 50;
const BEGIN_MS: u64 = 1_700_000_000_000;
/// Steps over all histories: `EXPEDITE_QUOTA_STEPS` asks for more.
const STEPS: usize = 40_000;
const STEPS_A_HISTORY: usize = 400;

#[derive(Clone, Debug)]
enum Step {
    Reserve { tokens: u64, sequences: u64 },
    Settle { which: usize, used: u64 },
    Pass { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4_000_u64, 0..4_u64)
            .prop_map(|(tokens, sequences)| Step::Reserve { tokens, sequences }),
        3 => (any::<usize>(), 0..5_000_u64).prop_map(|(which, used)| Step::Settle { which, used }),
        2 => prop_oneof![0..20_u64, 0..3_000_u64].prop_map(|ms| Step::Pass { ms }),
        1 => Just(Step::Pass { ms: 3_600_000 }),
    ]
}

/// Tokens a millisecond (0: not limited), burst, most in flight (0: not limited).
fn limits((rate, burst, most): (u64, u64, u64)) -> Limits {
    Limits {
        tokens_per_second: (rate > 0).then_some(rate * 1_000),
        burst_tokens: (rate > 0).then_some(burst),
        in_flight_max: (most > 0).then_some(most),
    }
}

fn history(shapes: &[(u64, u64, u64)], steps: Vec<Step>) -> Result<(), TestCaseError> {
    let account = |shape| Arc::new(Account::new("t", limits(shape), BEGIN_MS * 1_000_000));
    let accounts: Vec<_> = shapes.iter().copied().map(account).collect();
    let (tenant, key) = (accounts.first().cloned(), accounts.get(1).cloned());
    let budget = Budget { tenant, key, who: None };
    let plain = accounts.iter().map(|account| quota_model::Account::new(account.limits()));
    let mut model = Model { lease_ms: FOR_EVER_MS, accounts: plain.collect() };
    let (mut now_ms, mut open, mut id) = (BEGIN_MS, Vec::new(), 0);
    for step in steps {
        let reply = match step {
            Step::Reserve { tokens, sequences } => {
                id += 1;
                let ask = Ask { id, tokens, sequences };
                let (taken, reply) =
                    (budget.reserve(now_ms * 1_000_000, &ask), model.reserve(now_ms, &ask));
                prop_assert_eq!(taken.is_ok(), reply[0] == 0, "{:?} {:?}", taken, reply);
                match taken {
                    Ok(()) => open.push(ask),
                    Err(Refused::Tokens { retry_after_ms }) if reply[0] == 1 => {
                        prop_assert_eq!(retry_after_ms, reply[2]);
                    }
                    Err(_) => {}
                }
                reply[3..].to_vec()
            }
            Step::Settle { which, used } if !open.is_empty() => {
                let ask = open.swap_remove(which % open.len());
                budget.settle(now_ms * 1_000_000, &ask, used);
                model.settle(now_ms, &ask, used, false)[1..].to_vec()
            }
            Step::Settle { .. } => continue,
            Step::Pass { ms } => {
                now_ms += ms;
                continue;
            }
        };
        for (account, stands) in accounts.iter().zip(reply.chunks(2)) {
            let (counts, standing) = (account.counts(), account.standing(now_ms * 1_000_000));
            prop_assert_eq!(counts.in_flight, stands[1]);
            if let Some(tokens) = standing.tokens {
                prop_assert_eq!((tokens.limit - tokens.remaining) * 1_000, stands[0]);
            }
        }
    }
    for ask in open {
        budget.settle(now_ms * 1_000_000, &ask, 0);
        model.settle(now_ms, &ask, 0, false);
    }
    now_ms += 3_600_000;
    model.reserve(now_ms, &Ask { id: 0, tokens: 0, sequences: 0 });
    prop_assert!(model.accounts.iter().all(quota_model::Account::at_rest));
    let rests = |account: &Arc<Account>| {
        let (counts, standing) = (account.counts(), account.standing(now_ms * 1_000_000));
        let full = standing.tokens.is_none_or(|tokens| tokens.remaining == tokens.limit);
        full && (counts.in_flight, counts.reserved_tokens) == (0, 0)
    };
    prop_assert!(accounts.iter().all(rests));
    Ok(())
}

#[test]
fn the_memory_decides_as_the_model_of_the_store() {
    let asked = std::env::var("EXPEDITE_QUOTA_STEPS").ok().and_then(|n| n.parse().ok());
    let cases = (asked.unwrap_or(STEPS) / STEPS_A_HISTORY) as u32;
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let shapes = prop_oneof![
        Just(vec![(1, 10_000, 0)]),
        Just(vec![(2, 3_000, 5)]),
        Just(vec![(0, 0, 4)]),
        Just(vec![(5, 20_000, 12), (1, 6_000, 6)]),
        Just(vec![(1, 5_000, 0), (0, 0, 3)]),
    ];
    let histories = (shapes, proptest::collection::vec(step(), STEPS_A_HISTORY));
    let ran = TestRunner::new(config).run(&histories, |(shapes, steps)| history(&shapes, steps));
    ran.expect("every decision is the model's");
}
