//! A client that leaves, in each phase of its request and by end or reset: its replica's
//! connection is closed, the books are closed, nothing stays in flight.
//!
//! How long that takes is printed, not asserted: `scripts/measure-cancel` runs this optimised.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::engine::{After, Engine, STREAM_HEAD, event};
use common::faults::{at_rest, chat_for_acme, cut_stream, deaf, role_event, stream_for_acme};
use common::gateway::{AUTH, Bed, Settings};
use common::{Client, eventually, find};

/// Clients that leave in each phase.
const LEAVERS: usize = 60;
/// Longer than any closing takes: a connection that is still open then hangs.
const HUNG: Duration = Duration::from_secs(10);

fn leave(client: Client, by_reset: bool) -> Instant {
    if by_reset {
        socket2::SockRef::from(&client.0).set_linger(Some(Duration::ZERO)).expect("linger");
    }
    let left = Instant::now();
    drop(client);
    left
}

/// Median and 99th percentile of what was measured, for the record.
fn print(phase: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |share: usize| took[(took.len() * share / 100).min(took.len() - 1)];
    println!("{phase:12} {} left, p50 {:?}, p99 {:?}", took.len(), at(50), at(99));
}

/// An engine that answers with `bytes`, then waits for the gateway to close and tells when.
fn telling(bytes: Vec<u8>, closed: Sender<Instant>) -> Engine {
    let closed = Mutex::new(closed);
    Engine::start(move |_, wire| {
        wire.write_all(&bytes)?;
        // All that can come on this connection is its end.
        let end = wire.read(&mut [0]);
        assert!(!matches!(end, Ok(1)), "more than the request was sent");
        let _ = closed.lock().expect("lock").send(Instant::now());
        Ok(After::Close)
    })
}

/// Lets clients leave once `seen` of the answer has reached them, or the engine has the request.
fn leaves(phase: &str, request: &[u8], answer: Vec<u8>, seen: Option<&[u8]>) {
    let (tell, closed) = channel();
    let engine = telling(answer, tell);
    let bed = Bed::of(&[engine.addr]);
    let mut took = Vec::new();
    for n in 1..=LEAVERS {
        let mut client = Client::connect(bed.addr);
        client.send(request);
        eventually("the engine has it", || engine.count() == n);
        let mut bytes = Vec::new();
        while seen.is_some_and(|seen| find(&bytes, seen).is_none()) {
            bytes.extend(client.read_some(1));
        }
        let left = leave(client, n % 2 == 0);
        let closed = closed.recv_timeout(HUNG).expect("the replica's connection is closed");
        took.push(closed.saturating_duration_since(left));
    }
    print(phase, took);
    is_over(&bed, phase, LEAVERS);
    assert_eq!(engine.count(), LEAVERS, "nothing was asked again for a client that has gone");
}

/// Every leaver is counted in its phase and recorded, and nothing is left of any.
fn is_over(bed: &Bed, phase: &str, leavers: usize) {
    at_rest(bed);
    let label = format!("phase=\"{phase}\"");
    assert_eq!(bed.metric("expedite_cancel_seconds_count", &label), leavers as f64);
    assert_eq!(bed.metric("expedite_cancel_seconds_count", ""), leavers as f64);
    for record in bed.records(leavers) {
        let of = (&record["outcome"], &record["attempts"], &record["status"]);
        let status = if phase == "stream" { 200 } else { 499 };
        assert_eq!(of, (&"client_cancelled".into(), &1.into(), &status.into()), "{record}");
    }
    assert_eq!(bed.metric("expedite_replica_up", ""), 1.0, "leaving clients eject nobody");
}

#[test]
fn before_the_head() {
    leaves("first_token", &stream_for_acme(), Vec::new(), None);
}

#[test]
fn before_the_first_event() {
    leaves("first_token", &stream_for_acme(), STREAM_HEAD.to_vec(), None);
}

#[test]
fn in_mid_stream() {
    let begun = cut_stream(&[role_event(), event("one ")]);
    leaves("stream", &stream_for_acme(), begun, Some(b"one "));
}

#[test]
fn before_a_whole_answer() {
    leaves("answer", &chat_for_acme(""), Vec::new(), None);
}

#[test]
fn in_a_whole_answer() {
    let half = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{";
    leaves("answer", &chat_for_acme(""), half.to_vec(), None);
}

/// Reads nothing of what is sent until `read_on`, then tells when the end was there.
fn clogged(read_on: Receiver<()>, ended: Sender<Instant>) -> (SocketAddr, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("address");
    let (tell, begun) = channel();
    let read_on = Arc::new(Mutex::new(read_on));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let (tell, ended, read_on) = (tell.clone(), ended.clone(), Arc::clone(&read_on));
            std::thread::spawn(move || {
                let mut first = [0; 14];
                if stream.read_exact(&mut first).is_err() {
                    return;
                }
                // Probes find it well: to be read, a large body may take longer than three of them.
                if first.starts_with(b"GET ") || &first == b"POST /tokenize" {
                    let _ = stream.read(&mut [0; 4096]);
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
                    return;
                }
                let _ = tell.send(());
                let _ = read_on.lock().expect("lock").recv();
                while stream.read(&mut [0; 65_536]).is_ok_and(|n| n > 0) {}
                let _ = ended.send(Instant::now());
            });
        }
    });
    (addr, begun)
}

#[test]
fn while_its_body_is_sent_up() {
    let (read_on, wait) = channel();
    let (tell, ended) = channel();
    let (addr, begun) = clogged(wait, tell);
    let bed = Bed::unready(&[addr], Settings::default());
    // More than the sockets between hold, so that the gateway is still sending.
    let request = chat_for_acme(&format!(",\"user\":\"{}\"", "x".repeat(7 << 20)));
    let leavers = 6;
    for n in 0..leavers {
        let mut client = Client::connect(bed.addr);
        client.send(&request);
        begun.recv_timeout(HUNG).expect("the engine is being sent to");
        leave(client, n % 2 == 0);
        eventually("its entry is gone", || bed.metric("expedite_in_flight", "") == 0.0);
        read_on.send(()).expect("engine");
        ended.recv_timeout(HUNG).expect("the replica's connection is closed");
    }
    is_over(&bed, "answer", leavers);
}

#[test]
fn while_its_body_comes_up() {
    let engine = Engine::always(Vec::new());
    let bed = Bed::of(&[engine.addr]);
    let whole = chat_for_acme("");
    let head = |framing: &str| {
        format!("POST /v1/chat/completions HTTP/1.1\r\nHost: gw.test\r\n{AUTH}{framing}\r\n\r\n")
    };
    let chunked = head("Transfer-Encoding: chunked") + "20\r\n{\"model\":";
    let halves = [&whole[..whole.len() - 5], chunked.as_bytes()];
    for (n, half) in halves.into_iter().cycle().take(8).enumerate() {
        let mut client = Client::connect(bed.addr);
        client.send(half);
        eventually("it has begun", || bed.metric("expedite_requests_open", "") == 1.0);
        leave(client, n % 4 < 2);
        eventually("it is over", || bed.metric("expedite_requests_open", "") == 0.0);
    }
    at_rest(&bed);
    for record in bed.records(8) {
        let of = (&record["outcome"], &record["attempts"], &record["status"]);
        assert_eq!(of, (&"client_cancelled".into(), &0.into(), &499.into()), "{record}");
    }
    assert_eq!(engine.count(), 0);
}

#[test]
fn while_connecting() {
    let (_listener, _held, addr) = deaf();
    let more = "[timeouts]\nconnect_ms = 60000\n".to_owned();
    let bed = Bed::unready(&[addr], Settings { more, ..Settings::default() });
    let leavers = 6;
    for n in 0..leavers {
        let mut client = Client::connect(bed.addr);
        client.send(&stream_for_acme());
        eventually("it has begun", || bed.metric("expedite_in_flight", "") == 1.0);
        leave(client, n % 2 == 0);
        eventually("its entry is gone", || bed.metric("expedite_in_flight", "") == 0.0);
    }
    is_over(&bed, "connect", leavers);
}
