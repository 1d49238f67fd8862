//! What is in flight is counted exactly: through aborts, deaths, rejections and health checks, and
//! from the moment of the dispatch.

mod common;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::engine::{After, Engine, STREAM_HEAD, chunk, event, json};
use common::faults::{at_rest, chat_for_acme, hello, stream_for_acme, whole_stream};
use common::gateway::{AUTH, Bed};
use common::{Client, ask, eventually, post_with};

/// A door that engines wait at until it is opened.
#[derive(Clone, Default)]
struct Door(Arc<(Mutex<bool>, Condvar)>);

impl Door {
    fn open(&self) {
        *self.0.0.lock().expect("lock") = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let closed = self.0.0.lock().expect("lock");
        let patience = Duration::from_secs(30);
        let opened = self.0.1.wait_timeout_while(closed, patience, |open| !*open);
        assert!(!opened.expect("lock").1.timed_out(), "the door was never opened");
    }
}

/// An answer that is whole at once.
fn answer() -> Vec<u8> {
    let usage = r#"{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}"#;
    let choice = r#"{"index":0,"message":{"content":"x"},"finish_reason":"length"}"#;
    json(200, &format!("{{\"choices\":[{choice}],\"usage\":{usage}}}"))
}

/// Engines that begin a stream and go on when the door opens.
fn holding(n: usize, door: &Door) -> Vec<Engine> {
    let engine = |_| {
        let door = door.clone();
        Engine::start(move |_, wire| {
            wire.write_all(STREAM_HEAD)?;
            wire.write_all(&chunk(&event("x")))?;
            door.wait();
            let rest = whole_stream(&[]);
            wire.write_all(&rest[STREAM_HEAD.len()..]).map(|()| After::Keep)
        })
    };
    (0..n).map(engine).collect()
}

fn addrs(engines: &[Engine]) -> Vec<SocketAddr> {
    engines.iter().map(|engine| engine.addr).collect()
}

const GAUGES: [&str; 3] =
    ["expedite_in_flight", "expedite_in_flight_tokens", "expedite_pending_prefill_tokens"];

/// Nothing is in flight, anywhere, by any count.
fn nothing_in_flight(bed: &Bed) {
    at_rest(bed);
    for name in GAUGES {
        eventually(name, || bed.metric(name, "") == 0.0);
    }
}

/// T26: clients that leave while they wait for an answer, and a replica that dies under its
/// requests and comes back: every count is zero at idle, and the newcomer is not flooded.
#[test]
fn counts_are_zero_after_aborts_and_a_restart() {
    let slow = |_: &common::engine::Received, wire: &mut std::net::TcpStream| {
        std::thread::sleep(Duration::from_millis(20));
        wire.write_all(&hello()).map(|()| After::Keep)
    };
    let mut engines: Vec<_> = (0..3).map(|_| Engine::start(slow)).collect();
    let bed = Bed::of(&addrs(&engines));
    let addr = bed.addr;
    let visit = |n: usize| {
        let mut client = Client::connect(addr);
        client.send(&stream_for_acme());
        if n.is_multiple_of(10) {
            std::thread::sleep(Duration::from_millis(5));
            return; // It leaves before the answer's head.
        }
        client.response();
    };
    let crowd = |from: usize| {
        std::thread::scope(|scope| {
            for worker in 0..8 {
                scope.spawn(move || (0..25).for_each(|n| visit(from + worker * 25 + n)));
            }
        });
    };
    crowd(0);
    // One dies, and its port with it; the requests that it had go elsewhere.
    let addr = engines.remove(0).addr;
    crowd(200);
    nothing_in_flight(&bed);
    let reborn = Engine::start_on(addr, slow);
    eventually("it is asked again", || {
        visit(1);
        reborn.count() > 0
    });
    let before: Vec<_> = engines.iter().map(Engine::count).collect();
    let first = reborn.count();
    crowd(400);
    let others: usize = engines.iter().zip(before).map(|(e, n)| e.count() - n).sum();
    let newcomer = reborn.count() - first;
    assert!(newcomer <= others, "{newcomer} to the newcomer, {others} to the two others");
    nothing_in_flight(&bed);
}

/// T27: health checks leave the load alone.
#[test]
fn a_health_check_does_not_reset_the_load() {
    let door = Door::default();
    let engines = holding(1, &door);
    let bed = Bed::of(&addrs(&engines));
    let mut clients: Vec<_> = (0..50).map(|_| Client::connect(bed.addr)).collect();
    clients.iter_mut().for_each(|client| client.send(&stream_for_acme()));
    eventually("all run", || engines[0].count() == 50);
    eventually("all have a first token", || {
        bed.metric("expedite_pending_prefill_tokens", "") == 0.0
    });
    // Probes come once a second.
    for _ in 0..16 {
        assert_eq!(bed.metric("expedite_in_flight", ""), 50.0);
        std::thread::sleep(Duration::from_millis(200));
    }
    door.open();
    clients.iter_mut().for_each(|client| drop(client.response()));
    drop(clients);
    nothing_in_flight(&bed);
}

/// T32: long prompts with short answers count from the dispatch: 8 of 32 to each of four.
#[test]
fn prefills_count_before_they_answer() {
    let door = Door::default();
    let engines: Vec<_> = (0..4)
        .map(|_| {
            let door = door.clone();
            Engine::start(move |_, wire| {
                door.wait();
                wire.write_all(&answer()).map(|()| After::Keep)
            })
        })
        .collect();
    let bed = Bed::of(&addrs(&engines));
    let mut clients: Vec<_> = (0..32)
        .map(|n| {
            // 32 thousand tokens at four bytes each, no two alike.
            let content = format!("{n:04} ").repeat(26_000);
            let messages = format!(r#"[{{"role":"user","content":"{content}"}}]"#);
            let body = format!(r#"{{"model":"m","max_tokens":1,"messages":{messages}}}"#);
            let mut client = Client::connect(bed.addr);
            client.send(&post_with("/v1/chat/completions", AUTH, &body));
            client
        })
        .collect();
    eventually("all are dispatched", || engines.iter().map(Engine::count).sum::<usize>() == 32);
    let counts: Vec<_> = engines.iter().map(Engine::count).collect();
    assert_eq!(counts, [8; 4]);
    door.open();
    clients.iter_mut().for_each(|client| assert_eq!(client.response().status(), 200));
    drop(clients);
    nothing_in_flight(&bed);
}

/// T35: a request that outlives what a counter might, with rejections beside it: no count goes
/// below zero, and the spread stays even.
#[test]
fn rejections_beside_a_long_request_bend_nothing() {
    let door = Door::default();
    let long = door.clone();
    let answered = move |received: &common::engine::Received, wire: &mut std::net::TcpStream| {
        if received.body.ends_with(b",\"max_tokens\":7}") {
            long.wait();
        }
        std::thread::sleep(Duration::from_millis(10));
        wire.write_all(&answer()).map(|()| After::Keep)
    };
    let engines = [Engine::start(answered.clone()), Engine::start(answered)];
    let bed = Bed::of(&[engines[0].addr, engines[1].addr]);
    let mut held = Client::connect(bed.addr);
    held.send(&chat_for_acme(",\"max_tokens\":7"));
    eventually("the long one runs", || engines.iter().map(Engine::count).sum::<usize>() == 1);
    let counted = |most: f64| {
        for name in GAUGES {
            let value = bed.metric(name, "");
            assert!((0.0..1e6).contains(&value), "{name} {value}");
        }
        let running = bed.metric("expedite_in_flight", "");
        assert!((1.0..=most).contains(&running), "{running} in flight");
    };
    let unknown = post_with("/v1/chat/completions", AUTH, r#"{"model":"no","messages":[{}]}"#);
    let addr = bed.addr;
    let visit = |_| {
        assert_eq!(ask(addr, &chat_for_acme(",\"max_tokens\":-1")).status(), 400);
        assert_eq!(ask(addr, &unknown).status(), 404);
        assert_eq!(ask(addr, &chat_for_acme(",\"max_tokens\":1")).status(), 200);
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..8).map(|_| scope.spawn(|| (0..50).for_each(visit))).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            counted(9.0);
        }
    });
    let counts = [engines[0].count(), engines[1].count()];
    assert_eq!(counts[0] + counts[1], 401);
    // The one with the long request gets a little less.
    assert!(counts.iter().all(|count| (100..=300).contains(count)), "{counts:?}");
    door.open();
    assert_eq!(held.response().status(), 200);
    drop(held);
    nothing_in_flight(&bed);
}
