//! What clients see when replicas fail: before the first content nothing, after it the truth.

mod common;

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};

use common::engine::{
    After, DONE, Engine, LAST_CHUNK, Received, STREAM_HEAD, chunk, event, json, under, usage_event,
};
use common::gateway::{AUTH, Bed, Settings};
use common::{Client, Response, ask, eventually};

fn post(body: &str) -> Vec<u8> {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: gw.test\r\n{AUTH}\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn chat(stream: bool) -> Vec<u8> {
    post(&format!(
        r#"{{"model":"m","stream":{stream},"messages":[{{"role":"user","content":"x"}}]}}"#
    ))
}

const ROLE: &[u8] = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\
    \"content\":\"\"},\"finish_reason\":null}]}\n\n";
const ABORT: &[u8] = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\
    \"finish_reason\":\"abort\"}]}\n\n";
const BUSY: &[u8] = b"data: {\"error\": {\"message\": \"The engine is currently busy\", \
    \"type\": \"Service Unavailable\", \"param\": null, \"code\": 503}}\n\n";

/// A whole stream of two words.
fn good_stream() -> Vec<u8> {
    let mut out = STREAM_HEAD.to_vec();
    for payload in [ROLE, &event("one "), &event("two"), &usage_event(3, 2), DONE] {
        out.extend(chunk(payload));
    }
    out.extend_from_slice(LAST_CHUNK);
    out
}

fn good_answer() -> Vec<u8> {
    let choices = r#"[{"message":{"content":"one two"},"finish_reason":"stop"}]"#;
    let usage = r#"{"prompt_tokens":3,"completion_tokens":2}"#;
    json(200, &format!(r#"{{"choices":{choices},"usage":{usage}}}"#))
}

fn good() -> Engine {
    Engine::start(|request, wire| {
        let stream = common::find(&request.body, b"\"stream\":true").is_some();
        wire.write_all(&if stream { good_stream() } else { good_answer() })?;
        Ok(After::Keep)
    })
}

/// An engine that answers with `bytes` and then does `after`.
fn bad(bytes: Vec<u8>, after: After) -> Engine {
    Engine::start(move |_, wire| wire.write_all(&bytes).map(|()| after))
}

fn parts(parts: &[&[u8]]) -> Vec<u8> {
    let mut out = STREAM_HEAD.to_vec();
    parts.iter().for_each(|part| out.extend(chunk(part)));
    out
}

/// Asks until the bad engine was hit `n` times; every answer must be the good one's.
fn all_are_served(name: &str, bad: &Engine, good: &Engine, stream: bool) {
    let bed = Bed::of(&[bad.addr, good.addr]);
    let mut asked = 0;
    while bad.count() == 0 {
        assert!(asked < 200, "{name}: the bad engine is never picked");
        let answer = ask(bed.addr, &chat(stream));
        asked += 1;
        assert_eq!(answer.status(), 200, "{name}: {}", answer.text());
        assert!(answer.complete, "{name}");
        let text = answer.text();
        if stream {
            assert!(text.contains("one ") && text.ends_with("data: [DONE]\n\n"), "{name}: {text}");
            assert_eq!(text.matches("\"role\"").count(), 1, "{name}: the role comes once");
            assert!(!text.contains("\"usage\":{"), "{name}: nobody asked for usage");
        } else {
            assert!(text.contains("one two"), "{name}: {text}");
        }
    }
    let records = bed.records(asked);
    let last = records.last().expect("a record");
    assert_eq!((&last["outcome"], &last["attempts"]), (&"ok".into(), &2.into()), "{name}");
    assert_eq!((&last["input_tokens"], &last["output_tokens"]), (&3.into(), &2.into()), "{name}");
    assert_eq!(bed.metric("expedite_in_flight", ""), 0.0, "{name}");
    assert_eq!(bed.metric("expedite_in_flight_tokens", ""), 0.0, "{name}");
}

#[test]
fn before_the_first_content_another_replica_answers() {
    let half_head = STREAM_HEAD[..40].to_vec();
    let shutdown =
        r#"{"error":{"message":"cannot schedule new futures after shutdown","code":500}}"#;
    let cases: Vec<(&str, Vec<u8>, After)> = vec![
        ("reset before the head", Vec::new(), After::Reset),
        ("end before the head", Vec::new(), After::Close),
        ("reset in the head", half_head, After::Reset),
        ("reset after the head", STREAM_HEAD.to_vec(), After::Reset),
        ("reset in the first event", parts(&[b"data: {\"choi"]), After::Reset),
        ("reset after the role", parts(&[ROLE]), After::Reset),
        ("abort before content", parts(&[ROLE, ABORT, DONE]), After::Close),
        ("an error in a 200", parts(&[BUSY, DONE]), After::Close),
        ("500", json(500, "{\"error\":{\"message\":\"Internal server error\"}}"), After::Keep),
        ("500 draining", json(500, shutdown), After::Keep),
        ("503", json(503, "{\"error\":{\"message\":\"busy\"}}"), After::Keep),
        ("429", json(429, "{\"error\":{\"message\":\"busy\"}}"), After::Keep),
        ("html", b"HTTP/1.1 502 Bad\r\ncontent-length: 6\r\n\r\n<html>".to_vec(), After::Keep),
        ("not http", b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), After::Close),
        ("a bad length", b"HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\nx".to_vec(), After::Keep),
    ];
    for (name, bytes, after) in cases {
        all_are_served(name, &bad(bytes, after), &good(), true);
    }
}

/// Case 218: an answer to somebody else must reach nobody. A replica is known to repeat the ids of
/// its requests, as vLLM does with `--enable-request-id-headers`, by its answers to probes.
#[test]
fn an_answer_under_another_id_is_passed_to_nobody() {
    let repeats = |answer: Vec<u8>, foreign: bool| {
        let of = move |request: &Received, wire: &mut TcpStream| {
            let id = if foreign { "another" } else { request.fields("x-request-id")[0] };
            wire.write_all(&under(id, &answer)).map(|()| After::Keep)
        };
        Engine::start_with(of, |path| json(if path == "/v1/models" { 200 } else { 404 }, ""))
    };
    for (stream, whole) in [(true, good_stream()), (false, good_answer())] {
        let foreign = repeats(whole.clone(), true);
        all_are_served("another id", &foreign, &good(), stream);
        let bed = Bed::of(&[foreign.addr]);
        let answer = ask(bed.addr, &chat(stream));
        let code = &answer.json()["error"]["code"];
        assert_eq!((answer.status(), code), (502, &"upstream_error".into()));
        assert_eq!(bed.metric("expedite_foreign_answers_total", ""), 1.0);

        let faithful = repeats(whole.clone(), false);
        let bed = Bed::of(&[faithful.addr]);
        assert_eq!(ask(bed.addr, &chat(stream)).status(), 200);
        // Who has ids of its own says nothing by them.
        let unheard = bad(under("another", &whole), After::Keep);
        let bed = Bed::of(&[unheard.addr]);
        let answer = ask(bed.addr, &chat(stream));
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert_ne!(answer.field("x-request-id"), Some("another"));
    }
}

#[test]
fn an_answer_that_breaks_is_asked_of_another_replica() {
    let whole = good_answer();
    let abort = json(200, r#"{"choices":[{"message":{"content":"o"},"finish_reason":"abort"}]}"#);
    for (name, bytes, after) in [
        ("short length", whole[..whole.len() - 5].to_vec(), After::Close),
        ("reset in the body", whole[..whole.len() - 5].to_vec(), After::Reset),
        ("abort", abort, After::Keep),
    ] {
        all_are_served(name, &bad(bytes, after), &good(), false);
    }
}

/// After content: one error event, no `[DONE]`, no last chunk, and the record tells.
fn is_visibly_cut(name: &str, answer: &Response, bed: &Bed, outcome: &str) {
    let text = answer.text();
    assert_eq!(answer.status(), 200, "{name}");
    assert!(!answer.complete, "{name}: a last chunk was sent");
    assert!(text.contains("one "), "{name}: {text}");
    assert!(!text.contains("[DONE]"), "{name}: {text}");
    assert_eq!(text.matches("data: {\"error\"").count(), 1, "{name}: {text}");
    assert!(text.ends_with("}}\n\n"), "{name}: the error is the last event: {text}");
    let record = &bed.records(1)[0];
    assert_eq!(record["outcome"], outcome, "{name}");
    assert_eq!((&record["attempts"], &record["status"]), (&1.into(), &200.into()), "{name}");
}

#[test]
fn a_stream_that_is_cut_never_looks_complete() {
    let begun = parts(&[ROLE, &event("one ")]);
    let with = |more: &[u8]| [&begun[..], more].concat();
    let ended = [&chunk(DONE)[..], LAST_CHUNK].concat();
    let aborted = [&chunk(ABORT)[..], &ended].concat();
    let length = [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n",
        ROLE,
        &event("one "),
    ]
    .concat();
    for (name, bytes, after) in [
        ("reset", with(b""), After::Reset),
        ("end without a last chunk", with(b""), After::Close),
        ("clean end without [DONE]", with(LAST_CHUNK), After::Keep),
        ("torn event", with(b"20\r\ndata: {\"choices\":[{\"ind"), After::Close),
        ("bad chunk", with(b"zz\r\n"), After::Keep),
        ("short length", length, After::Close),
        ("abort", with(&aborted), After::Keep),
    ] {
        let engine = bad(bytes, after);
        let bed = Bed::of(&[engine.addr]);
        is_visibly_cut(name, &ask(bed.addr, &chat(true)), &bed, "truncated");
    }
    let failed = [&chunk(BUSY)[..], &ended].concat();
    let engine = bad(with(&failed), After::Keep);
    let bed = Bed::of(&[engine.addr]);
    is_visibly_cut("engine error", &ask(bed.addr, &chat(true)), &bed, "upstream_error");
}

#[test]
fn the_engines_own_refusals_pass_through_and_eject_nobody() {
    let body = r#"{"error":{"message":"no","type":"BadRequestError","param":"x","code":400}}"#;
    let engine = Engine::always(json(400, body));
    let bed = Bed::of(&[engine.addr]);
    for _ in 0..1_000 {
        let answer = ask(bed.addr, &chat(false));
        assert_eq!((answer.status(), answer.text()), (400, body.to_owned()));
    }
    assert_eq!(bed.metric("expedite_replica_up", ""), 1.0);
    assert_eq!(engine.count(), 1_000);
    let busy = Engine::start(|_, wire| {
        let answer = "HTTP/1.1 503 Busy\r\nretry-after: 7\r\ncontent-length: 2\r\n\r\n{}";
        wire.write_all(answer.as_bytes()).map(|()| After::Keep)
    });
    let bed = Bed::of(&[busy.addr]);
    let answer = ask(bed.addr, &chat(true));
    assert_eq!((answer.status(), answer.field("retry-after")), (503, Some("7")));
}

/// An address where nobody listens.
fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    listener.local_addr().expect("address")
}

#[test]
fn no_replica_is_503_and_spent_attempts_are_502() {
    let bed = Bed::unready(&[nobody(), nobody()], Settings::default());
    for _ in 0..3 {
        let answer = ask(bed.addr, &chat(true));
        assert_eq!(answer.status(), 503, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "no_healthy_replica");
        assert!(answer.field("retry-after").is_some());
    }
    let reset = || bad(Vec::new(), After::Reset);
    let engines = [reset(), reset(), reset(), reset()];
    let bed = Bed::of(&engines.each_ref().map(|e| e.addr));
    let answer = ask(bed.addr, &chat(true));
    assert_eq!(answer.status(), 502);
    assert_eq!(answer.json()["error"]["code"], "upstream_error");
    assert_eq!(bed.records(1)[0]["attempts"], 3);
}

#[test]
fn a_refused_port_is_ejected_and_returns_when_it_is_back() {
    let good = good();
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("address");
    drop(listener);
    let bed = Bed::unready(&[addr, good.addr], Settings::default());
    eventually("the model is known", || ask(bed.addr, &chat(false)).status() == 200);
    for _ in 0..50 {
        assert_eq!(ask(bed.addr, &chat(false)).status(), 200);
    }
    let down = || bed.metric("expedite_replica_up", &format!("replica=\"{addr}\""));
    eventually("it is out", || down() == 0.0);
    let back = common::engine::Engine::start_on(addr, |_, wire| {
        wire.write_all(&good_answer()).map(|()| After::Keep)
    });
    eventually("it gets requests again", || {
        ask(bed.addr, &chat(false));
        back.count() > 0
    });
}

#[test]
fn silence_is_a_504_that_names_its_limit() {
    let silent = Engine::start(|_, wire| {
        let _ = std::io::Read::read(wire, &mut [0]);
        Ok(After::Close)
    });
    let settings = Settings {
        more: "[timeouts]\nfirst_token_ms = 150\n[retry]\nattempts_max = 1".to_owned(),
        ..Settings::default()
    };
    let bed = Bed::start(&[silent.addr], settings);
    let answer = ask(bed.addr, &chat(true));
    assert_eq!(answer.status(), 504);
    assert_eq!(answer.json()["error"]["code"], "deadline_exceeded");
    assert!(answer.text().contains("timeouts.first_token_ms"));
    let stalled = Engine::start(|_, wire| {
        wire.write_all(&parts(&[ROLE, &event("one ")]))?;
        let _ = std::io::Read::read(wire, &mut [0]);
        Ok(After::Close)
    });
    let settings =
        Settings { more: "[timeouts]\nnext_token_ms = 150".to_owned(), ..Settings::default() };
    let bed = Bed::start(&[stalled.addr], settings);
    let answer = ask(bed.addr, &chat(true));
    is_visibly_cut("stalled", &answer, &bed, "truncated");
    assert!(answer.text().contains("timeouts.next_token_ms"));
}

#[test]
fn a_client_that_leaves_closes_its_replica_in_every_phase() {
    let (gone_tx, gone) = std::sync::mpsc::channel();
    let gone_tx = std::sync::Mutex::new(gone_tx);
    let engine = Engine::start(move |request, wire| {
        if common::find(&request.body, b"mid-stream").is_some() {
            wire.write_all(&parts(&[ROLE, &event("one ")]))?;
        }
        // The next byte or end on this connection can only be the gateway's closing of it.
        let end = std::io::Read::read(wire, &mut [0]);
        let _ = gone_tx.lock().expect("lock").send(matches!(end, Ok(0)) || end.is_err());
        Ok(After::Close)
    });
    let bed = Bed::of(&[engine.addr]);
    let mut asked = 0;
    for (stream, word) in [(true, "before"), (false, "whole"), (true, "mid-stream")] {
        for _ in 0..50 {
            let messages = format!(r#"[{{"role":"user","content":"{word}"}}]"#);
            let body = format!(r#"{{"model":"m","stream":{stream},"messages":{messages}}}"#);
            let mut client = Client::connect(bed.addr);
            client.send(&post(&body));
            asked += 1;
            eventually("the engine has it", || engine.count() == asked);
            drop(client);
            assert!(gone.recv_timeout(std::time::Duration::from_secs(10)).expect("closed"));
        }
    }
    let records = bed.records(asked);
    assert!(records.iter().all(|r| r["outcome"] == "client_cancelled"), "{records:?}");
    for metric in ["expedite_in_flight", "expedite_in_flight_tokens", "expedite_requests_open"] {
        eventually(metric, || bed.metric(metric, "") == 0.0);
    }
    let open = || bed.metric("expedite_connections", "side=\"client\"");
    eventually("connections are closed", || open() == 0.0);
}

#[test]
fn a_reused_connection_that_dies_is_replaced_free_of_charge() {
    // Answers one request a connection, says nothing of closing, and closes when it is used again.
    let served = std::sync::Mutex::new(std::collections::HashSet::new());
    let engine = Engine::start(move |request, wire| {
        if !served.lock().expect("lock").insert(request.connection) {
            return Ok(After::Reset);
        }
        wire.write_all(&good_answer()).map(|()| After::Keep)
    });
    let bed = Bed::of(&[engine.addr]);
    for _ in 0..20 {
        let answer = ask(bed.addr, &chat(false));
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.field("x-gateway-attempts"), Some("1"));
    }
    assert!(bed.metric("expedite_reuse_races_total", "") > 0.0);
    assert_eq!(bed.metric("expedite_retries_total", ""), 0.0);
}

fn of_type(kind: &str, framing: &str, body: &str) -> Vec<u8> {
    let kind = if kind.is_empty() { String::new() } else { format!("content-type: {kind}\r\n") };
    format!("HTTP/1.1 200 OK\r\n{kind}{framing}\r\n\r\n{body}").into_bytes()
}

/// Answers of a form that nobody asked for, by whether a stream was.
fn wrong_forms() -> Vec<(&'static str, bool, Vec<u8>, After)> {
    let sse = String::from_utf8([&event("one ")[..], &usage_event(3, 1)].concat()).expect("text");
    let done = format!("{sse}data: [DONE]\n\n");
    let framed =
        |kind: &str, body: &str| of_type(kind, &format!("content-length: {}", body.len()), body);
    let json = "application/json";
    let cut = r#"{"choices":[{"message":{"content":"one"}}"#;
    let mut forms = vec![
        ("html for JSON", false, framed("text/html", "<html></html>"), After::Keep),
        ("nothing for JSON", false, framed(json, ""), After::Keep),
        ("words for JSON", false, framed(json, "oops"), After::Keep),
        ("a list for JSON", false, framed(json, "[]"), After::Keep),
        ("a stream for JSON", false, framed("text/event-stream", &done), After::Keep),
        ("JSON cut by its end", false, of_type(json, "connection: close", cut), After::Close),
        ("JSON of no length", true, of_type(json, "connection: close", cut), After::Close),
        ("html for a stream", true, framed("text/html", "<html></html>"), After::Keep),
        ("nothing for a stream", true, framed("text/event-stream", ""), After::Keep),
    ];
    for kind in ["text/html", json, ""] {
        forms.push(("a stream of another type", true, framed(kind, &done), After::Keep));
        forms.push(("one without its end", true, framed(kind, &sse), After::Keep));
    }
    forms
}

#[test]
fn an_answer_of_the_wrong_form_is_a_failure_and_never_a_success() {
    for (name, stream, bytes, after) in wrong_forms() {
        all_are_served(name, &bad(bytes.clone(), after), &good(), stream);
        let alone = bad(bytes, after);
        let bed = Bed::of(&[alone.addr]);
        let answer = ask(bed.addr, &chat(stream));
        assert_eq!(answer.status(), 502, "{name}: {}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "upstream_error", "{name}");
        assert_eq!(bed.records(1)[0]["outcome"], "upstream_error", "{name}");
    }
    // What says where it ends only by ending is not passed on before it is whole.
    let long = format!("{{\"choices\":[],\"x\":\"{}", "x".repeat(2 << 20));
    let engine = bad(of_type("application/json", "connection: close", &long), After::Close);
    assert_eq!(ask(Bed::of(&[engine.addr]).addr, &chat(false)).status(), 502);
    // Whole JSON is an answer, however it ends, and also where a stream was asked for.
    let whole = String::from_utf8(good_answer()).expect("text");
    let body = whole.split("\r\n\r\n").nth(1).expect("a body");
    let engine = bad(of_type("application/json", "connection: close", body), After::Close);
    let bed = Bed::of(&[engine.addr]);
    for stream in [false, true] {
        assert_eq!(ask(bed.addr, &chat(stream)).text(), body);
    }
    assert!(bed.records(2).iter().all(|r| r["outcome"] == "ok" && r["output_tokens"] == 2));
}

/// A refusal is the caller's to read, in whatever form an engine puts it.
#[test]
fn an_engines_refusal_inside_of_a_200_has_its_own_status() {
    let error = r#"{"error":{"message":"no such tool","type":"BadRequestError","code":400}}"#;
    let anthropic = r#"{"type":"error","error":{"type":"invalid_request_error","message":"no"}}"#;
    let event = |error: &str| format!("data: {error}\n\n").into_bytes();
    for (name, stream, error, bytes) in [
        ("an event", true, error, parts(&[&event(error), DONE])),
        ("an event without a code", true, anthropic, parts(&[&event(anthropic), DONE])),
        ("behind a role", true, error, parts(&[&[ROLE, &event(error)].concat(), DONE])),
        ("an answer", false, error, json(200, error)),
    ] {
        let engines = [bad(bytes.clone(), After::Close), bad(bytes, After::Close)];
        let bed = Bed::of(&engines.each_ref().map(|e| e.addr));
        for _ in 0..10 {
            let answer = ask(bed.addr, &chat(stream));
            assert_eq!((answer.status(), answer.text().as_str()), (400, error), "{name}");
            assert_eq!(answer.field("content-type"), Some("application/json"), "{name}");
            assert_eq!(answer.field("x-gateway-attempts"), Some("1"), "{name}");
        }
        let records = bed.records(10);
        let refused = |r: &serde_json::Value| {
            r["outcome"] == "rejected_invalid" && r["status"] == 400 && r["output_tokens"] == 0
        };
        assert!(records.iter().all(refused), "{name}: {}", records[0]);
        assert_eq!(bed.metric("expedite_replica_up", ""), 2.0, "{name}");
        assert_eq!(bed.metric("expedite_retries_total", ""), 0.0, "{name}");
    }
}

/// Once the role is out there is no status left: the words come in band, without an end.
#[test]
fn a_refusal_behind_a_role_that_was_sent_is_told_in_band() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let engine = Engine::start(move |_, wire| {
        wire.write_all(&parts(&[ROLE]))?;
        let _ = wait.lock().expect("lock").recv();
        let error = b"data: {\"error\":{\"message\":\"no\",\"code\":400}}\n\n";
        wire.write_all(&[chunk(error), chunk(DONE), LAST_CHUNK.to_vec()].concat())?;
        Ok(After::Keep)
    });
    let bed = Bed::of(&[engine.addr]);
    let mut client = Client::connect(bed.addr);
    client.send(&chat(true));
    let mut bytes = Vec::new();
    while common::find(&bytes, b"\"role\"").is_none() {
        bytes.extend(client.read_some(1));
    }
    go.send(()).expect("the engine waits");
    bytes.extend(client.rest().0);
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("\"code\":400") && !text.contains("[DONE]"), "{text}");
    assert!(common::find(&bytes, b"\r\n0\r\n").is_none(), "{text}");
    let record = &bed.records(1)[0];
    assert_eq!((&record["outcome"], &record["attempts"]), (&"rejected_invalid".into(), &1.into()));
    assert_eq!(bed.metric("expedite_retries_total", ""), 0.0);
}
