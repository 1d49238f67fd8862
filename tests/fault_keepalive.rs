//! vLLM's server closes a connection that has idled for 5 s, without a hint before. Clients that
//! ask again after just that time see nothing of it.
//!
//! `SOAK_S` sets the length; `scripts/soak-keepalive` runs three minutes.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::faults::{at_rest, hello, stream_for_acme};
use common::gateway::{Bed, Settings};
use common::{Client, eventually, find};

/// uvicorn's `timeout_keep_alive`, as vLLM sets it.
const IDLE: Duration = Duration::from_secs(5);
/// Pauses of the clients: around the engine's limit, and around the 4 s after which the gateway
/// drops what idles.
const PAUSES_MS: [u64; 8] = [3_950, 4_050, 4_800, 4_900, 4_980, 5_000, 5_100, 5_200];

/// An engine that closes a connection which idles for [`IDLE`]; `closed` counts them.
fn uvicorn(closed: &'static AtomicUsize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            std::thread::spawn(move || serve(stream, closed));
        }
    });
    addr
}

fn serve(mut stream: TcpStream, closed: &AtomicUsize) {
    let _ = stream.set_read_timeout(Some(IDLE));
    let mut inbox = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return,
            Ok(n) => inbox.extend_from_slice(&piece[..n]),
            Err(_) => {
                closed.fetch_add(1, Relaxed);
                return;
            }
        }
        // Each request here comes in one piece, or ends with its JSON.
        if find(&inbox, b"GET ").is_some() || inbox.ends_with(b"}") {
            let probe = inbox.starts_with(b"GET ");
            inbox.clear();
            let empty = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec();
            if stream.write_all(&if probe { empty } else { hello() }).is_err() {
                return;
            }
        }
    }
}

#[test]
fn pauses_around_the_engines_idle_limit_cost_no_client_anything() {
    static CLOSED: AtomicUsize = AtomicUsize::new(0);
    let seconds = std::env::var("SOAK_S").ok().and_then(|s| s.parse().ok()).unwrap_or(20);
    let until = Instant::now() + Duration::from_secs(seconds);
    let engine = uvicorn(&CLOSED);
    let bed = Bed::unready(&[engine], Settings::default());
    eventually("the engine is up", || bed.metric("expedite_replica_up", "") == 1.0);
    let (addr, answers) = (bed.addr, AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for pause_ms in PAUSES_MS {
            let answers = &answers;
            scope.spawn(move || {
                // The gateway keeps a client's connection for longer than these pauses.
                let mut client = Client::connect(addr);
                while Instant::now() < until {
                    client.send(&stream_for_acme());
                    let answer = client.response();
                    assert_eq!(answer.status(), 200, "{}", answer.text());
                    assert_eq!((answer.words(), answer.complete), ("hello".to_owned(), true));
                    assert_eq!(answer.field("x-gateway-attempts"), Some("1"));
                    answers.fetch_add(1, Relaxed);
                    std::thread::sleep(Duration::from_millis(pause_ms));
                }
            });
        }
    });
    let answers = answers.into_inner();
    let races = bed.metric("expedite_reuse_races_total", "");
    let closed = CLOSED.load(Relaxed);
    println!("{answers} answers, {races} reuse races, {closed} connections closed by the engine");
    at_rest(&bed);
    assert!(bed.records(answers).iter().all(|r| r["outcome"] == "ok"));
    assert_eq!(bed.metric("expedite_retries_total", ""), 0.0);
}
