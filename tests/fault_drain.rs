//! A drain: not ready at once, idle connections closed, streams finish, then the end; a second
//! signal ends what is left.

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;

use common::engine::{After, DONE, Engine, LAST_CHUNK, chunk, event};
use common::faults::{chat_for_acme, cut_stream, role_event, stream_for_acme};
use common::gateway::Bed;
use common::{Client, Ended, ask, eventually, find, get, post};

/// Longer than any step of a drain but its grace.
const PATIENCE: Duration = Duration::from_secs(20);

/// An engine whose streams stop after their first word until `go` says the rest.
fn paused() -> (Engine, mpsc::Sender<()>) {
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let engine = Engine::start(move |_, wire| {
        wire.write_all(&cut_stream(&[role_event(), event("one ")]))?;
        if wait.lock().expect("lock").recv().is_err() {
            return Ok(After::Reset);
        }
        wire.write_all(&[chunk(&event("two")), chunk(DONE), LAST_CHUNK.to_vec()].concat())?;
        Ok(After::Keep)
    });
    (engine, go)
}

/// A client in the middle of a stream: its first word has arrived.
fn in_mid_stream(bed: &Bed) -> (Client, Vec<u8>) {
    let mut client = Client::connect(bed.addr);
    client.send(&stream_for_acme());
    let mut bytes = Vec::new();
    while find(&bytes, b"one ").is_none() {
        bytes.extend(client.read_some(1));
    }
    (client, bytes)
}

#[test]
fn a_drain_lets_streams_finish_and_nothing_else_begin() {
    let (engine, go) = paused();
    let bed = Bed::of(&[engine.addr]);
    assert_eq!(ask(bed.admin, &get("/ready")).status(), 200);
    let mut idle = Client::connect(bed.addr);
    let (mut busy, begun) = in_mid_stream(&bed);

    bed.gateway.drain();
    let ready = ask(bed.admin, &get("/ready"));
    assert_eq!(ready.status(), 503, "a load balancer is told at once");
    assert_eq!(ask(bed.admin, &get("/live")).status(), 200, "and the process is not ill");
    // Until it has noticed, requests are still served, on connections that end with them.
    let late = ask(bed.addr, &get("/health"));
    assert_eq!((late.status(), late.field("connection")), (200, Some("close")));
    assert_eq!(idle.rest(), (Vec::new(), Ended::Fin));
    eventually("new connections are refused", || TcpStream::connect(bed.addr).is_err());
    assert!(!bed.gateway.wait(Duration::from_millis(300)), "it waits for the stream");

    go.send(()).expect("engine");
    let (rest, ended) = busy.rest();
    let answer = common::Response::parse(&[begun, rest].concat());
    assert!(answer.complete, "{}", answer.text());
    assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    assert_eq!((answer.words(), ended), ("one two".to_owned(), Ended::Fin));
    assert!(bed.gateway.wait(PATIENCE), "with the last stream the cores end");
    assert_eq!(bed.records(1)[0]["outcome"], "ok");
}

#[test]
fn a_second_signal_ends_what_is_left() {
    let (engine, _go) = paused();
    let bed = Bed::of(&[engine.addr]);
    let (mut busy, begun) = in_mid_stream(&bed);
    bed.gateway.drain();
    assert!(!bed.gateway.wait(Duration::from_millis(300)));
    bed.gateway.drain();
    assert!(bed.gateway.wait(PATIENCE));
    let (rest, _) = busy.rest();
    let answer = common::Response::parse(&[begun, rest].concat());
    let text = answer.text();
    assert!(!answer.complete && !text.contains("[DONE]"), "{text}");
    let last = text.rsplit("data: ").next().expect("event");
    assert!(last.starts_with("{\"error\"") && last.contains("stopped"), "{text}");
    assert_eq!(bed.records(1)[0]["outcome"], "truncated");
}

/// A pod's `preStop` hook asks the admin listener, and its SIGTERM follows: that is the first
/// signal, and the grace goes on. `POST /drain` ends nothing however often it comes.
#[test]
fn a_signal_behind_the_admins_drain_cuts_nothing() {
    let (engine, go) = paused();
    let bed = Bed::of(&[engine.addr]);
    let (mut busy, begun) = in_mid_stream(&bed);
    for _ in 0..2 {
        assert_eq!(ask(bed.admin, &post("/drain", "")).status(), 200);
    }
    bed.gateway.drain();
    assert!(!bed.gateway.wait(Duration::from_millis(300)), "it waits for the stream");
    go.send(()).expect("engine");
    let answer = common::Response::parse(&[begun, busy.rest().0].concat());
    assert!(answer.complete && answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    assert!(bed.gateway.wait(PATIENCE));
    assert_eq!(bed.records(1)[0]["outcome"], "ok");
}

#[test]
fn who_has_no_content_yet_is_told_to_try_again() {
    let engine = Engine::start(|_, wire| {
        let _ = std::io::Read::read(wire, &mut [0]);
        Ok(After::Close)
    });
    let bed = Bed::of(&[engine.addr]);
    let mut clients: Vec<_> = (0..2).map(|_| Client::connect(bed.addr)).collect();
    clients[0].send(&stream_for_acme());
    clients[1].send(&chat_for_acme(""));
    eventually("the engine has both", || engine.count() == 2);
    bed.gateway.drain();
    bed.gateway.drain();
    for client in &mut clients {
        let answer = client.response();
        assert_eq!((answer.status(), answer.field("retry-after")), (503, Some("1")));
        assert_eq!(answer.field("x-gateway-attempts"), Some("1"));
        assert_eq!(answer.json()["error"]["code"], "no_healthy_replica");
    }
    assert!(bed.gateway.wait(PATIENCE));
    assert!(bed.records(2).iter().all(|r| r["outcome"] == "no_replica" && r["attempts"] == 1));
}

#[test]
fn a_body_that_still_comes_up_is_no_fault_of_its_client() {
    let engine = Engine::always(Vec::new());
    let bed = Bed::of(&[engine.addr]);
    let request = chat_for_acme("");
    let mut client = Client::connect(bed.addr);
    client.send(&request[..request.len() - 5]);
    eventually("it has begun", || bed.metric("expedite_requests_open", "") == 1.0);
    bed.gateway.drain();
    bed.gateway.drain();
    assert_eq!(client.response().status(), 503);
    assert!(bed.gateway.wait(PATIENCE));
    let record = bed.records(1).remove(0);
    assert_eq!((&record["outcome"], &record["attempts"]), (&"no_replica".into(), &0.into()));
}

#[test]
fn an_answer_under_way_finishes_too() {
    let (started, begun) = mpsc::channel();
    let started = std::sync::Mutex::new(started);
    let engine = Engine::start(move |_, wire| {
        let _ = started.lock().expect("lock").send(());
        std::thread::sleep(Duration::from_millis(800));
        let body = r#"{"choices":[{"message":{"content":"one"},"finish_reason":"stop"}]}"#;
        wire.write_all(&common::engine::json(200, body)).map(|()| After::Keep)
    });
    let bed = Bed::of(&[engine.addr]);
    let mut client = Client::connect(bed.addr);
    client.send(&chat_for_acme(""));
    begun.recv_timeout(PATIENCE).expect("the engine has it");
    bed.gateway.drain();
    let answer = client.response();
    assert_eq!((answer.status(), answer.field("connection")), (200, Some("close")));
    assert_eq!(client.rest().1, Ended::Fin);
    assert!(bed.gateway.wait(PATIENCE));
}
