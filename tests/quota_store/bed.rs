//! A gateway's way to a store, without the gateway: one core, its client, and what it does.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use expedite::config::{Config, Quota};
use expedite::net::{self, DriverChoice};
use expedite::tenants::quota::store::{Client, Denied, Hold, Shared, Trouble, Who, find_servers};
use expedite::tenants::quota::{Account, Ask, Limits};

use super::redis_server::Redis;

/// The shortest that a configuration may ask for.
pub(crate) const LEASE_MS: u64 = 1_000;

pub(crate) fn quota(url: &str, more: &str) -> Quota {
    let text = format!(
        "[quota]\nstore = \"{url}\"\nlease_ms = {LEASE_MS}\n{more}\n\
         [[pool]]\nname = \"p\"\nreplicas = [\"http://r.test:1\"]\n"
    );
    Config::from_text("test.toml", &text).expect("configuration").quota
}

/// Tokens a second, burst, in flight; 0: unlimited.
pub(crate) fn who(tenant: &str, rate: u64, burst: u64, most: u64) -> Arc<Who> {
    let limits = Limits {
        tokens_per_second: (rate > 0).then_some(rate),
        burst_tokens: (rate > 0).then_some(burst),
        in_flight_max: (most > 0).then_some(most),
    };
    let account = Arc::new(Account::new(tenant, limits, 0));
    Arc::new(Who::new(tenant, &[account]).expect("limits"))
}

/// A gateway of one core.
pub(crate) struct Gateway {
    pub(crate) shared: Arc<Shared>,
    pub(crate) client: Client,
    finding: Arc<AtomicBool>,
}

impl Gateway {
    pub(crate) fn errors(&self, trouble: Trouble) -> u64 {
        self.shared.stats()[0].errors(trouble).get()
    }

    pub(crate) fn up(&self) -> bool {
        self.shared.stats()[0].up.get() == 1
    }

    /// Decisions by the store, ahead of it, and without it.
    pub(crate) fn decisions(&self) -> [u64; 3] {
        let stats = &self.shared.stats()[0];
        [&stats.asked, &stats.ahead, &stats.alone].map(|counter| counter.get())
    }

    pub(crate) async fn takes(&self, who: &Arc<Who>, tokens: u64) -> Result<Hold, Denied> {
        let ask = Ask { id: fastrand::u128(..), tokens, sequences: 1 };
        self.client.reserve(who, ask).await
    }

    /// Waits until it is so.
    pub(crate) async fn until(&self, what: &str, mut so: impl AsyncFnMut() -> bool) {
        for _ in 0..2_000 {
            if so().await {
                return;
            }
            net::sleep(Duration::from_millis(10)).await;
        }
        panic!("never so: {what}");
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.finding.store(false, Relaxed);
    }
}

/// Runs a gateway on this thread until `work` is done; it then ends as one that is killed.
pub(crate) fn gateway<T>(quota: &Quota, work: impl AsyncFnOnce(Rc<Gateway>) -> T) -> T {
    let say = Box::new(|_, line: &str| eprintln!("{line}"));
    let shared = Arc::new(Shared::new(quota, 1, say).expect("store").expect("a store"));
    let finding = Arc::new(AtomicBool::new(true));
    let (looking, of) = (Arc::clone(&finding), Arc::clone(&shared));
    let finder = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("runtime").block_on(async {
            let over = async {
                while looking.load(Relaxed) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::select! {
                () = find_servers(&of) => {}
                () = over => {}
            }
        });
    });
    let (driver, _) = DriverChoice::Auto.resolve().expect("driver");
    let done = net::run(driver, async {
        let client = Client::start(Arc::clone(&shared), 0);
        let gateway = Rc::new(Gateway { shared, client, finding });
        let done = work(Rc::clone(&gateway)).await;
        drop(gateway);
        done
    });
    finder.join().expect("thread");
    done.expect("runtime")
}

/// What the store itself knows of a tenant's account: thousandths spent, sequences in flight,
/// members of its leases.
pub(crate) fn account(redis: &Redis, tenant: &str) -> (u64, u64, Vec<String>) {
    let mut connection = redis::Client::open(redis.url())
        .and_then(|client| client.get_connection())
        .expect("a connection");
    let key = format!("expedite:{{{tenant}}}:{tenant}");
    let bucket: (Option<u64>, Option<u64>) = redis::cmd("HMGET")
        .arg(format!("{key}:bucket"))
        .arg(&["spent", "flight"])
        .query(&mut connection)
        .expect("a bucket");
    let leases = redis::cmd("ZRANGE").arg(format!("{key}:leases")).arg(0).arg(-1).to_owned();
    let leases: Vec<String> = leases.query(&mut connection).expect("leases");
    (bucket.0.unwrap_or(0), bucket.1.unwrap_or(0), leases)
}

/// A command of a test's own.
pub(crate) fn command(redis: &Redis, words: &[&str]) -> redis::Value {
    let (name, arguments) = words.split_first().expect("a command");
    let mut connection = redis::Client::open(redis.url())
        .and_then(|client| client.get_connection())
        .expect("a connection");
    redis::cmd(name).arg(arguments).query(&mut connection).expect("an answer")
}
