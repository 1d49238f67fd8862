//! Four gateways over one fleet: load stays even under bursts that none of them sees coming, caches
//! are used as one gateway would use them, and the store's end costs no client anything.

mod common;
#[path = "support/redis.rs"]
mod redis_server;

use std::net::SocketAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use common::faults::{at_rest, states};
use common::gateway::{AUTH, Bed, Settings};
use common::{ask, eventually, post_with};
use expedite::engine::EngineParams;
use expedite::sim::{EngineKind, Fleet, SimConfig, SimHandle};
use redis_server::Redis;

const REPLICAS: usize = 8;

/// A fleet, and gateways over it that know each other, if there is a store.
struct Scene {
    fleet: SimHandle,
    gateways: Vec<Bed>,
}

impl Scene {
    fn new(gateways: usize, redis: Option<&Redis>, engine: EngineParams) -> Scene {
        let engine = EngineKind::Modelled(engine);
        let (model, ports) = ("base".to_owned(), vec![0; REPLICAS]);
        let fleet = Fleet::start(SimConfig { model, ports, engine, ..SimConfig::default() });
        let fleet = fleet.expect("fleet");
        let addrs: Vec<_> = (0..REPLICAS).map(|i| fleet.addr(i)).collect();
        let gateway = |_| {
            let share = redis.map_or("none".to_owned(), Redis::url);
            let more = format!("[routing]\nshare = \"{share}\"\n");
            Bed::unready(&addrs, Settings { more, ..Settings::default() })
        };
        let scene = Scene { fleet, gateways: (0..gateways).map(gateway).collect() };
        let others = if redis.is_some() { gateways - 1 } else { 0 };
        for bed in &scene.gateways {
            eventually("all replicas are up", || states(bed).iter().all(|state| state == "up"));
            eventually("they know each other", || {
                bed.metric("expedite_share_peers", "") == others as f64
            });
        }
        scene
    }

    fn clients(&self) -> Clients {
        Clients(self.gateways.iter().map(|bed| bed.addr).collect())
    }

    /// Requests that each replica has had.
    fn requests(&self) -> Vec<u64> {
        (0..REPLICAS).map(|i| self.fleet.stats(i).requests).collect()
    }

    /// Share of prompt tokens that the replicas had in their caches.
    fn hit_ratio(&self) -> f64 {
        let stats: Vec<_> = (0..REPLICAS).map(|i| self.fleet.stats(i)).collect();
        let cached: u64 = stats.iter().map(|s| s.cached_tokens).sum();
        cached as f64 / stats.iter().map(|s| s.prompt_tokens).sum::<u64>() as f64
    }
}

/// Who asks; each request at one of these gateways.
#[derive(Clone)]
struct Clients(Vec<SocketAddr>);

impl Clients {
    /// Asks with `threads` clients until `requests` are served, each by a gateway at random, with
    /// one of `prefixes` beginnings of 4 KiB. Every one of them is answered.
    fn serve(&self, threads: usize, requests: usize, prefixes: usize) {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for seed in 0..threads {
                let next = &next;
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed as u64);
                    loop {
                        let n = next.fetch_add(1, SeqCst);
                        if n >= requests {
                            return;
                        }
                        let prompt =
                            text(rng.u64(..prefixes as u64), 4096) + &text(n as u64 + 9_999, 400);
                        self.ask_for(rng.usize(..), &prompt);
                    }
                });
            }
        });
    }

    fn ask_for(&self, gateway: usize, prompt: &str) {
        let json = format!(
            "{{\"model\":\"m\",\"max_tokens\":5,\"messages\":[{{\"role\":\"user\",\
             \"content\":\"{prompt}\"}}]}}"
        );
        let response =
            ask(self.0[gateway % self.0.len()], &post_with("/v1/chat/completions", AUTH, &json));
        assert_eq!(response.status(), 200, "{}", response.text());
    }
}

/// Text that no other seed begins with.
fn text(seed: u64, bytes: usize) -> String {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| if rng.u8(..6) == 0 { ' ' } else { rng.lowercase() }).collect()
}

/// ai-dynamo/dynamo#589 (T52): bursts at all gateways at once, faster than they can tell each
/// other.
#[test]
fn bursts_at_all_gateways_at_once_spread_over_the_fleet() {
    const BURSTS: usize = 10;
    const BURST: usize = 16;
    let redis = Redis::start();
    // Slow enough that what this machine adds does not look like slow replicas.
    let mut engine = EngineParams::a100_8b();
    engine.step.dense_slowdown = 4.0;
    let scene = Scene::new(4, Some(&redis), engine);
    let mut uneven = Vec::new();
    let start = scene.requests();
    for burst in 0..BURSTS {
        let before = scene.requests();
        let clients = scene.clients();
        let together = Barrier::new(4 * BURST);
        std::thread::scope(|scope| {
            for n in 0..4 * BURST {
                let (clients, together) = (&clients, &together);
                scope.spawn(move || {
                    let prompt = text((burst * 1_000 + n) as u64, 2_000);
                    together.wait();
                    clients.ask_for(n, &prompt);
                });
            }
        });
        let had = scene.requests();
        let most = had.iter().zip(&before).map(|(a, b)| a - b).max().expect("replicas");
        uneven.push(most as f64 * REPLICAS as f64 / (4 * BURST) as f64);
    }
    let mean = uneven.iter().sum::<f64>() / BURSTS as f64;
    println!("max/mean of each burst {uneven:.2?}, mean {mean:.3}");
    assert!(mean <= 1.3, "{uneven:?}");
    let all: Vec<_> = scene.requests().iter().zip(&start).map(|(a, b)| a - b).collect();
    let most = *all.iter().max().expect("replicas") as f64;
    let whole = most * REPLICAS as f64 / (4 * BURST * BURSTS) as f64;
    println!("max/mean of the whole {whole:.3}: {all:?}");
    assert!(whole <= 1.3, "{all:?}");
    scene.gateways.iter().for_each(at_rest);
}

#[test]
fn four_gateways_use_the_caches_as_one_does() {
    let hits = |gateways, redis: Option<&Redis>| {
        let scene = Scene::new(gateways, redis, EngineParams::a100_8b());
        scene.clients().serve(24, 600, 40);
        scene.gateways.iter().for_each(at_rest);
        scene.hit_ratio()
    };
    let redis = Redis::start();
    let (one, alone, four) = (hits(1, None), hits(4, None), hits(4, Some(&redis)));
    println!("hit ratio: one gateway {one:.3}, four alone {alone:.3}, four that share {four:.3}");
    assert!(one > 0.5, "prompts are mostly shared: {one}");
    assert!(four >= 0.95 * one, "one {one}, four {four}");
    assert!(four > alone + 0.02, "sharing shows: alone {alone}, shared {four}");
}

#[test]
fn the_end_of_the_store_costs_no_client_anything() {
    let mut redis = Redis::start();
    let scene = Scene::new(4, Some(&redis), EngineParams::a100_8b());
    let up = |bed: &Bed| bed.metric("expedite_share_up", "");
    let clients = scene.clients();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| clients.serve(6, 600, 40));
        eventually("a third is served", || scene.requests().iter().sum::<u64>() > 200);
        redis.kill();
        asking.join().expect("clients");
    });
    eventually("it is noticed", || scene.gateways.iter().all(|bed| up(bed) == 0.0));
    clients.serve(6, 50, 40);
    redis.restart();
    eventually("all share again", || scene.gateways.iter().all(|bed| up(bed) == 1.0));
    clients.serve(6, 50, 40);
    scene.gateways.iter().for_each(at_rest);
}
