//! What a decision of the store in memory costs: a reservation and its settlement, alone on a core
//! and with every core at one account.
//!
//! `cargo bench --bench quota`. What was spent is checked; a wrong sum ends the bench.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use expedite::tenants::quota::{Account, Ask, Budget, Limits};

/// Reservations that are timed, by thread.
const ROUNDS: u64 = 2_000_000;

/// A decision costs no more, or the bench fails.
const NS_MAX: f64 = 1_000.0;

const LIMITS: Limits = Limits {
    tokens_per_second: Some(1_000_000_000),
    burst_tokens: Some(1_000_000_000_000),
    in_flight_max: Some(1_000_000),
};

fn account(name: &str, limits: Limits) -> Option<Arc<Account>> {
    Some(Arc::new(Account::new(name, limits, 0)))
}

/// Reserves and settles; the mean in ns of a reservation, of a settlement, of a refusal.
fn rounds(budget: &Budget, clock: &Instant) -> [f64; 3] {
    let ask = Ask { id: 7, tokens: 4_096, sequences: 1 };
    let large = Ask { sequences: 1_000_000, ..ask };
    let mut ns = [0; 3];
    let mut took = |of: usize, since: Instant| ns[of] += since.elapsed().as_nanos();
    const BATCH: u64 = 1_000;
    for _ in 0..ROUNDS / BATCH {
        let now_ns = clock.elapsed().as_nanos() as u64;
        let at = Instant::now();
        (0..BATCH).for_each(|_| {
            assert!(black_box(budget).reserve(now_ns, black_box(&ask)).is_ok(), "room for all");
        });
        took(0, at);
        let at = Instant::now();
        (0..BATCH).for_each(|_| {
            assert!(black_box(budget).reserve(now_ns, black_box(&large)).is_err(), "too wide");
        });
        took(2, at);
        let at = Instant::now();
        (0..BATCH).for_each(|_| black_box(budget).settle(now_ns, black_box(&ask), 1_000));
        took(1, at);
    }
    ns.map(|ns| ns as f64 / ROUNDS as f64)
}

fn main() {
    let clock = Instant::now();
    let budgets = [
        ("tenant", Budget { tenant: account("t", LIMITS), ..Budget::default() }),
        (
            "tenant and key",
            Budget { tenant: account("t", LIMITS), key: account("t/k", LIMITS), who: None },
        ),
    ];
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "{:<16} {:>7} {:>10} {:>10} {:>10}",
        "ns a decision", "threads", "reserve", "settle", "refuse"
    );
    for (name, budget) in &budgets {
        for threads in [1, cores] {
            let before = budget.tenant.as_ref().map_or(0, |a| a.counts().spent_tokens);
            let times: Vec<[f64; 3]> = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..threads).map(|_| scope.spawn(|| rounds(budget, &clock))).collect();
                threads.into_iter().map(|t| t.join().expect("a thread's rounds")).collect()
            });
            let mean = |of: usize| times.iter().map(|t| t[of]).sum::<f64>() / threads as f64;
            let [reserve, settle, refuse] = [0, 1, 2].map(mean);
            println!("{name:<16} {threads:>7} {reserve:>10.1} {settle:>10.1} {refuse:>10.1}");
            let accounts = budget.tenant.iter().chain(&budget.key);
            for counts in accounts.map(|account| account.counts()) {
                assert_eq!((counts.in_flight, counts.reserved_tokens), (0, 0), "at rest");
                let spent = counts.spent_tokens;
                assert!(spent - before >= ROUNDS * 1_000 * threads as u64, "every token is paid");
            }
            if threads == 1 {
                assert!(reserve < NS_MAX && settle < NS_MAX && refuse < NS_MAX, "within 1 us");
            }
        }
    }
}
