//! A replica that fails before the first content event costs its client nothing: another serves
//! the request, and every attempt is counted.

mod common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use common::engine::{After, Engine, LAST_CHUNK, STREAM_HEAD, event, json};
use common::faults::{
    IN_TURN, at_rest, chat_for_acme, cut_stream, error_event, failing, finish_event, hello,
    in_front_of, role_event, states, stream_for_acme, whole_stream,
};
use common::gateway::{AUTH, Bed, Settings};
use common::{Client, Response, ask, eventually, post_with};
use serde_json::{Value, json};

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

#[test]
fn a_role_that_was_passed_on_is_not_passed_on_twice() {
    for (name, tail, after) in [
        ("reset", Vec::new(), After::Reset),
        ("end", Vec::new(), After::Close),
        ("error", whole_stream(&[full()])[STREAM_HEAD.len()..].to_vec(), After::Keep),
        (
            "abort",
            whole_stream(&[finish_event("abort")])[STREAM_HEAD.len()..].to_vec(),
            After::Keep,
        ),
    ] {
        let failed = [cut_stream(&[role_event()]), tail].concat();
        let engines = failing(2, 1, (&failed, after), &hello());
        let bed = in_front_of(&engines, "");
        let response = ask(bed.addr, &stream_for_acme());
        assert_eq!((response.status(), response.words().as_str()), (200, "hello"), "{name}");
        assert_eq!(response.text().matches("\"role\"").count(), 1, "{name}: {}", response.text());
        assert!(response.complete, "{name}");
        assert_eq!(bed.records(1)[0]["attempts"], 2, "{name}");
        at_rest(&bed);
    }
}

#[test]
fn when_every_attempt_fails_the_client_gets_an_error_status() {
    for (name, bytes, after) in failures() {
        if name == "503, full" || name == "429" {
            continue; // Passed on: another test.
        }
        let engines = failing(4, usize::MAX, (&bytes, after), b"");
        let bed = in_front_of(&engines, "");
        for request in [stream_for_acme(), chat_for_acme("")] {
            let response = ask(bed.addr, &request);
            assert_eq!(response.status(), 502, "{name}: {}", response.text());
            assert_eq!(response.json()["error"]["code"], "upstream_error", "{name}");
            assert!(response.complete, "{name}");
            if name == "draining" {
                break; // Three of four are ejected now.
            }
        }
        let first = &bed.records(if name == "draining" { 1 } else { 2 })[0];
        assert_eq!((&first["attempts"], &first["status"]), (&3.into(), &502.into()), "{name}");
        assert_eq!(first["outcome"], "upstream_error", "{name}");
        at_rest(&bed);
    }
}

#[test]
fn after_a_role_the_last_failure_is_told_in_band() {
    let engines = failing(2, usize::MAX, (&cut_stream(&[role_event()]), After::Close), b"");
    let bed = in_front_of(&engines, "");
    let response = ask(bed.addr, &stream_for_acme());
    assert_eq!((response.status(), response.complete), (200, false));
    let text = response.text();
    assert_eq!(
        (text.matches("\"error\"").count(), text.matches("[DONE]").count()),
        (1, 0),
        "{text}"
    );
    let record = &bed.records(1)[0];
    assert_eq!((&record["outcome"], &record["attempts"]), (&"upstream_error".into(), &2.into()));
    at_rest(&bed);
}

#[test]
fn an_engines_4xx_is_the_clients_and_ejects_nobody() {
    for status in [400, 404, 413, 422] {
        let body = format!("{{\"error\":{{\"message\":\"no\",\"code\":{status}}}}}");
        let engines = failing(2, usize::MAX, (&json(status, &body), After::Keep), b"");
        let bed = in_front_of(&engines, "");
        let mut client = Client::connect(bed.addr);
        for _ in 0..250 {
            client.send(&stream_for_acme());
            let response = client.response();
            assert_eq!((response.status(), response.text()), (status, body.clone()));
            assert_eq!(response.field("x-gateway-attempts"), Some("1"));
        }
        assert_eq!(states(&bed), ["up", "up"], "{status}");
        let records = bed.records(250);
        assert!(records.iter().all(|r| r["outcome"] == "rejected_invalid"), "{}", records[0]);
        assert_eq!(bed.metric("expedite_retries_total", ""), 0.0);
    }
}

#[test]
fn a_full_replica_is_left_for_another_and_told_of_when_there_is_none() {
    let busy = |status| {
        let body = "{\"error\":{\"message\":\"full\"}}";
        let text = String::from_utf8(json(status, body)).expect("text");
        text.replace("\r\n\r\n", "\r\nretry-after: 7\r\n\r\n").into_bytes()
    };
    for status in [429, 503] {
        let engines = failing(2, usize::MAX, (&busy(status), After::Keep), b"");
        let bed = in_front_of(&engines, "");
        // More requests than the retry budget has in reserve: the answer stays the same.
        for _ in 0..130 {
            let response = ask(bed.addr, &stream_for_acme());
            assert_eq!(response.status(), status, "{}", response.text());
            assert_eq!(response.field("retry-after"), Some("7"));
            assert_eq!(response.json()["error"]["message"], "full");
        }
        assert_eq!(states(&bed), ["up", "up"], "full is not ill");
        let retries = bed.metric("expedite_retries_total", "");
        assert!((100.0..=113.0).contains(&retries), "the reserve and a tenth: {retries}");
        assert!(bed.records(130).iter().all(|r| r["outcome"] == "rejected_overload"));
        at_rest(&bed);
    }
    let engines = failing(1, usize::MAX, (&json(503, "{}"), After::Keep), b"");
    let response = ask(in_front_of(&engines, "").addr, &chat_for_acme(""));
    assert_eq!((response.status(), response.field("retry-after")), (503, Some("1")));
}

#[test]
fn a_draining_replica_is_ejected_at_once() {
    let draining = json(500, &format!("{{\"error\":{{\"message\":\"{SHUT_DOWN}\"}}}}"));
    let engines = failing(2, 1, (&draining, After::Keep), &hello());
    let bed = in_front_of(&engines, "");
    assert_eq!(ask(bed.addr, &stream_for_acme()).words(), "hello");
    let mut states = states(&bed);
    states.sort_unstable();
    assert_eq!(states, ["draining", "up"]);
    // Its `/health` says 200 all the while, and a request that it serves brings it back.
    eventually("both serve again", || {
        assert_eq!(ask(bed.addr, &stream_for_acme()).words(), "hello");
        common::faults::states(&bed) == ["up", "up"]
    });
}

/// A body that makes any engine fail (a deep one overflows vLLM's reader) must not take the fleet
/// from everyone else.
#[test]
fn a_request_that_every_replica_fails_ejects_none() {
    let internal = "{\"error\":{\"message\":\"maximum recursion depth exceeded\",\"code\":500}}";
    let shapes = [
        ("an answer", json(500, internal)),
        ("an error in a 200", json(200, internal)),
        ("an event", whole_stream(&[error_event(500, "maximum recursion depth exceeded")])),
    ];
    for (name, poison) in shapes {
        for replicas in [1, 2] {
            let engines = failing(replicas, usize::MAX, (&poison, After::Keep), b"");
            let bed = in_front_of(&engines, "");
            for _ in 0..8 {
                assert_eq!(ask(bed.addr, &stream_for_acme()).status(), 502, "{name}");
            }
            let states = states(&bed);
            assert!(!states.contains(&"ejected".to_owned()), "{name}: {states:?}");
        }
    }
}

#[test]
fn a_replica_that_fails_what_another_serves_is_ejected() {
    let internal = json(500, "{\"error\":{\"message\":\"CUDA error\",\"code\":500}}");
    let engines = [Engine::always(internal), Engine::always(hello())];
    let bed = in_front_of(&engines, "");
    for _ in 0..6 {
        let answer = ask(bed.addr, &stream_for_acme());
        assert_eq!(answer.words(), "hello", "{}", answer.text());
    }
    assert_eq!(states(&bed)[0], "ejected");
}

/// An event of messages or responses, whose type stands in it.
fn typed(data: &Value) -> Vec<u8> {
    let kind = data["type"].as_str().expect("type");
    format!("event: {kind}\ndata: {data}\n\n").into_bytes()
}

/// The stream of `/v1/responses` that says `hello`, as the replica of this name writes it.
fn response(replica: &str) -> Vec<Vec<u8>> {
    let id = format!("resp_{replica}");
    let body = |status: &str| json!({"id": id, "object": "response", "status": status});
    let at = |kind: &str, sequence: u32| {
        let item = format!("msg_{replica}");
        json!({"type": kind, "sequence_number": sequence, "output_index": 0, "content_index": 0,
               "item_id": item})
    };
    let with = |mut event: Value, name: &str, value: Value| {
        event[name] = value;
        typed(&event)
    };
    let part = json!({"type": "output_text", "text": "", "annotations": []});
    let item = json!({"id": format!("msg_{replica}"), "type": "message", "content": []});
    let mut done = body("completed");
    done["usage"] = json!({"input_tokens": 7, "output_tokens": 2, "total_tokens": 9});
    vec![
        with(at("response.created", 0), "response", body("in_progress")),
        with(at("response.in_progress", 1), "response", body("in_progress")),
        with(at("response.output_item.added", 2), "item", item),
        with(at("response.content_part.added", 3), "part", part),
        with(at("response.output_text.delta", 4), "delta", "hel".into()),
        with(at("response.output_text.delta", 5), "delta", "lo".into()),
        with(at("response.output_text.done", 6), "text", "hello".into()),
        with(at("response.completed", 7), "response", done),
    ]
}

/// The stream of `/v1/messages` that says `hello`, with a ping.
fn message(replica: &str) -> Vec<Vec<u8>> {
    let usage = json!({"input_tokens": 7, "output_tokens": 0});
    let start = json!({"id": format!("msg_{replica}"), "role": "assistant", "usage": usage});
    let delta = |text: &str| {
        let delta = json!({"type": "text_delta", "text": text});
        json!({"type": "content_block_delta", "index": 0, "delta": delta})
    };
    [
        json!({"type": "message_start", "message": start}),
        json!({"type": "content_block_start", "index": 0,
               "content_block": {"type": "text", "text": ""}}),
        json!({"type": "ping"}),
        delta("hel"),
        delta("lo"),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
               "usage": {"input_tokens": 7, "output_tokens": 2}}),
        json!({"type": "message_stop"}),
    ]
    .iter()
    .map(typed)
    .collect()
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["type"].as_str()).collect()
}

fn whole(events: &[Vec<u8>]) -> Vec<u8> {
    [cut_stream(events), LAST_CHUNK.to_vec()].concat()
}

fn respond() -> Vec<u8> {
    post_with("/v1/responses", AUTH, "{\"model\":\"m\",\"input\":\"x\",\"stream\":true}")
}

fn send_message() -> Vec<u8> {
    let json = "{\"model\":\"m\",\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\
                \"content\":\"x\"}],\"stream\":true}";
    post_with("/v1/messages", AUTH, json)
}

#[test]
fn what_opened_a_stream_is_opened_once_wherever_the_first_replica_broke() {
    for (request, first, second) in
        [(respond(), response("a"), response("b")), (send_message(), message("a"), message("b"))]
    {
        let sent: Vec<Value> = Response::parse(&whole(&second)).events();
        let content = sent.iter().position(|event| event["delta"] != Value::Null);
        for n in 0..=content.expect("a delta") {
            let engines = failing(2, 1, (&cut_stream(&first[..n]), After::Reset), &whole(&second));
            let bed = in_front_of(&engines, "");
            let answer = ask(bed.addr, &request);
            let events = answer.events();
            assert_eq!(types(&events), types(&sent), "{n} before the break");
            let of_the_first =
                String::from_utf8_lossy(&first[..n].concat()).matches("_a\"").count();
            assert_eq!(answer.text().matches("_a\"").count(), of_the_first, "{n}: as it came");
            let numbers: Vec<_> =
                events.iter().filter_map(|e| e["sequence_number"].as_u64()).collect();
            assert!(numbers.iter().enumerate().all(|(at, n)| at as u64 == *n), "{numbers:?}");
            assert!(answer.complete, "{n}");
            let record = &bed.records(1)[0];
            assert_eq!((&record["outcome"], &record["attempts"]), (&"ok".into(), &2.into()));
            assert_eq!((&record["input_tokens"], &record["output_tokens"]), (&7.into(), &2.into()));
            assert_eq!(record["tokens_source"], "engine");
            at_rest(&bed);
        }
    }
}

#[test]
fn what_was_not_opened_yet_is_opened_in_whatever_order_it_comes() {
    let mut second = message("b");
    second.swap(0, 2);
    let engines = failing(2, 1, (&cut_stream(&message("a")[..1]), After::Reset), &whole(&second));
    let answer = ask(in_front_of(&engines, "").addr, &send_message());
    let events = answer.events();
    let wanted = ["message_start", "ping", "content_block_start", "content_block_delta"];
    assert_eq!(types(&events)[..4], wanted, "{}", answer.text());
    assert!(answer.complete && types(&events).ends_with(&["message_stop"]));
}

/// The client was told of a text; a replica that begins with a thought cannot go on from there.
#[test]
fn an_answer_that_does_not_go_on_from_what_was_opened_is_not_joined_to_it() {
    let mut second = message("b");
    second[1] = typed(&json!({"type": "content_block_start", "index": 0,
                              "content_block": {"type": "thinking", "thinking": ""}}));
    let empty = [message("b")[0].clone(), message("b")[6].clone(), message("b")[7].clone()];
    for second in [second, empty.to_vec()] {
        let engines =
            failing(2, 1, (&cut_stream(&message("a")[..2]), After::Reset), &whole(&second));
        let bed = in_front_of(&engines, "");
        let answer = ask(bed.addr, &send_message());
        let events = answer.events();
        assert_eq!(types(&events)[..2], ["message_start", "content_block_start"]);
        assert!(!answer.complete && events.len() == 3, "{}", answer.text());
        assert!(events[2]["error"].is_object(), "{}", answer.text());
        assert_eq!(bed.records(1)[0]["outcome"], "upstream_error");
        assert!(!states(&bed).contains(&"ejected".to_owned()), "its answer is as good as any");
        at_rest(&bed);
    }
}

/// Each choice has a role of its own.
#[test]
fn the_roles_of_other_choices_are_not_taken_for_the_first_ones() {
    let role = |index: u32| {
        let text = String::from_utf8(role_event()).expect("text");
        text.replace("\"index\":0", &format!("\"index\":{index}")).into_bytes()
    };
    let good = whole_stream(&[role(0), role(1), event("hel"), event("lo"), finish_event("stop")]);
    let engines = failing(2, 1, (&cut_stream(&[role(0)]), After::Reset), &good);
    let answer = ask(in_front_of(&engines, "").addr, &stream_for_acme());
    let roles: Vec<_> =
        answer.events()[..2].iter().map(|e| e["choices"][0]["index"].clone()).collect();
    assert_eq!(roles, [0, 1], "{}", answer.text());
    assert_eq!((answer.text().matches("\"role\"").count(), answer.words()), (2, "hello".into()));
}

/// A replica whose process ends with the request that it gets.
fn mortal() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind"));
    let addr = listener.local_addr().expect("address");
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    std::thread::spawn(move || {
        while let Ok((mut wire, _)) = listener.accept() {
            let (listener, asked) = (Arc::clone(&listener), Arc::clone(&counted));
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(n @ 1..) = wire.read(&mut bytes) {
                    if bytes[..n].starts_with(b"POST /v1/chat") {
                        asked.fetch_add(1, SeqCst);
                        // Nobody accepts any more, as after a SIGKILL.
                        let _ = rustix::net::shutdown(&*listener, rustix::net::Shutdown::Both);
                        return;
                    }
                    let _ = wire.write_all(&json(200, "{\"object\":\"list\",\"data\":[]}"));
                }
            });
        }
    });
    (addr, asked)
}

#[test]
fn a_request_that_ends_engines_is_sent_to_no_third_one() {
    let replicas: Vec<_> = (0..4).map(|_| mortal()).collect();
    let addrs: Vec<_> = replicas.iter().map(|(addr, _)| *addr).collect();
    let bed = Bed::unready(&addrs, Settings { more: IN_TURN.to_owned(), ..Settings::default() });
    eventually("they are up", || states(&bed).iter().all(|state| state == "up"));
    let asked = || replicas.iter().map(|(_, asked)| asked.load(SeqCst)).sum::<usize>();
    let answer = ask(bed.addr, &stream_for_acme());
    assert_eq!((answer.status(), answer.field("x-should-retry")), (500, Some("false")));
    assert_eq!((answer.json()["error"]["code"].as_str(), asked()), (Some("upstream_error"), 2));
    // The client's own retry gets to nobody; another request does.
    assert_eq!(ask(bed.addr, &stream_for_acme()).status(), 500);
    assert_eq!(asked(), 2);
    let up = || states(&bed).iter().filter(|state| *state == "up").count();
    eventually("the dead are known to be", || up() == 2);
    let other = r#"{"model":"m","messages":[{"role":"user","content":"other"}]}"#;
    let other = post_with("/v1/chat/completions", AUTH, other);
    assert_eq!(ask(bed.addr, &other).status(), 500);
    assert_eq!(asked(), 4);
    let outcomes: Vec<_> = bed.records(3).iter().map(|r| r["outcome"].clone()).collect();
    assert_eq!(outcomes, ["upstream_error"; 3]);
    at_rest(&bed);
}
