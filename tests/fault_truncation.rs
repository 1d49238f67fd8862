//! A stream that is cut after its first content event never looks complete: one error event, no
//! `[DONE]`, no last chunk, the connection closed.

mod common;

use std::io::{Read, Write};
use std::sync::{Mutex, mpsc};

use common::engine::{After, DONE, Engine, LAST_CHUNK, STREAM_HEAD, chunk, event, usage_event};
use common::faults::{
    at_rest, chat_for_acme, cut_stream, error_event, failing, finish_event, hello, in_front_of,
    role_event, states, stream_for_acme, whole_stream,
};
use common::gateway::{AUTH, Bed, Settings};
use common::{Client, Ended, Response, ask, find, post_with};

/// Ways in which an engine's stream ends too early, after a role event and `hel`.
fn cuts() -> Vec<(&'static str, Vec<u8>, After)> {
    let begun = [role_event(), event("hel")];
    let then = |bytes: &[u8]| [cut_stream(&begun), bytes.to_vec()].concat();
    let lo = event("lo");
    let torn = &lo[..lo.len() / 2];
    let head = String::from_utf8_lossy(STREAM_HEAD)
        .replace("transfer-encoding: chunked", "content-length: 9999");
    let short = [head.as_bytes(), &begun.concat()].concat();
    let until_close =
        String::from_utf8_lossy(STREAM_HEAD).replace("transfer-encoding: chunked\r\n", "");
    let closed = [until_close.as_bytes(), &begun.concat()].concat();
    vec![
        ("reset", then(b""), After::Reset),
        ("end without the last chunk", then(b""), After::Close),
        ("reset in an event", then(&chunk(torn)), After::Reset),
        ("end in an event", then(&[chunk(torn), LAST_CHUNK.to_vec()].concat()), After::Keep),
        ("end in a chunk", then(&chunk(&lo)[..lo.len() / 2]), After::Close),
        ("no [DONE]", then(LAST_CHUNK), After::Keep),
        ("no [DONE] after a finish", whole_but_done(), After::Keep),
        ("bad chunk size", then(b"zz\r\nxx\r\n"), After::Keep),
        ("chunk over its size", then(b"1\r\nabc\r\n"), After::Keep),
        ("short content-length", short, After::Close),
        ("end of a connection", closed, After::Close),
        (
            "abort",
            then(&[chunk(&finish_event("abort")), chunk(DONE), LAST_CHUNK.to_vec()].concat()),
            After::Keep,
        ),
    ]
}

fn whole_but_done() -> Vec<u8> {
    let events = [role_event(), event("hel"), finish_event("stop")];
    [cut_stream(&events), LAST_CHUNK.to_vec()].concat()
}

/// All that comes for a stream, to the end of the connection.
fn to_the_end(bed: &Bed, request: &[u8]) -> Vec<u8> {
    let mut client = Client::connect(bed.addr);
    client.send(request);
    client.rest().0
}

/// Asserts that the answer is visibly broken; its text.
fn assert_cut(name: &str, bytes: &[u8]) -> String {
    let response = Response::parse(bytes);
    assert_eq!(response.status(), 200, "{name}");
    assert!(!response.complete && find(bytes, b"\r\n0\r\n").is_none(), "{name}: a last chunk");
    let text = response.text();
    assert!(text.contains("\"content\":\"hel\""), "{name}: {text}");
    assert_eq!(text.matches("[DONE]").count(), 0, "{name}: {text}");
    let events = response.events();
    let errors = events.iter().filter(|event| event["error"].is_object()).count();
    assert_eq!(errors, 1, "{name}: {text}");
    assert!(events.last().is_some_and(|event| event["error"].is_object()), "{name}: {text}");
    assert!(text.ends_with("}\n\n"), "{name}: the error is a whole event");
    text
}

#[test]
fn a_cut_stream_ends_in_one_error_event_and_without_an_end() {
    for (name, bytes, after) in cuts() {
        let engines = failing(2, 1, (&bytes, after), &hello());
        let bed = in_front_of(&engines, "");
        let text = assert_cut(name, &to_the_end(&bed, &stream_for_acme()));
        assert!(text.contains("\"code\":\"upstream_error\""), "{name}: {text}");
        let record = &bed.records(1)[0];
        assert_eq!(
            (&record["outcome"], &record["attempts"]),
            (&"truncated".into(), &1.into()),
            "{name}"
        );
        // No usage came: what was passed on is counted. A finishing event counts too.
        let counted = 1 + u64::from(text.contains("\"finish_reason\":\"stop\""));
        assert_eq!(record["output_tokens"], counted, "{name}");
        assert_eq!(record["tokens_source"], "gateway", "{name}");
        assert_eq!(bed.metric("expedite_retries_total", ""), 0.0, "{name}");
        at_rest(&bed);
        assert_eq!(ask(bed.addr, &stream_for_acme()).words(), "hello", "{name}: and then");
    }
}

#[test]
fn the_engines_own_error_event_is_passed_on_and_is_the_end() {
    let begun = [role_event(), event("hel"), error_event(500, "EngineCore died")];
    let engines = failing(1, 1, (&whole_stream(&begun), After::Keep), &hello());
    let bed = in_front_of(&engines, "");
    let text = assert_cut("error", &to_the_end(&bed, &stream_for_acme()));
    assert!(text.contains("\"message\": \"EngineCore died\""), "as it came: {text}");
    assert_eq!(bed.records(1)[0]["outcome"], "upstream_error");
    at_rest(&bed);
}

#[test]
fn a_client_of_http_1_0_sees_the_error_and_no_done() {
    let engines = failing(1, 1, (&cut_stream(&[event("hel")]), After::Close), &hello());
    let bed = in_front_of(&engines, "");
    let request = String::from_utf8(stream_for_acme()).expect("text");
    let bytes = to_the_end(&bed, request.replace("HTTP/1.1", "HTTP/1.0").as_bytes());
    let text = String::from_utf8_lossy(&bytes);
    assert!(find(&bytes, b"transfer-encoding").is_none(), "{text}");
    assert!(text.ends_with("}\n\n") && text.contains("\"error\""), "{text}");
    assert!(!text.contains("[DONE]"), "{text}");
    assert_eq!(bed.records(1)[0]["outcome"], "truncated");
}

#[test]
fn a_legacy_completion_is_cut_the_same_way() {
    let piece = b"data: {\"choices\":[{\"index\":0,\"text\":\"hel\",\"finish_reason\":null}]}\n\n";
    let engines = failing(1, 1, (&cut_stream(&[piece.to_vec()]), After::Reset), &hello());
    let bed = in_front_of(&engines, "");
    let json = "{\"model\":\"m\",\"prompt\":\"x\",\"stream\":true}";
    let bytes = to_the_end(&bed, &post_with("/v1/completions", AUTH, json));
    let response = Response::parse(&bytes);
    assert!(!response.complete && response.text().ends_with("}\n\n"));
    assert_eq!(response.events().iter().filter(|e| e["error"].is_object()).count(), 1);
    assert_eq!(bed.records(1)[0]["outcome"], "truncated");
}

#[test]
fn an_answer_too_long_to_be_held_is_cut_short_of_its_length() {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 3000000\r\n\r\n";
    let bytes = [head.as_bytes(), &[b' '; 2_000_000]].concat();
    let engines = failing(1, 1, (&bytes, After::Close), b"");
    let bed = in_front_of(&engines, "");
    let got = to_the_end(&bed, &chat_for_acme(""));
    let response = Response::parse(&got);
    assert_eq!((response.field("content-length"), response.complete), (Some("3000000"), false));
    assert_eq!(bed.records(1)[0]["outcome"], "truncated");
    at_rest(&bed);
}

/// Case 219: an answer without end is cut, and one that promises to be too long does not begin.
#[test]
fn an_answer_without_end_is_cut_at_its_limit() {
    let server = "answer_bytes_max = 2097152".to_owned();
    let piece = chunk(&[b' '; 64 << 10]);
    let endless = Engine::start(move |_, wire| {
        wire.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")?;
        wire.write_all(b"transfer-encoding: chunked\r\n\r\n")?;
        wire.write_all(&chunk(b"{"))?;
        loop {
            wire.write_all(&piece)?;
        }
    });
    let settings = || Settings { server: server.clone(), ..Settings::default() };
    let bed = Bed::start(&[endless.addr], settings());
    let response = Response::parse(&to_the_end(&bed, &chat_for_acme("")));
    assert!(!response.complete && response.body().len() < 4 << 20, "{}", response.body().len());
    assert_eq!(bed.records(1)[0]["outcome"], "truncated");
    at_rest(&bed);

    let long =
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2097153\r\n\r\n{";
    let engine = Engine::always(*long);
    let bed = Bed::start(&[engine.addr], settings());
    let answer = ask(bed.addr, &chat_for_acme(""));
    assert_eq!(answer.status(), 502);
    assert!(answer.text().contains("answer_bytes_max"), "{}", answer.text());
    assert_eq!(states(&bed), ["up"]);
    at_rest(&bed);
}

/// Streams of the other endpoints whose first event tells of a usage: `n` deltas, then no end.
fn opened_and_cut(n: usize) -> Vec<(&'static str, &'static str, Vec<u8>, u64)> {
    let stream = |opening: &[&str], delta: &str| {
        let event = |data: &&str| format!("data: {data}\n\n").into_bytes();
        let deltas = std::iter::repeat_n(event(&delta), n);
        cut_stream(&opening.iter().map(event).chain(deltas).collect::<Vec<_>>())
    };
    let usage = "{\"input_tokens\":77,\"output_tokens\":0}";
    let message = format!("{{\"type\":\"message_start\",\"message\":{{\"usage\":{usage}}}}}");
    let block = "{\"type\":\"content_block_start\",\"index\":0,\
                 \"content_block\":{\"type\":\"text\",\"text\":\"\"}}";
    let created = |usage: &str| {
        format!("{{\"type\":\"response.created\",\"response\":{{\"usage\":{usage}}}}}")
    };
    let text = "{\"type\":\"content_block_delta\",\"delta\":{\"text\":\"x\"},\"index\":0}";
    let delta = "{\"delta\":\"x\",\"type\":\"response.output_text.delta\"}";
    let role = "{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"}}],\
                \"usage\":{\"prompt_tokens\":77,\"completion_tokens\":0}}";
    let word = "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}";
    let messages = "{\"model\":\"m\",\"max_tokens\":99,\"messages\":[{\"role\":\"user\",\
                    \"content\":\"x\"}],\"stream\":true}";
    let input = "{\"model\":\"m\",\"input\":\"x\",\"stream\":true}";
    vec![
        ("/v1/messages", messages, stream(&[&message, block], text), 77),
        ("/v1/responses", input, stream(&[&created("null")], delta), 0),
        ("/v1/responses", input, stream(&[&created(usage)], delta), 77),
        ("/v1/chat/completions", messages, stream(&[role], word), 77),
    ]
}

/// What an opening event says of the answer is not what was generated: only an end knows that.
#[test]
fn a_stream_that_is_cut_or_left_is_paid_for() {
    for (path, json, bytes, input) in opened_and_cut(20) {
        for after in [After::Reset, After::Keep] {
            let engines = failing(1, 1, (&bytes, after), b"");
            let bed = in_front_of(&engines, "");
            let mut client = Client::connect(bed.addr);
            client.send(&post_with(path, AUTH, json));
            let mut got = Vec::new();
            if after == After::Reset {
                got = client.rest().0;
            }
            while got.windows(3).filter(|w| w == b"\"x\"").count() < 20 {
                got.extend(client.read_some(1));
            }
            drop(client);
            let record = &bed.records(1)[0];
            let outcome = if after == After::Reset { "truncated" } else { "client_cancelled" };
            assert_eq!(record["outcome"], outcome, "{path}");
            assert_eq!(record["output_tokens"], 20, "{path}: {record}");
            assert_eq!(record["tokens_source"], "gateway", "{path}");
            // The engine's count of the prompt holds, where it gave one.
            if input > 0 {
                assert_eq!(record["input_tokens"], input, "{path}");
            }
            at_rest(&bed);
        }
    }
}

const RESPONSES: &str = "{\"model\":\"m\",\"input\":\"x\",\"stream\":true}";

/// An event of `/v1/responses`, whose response says `text` in front of its usage.
fn response_event(kind: &str, text: &str) -> Vec<u8> {
    format!(
        "event: {kind}\ndata: {{\"response\":{{\"instructions\":\"{text}\",\"usage\":\
         {{\"input_tokens\":5,\"output_tokens\":2,\"total_tokens\":7}}}},\"type\":\"{kind}\"}}\n\n"
    )
    .into_bytes()
}

/// The first and the last event of such a stream repeat what was asked for.
#[test]
fn a_stream_of_responses_may_begin_and_end_with_more_than_is_held() {
    let delta = b"event: response.output_text.delta\ndata: {\"delta\":\"x\",\
                  \"type\":\"response.output_text.delta\"}\n\n";
    for (first, last) in [(10, 50_000), (10, 400_000), (50_000, 10), (400_000, 400_000)] {
        let events = [
            response_event("response.created", &"i".repeat(first)),
            delta.to_vec(),
            response_event("response.completed", &"i".repeat(last)),
        ];
        let whole = [cut_stream(&events), LAST_CHUNK.to_vec()].concat();
        let engines = failing(2, 0, (b"", After::Keep), &whole);
        let bed = in_front_of(&engines, "");
        for n in 1..=4 {
            let answer = ask(bed.addr, &post_with("/v1/responses", AUTH, RESPONSES));
            assert_eq!((answer.status(), answer.complete), (200, true), "{first} {last}");
            assert!(answer.body() == events.concat(), "{first} {last}");
            let record = &bed.records(n)[n - 1];
            let told = (&record["outcome"], &record["input_tokens"], &record["output_tokens"]);
            assert_eq!(told, (&"ok".into(), &5.into(), &2.into()), "{first} {last}: {record}");
        }
        assert_eq!(states(&bed), ["up", "up"]);
        at_rest(&bed);
    }
}

/// What is asked for makes an answer so long: no replica is to blame.
#[test]
fn an_event_that_nobody_may_send_ejects_no_replica() {
    let events = [role_event(), event("hel"), event(&"x".repeat(1_500_000))];
    let engines = failing(1, 0, (b"", After::Keep), &whole_stream(&events));
    let bed = in_front_of(&engines, "");
    for n in 1..=5 {
        let bytes = to_the_end(&bed, &stream_for_acme());
        assert!(find(&bytes, b"is over its limit").is_some());
        assert_eq!(bed.records(n)[n - 1]["outcome"], "truncated");
    }
    assert_eq!(states(&bed), ["up"]);
    at_rest(&bed);
}

/// Anthropic's clients go by an event's name, OpenAI's of responses by its type.
#[test]
fn an_error_in_a_stream_is_one_that_the_endpoints_clients_read() {
    for (path, json, bytes, _) in opened_and_cut(2) {
        let engines = failing(1, 1, (&bytes, After::Reset), b"");
        let bed = in_front_of(&engines, "");
        let got = to_the_end(&bed, &post_with(path, AUTH, json));
        let response = Response::parse(&got);
        let events = response.events();
        let error = events.last().expect("an event");
        assert_eq!(error["error"]["code"], "upstream_error", "{path}");
        let kind = match path {
            "/v1/messages" => "error",
            "/v1/responses" => "response.failed",
            _ => {
                assert_eq!(find(&got, b"event: "), None, "{path}");
                continue;
            }
        };
        let name = format!("event: {kind}\ndata: {{");
        assert!(find(&got, name.as_bytes()).is_some(), "{path}");
        assert_eq!(error["type"], kind, "{path}: {error}");
        if kind == "response.failed" {
            assert_eq!(error["response"]["error"]["code"], "server_error");
            assert_eq!(error["sequence_number"], events.len() as u64 - 1);
        }
    }
}

/// T12: a stream of responses fails by an event of its own, whatever the engine called its error.
#[test]
fn an_engines_error_ends_a_stream_of_responses_as_failed() {
    let (path, json, bytes, _) = opened_and_cut(2)
        .into_iter()
        .find(|(path, ..)| *path == "/v1/responses")
        .expect("a stream of responses");
    let failed =
        r#"{"type":"response.failed","sequence_number":9,"response":{"error":{"code":"x"}}}"#;
    for (error, own) in
        [(r#"{"error":{"message":"CUDA error","code":500}}"#, true), (failed, false)]
    {
        let told = chunk(format!("data: {error}\n\n").as_bytes());
        let bytes = [&bytes[..], &told, b"0\r\n\r\n"].concat();
        let engines = failing(1, 1, (&bytes, After::Close), b"");
        let bed = in_front_of(&engines, "");
        let got = to_the_end(&bed, &post_with(path, AUTH, json));
        let events = Response::parse(&got).events();
        let last = events.last().expect("an event");
        assert_eq!(last["type"], "response.failed", "{last}");
        assert_eq!(last["error"]["message"] == "CUDA error", own, "{last}");
        assert_eq!(events.iter().filter(|e| e["type"] == "response.failed").count(), 1);
        assert_eq!(bed.records(1)[0]["outcome"], "upstream_error");
        at_rest(&bed);
    }
}

/// Sound that is cut ends with its connection for a client of HTTP/1.0, so that the end must not
/// be one in order; a replica's own reset is no end of an answer either.
#[test]
fn an_answer_that_ends_with_its_connection_is_reset_when_it_is_cut() {
    let sound = "RIFF".repeat(500_000);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\n";
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n1e8480\r\n{sound}\r\n");
    let until_close = format!("{head}\r\n{sound}");
    let json = "{\"model\":\"m\",\"input\":\"x\",\"voice\":\"v\"}";
    let request = post_with("/v1/audio/speech", AUTH, json);
    let old = String::from_utf8(request).expect("text").replace("HTTP/1.1", "HTTP/1.0");
    for (bytes, after) in [(chunked, After::Close), (until_close, After::Reset)] {
        let (go_on, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let engine = Engine::start(move |_, wire| {
            wire.write_all(bytes.as_bytes())?;
            // A reset may overtake what was not read yet.
            let _ = wait.lock().expect("lock").recv();
            Ok(after)
        });
        let engines = [engine];
        let bed = in_front_of(&engines, "");
        let mut client = Client::connect(bed.addr);
        client.send(old.as_bytes());
        let mut got = vec![0; sound.len()];
        let read = client.0.read_exact(&mut got);
        assert!(read.is_ok(), "{read:?} {}", String::from_utf8_lossy(&got[..600]));
        go_on.send(()).expect("the engine waits");
        let (_, ended) = client.rest();
        assert_eq!(ended, Ended::Reset, "{after:?}");
        assert_eq!(bed.records(1)[0]["outcome"], "truncated", "{after:?}");
        at_rest(&bed);
    }
}

/// A transcription asked for as a stream whose usage the client wants; a form has its own field.
fn transcription() -> Vec<u8> {
    let part = |name: &str, value: &str| {
        format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let parts = [("file", "RIFF"), ("model", "m"), ("stream", "true")];
    let mut form: String = parts.iter().map(|(name, value)| part(name, value)).collect();
    form += &(part("stream_include_usage", "true") + "--b--\r\n");
    format!(
        "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: gw.test\r\n{AUTH}Content-Type: \
         multipart/form-data; boundary=b\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    )
    .into_bytes()
}

/// vLLM ends these streams with `[DONE]` too, and sends a usage only to who asked for it.
#[test]
fn a_transcription_is_whole_by_its_done_and_keeps_the_usage_that_was_asked_for() {
    let events = [event("hel"), event("lo"), usage_event(5, 2)];
    let cut = [cut_stream(&events[..1]), LAST_CHUNK.to_vec()].concat();
    let engines = failing(1, 1, (&cut, After::Keep), &whole_stream(&events));
    let bed = in_front_of(&engines, "");
    assert_cut("no [DONE]", &to_the_end(&bed, &transcription()));
    let answer = ask(bed.addr, &transcription());
    assert!(answer.complete && answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    assert_eq!(answer.words(), "hello");
    assert_eq!(answer.events()[2]["usage"]["completion_tokens"], 2, "{}", answer.text());
    let outcomes = bed.records(2);
    assert_eq!(
        (&outcomes[0]["outcome"], &outcomes[1]["outcome"]),
        (&"truncated".into(), &"ok".into())
    );
    at_rest(&bed);
}
