//! A store that goes, hangs, forgets, refuses, or is none: what callers see of it, and that
//! everything is in its place again afterwards.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use expedite::net;
use expedite::tenants::quota::store::{Denied, Trouble, Who};

use super::bed::{Gateway, account, command, gateway, quota, who};
use super::redis_server::Redis;

const LOCAL: &str = "timeout_ms = 200";
const REFUSE: &str = "timeout_ms = 200\non_store_down = \"refuse\"";

/// Asks until the store decides again.
async fn recovers(gateway: &Gateway, who: &Arc<Who>) {
    gateway
        .until("the store decides", async || {
            let before = gateway.decisions();
            if let Ok(hold) = gateway.takes(who, 0).await {
                gateway.client.settle(hold, 0);
            }
            let [asked, ahead, _] = gateway.decisions();
            gateway.up() && asked + ahead > before[0] + before[1]
        })
        .await;
}

/// Nothing is spent and nothing in flight, sooner or later.
async fn rests(gateway: &Gateway, redis: &Redis, tenant: &str) {
    gateway.until("all is settled", async || account(redis, tenant).1 == 0).await;
}

#[test]
fn a_store_that_hangs_costs_its_limit_once_and_gets_back_what_it_gave_too_late() {
    let redis = Redis::start();
    gateway(&quota(&redis.url(), LOCAL), async |gateway| {
        // Without a refill to speak of, what is spent shows.
        let who = who("t", 1, 1_000_000, 8);
        let before = gateway.takes(&who, 1_000).await.expect("room");
        redis.freeze();
        // Nothing was taken ahead: then there is only our part of the refill, a token a second.
        let refused = gateway.takes(&who, 500_000).await;
        assert!(matches!(refused, Err(Denied::Refused(0, _))), "{refused:?}");
        assert_eq!(gateway.errors(Trouble::Timeout), 1);
        let hold = gateway.takes(&who, 0).await.expect("nothing is needed");
        assert_eq!(gateway.errors(Trouble::Timeout), 1, "who is away is not asked");
        assert!(!gateway.up());
        gateway.client.settle(before, 10);
        redis.thaw();
        recovers(&gateway, &who).await;
        gateway.client.settle(hold, 0);
        rests(&gateway, &redis, "t").await;
        let spent = account(&redis, "t").0;
        assert!(spent <= 10_000, "what nobody waited for is given back: {spent}");
        gateway.client.close(2_000).await;
    });
}

#[test]
fn refusing_says_so_and_ends_with_the_trouble() {
    let mut redis = Redis::start();
    gateway(&quota(&redis.url(), REFUSE), async |gateway| {
        let who = who("t", 1_000, 1_000_000, 8);
        let hold = gateway.takes(&who, 10).await.expect("room");
        redis.kill();
        gateway.until("it is seen", async || !gateway.up()).await;
        assert!(matches!(gateway.takes(&who, 10).await, Err(Denied::Away)));
        redis.restart();
        recovers(&gateway, &who).await;
        gateway.until("the lease is there again", async || account(&redis, "t").1 == 1).await;
        gateway.client.settle(hold, 10);
        rests(&gateway, &redis, "t").await;
    });
}

#[test]
fn while_it_is_gone_a_gateway_spends_its_advance_and_its_part_of_the_refill_and_no_more() {
    let mut redis = Redis::start();
    gateway(&quota(&redis.url(), LOCAL), async |gateway| {
        let who = who("t", 1, 3_200_000, 1_000);
        gateway
            .until("something is taken ahead", async || {
                let hold = gateway.takes(&who, 100).await.expect("room");
                gateway.client.settle(hold, 100);
                gateway.decisions()[1] > 100
            })
            .await;
        redis.kill();
        let mut alone = 0;
        loop {
            let [asked, ..] = gateway.decisions();
            match gateway.takes(&who, 100).await {
                Ok(hold) => {
                    alone += 100;
                    gateway.client.settle(hold, 100);
                }
                Err(Denied::Refused(..)) => break,
                Err(Denied::Away) => panic!("the policy is to go on"),
            }
            assert!(gateway.decisions()[0] <= asked + 1);
        }
        // 1/32 of what is left, and a token for each second that this has taken.
        assert!((100..=100_100).contains(&alone), "{alone}");
        redis.restart();
        recovers(&gateway, &who).await;
        gateway.client.close(2_000).await;
        rests(&gateway, &redis, "t").await;
    });
}

#[test]
fn a_replica_is_no_store_until_it_is_promoted() {
    let (redis, master) = (Redis::start(), Redis::start());
    gateway(&quota(&redis.url(), LOCAL), async |gateway| {
        let who = who("t", 1_000_000, 1_000_000, 8);
        let hold = gateway.takes(&who, 10).await.expect("room");
        command(&redis, &["REPLICAOF", "127.0.0.1", &master.port.to_string()]);
        gateway
            .until("it is seen", async || {
                if let Ok(hold) = gateway.takes(&who, 10).await {
                    gateway.client.settle(hold, 10);
                }
                gateway.errors(Trouble::ReadOnly) > 0
            })
            .await;
        gateway
            .until("we go on alone", async || {
                let hold = gateway.takes(&who, 10).await;
                let passes = hold.is_ok();
                hold.into_iter().for_each(|hold| gateway.client.settle(hold, 10));
                passes && gateway.decisions()[2] > 0
            })
            .await;
        command(&redis, &["REPLICAOF", "NO", "ONE"]);
        recovers(&gateway, &who).await;
        gateway.client.settle(hold, 10);
        rests(&gateway, &redis, "t").await;
    });
}

#[test]
fn a_full_store_keeps_settlements_waiting_and_loses_none() {
    let redis = Redis::start();
    gateway(&quota(&redis.url(), LOCAL), async |gateway| {
        let who = who("t", 1, 1_000_000, 8);
        let hold = gateway.takes(&who, 100_000).await.expect("room");
        command(&redis, &["CONFIG", "SET", "maxmemory", "1"]);
        let refused = gateway.takes(&who, 100_000).await;
        assert!(refused.is_err(), "alone there is nothing: {refused:?}");
        assert!(gateway.errors(Trouble::Full) > 0);
        gateway.client.settle(hold, 1);
        net::sleep(Duration::from_millis(50)).await;
        assert_eq!(account(&redis, "t").1, 1);
        command(&redis, &["CONFIG", "SET", "maxmemory", "0"]);
        recovers(&gateway, &who).await;
        rests(&gateway, &redis, "t").await;
        assert!(account(&redis, "t").0 <= 1_000);
    });
}

#[test]
fn a_key_of_another_kind_is_one_tenant_s_trouble() {
    let redis = Redis::start();
    command(&redis, &["SET", "expedite:{bad}:bad:bucket", "x"]);
    command(&redis, &["SET", "expedite:{worse}:worse:leases", "x"]);
    gateway(&quota(&redis.url(), LOCAL), async |gateway| {
        for tenant in ["bad", "worse"] {
            let _ = gateway.takes(&who(tenant, 1, 1_000, 0), 10).await;
        }
        assert_eq!(gateway.errors(Trouble::WrongType), 2);
        let good = who("good", 1, 1_000, 0);
        let hold = gateway.takes(&good, 10).await.expect("room");
        assert!(gateway.up());
        gateway.client.settle(hold, 10);
        rests(&gateway, &redis, "good").await;
    });
}

#[test]
fn what_answers_nonsense_is_no_store() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("port");
    let port = listener.local_addr().expect("address").port();
    std::thread::spawn(move || {
        for wire in listener.incoming() {
            let _ = wire.expect("connection").write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    gateway(&quota(&format!("redis://127.0.0.1:{port}/0"), REFUSE), async |gateway| {
        let who = who("t", 1, 1_000, 0);
        gateway.until("it is seen", async || gateway.errors(Trouble::Garbage) > 0).await;
        gateway
            .until("nobody passes", async || {
                matches!(gateway.takes(&who, 1).await, Err(Denied::Away))
            })
            .await;
    });
}

#[test]
fn a_connection_that_ends_is_no_trouble() {
    let redis = Redis::start();
    gateway(&quota(&redis.url(), REFUSE), async |gateway| {
        let who = who("t", 1, 1_000_000, 0);
        for _ in 0..20 {
            let hold = gateway.takes(&who, 1).await.expect("room");
            command(&redis, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            gateway.client.settle(hold, 1);
        }
        assert_eq!(gateway.decisions()[2], 0, "none without the store");
        rests(&gateway, &redis, "t").await;
        assert!(account(&redis, "t").0 <= 20_000);
    });
}

#[test]
fn a_password_and_a_database_are_used_and_a_wrong_one_is_said() {
    let redis = Redis::start();
    command(&redis, &["CONFIG", "SET", "requirepass", "se cret"]);
    let url = |password| format!("redis://:{password}@127.0.0.1:{}/3", redis.port);
    gateway(&quota(&url("se%20cret"), REFUSE), async |gateway| {
        let who = who("t", 1, 1_000, 0);
        let hold = gateway.takes(&who, 1).await.expect("room");
        gateway.client.settle(hold, 1);
        gateway.client.close(2_000).await;
    });
    gateway(&quota(&url("other"), REFUSE), async |gateway| {
        gateway.until("it is seen", async || gateway.errors(Trouble::Auth) > 0).await;
    });
}
