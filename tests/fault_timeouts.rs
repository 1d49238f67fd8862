//! Every time limit ends what it should, and the answer names it. Nothing here measures time: a
//! limit that does not act shows as a test that waits for ever.

mod common;

use std::io::{Read, Write};
use std::time::Duration;

use common::engine::{After, Engine, STREAM_HEAD, chunk, event};
use common::faults::{
    at_rest, chat_for_acme, cut_stream, deaf, hello, in_front_of, role_event, states,
    stream_for_acme,
};
use common::gateway::{AUTH, Bed, Settings};
use common::{Client, Ended, Response, ask, post_with};

/// One attempt, so that a limit's error is the client's answer.
const ONCE: &str = "[retry]\nattempts_max = 1\n";

fn limits(lines: &str) -> String {
    format!("{ONCE}[timeouts]\n{lines}\n")
}

fn before(engine: &Engine, more: &str) -> Bed {
    in_front_of(std::slice::from_ref(engine), more)
}

/// An engine that writes `bytes` and then this comment line again and again until it is cut off.
fn murmuring(bytes: Vec<u8>) -> Engine {
    Engine::start(move |_, wire| {
        wire.write_all(&bytes)?;
        loop {
            wire.write_all(&chunk(b": still here\n\n"))?;
            std::thread::sleep(Duration::from_millis(20));
        }
    })
}

/// An engine that writes `bytes` and then nothing until it is cut off.
fn silent_after(bytes: Vec<u8>) -> Engine {
    Engine::start(move |_, wire| {
        wire.write_all(&bytes)?;
        let _ = wire.read(&mut [0]);
        Ok(After::Close)
    })
}

#[test]
fn a_head_that_trickles_in_is_ended_with_408() {
    let engine = Engine::always(hello());
    let bed = before(&engine, "[timeouts]\nclient_head_ms = 300\n");
    let mut client = Client::connect(bed.addr);
    let mut trickle = client.0.try_clone().expect("clone");
    let slow = std::thread::spawn(move || {
        let head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gw.test\r\nX-Slow: ";
        for byte in head.iter().chain(std::iter::repeat(&b'a')) {
            if trickle.write_all(&[*byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let answer = client.response();
    assert_eq!((answer.status(), answer.field("connection")), (408, Some("close")));
    assert_eq!(answer.json()["error"]["code"], "bad_request");
    slow.join().expect("the connection ends under the trickle");
    at_rest(&bed);
}

#[test]
fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    let engine = Engine::start(|_, wire| {
        wire.write_all(&cut_stream(&[role_event(), event("one")]))?;
        std::thread::sleep(Duration::from_millis(2_500));
        wire.write_all(&[&chunk(b"data: [DONE]\n\n")[..], b"0\r\n\r\n"].concat())?;
        Ok(After::Keep)
    });
    let bed = before(&engine, "[timeouts]\nclient_idle_ms = 1000\n");
    let mut never = Client::connect(bed.addr);
    let mut busy = Client::connect(bed.addr);
    busy.send(&stream_for_acme());
    assert_eq!(never.rest(), (Vec::new(), Ended::Fin), "an idle connection is told nothing");
    let answer = busy.response();
    assert!(answer.complete && answer.text().ends_with("[DONE]\n\n"), "{}", answer.text());
    assert_eq!(busy.rest(), (Vec::new(), Ended::Fin), "and it is idle after its answer");
    at_rest(&bed);
}

#[test]
fn a_body_below_the_least_pace_is_ended_with_408() {
    let engine = Engine::always(hello());
    let bed = before(&engine, "");
    let request = chat_for_acme("");
    let mut client = Client::connect(bed.addr);
    client.send(&request[..request.len() - 5]);
    let answer = client.response();
    assert_eq!((answer.status(), answer.field("connection")), (408, Some("close")));
    assert_eq!(bed.records(1)[0]["outcome"], "rejected_invalid");
    at_rest(&bed);
}

#[test]
fn a_replica_that_answers_no_connect_is_left_within_its_limit() {
    let (_listener, _held, addr) = deaf();
    let settings = Settings { more: limits("connect_ms = 200"), ..Settings::default() };
    let bed = Bed::unready(&[addr], settings);
    let answer = ask(bed.addr, &stream_for_acme());
    assert_eq!(answer.status(), 502, "{}", answer.text());
    assert!(answer.text().contains("timeouts.connect_ms"), "{}", answer.text());
    assert_eq!(answer.field("x-gateway-attempts"), Some("1"));
    assert_eq!(answer.field("x-gateway-assigned-node"), Some(&*addr.to_string()));
    at_rest(&bed);

    let good = Engine::always(hello());
    let more = "[routing]\npolicy = \"round_robin\"\n[timeouts]\nconnect_ms = 200\n".to_owned();
    let bed = Bed::unready(&[addr, good.addr], Settings { more, ..Settings::default() });
    for _ in 0..6 {
        let answer = ask(bed.addr, &stream_for_acme());
        assert_eq!((answer.status(), answer.words()), (200, "hello".to_owned()));
    }
    at_rest(&bed);
}

#[test]
fn the_callers_deadline_counts_while_connecting() {
    let (_listener, _held, addr) = deaf();
    let settings = Settings { more: limits("connect_ms = 60000"), ..Settings::default() };
    let bed = Bed::unready(&[addr], settings);
    let answer = ask(bed.addr, &within(300));
    is_deadline(&answer, &bed, "x-request-deadline-ms");
}

/// A stream whose caller waits this long for its first content.
fn within(deadline_ms: u32) -> Vec<u8> {
    let fields = format!("{AUTH}X-Request-Deadline-Ms: {deadline_ms}\r\n");
    let json = r#"{"model":"m","messages":[{"content":"some words to pay for"}],"stream":true}"#;
    post_with("/v1/chat/completions", &fields, json)
}

fn is_deadline(answer: &Response, bed: &Bed, limit: &str) {
    let text = answer.text();
    assert_eq!(answer.status(), 504, "{text}");
    assert_eq!(answer.json()["error"]["code"], "deadline_exceeded");
    assert!(text.contains(limit), "{text}");
    let record = &bed.records(1)[0];
    assert_eq!(record["outcome"], "deadline");
    // An answer of our own tells of the attempts before it as any other does.
    assert_eq!(answer.field("x-gateway-attempts"), Some("1"));
    assert_eq!(record["replica"], answer.field("x-gateway-assigned-node").expect("a node"));
    // Our limits cost the caller nothing; its own is as a leaving, for what the engine was sent.
    if limit != "x-request-deadline-ms" {
        assert_eq!((&record["input_tokens"], &record["output_tokens"]), (&0.into(), &0.into()));
    }
    at_rest(bed);
}

#[test]
fn silence_before_the_first_token_is_504_by_either_limit() {
    for (name, bytes) in [("before the head", Vec::new()), ("after it", STREAM_HEAD.to_vec())] {
        println!("{name}");
        let engine = silent_after(bytes);
        let bed = before(&engine, &limits("first_token_ms = 200"));
        is_deadline(&ask(bed.addr, &stream_for_acme()), &bed, "timeouts.first_token_ms");
        let bed = before(&engine, &limits("first_token_ms = 60000"));
        is_deadline(&ask(bed.addr, &within(200)), &bed, "x-request-deadline-ms");
        assert_ne!(bed.records(1)[0]["input_tokens"], 0);
        assert_eq!(states(&bed), ["up"], "a caller in haste says nothing of the replica");
        let bed = before(&engine, &limits("first_token_ms = 200"));
        is_deadline(&ask(bed.addr, &within(60_000)), &bed, "timeouts.first_token_ms");
    }
}

#[test]
fn a_tiers_deadline_ends_the_wait_for_the_first_content() {
    let tokens = r#"{"model":"m","messages":[{"content":"words"}],"max_tokens":4"#;
    let stream = format!(r#"{tokens},"stream":true}}"#);
    for (bytes, body) in [
        (Vec::new(), &stream),
        (STREAM_HEAD.to_vec(), &stream),
        (cut_stream(&[role_event()]), &stream),
        (Vec::new(), &format!("{tokens}}}")),
    ] {
        println!("{} bytes of an answer, to {body}", bytes.len());
        let engines = [silent_after(bytes.clone()), silent_after(bytes.clone())];
        let tenant = "tier = \"hasty\"".to_owned();
        // Four tokens have 50 ms each besides.
        let more = "[tier.hasty]\ndeadline_ms = 100\n".to_owned();
        let addrs: Vec<_> = engines.iter().map(|engine| engine.addr).collect();
        let bed = Bed::unready(&addrs, Settings { tenant, more, ..Settings::default() });
        let answer = ask(bed.addr, &post_with("/v1/chat/completions", AUTH, body));
        if bytes.len() > STREAM_HEAD.len() {
            // A role does not end the wait, and has gone to the client.
            ends_in_band(&answer, &bed, "tier.deadline_ms", "deadline");
        } else {
            is_deadline(&answer, &bed, "tier.deadline_ms");
        }
        assert_eq!(states(&bed), ["up", "up"], "its own deadline says nothing of a replica");
    }
}

#[test]
fn comments_alone_do_not_keep_a_stream_alive() {
    let engine = murmuring(STREAM_HEAD.to_vec());
    let bed = before(&engine, &limits("first_token_ms = 300"));
    is_deadline(&ask(bed.addr, &stream_for_acme()), &bed, "timeouts.first_token_ms");

    let engine = murmuring(cut_stream(&[role_event()]));
    let bed = before(&engine, &limits("first_token_ms = 300"));
    let answer = ask(bed.addr, &within(60_000));
    ends_in_band(&answer, &bed, "timeouts.first_token_ms", "deadline");

    let engine = murmuring(cut_stream(&[role_event(), event("one ")]));
    let bed = before(&engine, &limits("next_token_ms = 300"));
    let answer = ask(bed.addr, &stream_for_acme());
    ends_in_band(&answer, &bed, "timeouts.next_token_ms", "truncated");
}

#[test]
fn a_replica_that_goes_silent_after_its_role_is_left_for_another() {
    let engine = silent_after(cut_stream(&[role_event()]));
    let engines = [engine, Engine::always(hello())];
    let bed = in_front_of(&engines, "[timeouts]\nfirst_token_ms = 1000\n");
    for _ in 0..2 {
        let answer = ask(bed.addr, &stream_for_acme());
        assert!(answer.complete, "{}", answer.text());
        assert_eq!(answer.words(), "hello");
        assert_eq!(answer.text().matches("assistant").count(), 1, "{}", answer.text());
    }
    assert_eq!(bed.metric("expedite_retries_total", ""), 1.0);
    // The second in which nothing came was the replica's, not the gateway's.
    let records = bed.records(2);
    let retried = records.iter().find(|record| record["attempts"] == 2).expect("one");
    let of = |field: &str| retried[field].as_f64().expect("ms");
    assert!(of("total_ms") - of("gateway_ms") > 900.0, "{retried}");
    at_rest(&bed);
}

/// The head was sent: one error event that names the limit, and a visible cut.
fn ends_in_band(answer: &Response, bed: &Bed, limit: &str, outcome: &str) {
    let text = answer.text();
    assert_eq!((answer.status(), answer.complete), (200, false), "{text}");
    let last = text.rsplit("data: ").next().expect("event");
    assert!(last.starts_with("{\"error\"") && last.contains(limit), "{text}");
    assert!(!text.contains("[DONE]"), "{text}");
    let record = &bed.records(1)[0];
    assert_eq!(record["outcome"], outcome);
    // As when nothing had been sent: a wait that our limit ends costs nothing.
    if outcome == "deadline" {
        assert_eq!((&record["input_tokens"], &record["output_tokens"]), (&0.into(), &0.into()));
    }
    at_rest(bed);
}

#[test]
fn each_token_limit_acts_in_its_own_phase() {
    let engine = Engine::start(|_, wire| {
        std::thread::sleep(Duration::from_millis(900));
        wire.write_all(&cut_stream(&[role_event(), event("one ")]))?;
        let _ = wire.read(&mut [0]);
        Ok(After::Close)
    });
    // Longer than the limit between tokens, shorter than the one before the first.
    let bed = before(&engine, &limits("first_token_ms = 60000\nnext_token_ms = 300"));
    let answer = ask(bed.addr, &stream_for_acme());
    ends_in_band(&answer, &bed, "timeouts.next_token_ms", "truncated");
    let bed = before(&engine, &limits("first_token_ms = 300\nnext_token_ms = 60000"));
    is_deadline(&ask(bed.addr, &stream_for_acme()), &bed, "timeouts.first_token_ms");
}
