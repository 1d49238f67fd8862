//! What a decision costs a core when gateways share a store: 5,000 a second, from what was taken
//! ahead, and each by its own round trip.
//!
//! `cargo bench --bench quota_store`; needs `redis-server`. The same turns without decisions are
//! taken off. What was spent is checked; a wrong sum ends the bench.

#[path = "../tests/support/redis.rs"]
mod redis_server;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expedite::config::{OnStoreDown, Quota, QuotaStore, Secret};
use expedite::net::{self, DriverChoice};
use expedite::tenants::quota::store::{Client, Hold, Shared, Who};
use expedite::tenants::quota::{Account, Ask, Limits};
use redis_server::Redis;

/// One turn a millisecond, for so many.
const TURNS: u64 = 10_000;
const WARM_TURNS: u64 = 1_000;
const DECISIONS_A_TURN: u64 = 5;
const TOKENS: u64 = 4_096;
const USED: u64 = 1_000;
/// A busy tenant's decision may cost so much, and all of a second's so much of a core.
const US_MAX: f64 = 3.0;
const SHARE_MAX: f64 = 0.03;

/// CPU time of this thread in ns: other work on the machine does not count.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a time")
}

fn who(tenant: &str, in_flight_max: u64) -> Arc<Who> {
    let limits = Limits {
        tokens_per_second: Some(1_000_000_000),
        burst_tokens: Some(1_000_000_000_000),
        in_flight_max: Some(in_flight_max),
    };
    Arc::new(Who::new(tenant, &[Arc::new(Account::new(tenant, limits, 0))]).expect("limits"))
}

/// CPU time of the turns, and how long each decision took.
async fn turns(
    client: &Client,
    who: &Arc<Who>,
    (turns, a_turn, held_turns): (u64, u64, usize),
) -> (u64, Vec<u64>) {
    let mut held: VecDeque<Vec<Hold>> = VecDeque::new();
    let mut took = Vec::with_capacity((turns * a_turn) as usize);
    let begun = cpu_ns();
    for _ in 0..turns {
        net::sleep(Duration::from_millis(1)).await;
        let mut holds = Vec::new();
        for _ in 0..a_turn {
            let ask = Ask { id: fastrand::u128(..), tokens: TOKENS, sequences: 1 };
            let at = Instant::now();
            holds.push(client.reserve(who, ask).await.expect("room"));
            took.push(at.elapsed().as_nanos() as u64);
        }
        held.push_back(holds);
        if held.len() > held_turns {
            let ended = held.pop_front().into_iter().flatten();
            ended.for_each(|hold| client.settle(hold, USED));
        }
    }
    held.into_iter().flatten().for_each(|hold| client.settle(hold, USED));
    (cpu_ns() - begun, took)
}

fn main() {
    let redis = Redis::start();
    let quota = Quota {
        store: QuotaStore::Redis(Secret::new(redis.url())),
        on_store_down: OnStoreDown::Refuse,
        timeout_ms: 1_000,
        lease_ms: 10_000,
        output_tokens_default: 4_096,
    };
    let shared = Shared::new(&quota, 1, Box::new(|_, line| eprintln!("{line}")));
    let shared = Arc::new(shared.expect("store").expect("a store"));
    let (driver, _) = DriverChoice::Auto.resolve().expect("driver");
    println!(
        "{:<12} {:>8} {:>8} {:>10} {:>10} {:>10} {:>8}",
        "decisions", "ahead", "store", "us a piece", "p50 us", "p99 us", "% core"
    );
    net::run(driver, async {
        let client = Client::start(Arc::clone(&shared), 0);
        // Held for 20 turns of all that it may have; and for none of 30, too few to split.
        for (name, tenant, held) in
            [("ahead", who("busy", 100_000), 20), ("one by one", who("few", 30), 0)]
        {
            turns(&client, &tenant, (WARM_TURNS, DECISIONS_A_TURN, held)).await;
            let (idle_ns, _) = turns(&client, &tenant, (TURNS, 0, held)).await;
            turns(&client, &tenant, (WARM_TURNS, DECISIONS_A_TURN, held)).await;
            let stats = &shared.stats()[0];
            let before = [stats.ahead.get(), stats.asked.get()];
            let (ns, mut took) = turns(&client, &tenant, (TURNS, DECISIONS_A_TURN, held)).await;
            let [ahead, asked] = [stats.ahead.get() - before[0], stats.asked.get() - before[1]];
            took.sort_unstable();
            let us = |part: usize| took[took.len() * part / 100] as f64 / 1e3;
            let ns = ns.saturating_sub(idle_ns) as f64;
            let (each_us, share) = (ns / took.len() as f64 / 1e3, ns / (TURNS as f64 * 1e6));
            println!(
                "{name:<12} {ahead:>8} {asked:>8} {each_us:>10.2} {:>10.1} {:>10.1} {:>8.2}",
                us(50),
                us(99),
                share * 100.0
            );
            assert_eq!(ahead + asked, TURNS * DECISIONS_A_TURN, "every decision is counted");
            if name == "ahead" {
                assert!(ahead > asked * 20, "nearly all are from what was taken ahead");
                assert!(each_us <= US_MAX && share <= SHARE_MAX, "within the bar");
            }
        }
        client.close(5_000).await;
    })
    .expect("runtime");
}
