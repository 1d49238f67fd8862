//! `timeouts.sse_keepalive_ms`: a silent stream is commented, at event boundaries only, also
//! before the first token; and nothing else changes. Nothing here measures time: engines wait
//! until their client has seen what it should see.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::engine::{After, DONE, Engine, LAST_CHUNK, STREAM_HEAD, chunk, event, json};
use crate::common::faults::{
    at_rest, chat_for_acme, cut_stream, error_event, fleet, hello, in_front_of, role_event,
    stream_for_acme, whole_stream,
};
use crate::common::gateway::Bed;
use crate::common::{Client, Response, find};

const COMMENT: &[u8] = b": keep-alive\n\n";

/// Comments after a tenth of a second of silence.
const SOON: &str = "[timeouts]\nsse_keepalive_ms = 100\n";

/// What an engine waits for, and what lets it go on.
fn gate() -> (Sender<()>, Arc<Mutex<Receiver<()>>>) {
    let (open, opened) = mpsc::channel();
    (open, Arc::new(Mutex::new(opened)))
}

fn pass(gate: &Mutex<Receiver<()>>) {
    let _ = gate.lock().expect("lock").recv_timeout(Duration::from_secs(20));
}

/// An engine that writes `first`, waits for the gate, and writes `rest`.
fn halting(
    first: Vec<u8>,
    rest: Vec<u8>,
    gate: Arc<Mutex<Receiver<()>>>,
) -> impl Fn(&crate::common::engine::Received, &mut TcpStream) -> Result<After, std::io::Error> {
    move |_, wire| {
        wire.write_all(&first)?;
        pass(&gate);
        wire.write_all(&rest)?;
        Ok(After::Keep)
    }
}

/// Reads until `needle` has come `times` times; all that was read.
fn read_until(client: &mut Client, needle: &[u8], times: usize) -> Vec<u8> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    while bytes.windows(needle.len()).filter(|w| *w == needle).count() < times {
        let n = client.read(&mut piece).expect("read");
        assert!(n > 0, "it ended after {}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&piece[..n]);
    }
    bytes
}

/// The response of which `bytes` were read already.
fn response(client: &mut Client, mut bytes: Vec<u8>) -> Response {
    let mut piece = [0; 4096];
    loop {
        let response = Response::parse(&bytes);
        if response.complete {
            return response;
        }
        match client.read(&mut piece).expect("read") {
            0 => return response,
            n => bytes.extend_from_slice(&piece[..n]),
        }
    }
}

/// The body without its comments; each must be a chunk of its own.
fn without_comments(response: &Response) -> Vec<u8> {
    response.pieces.iter().filter(|piece| *piece != COMMENT).flatten().copied().collect()
}

fn payload(stream: &[u8]) -> Vec<u8> {
    Response::parse(stream).body()
}

#[test]
fn without_the_key_a_silence_is_a_silence() {
    let engine = Engine::start(|_, wire| {
        wire.write_all(&cut_stream(&[role_event(), event("one")]))?;
        std::thread::sleep(Duration::from_millis(400));
        wire.write_all(&[&chunk(DONE)[..], LAST_CHUNK].concat())?;
        Ok(After::Keep)
    });
    let bed = in_front_of(std::slice::from_ref(&engine), "");
    let mut client = Client::connect(bed.addr);
    client.send(&stream_for_acme());
    let answer = client.response();
    assert!(answer.complete && find(&answer.body(), COMMENT).is_none(), "{}", answer.text());
}

#[test]
fn before_the_first_token_the_head_goes_out_with_the_first_comment() {
    let (open, gate) = gate();
    let engine = Engine::start(halting(Vec::new(), hello(), gate));
    let bed = in_front_of(std::slice::from_ref(&engine), SOON);
    let mut client = Client::connect(bed.addr);
    client.send(&stream_for_acme());
    let early = read_until(&mut client, COMMENT, 2);
    open.send(()).expect("engine");
    let answer = response(&mut client, early);
    assert_eq!((answer.status(), answer.complete), (200, true));
    assert_eq!(answer.field("content-type"), Some("text/event-stream; charset=utf-8"));
    assert!(answer.field("x-gateway-assigned-node").is_some(), "{:?}", answer.head);
    assert_eq!(answer.field("transfer-encoding"), Some("chunked"));
    assert_eq!(without_comments(&answer), payload(&hello()));

    // The connection goes on, and what is no stream is not commented.
    open.send(()).expect("engine");
    client.send(&stream_for_acme());
    assert_eq!(client.response().words(), "hello");
    let records = bed.records(2);
    assert!(records.iter().all(|r| r["outcome"] == "ok" && r["status"] == 200), "{records:?}");
    drop(client);
    at_rest(&bed);
}

#[test]
fn an_answer_that_is_no_stream_is_never_commented() {
    let (open, gate) = gate();
    let whole = json(200, "{\"choices\":[{\"message\":{\"content\":\"hi\"}}]}");
    let engine = Engine::start(halting(Vec::new(), whole, gate));
    let bed = in_front_of(std::slice::from_ref(&engine), SOON);
    let mut client = Client::connect(bed.addr);
    client.send(&chat_for_acme(""));
    client.0.set_read_timeout(Some(Duration::from_millis(500))).expect("timeout");
    assert!(client.read(&mut [0; 64]).is_err(), "nothing comes before the answer");
    open.send(()).expect("engine");
    let answer = client.response();
    assert_eq!((answer.status(), answer.complete), (200, true));
    assert!(answer.field("content-length").is_some() && find(&answer.body(), b":").is_some());
}

#[test]
fn comments_come_between_events_and_never_inside_of_one() {
    let (open, gate) = gate();
    let half = event("half");
    let (front, back) = half.split_at(half.len() / 2);
    let (front, back) = (chunk(front), [chunk(back), chunk(DONE), LAST_CHUNK.to_vec()].concat());
    let engine = Engine::start(move |_, wire| {
        wire.write_all(&cut_stream(&[role_event(), event("one")]))?;
        pass(&gate);
        wire.write_all(&front)?;
        pass(&gate);
        wire.write_all(&back)?;
        Ok(After::Keep)
    });
    let bed = in_front_of(std::slice::from_ref(&engine), SOON);
    let mut client = Client::connect(bed.addr);
    client.send(&stream_for_acme());
    let mut bytes = read_until(&mut client, COMMENT, 1);
    assert!(find(&bytes, b"one").is_some());
    open.send(()).expect("engine");
    // Half of an event is held at the gateway, and comments go on.
    bytes.extend(read_until(&mut client, COMMENT, 2));
    assert!(find(&bytes, b"half").is_none(), "{}", String::from_utf8_lossy(&bytes));
    open.send(()).expect("engine");
    let answer = response(&mut client, bytes);
    let sent = [role_event(), event("one"), half];
    assert_eq!(without_comments(&answer), payload(&whole_stream(&sent)));
    assert!(answer.complete);
}

#[test]
fn an_event_that_goes_out_in_parts_is_not_commented() {
    let huge = event(&"x".repeat(100_000));
    let sent = [role_event(), event("one"), huge.clone()];
    let engine = Engine::start(move |_, wire| {
        wire.write_all(&cut_stream(&[role_event(), event("one")]))?;
        let (front, back) = huge.split_at(60_000);
        wire.write_all(&chunk(front))?;
        std::thread::sleep(Duration::from_millis(600));
        wire.write_all(&[&chunk(back)[..], &chunk(DONE), LAST_CHUNK].concat())?;
        Ok(After::Keep)
    });
    let bed = in_front_of(std::slice::from_ref(&engine), SOON);
    let mut client = Client::connect(bed.addr);
    client.send(&stream_for_acme());
    let answer = client.response();
    assert!(answer.complete);
    assert!(find(&answer.body(), COMMENT).is_none(), "a comment within an event");
    assert!(answer.body() == payload(&whole_stream(&sent)));
}

#[test]
fn http_1_0_gets_its_comments_unframed() {
    let (open, gate) = gate();
    let engine = Engine::start(halting(Vec::new(), hello(), gate));
    let bed = in_front_of(std::slice::from_ref(&engine), SOON);
    let mut client = Client::connect(bed.addr);
    let request = String::from_utf8(stream_for_acme()).expect("text");
    client.send(request.replace("HTTP/1.1", "HTTP/1.0").as_bytes());
    let mut bytes = read_until(&mut client, COMMENT, 2);
    open.send(()).expect("engine");
    bytes.extend(client.rest().0);
    let body = &bytes[find(&bytes, b"\r\n\r\n").expect("head") + 4..];
    let text = String::from_utf8_lossy(body).replace(": keep-alive\n\n", "");
    assert_eq!(text.as_bytes(), payload(&hello()));
}

/// Engines of which the first request of all is answered with `bad` and its end once the gate is
/// open, the others with `good` at once.
fn first_fails(
    n: usize,
    gate: Arc<Mutex<Receiver<()>>>,
    (bad, after): (Vec<u8>, After),
    good: Vec<u8>,
) -> Vec<Engine> {
    fleet(n, move |nth, wire| {
        if nth > 0 {
            return wire.write_all(&good).map(|()| After::Keep);
        }
        pass(&gate);
        wire.write_all(&bad)?;
        Ok(after)
    })
}

#[test]
fn what_fails_after_a_comment_is_asked_of_another_replica() {
    let bad = [
        (Vec::new(), After::Close),
        (STREAM_HEAD.to_vec(), After::Reset),
        (whole_stream(&[error_event(503, "no room")]), After::Keep),
        (json(500, "{\"error\":{\"message\":\"broken\",\"code\":500}}"), After::Keep),
    ];
    for bad in bad {
        let (open, gate) = gate();
        let engines = first_fails(2, gate, bad, hello());
        let bed = in_front_of(&engines, SOON);
        let mut client = Client::connect(bed.addr);
        client.send(&stream_for_acme());
        let early = read_until(&mut client, COMMENT, 1);
        open.send(()).expect("engine");
        let answer = response(&mut client, early);
        assert_eq!((answer.status(), answer.complete), (200, true));
        assert_eq!(without_comments(&answer), payload(&hello()));
        let record = bed.records(1).remove(0);
        assert_eq!((&record["outcome"], &record["status"]), (&"ok".into(), &200.into()));
        assert_eq!(record["attempts"], 2);
        drop(client);
        at_rest(&bed);
    }
}

/// Sends a stream's request, reads a comment, opens the gate, and takes the failure that follows:
/// the error, and the usage record.
fn fails_in_band(bed: &Bed, open: &Sender<()>) -> (serde_json::Value, serde_json::Value) {
    let mut client = Client::connect(bed.addr);
    client.send(&stream_for_acme());
    let early = read_until(&mut client, COMMENT, 1);
    let _ = open.send(());
    let answer = response(&mut client, early);
    assert_eq!((answer.status(), answer.complete), (200, false), "{}", answer.text());
    assert!(!answer.text().contains("[DONE]"), "{}", answer.text());
    let events = answer.events();
    let error = events.last().expect("an event")["error"].clone();
    let record = bed.records(1).remove(0);
    drop(client);
    at_rest(bed);
    (error, record)
}

#[test]
fn when_all_fail_after_a_comment_the_error_is_an_event_and_the_end_is_none() {
    let (open, gate) = gate();
    let engines = first_fails(1, gate, (Vec::new(), After::Close), hello());
    let bed = in_front_of(&engines, &format!("{SOON}[retry]\nattempts_max = 1\n"));
    let (error, record) = fails_in_band(&bed, &open);
    assert_eq!(error["code"], "upstream_error");
    assert_eq!((&record["outcome"], &record["status"]), (&"upstream_error".into(), &200.into()));
}

#[test]
fn an_engines_refusal_after_a_comment_keeps_its_words() {
    let (open, gate) = gate();
    let refusal = "{\"error\":{\n  \"message\":\"too \\\"long\\\"\",\n  \
                   \"type\":\"BadRequestError\",\"param\":\"messages\",\"code\":400}}";
    let engines = first_fails(1, gate, (json(400, refusal), After::Keep), hello());
    let bed = in_front_of(&engines, SOON);
    let (error, record) = fails_in_band(&bed, &open);
    let said: serde_json::Value = serde_json::from_str(refusal).expect("JSON");
    assert_eq!(error, said["error"]);
    assert_eq!((&record["outcome"], &record["status"]), (&"rejected_invalid".into(), &200.into()));
}

#[test]
fn comments_do_not_put_a_time_limit_off() {
    let once = "[retry]\nattempts_max = 1\n[timeouts]\nsse_keepalive_ms = 60\n";
    let opening = cut_stream(&[role_event(), event("one")]);
    let cases = [
        ("first_token_ms = 500", Vec::new(), "deadline_exceeded", "deadline"),
        ("first_token_ms = 500", STREAM_HEAD.to_vec(), "deadline_exceeded", "deadline"),
        ("next_token_ms = 500", opening, "upstream_error", "truncated"),
    ];
    for (limit, first, code, outcome) in cases {
        let (open, gate) = gate();
        let engine = Engine::start(move |_, wire| {
            wire.write_all(&first)?;
            let _ = wire.read(&mut [0]);
            pass(&gate);
            Ok(After::Close)
        });
        let bed = in_front_of(std::slice::from_ref(&engine), &format!("{once}{limit}\n"));
        let (error, record) = fails_in_band(&bed, &open);
        assert_eq!(error["code"], code, "{limit}: {error}");
        let name = limit.split(' ').next().expect("name");
        assert!(error["message"].as_str().expect("text").contains(name), "{limit}: {error}");
        assert_eq!(record["outcome"], outcome, "{limit}");
    }
}

#[test]
fn a_client_that_leaves_a_commented_silence_ends_the_replicas_work() {
    let (left, gone) = mpsc::channel();
    let engine = Engine::start(move |_, wire| {
        let ended = wire.read(&mut [0]).is_ok_and(|n| n == 0);
        let _ = left.send(ended);
        Ok(After::Close)
    });
    let bed = in_front_of(std::slice::from_ref(&engine), SOON);
    let mut client = Client::connect(bed.addr);
    client.send(&stream_for_acme());
    read_until(&mut client, COMMENT, 2);
    drop(client);
    assert!(gone.recv_timeout(Duration::from_secs(20)).expect("the replica is told"));
    assert_eq!(bed.records(1)[0]["outcome"], "client_cancelled");
    at_rest(&bed);
}

#[test]
fn a_client_that_does_not_read_gets_whole_comments_all_the_same() {
    let (open, gate) = gate();
    // More than the sockets hold, so that the gateway waits in the middle of an event.
    let many: Vec<_> = (0..3_000).map(|n| event(&format!("{n} {}", "y".repeat(4_000)))).collect();
    let sent = [vec![role_event()], many].concat();
    let rest = [&chunk(DONE)[..], LAST_CHUNK].concat();
    let engine = Engine::start(halting(cut_stream(&sent), rest, gate));
    let bed = in_front_of(std::slice::from_ref(&engine), SOON);
    let mut client = Client::connect(bed.addr);
    client.send(&stream_for_acme());
    // Long enough for comments to be due while the gateway waits to send.
    std::thread::sleep(Duration::from_millis(500));
    let (mut bytes, mut piece) = (Vec::new(), vec![0; 1 << 16]);
    while !bytes.ends_with(&chunk(COMMENT)) {
        let n = client.read(&mut piece).expect("read");
        assert!(n > 0, "it ended after {} bytes", bytes.len());
        bytes.extend_from_slice(&piece[..n]);
    }
    open.send(()).expect("engine");
    let answer = response(&mut client, bytes);
    assert!(answer.complete);
    assert!(without_comments(&answer) == payload(&whole_stream(&sent)), "another payload");
}
