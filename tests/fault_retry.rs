//! A replica that fails before the first content event costs its client nothing: another serves
//! the request, and every attempt is counted.

mod common;

use common::ask;
use common::engine::{After, Engine, STREAM_HEAD, event, json};
use common::faults::{
    at_rest, chat_for_acme, cut_stream, error_event, failing, finish_event, fleet, hello,
    in_front_of, role_event, stream_for_acme, whole_stream,
};

const ANSWER: &str = "{\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\
    \"content\":\"hello\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":7,\
    \"completion_tokens\":2,\"total_tokens\":9}}";
const SHUT_DOWN: &str = "cannot schedule new futures after shutdown";

fn full() -> Vec<u8> {
    error_event(503, "The engine's queue is full.")
}

/// Ways to fail before a byte of the answer reaches the client, for any request.
fn failures() -> Vec<(&'static str, Vec<u8>, After)> {
    let gzip = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n\
        content-length: 2\r\n\r\n\x1f\x8b";
    let switched = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n";
    let html = b"HTTP/1.1 500 X\r\ncontent-type: text/html\r\ncontent-length: 3\r\n\r\n<p>";
    vec![
        ("reset before the head", Vec::new(), After::Reset),
        ("end before the head", Vec::new(), After::Close),
        ("reset in the head", STREAM_HEAD[..20].to_vec(), After::Reset),
        ("reset after the head", STREAM_HEAD.to_vec(), After::Reset),
        ("end after the head", STREAM_HEAD.to_vec(), After::Close),
        ("no HTTP", b"hello there\r\n\r\n".to_vec(), After::Close),
        ("500 of JSON", json(500, "{\"error\":{\"message\":\"x\",\"code\":500}}"), After::Keep),
        ("500 of HTML", html.to_vec(), After::Keep),
        ("503, full", json(503, "{\"error\":{\"message\":\"full\",\"code\":503}}"), After::Keep),
        ("429", json(429, "{\"error\":{\"message\":\"full\",\"code\":429}}"), After::Keep),
        ("redirect", json(307, ""), After::Keep),
        ("gzip unasked", gzip.to_vec(), After::Keep),
        ("101 unasked", switched.to_vec(), After::Keep),
        (
            "draining",
            json(500, &format!("{{\"error\":{{\"message\":\"{SHUT_DOWN}\"}}}}")),
            After::Keep,
        ),
    ]
}

#[test]
fn a_stream_that_fails_before_its_first_event_is_served_elsewhere() {
    let more = [
        ("error first", whole_stream(&[full()]), After::Keep),
        ("abort first", whole_stream(&[finish_event("abort")]), After::Keep),
    ];
    for (name, bytes, after) in failures().into_iter().chain(more) {
        let engines = failing(2, 1, (&bytes, after), &hello());
        let bed = in_front_of(&engines, "");
        let response = ask(bed.addr, &stream_for_acme());
        assert_eq!(response.status(), 200, "{name}: {}", response.text());
        assert_eq!(response.words(), "hello", "{name}");
        assert!(response.complete && response.text().ends_with("data: [DONE]\n\n"), "{name}");
        assert_eq!(response.field("x-gateway-attempts"), Some("2"), "{name}");
        let record = &bed.records(1)[0];
        assert_eq!((&record["attempts"], &record["outcome"]), (&2.into(), &"ok".into()), "{name}");
        assert_eq!(record["replica"], response.field("x-gateway-assigned-node").unwrap(), "{name}");
        assert_eq!(engines.iter().map(Engine::count).collect::<Vec<_>>(), [1, 1], "{name}");
        assert_eq!(bed.metric("expedite_retries_total", ""), 1.0, "{name}");
        at_rest(&bed);
    }
}

#[test]
fn a_whole_answer_that_fails_is_served_elsewhere() {
    let short =
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{";
    let abort = ANSWER.replace("\"stop\"", "\"abort\"");
    let more = [
        ("end in the body", short.to_vec(), After::Close),
        ("reset in the body", short.to_vec(), After::Reset),
        ("error in a 200", json(200, "{\"error\":{\"message\":\"x\",\"code\":500}}"), After::Keep),
        ("abort", json(200, &abort), After::Keep),
    ];
    for (name, bytes, after) in failures().into_iter().chain(more) {
        let bed_of = failing(2, 1, (&bytes, after), &json(200, ANSWER));
        let bed = in_front_of(&bed_of, "");
        let response = ask(bed.addr, &chat_for_acme(""));
        assert_eq!((response.status(), response.text().as_str()), (200, ANSWER), "{name}");
        assert_eq!(response.field("x-gateway-attempts"), Some("2"), "{name}");
        let record = &bed.records(1)[0];
        assert_eq!((&record["attempts"], &record["outcome"]), (&2.into(), &"ok".into()), "{name}");
        assert_eq!(record["output_tokens"], 2, "{name}: charged once");
        at_rest(&bed);
    }
}
