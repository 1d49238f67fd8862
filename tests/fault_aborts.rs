//! Ten thousand clients that leave at random moments: nothing of them is left, here or there.

mod common;

use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use common::gateway::{AUTH, Bed, Settings};
use common::{Client, eventually};
use expedite::sim::{EngineKind, Fleet, SimConfig};

const ABORTS: u64 = 10_000;
const THREADS: u64 = 16;

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn request(n: u64) -> Vec<u8> {
    let stream = !n.is_multiple_of(3);
    let text = "x".repeat((n % 500) as usize);
    let messages = format!(r#"[{{"role":"user","content":"{text}"}}]"#);
    let body =
        format!(r#"{{"model":"m","stream":{stream},"max_tokens":40,"messages":{messages}}}"#);
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: gw.test\r\n{AUTH}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends a request, or a part of one, waits a moment or reads a little, and leaves.
fn leave(bed: std::net::SocketAddr, n: u64, rng: &mut fastrand::Rng) -> bool {
    let mut client = Client::connect(bed);
    let bytes = request(n);
    let whole = rng.u8(..10) > 0;
    let part = if whole { bytes.len() } else { rng.usize(1..bytes.len()) };
    client.send(&bytes[..part]);
    match rng.u8(..4) {
        0 => {}
        1 => std::thread::sleep(Duration::from_micros(rng.u64(..8_000))),
        _ => {
            let _ = client.0.set_read_timeout(Some(Duration::from_micros(rng.u64(1..9_000))));
            let _ = client.0.read(&mut [0; 700]);
        }
    }
    if rng.bool() {
        let _ = socket2::SockRef::from(&client.0).set_linger(Some(Duration::ZERO));
    }
    whole
}

#[test]
fn nothing_is_left_of_clients_that_left() {
    let pace = Duration::from_millis(2);
    let fleet = Fleet::start(SimConfig {
        ports: vec![0; 3],
        model: "base".into(),
        engine: EngineKind::Fixed { ttft: pace, itl: pace / 4 },
        ..SimConfig::default()
    })
    .expect("fleet");
    let replicas: Vec<_> = (0..3).map(|i| fleet.addr(i)).collect();
    let bed = Bed::unready(&replicas, Settings::default());
    eventually("the fleet is up", || bed.metric("expedite_replica_up", "") == 3.0);
    let files = open_files();
    let (addr, next, whole) = (bed.addr, AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..THREADS {
            let (next, whole) = (&next, &whole);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                loop {
                    let n = next.fetch_add(1, Relaxed);
                    if n >= ABORTS {
                        return;
                    }
                    whole.fetch_add(u64::from(leave(addr, n, &mut rng)), Relaxed);
                }
            });
        }
    });
    let gauges = ["expedite_in_flight", "expedite_in_flight_tokens", "expedite_requests_open"];
    for gauge in gauges {
        eventually(gauge, || bed.metric(gauge, "") == 0.0);
    }
    let clients = || bed.metric("expedite_connections", "side=\"client\"");
    eventually("client connections", || clients() == 0.0);
    let stats = || (0..3).map(|i| fleet.stats(i)).collect::<Vec<_>>();
    eventually("the engines are free", || stats().iter().all(|s| s.running == 0));
    // Idle connections to the replicas end within 4 s; the one that each is probed by stays, and
    // both of its ends are here.
    eventually("files are closed", || open_files() <= files + 4 + 2 * replicas.len());
    let requests: u64 = stats().iter().map(|s| s.requests).sum();
    let aborted: u64 = stats().iter().map(|s| s.aborted).sum();
    let cancelled = bed.metric("expedite_requests_total", "client_cancelled");
    let whole = whole.load(Relaxed);
    println!("{whole} whole requests, {requests} reached an engine, {aborted} were aborted there");
    assert!(aborted > 1_000 && cancelled > 1_000.0, "{aborted} aborted, {cancelled} cancelled");
    assert_eq!(bed.metric("expedite_panics_total", ""), 0.0);
    assert_eq!(bed.metric("expedite_replica_up", ""), 3.0, "leaving clients eject nobody");
}
