//! Gateways that share a budget: to the last token, with one that dies, and from what they have
//! taken ahead.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;

use expedite::net;
use expedite::tenants::quota::store::{Denied, Hold, Who};
use expedite::tenants::quota::{Ask, Refused};

use super::bed::{Gateway, account, command, gateway, quota, who};
use super::redis_server::Redis;

const PATIENT: &str = "timeout_ms = 10000";

/// So many requests of `tokens` at once, and what became of them.
async fn at_once(
    gateway: &Rc<Gateway>,
    who: &Arc<Who>,
    count: usize,
    tokens: u64,
) -> Vec<Result<Hold, Denied>> {
    let done = Rc::new(RefCell::new(Vec::new()));
    for _ in 0..count {
        let (gateway, who, done) = (Rc::clone(gateway), Arc::clone(who), Rc::clone(&done));
        net::spawn(async move {
            let became = gateway.takes(&who, tokens).await;
            done.borrow_mut().push(became);
        });
    }
    gateway.until("all are decided", async || done.borrow().len() == count).await;
    done.take()
}

#[test]
fn a_budget_for_ten_starts_ten_whoever_asks() {
    let redis = Redis::start();
    let started = std::thread::scope(|scope| {
        let gateways: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    gateway(&quota(&redis.url(), PATIENT), async |gateway| {
                        let who = who("acme", 1, 1_000, 0);
                        let became = at_once(&gateway, &who, 250, 100).await;
                        assert!(became.iter().all(|one| match one {
                            Ok(_) => true,
                            // The next token comes each second, so that the wait is known.
                            Err(Denied::Refused(0, Refused::Tokens { retry_after_ms })) =>
                                (1..=100_000).contains(retry_after_ms),
                            Err(_) => false,
                        }));
                        became.into_iter().filter(Result::is_ok).count()
                    })
                })
            })
            .collect();
        gateways.into_iter().map(|gateway| gateway.join().expect("gateway")).sum::<usize>()
    });
    assert_eq!(started, 10);
}

#[test]
fn who_dies_frees_its_sequences_and_nobody_else_s() {
    let redis = Redis::start();
    let (held_tx, held) = mpsc::channel();
    let (die, dying) = mpsc::channel::<()>();
    let settings = quota(&redis.url(), PATIENT);
    std::thread::scope(|scope| {
        let dies = &settings;
        let other = scope.spawn(move || {
            gateway(dies, async |gateway| {
                let who = who("acme", 100, 1_000_000, 60);
                let mut taken = Vec::new();
                for _ in 0..10 {
                    let ask = Ask { id: fastrand::u128(..), tokens: 5_000, sequences: 5 };
                    taken.push(gateway.client.reserve(&who, ask).await.expect("room"));
                }
                held_tx.send(()).expect("test");
                // As long as it lives its leases do, though nothing is said about them.
                gateway.until("it is to die", async || dying.try_recv().is_ok()).await;
                std::mem::forget(taken);
            });
        });
        gateway(&settings, async |gateway| {
            held.recv().expect("gateway");
            let who = who("acme", 100, 1_000_000, 60);
            let mine = at_once(&gateway, &who, 11, 1_000).await;
            let refused = |one: &&Result<_, _>| {
                matches!(one, Err(Denied::Refused(0, Refused::Concurrency { .. })))
            };
            assert_eq!(mine.iter().filter(refused).count(), 1, "60 at most: {mine:?}");
            for _ in 0..30 {
                net::sleep(std::time::Duration::from_millis(100)).await;
                assert_eq!(account(&redis, "acme").1, 60, "three leases' time, renewed");
            }
            die.send(()).expect("gateway");
            gateway
                .until("its sequences are free", async || gateway.takes(&who, 1).await.is_ok())
                .await;
            gateway.until("all of them", async || account(&redis, "acme").1 <= 11).await;
            for hold in mine.into_iter().flatten() {
                gateway.client.settle(hold, 0);
            }
            // What the dead one had reserved stays spent; the bucket gains 100 a second.
            gateway
                .until("ours are settled", async || {
                    let (spent, flight, _) = account(&redis, "acme");
                    flight == 1 && (10_000_000..=50_001_000).contains(&spent)
                })
                .await;
            gateway.client.close(2_000).await;
        });
        other.join().expect("gateway");
    });
}

/// One after the other, each settled at once with half of its tokens used.
async fn in_turn(gateway: &Gateway, who: &Arc<Who>, count: usize, tokens: u64) {
    for _ in 0..count {
        let hold = gateway.takes(who, tokens).await.expect("room");
        gateway.client.settle(hold, tokens / 2);
    }
}

#[test]
fn a_busy_tenant_is_decided_ahead_and_all_of_it_comes_back() {
    let redis = Redis::start();
    gateway(&quota(&redis.url(), PATIENT), async |gateway| {
        let who = who("busy", 1, 10_000_000, 100);
        in_turn(&gateway, &who, 32, 100).await;
        gateway
            .until("something is taken ahead", async || {
                in_turn(&gateway, &who, 1, 100).await;
                gateway.decisions()[1] > 0
            })
            .await;
        let [asked, ahead, _] = gateway.decisions();
        in_turn(&gateway, &who, 2_000, 100).await;
        let [asked, ahead] = [gateway.decisions()[0] - asked, gateway.decisions()[1] - ahead];
        assert!(ahead > asked, "{ahead} ahead, {asked} by the store");
        let done = (gateway.decisions()[0] + gateway.decisions()[1]) * 50;
        gateway.client.close(5_000).await;
        let (spent, flight, _) = account(&redis, "busy");
        assert_eq!(flight, 0);
        // A token a second comes back; a slow machine takes a while for the rest.
        let spent = spent / 1_000;
        assert!((done - 120..=done).contains(&spent), "{spent} of {done}");
    });
}

#[test]
fn a_small_budget_is_not_split() {
    let redis = Redis::start();
    gateway(&quota(&redis.url(), PATIENT), async |gateway| {
        let who = who("small", 1_000_000, 1_000, 4);
        in_turn(&gateway, &who, 200, 10).await;
        let [asked, ahead, alone] = gateway.decisions();
        assert_eq!((asked, ahead, alone), (200, 0, 0));
    });
}

#[test]
fn a_store_that_forgets_the_scripts_is_told_them_again() {
    let redis = Redis::start();
    gateway(&quota(&redis.url(), PATIENT), async |gateway| {
        let who = who("t", 1, 1_000, 0);
        in_turn(&gateway, &who, 2, 10).await;
        command(&redis, &["SCRIPT", "FLUSH"]);
        in_turn(&gateway, &who, 2, 10).await;
        assert_eq!(gateway.decisions()[2], 0, "none without the store");
        gateway.client.close(2_000).await;
        assert_eq!(account(&redis, "t").1, 0);
    });
}
