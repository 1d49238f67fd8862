//! Gateways that share one store know each other's load and prefixes, forget who is silent, and go
//! on alone while the store is gone or somebody writes nonsense to it.

mod common;
#[path = "support/redis.rs"]
mod redis_server;

use std::sync::Arc;
use std::thread::JoinHandle;

use common::eventually;
use expedite::config::Config;
use expedite::prompt::blocks::BlockHash;
use expedite::replicas::share::{
    self, BATCH_BYTES_MAX, Batch, Encoder, Head, LaneName, Lost, Share, Stats,
};
use expedite::replicas::{Dispatch, Files, Fleet, InFlight, Lane, Pool, Sums};
use expedite::runtime::clock;
use expedite::runtime::log::{Level, Log};
use redis_server::Redis;
use tokio::sync::oneshot;

/// What a gateway knows, and the task that shares it.
struct Side {
    fleet: Arc<Fleet>,
    stats: Arc<Stats>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Side {
    /// A gateway with these replicas that is connected.
    fn start(redis: &Redis, replicas: &[&str]) -> Side {
        let side = Side::unready(&redis.url(), replicas);
        eventually("it shares", || side.stats.up.get() == 1);
        side
    }

    fn unready(url: &str, replicas: &[&str]) -> Side {
        let listed = |id: &&str| format!("{{ url = \"http://{id}.test:1\", id = \"{id}\" }}");
        let listed: Vec<_> = replicas.iter().map(listed).collect();
        let text = format!("[[pool]]\nname = \"p\"\nreplicas = [{}]\n", listed.join(", "));
        let config = Config::from_text("test.toml", &text).expect("configuration");
        let fleet = Arc::new(Fleet::new(&config, 1, &Files::default(), 0));
        let stats = Arc::<Stats>::default();
        let share = Share::new(url, 50, Arc::clone(&stats)).expect("share");
        let (stop, stopped) = oneshot::channel();
        let published = Arc::clone(&fleet);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("runtime").block_on(async {
                let log = Log::new(Level::Off, false);
                tokio::select! {
                    () = share::run(share, &log, || Arc::clone(&published)) => {}
                    _ = stopped => {}
                }
            });
        });
        Side { fleet, stats, stop: Some(stop), thread: Some(thread) }
    }

    fn pool(&self) -> &Pool {
        &self.fleet.pools[0]
    }

    fn lane(&self, id: &str) -> &Lane {
        self.pool().lanes.iter().find(|lane| &*lane.replica.id == id).expect("lane")
    }

    /// A request of `prompt_tokens` goes to a replica.
    fn sends(&self, id: &str, prompt_tokens: u64, chain: &[BlockHash]) -> InFlight {
        let lane = self.lane(id);
        self.pool().state.outbox.dispatched(lane.slot, None, chain);
        let prefill_ms = prompt_tokens as f64 / 10.0;
        let entry = Dispatch {
            prompt_tokens,
            output_tokens: 100,
            sequences: 1,
            prefill_ms,
            ..Dispatch::default()
        };
        lane.ledger.enter(0, &entry, clock::now_ms())
    }

    /// All that it believes to be in flight at a replica.
    fn sees(&self, id: &str) -> Sums {
        let (lane, now_ms) = (self.lane(id), clock::now_ms());
        let mut sums = lane.ledger.own(now_ms);
        sums.add(&lane.ledger.others(now_ms).unwrap_or_default());
        sums
    }

    /// Leading blocks of `chain` that it believes a replica to hold.
    fn depth(&self, id: &str, chain: &[BlockHash]) -> u32 {
        let mut depths = vec![0; self.pool().lanes.len()];
        self.pool().state.index.depths(chain, &mut depths);
        depths[usize::from(self.lane(id).slot)]
    }

    fn lost(&self, why: Lost) -> u64 {
        self.stats.lost(why).get()
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn chain(seed: u64, blocks: usize) -> Vec<BlockHash> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..blocks).map(|_| rng.u128(..)).collect()
}

/// Publishes as anybody could.
fn publish(redis: &Redis, bytes: &[u8]) {
    let mut connection = redis::Client::open(redis.url())
        .and_then(|client| client.get_connection())
        .expect("connection");
    redis::cmd("PUBLISH")
        .arg("expedite:share:0")
        .arg(bytes)
        .exec(&mut connection)
        .expect("published");
}

/// vllm-project/smg#1863 (T55): forty long streams of one gateway, and another that is fresh.
#[test]
fn what_one_gateway_sends_the_others_know() {
    let redis = Redis::start();
    // Their lists differ in order and by a replica, as while a change spreads.
    let a = Side::start(&redis, &["r1", "r2", "r3"]);
    let b = Side::start(&redis, &["r3", "r2", "r1"]);
    let prompt = chain(1, 115);
    let mut streams: Vec<_> = (0..40).map(|_| a.sends("r1", 1_800, &prompt)).collect();
    let _unknown = a.sends("r2", 50, &chain(2, 3));
    eventually("b knows of the requests", || b.sees("r1").requests == 40);
    let seen = b.sees("r1");
    assert_eq!((seen.pending_requests, seen.pending_tokens), (40, 72_000));
    assert!(seen.prefill_ms > 3_000.0, "{}", seen.prefill_ms);
    assert_eq!((b.sees("r3").requests, b.lane("r1").ledger.requests()), (0, 0));
    eventually("b knows of the prefixes", || b.depth("r2", &chain(2, 3)) == 3);
    assert_eq!((b.depth("r1", &prompt), b.depth("r2", &prompt)), (115, 0));
    // Each counts its own once, although its batches come back to it.
    assert_eq!(a.sees("r1").requests, 40);
    streams.iter_mut().take(10).for_each(|held| held.first_token(0));
    eventually("decodes are told from prefills", || b.sees("r1").decodes == 10);
    assert_eq!(b.sees("r1").pending_requests, 30);
    streams.clear();
    eventually("and the end", || b.sees("r1").requests == 0);
    assert_eq!((b.sees("r1").tokens, b.sees("r1").decode_kv_tokens), (0, 0));
    assert_eq!((a.stats.peers.get(), b.stats.peers.get()), (1, 1));
}

#[test]
fn who_falls_silent_counts_no_more() {
    let redis = Redis::start();
    let [a, b, c] = [(); 3].map(|()| Side::start(&redis, &["r1"]));
    let mut streams: Vec<_> = [&a, &b].iter().map(|side| side.sends("r1", 100, &[])).collect();
    eventually("c knows of both", || c.sees("r1").requests == 2 && c.stats.peers.get() == 2);
    drop(a);
    eventually("only b is left", || c.sees("r1").requests == 1 && c.stats.peers.get() == 1);
    // Another comes under the number that is free now.
    let d = Side::start(&redis, &["r1"]);
    streams.push(d.sends("r1", 100, &[]));
    eventually("d is known", || c.sees("r1").requests == 2 && b.sees("r1").requests == 2);
}

#[test]
fn without_the_store_each_goes_on_alone_and_returns() {
    let mut redis = Redis::start();
    let a = Side::start(&redis, &["r1"]);
    let b = Side::start(&redis, &["r1"]);
    let _stream = a.sends("r1", 100, &[]);
    eventually("b knows", || b.sees("r1").requests == 1);
    redis.kill();
    eventually("b is alone", || b.stats.up.get() == 0 && b.sees("r1").requests == 0);
    assert_eq!(a.sees("r1").requests, 1, "a's own view goes on");
    let _more = a.sends("r1", 100, &[]);
    redis.restart();
    eventually("both are back", || b.sees("r1").requests == 2 && a.stats.peers.get() == 1);
    let prompt = chain(3, 20);
    let _last = a.sends("r1", 100, &prompt);
    eventually("and share prefixes", || b.depth("r1", &prompt) == 20);
}

#[test]
fn a_store_that_accepts_and_does_nothing_is_no_store() {
    let redis = Redis::start();
    let a = Side::start(&redis, &["r1"]);
    let b = Side::start(&redis, &["r1"]);
    let _stream = a.sends("r1", 100, &[]);
    eventually("b knows", || b.sees("r1").requests == 1);
    redis.freeze();
    eventually("it is noticed", || a.stats.up.get() == 0 && b.stats.up.get() == 0);
    eventually("and the others' work forgotten", || b.sees("r1").requests == 0);
    redis.thaw();
    eventually("both are back", || b.sees("r1").requests == 1 && a.stats.up.get() == 1);
}

#[test]
fn a_store_that_comes_later_is_found() {
    let mut redis = Redis::start();
    redis.kill();
    let a = Side::unready(&redis.url(), &["r1"]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!((a.stats.up.get(), a.stats.sent.get()), (0, 0));
    redis.restart();
    eventually("it shares", || a.stats.up.get() == 1);
}

fn batch(number: u64, fill: impl FnOnce(&mut Encoder, &LaneName)) -> Vec<u8> {
    let mut encoder = Encoder::default();
    fill(&mut encoder, &LaneName { replica: "r1".into(), rank: None });
    let pool = "p".into();
    let head = Head { gateway: 99, number, sent_us: 0, block_tokens: 0, pool };
    encoder.finish(&head).expect("batch")
}

#[test]
fn nonsense_on_the_channel_is_counted_and_harms_nothing() {
    let redis = Redis::start();
    let a = Side::start(&redis, &["r1"]);
    let good = batch(5, |batch, r1| {
        batch.sums(0, r1, &Sums { requests: 3, ..Sums::default() });
        assert!(batch.dispatched(0, r1, 0, &chain(4, 9)));
    });
    for bytes in [&b""[..], b"xps", b"xps\x02 a newer one", &good[1..], &good[..good.len() - 1]] {
        publish(&redis, bytes);
    }
    publish(&redis, &vec![0xff; BATCH_BYTES_MAX + 1]);
    eventually("all are refused", || a.lost(Lost::Refused) == 6);
    publish(&redis, &good);
    eventually("what is sound is heard", || a.sees("r1").requests == 3);
    eventually("and entered", || a.depth("r1", &chain(4, 9)) == 9);
    // Overtaken ones, then ones of other hashes, another pool, a replica that nobody has.
    publish(&redis, &good);
    publish(&redis, &batch(4, |_, _| ()));
    eventually("old ones are not", || a.lost(Lost::Unheard) == 2);
    let mut blocks = Batch::decode(good.clone()).expect("batch").head;
    (blocks.number, blocks.block_tokens) = (6, 16);
    let mut other = Encoder::default();
    let nobody = LaneName { replica: "r9".into(), rank: Some(1) };
    assert!(other.dispatched(0, &nobody, 0, &chain(5, 9)));
    publish(&redis, &other.finish(&blocks).expect("batch"));
    eventually("hashes of another kind are not", || a.lost(Lost::OtherBlocks) == 1);
    let mut unknown = Encoder::default();
    assert!(unknown.dispatched(0, &nobody, 7, &chain(5, 9)));
    blocks = Head { number: 7, block_tokens: 0, ..blocks };
    publish(&redis, &unknown.finish(&blocks).expect("batch"));
    publish(
        &redis,
        &Encoder::default().finish(&Head { pool: "q".into(), number: 8, ..blocks }).expect("batch"),
    );
    eventually("all were heard", || a.stats.received.get() == 4);
    assert_eq!((a.stats.up.get(), a.depth("r1", &chain(5, 9))), (1, 0));
}

#[test]
fn a_flood_of_dispatches_leaves_the_task_alive() {
    let redis = Redis::start();
    let a = Side::start(&redis, &["r1"]);
    let flood: Vec<_> = (1..=20)
        .map(|number| {
            batch(number, |batch, r1| {
                for part in chain(number, 60_000).chunks(600) {
                    assert!(batch.dispatched(0, r1, 0, part));
                }
            })
        })
        .collect();
    let client = redis::Client::open(redis.url()).expect("client");
    let mut connection = client.get_connection().expect("connection");
    let mut pipe = redis::pipe();
    for bytes in &flood {
        pipe.cmd("PUBLISH").arg("expedite:share:0").arg(bytes).ignore();
    }
    pipe.exec(&mut connection).expect("published");
    eventually("all is heard", || a.stats.received.get() == 20);
    let fresh = chain(1_000, 30);
    publish(&redis, &batch(21, |batch, r1| assert!(batch.dispatched(0, r1, 0, &fresh))));
    eventually("it goes on", || a.depth("r1", &fresh) == 30);
    assert_eq!(a.stats.up.get(), 1);
}
