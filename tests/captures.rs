//! Every answer recorded from a real vLLM 0.32, replayed through the gateway. One of a healthy
//! engine arrives with its status, type and payload; of streams only the usage event is missing
//! that nobody asked for. One of an engine that fails is asked of another, or its failure shows.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use common::engine::{After, Engine};
use common::faults::{at_rest, failing, in_front_of, states};
use common::gateway::{AUTH, Bed};
use common::{Client, Response, ask, find, post_with};
use serde_json::Value;

/// Captures of what the gateway answers itself or does not serve.
const OTHERS: [&str; 15] = [
    "b_chat_render",
    "b_completion_render",
    "b_inference_generate",
    "b_inference_generate_stream",
    "b_inference_generate_text",
    "b_models_alias",
    "err_404_path",
    "err_405_method",
    "err_garbage_request",
    "get_health",
    "get_models",
    "get_models_with_lora",
    "get_version",
    "head_health",
    "lora_load_b",
];

/// What is right for an answer of an engine that fails.
#[derive(Clone, Copy)]
enum Right {
    /// Nothing of it reaches the client: another engine is asked, and where there is none the
    /// answer is this status and code, and the record has this outcome.
    Elsewhere(u16, &'static str, &'static str),
    /// Content was passed on, so its end must show; the outcome in the record.
    Cut(&'static str),
}

/// Whether the client asked for a stream, and why it is so.
const FAILED: [(&str, bool, Right, &str); 21] = [
    ("b_err_503_queue_full_reqs", false, BUSY, "its queue is full: another may have room"),
    ("b_err_queue_full_nonstream_503", false, BUSY, "as above"),
    ("b_err_queue_full_stream_503", true, BUSY, "as above, before the stream"),
    ("b_err_queue_full_stream_200", true, FULL, "as above, told in the stream: nothing was said"),
    ("chat_render", false, GONE, "403 is not about the caller, whose key the engine never sees"),
    ("completion_render", false, GONE, "as above"),
    ("inference_generate", false, GONE, "as above"),
    ("inference_generate_stream", true, GONE, "as above, before the stream"),
    ("engine_killed_compl", false, GONE, "the engine is dead, its front end not yet"),
    ("engine_killed_inflight_nonstream", false, GONE, "the engine died under the request"),
    ("engine_killed_inflight_stream", true, Right::Cut("upstream_error"), "as above, in the text"),
    ("pd_decode_bad_remote", false, GONE, "the prefill is lost: asked anew it works"),
    ("pd_decode_bad_remote_stream", true, GONE, "as above, told in the stream"),
    ("sigterm_abort_clean_nonstream", false, GONE, "shut down under the request: a torn text"),
    ("sigterm_abort_clean_stream", true, Right::Cut("truncated"), "as above, in the text"),
    ("sigterm_abort_clean_chat_stream", true, Right::Cut("truncated"), "as above"),
    ("sigterm_abort_frozen_stream", true, Right::Cut("truncated"), "ended without its end"),
    ("sigterm_abort_frozen_chat_stream", true, Right::Cut("truncated"), "as above"),
    ("sigterm_abort_new_request", false, GONE, "it is shutting down"),
    ("sigterm_abort_clean_new_request", false, GONE, "as above"),
    ("sigterm_drain60_new_request", false, GONE, "as above"),
];
/// The engine's own answer is then passed on, and its code is a number.
const BUSY: Right = Right::Elsewhere(503, "503", "rejected_overload");
/// There is no answer to pass on; ours says the same.
const FULL: Right = Right::Elsewhere(503, "server_overloaded", "rejected_overload");
const GONE: Right = Right::Elsewhere(502, "upstream_error", "upstream_error");

fn captures() -> BTreeMap<String, Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vllm");
    let paths = std::fs::read_dir(folder).expect("captures").map(|e| e.expect("entry").path());
    let read = |path: PathBuf| {
        let name = path.file_stem()?.to_str()?.to_owned();
        (path.extension()? == "resp").then(|| (name, std::fs::read(&path).expect("capture")))
    };
    paths.filter_map(read).collect()
}

/// The endpoint that a capture answers, if the gateway serves it, and whether it is a stream.
fn endpoint(name: &str, answer: &Response) -> Option<(&'static str, bool)> {
    let name = name.strip_prefix("b_").unwrap_or(name);
    let stream = answer.field("content-type")?.starts_with("text/event-stream");
    let text = answer.text();
    let path = if name.starts_with("messages_count") {
        "/v1/messages/count_tokens"
    } else if name.starts_with("messages") {
        "/v1/messages"
    } else if name.starts_with("responses") {
        "/v1/responses"
    } else if name.starts_with("detokenize") {
        "/detokenize"
    } else if name.starts_with("tokenize") {
        "/tokenize"
    } else if text.contains("chat.completion") {
        "/v1/chat/completions"
    } else if text.contains("text_completion") || text.contains("\"error\"") {
        "/v1/completions"
    } else {
        return None;
    };
    Some((path, stream))
}

/// A request for such an answer; `user` tells the engine which one.
fn request(path: &str, stream: bool, user: &str) -> Vec<u8> {
    let what = match path {
        "/v1/chat/completions" | "/v1/messages" | "/v1/messages/count_tokens" => {
            r#""messages":[{"role":"user"}]"#
        }
        "/v1/responses" => r#""input":"x""#,
        "/detokenize" => r#""tokens":[1]"#,
        _ => r#""prompt":"x""#,
    };
    let stream = if stream { r#","stream":true"# } else { "" };
    post_with(path, AUTH, &format!(r#"{{"model":"m",{what}{stream},"user":"{user}"}}"#))
}

/// The payload without the event that only has the usage.
fn without_usage(payload: &[u8]) -> String {
    let text = String::from_utf8_lossy(payload);
    let events = text.split_inclusive("\n\n");
    events.filter(|event| !event.contains("\"choices\":[],\"usage\"")).collect()
}

/// The usage that an answer to a chat or completion ends with, read by another parser than ours.
fn usage(answer: &Response, stream: bool) -> Option<Value> {
    let last = match stream {
        true => answer.events().into_iter().rfind(|event| event["usage"].is_object())?,
        false => answer.json(),
    };
    last["usage"]["completion_tokens"].is_u64().then(|| last["usage"].clone())
}

/// One gateway and one engine for all, so that each answer also ends where the next begins.
#[test]
fn a_healthy_engines_answers_arrive_as_they_were() {
    let all = captures();
    let scripts = all.clone();
    let engine = Engine::start(move |got, wire| {
        let body: Value = serde_json::from_slice(&got.body).expect("body");
        let script = &scripts[body["user"].as_str().expect("user")];
        wire.write_all(script)?;
        let sent = Response::parse(script);
        let framed = sent.field("content-length").or(sent.field("transfer-encoding")).is_some();
        Ok(if framed { After::Keep } else { After::Close })
    });
    let bed = Bed::of(&[engine.addr]);
    let (mut kinds, mut usages) = (BTreeSet::new(), Vec::new());
    for (name, bytes) in &all {
        if OTHERS.contains(&name.as_str()) || FAILED.iter().any(|row| row.0 == name) {
            continue;
        }
        let sent = Response::parse(bytes);
        let (path, stream) = endpoint(name, &sent).expect(name);
        let got = ask(bed.addr, &request(path, stream, name));
        assert_eq!(got.status(), sent.status(), "{name}: {}", got.text());
        assert_eq!(got.field("content-type"), sent.field("content-type"), "{name}");
        assert!(got.complete, "{name}");
        let wanted = match stream {
            true => without_usage(&sent.body()),
            false => sent.text(),
        };
        assert_eq!(got.text(), wanted, "{name}");
        kinds.insert((path, stream));
        let counts = path.ends_with("completions") && sent.status() == 200;
        usages.push(counts.then(|| usage(&sent, stream)).flatten());
    }
    println!("{} captures, {} endpoints and forms", usages.len(), kinds.len());
    assert!(usages.len() >= 98 && kinds.len() >= 9, "{} captures of {kinds:?}", usages.len());
    let records = bed.records(usages.len());
    for (usage, record) in usages.iter().zip(&records) {
        let Some(usage) = usage else { continue };
        let cached = &usage["prompt_tokens_details"]["cached_tokens"];
        assert_eq!(record["input_tokens"], usage["prompt_tokens"], "{record}");
        assert_eq!(record["output_tokens"], usage["completion_tokens"], "{record}");
        assert_eq!(&record["cached_tokens"], cached, "{record}");
        assert_eq!((&record["tokens_source"], &record["attempts"]), (&"engine".into(), &1.into()));
    }
    assert!(usages.iter().flatten().count() >= 40, "captures with a usage");
    at_rest(&bed);
}

#[test]
fn a_failing_engines_answers_are_asked_of_another_or_show() {
    let all = captures();
    for (name, stream, right, why) in FAILED {
        let bytes = &all[name];
        let sent = Response::parse(bytes);
        let chat = sent.text().contains("chat.completion");
        let path = if chat { "/v1/chat/completions" } else { "/v1/completions" };
        let sound = &all[match (chat, stream) {
            (true, true) => "chat_stream",
            (true, false) => "chat_nonstream",
            (false, true) => "completion_stream",
            (false, false) => "completion_nonstream",
        }];
        let after = if sent.complete { After::Keep } else { After::Close };
        let request = request(path, stream, name);
        let engines = failing(2, 1, (bytes, after), sound);
        let bed = in_front_of(&engines, "");
        let mut client = Client::connect(bed.addr);
        client.send(&request);
        match right {
            Right::Elsewhere(status, code, outcome) => {
                let got = client.response();
                assert_eq!(got.status(), 200, "{name}, {why}: {}", got.text());
                let wanted = without_usage(&Response::parse(sound).body());
                assert!(got.complete && got.text() == wanted, "{name}, {why}: {}", got.text());
                assert_eq!(bed.records(1)[0]["attempts"], 2, "{name}");
                assert_eq!(bed.records(1)[0]["outcome"], "ok", "{name}");
                alone(name, (bytes, after), &request, (status, code, outcome));
            }
            Right::Cut(outcome) => {
                is_cut(name, &sent, &client.rest().0);
                assert_eq!(bed.records(1)[0]["outcome"], outcome, "{name}, {why}");
                assert_eq!(bed.records(1)[0]["attempts"], 1, "{name}");
            }
        }
        drop(client);
        at_rest(&bed);
    }
}

/// What a client gets when there is no other engine.
fn alone(name: &str, failed: (&[u8], After), request: &[u8], right: (u16, &str, &str)) {
    let engines = failing(1, usize::MAX, failed, b"");
    let bed = in_front_of(&engines, "");
    let got = ask(bed.addr, request);
    let (status, code, outcome) = right;
    assert_eq!(got.status(), status, "{name}: {}", got.text());
    assert_eq!(got.field("content-type"), Some("application/json"), "{name}");
    let error = &got.json()["error"];
    assert_eq!(error["code"].to_string().trim_matches('"'), code, "{name}: {error}");
    if status == 503 {
        assert_eq!(got.field("retry-after"), Some("1"), "{name}: vLLM says none");
        let message = error["message"].as_str().expect("message");
        assert!(message.starts_with("The engine is currently busy"), "{name}: {message}");
        assert_eq!(states(&bed), ["up"], "{name}: full is not ill");
    }
    assert_eq!(bed.records(1)[0]["outcome"], outcome, "{name}");
    assert_eq!(bed.records(1)[0]["status"], status, "{name}");
}

/// The content is all there, then one error, and nothing that looks like an end.
fn is_cut(name: &str, sent: &Response, bytes: &[u8]) {
    let got = Response::parse(bytes);
    assert_eq!(got.status(), 200, "{name}");
    assert!(!got.complete && find(bytes, b"\r\n0\r\n").is_none(), "{name}: a last chunk");
    assert!(!got.text().contains("[DONE]"), "{name}: {}", got.text());
    let whole =
        |event: &Value| event["error"].is_null() && event["choices"][0]["finish_reason"].is_null();
    let content: Vec<_> = sent.events().into_iter().filter(whole).collect();
    let events = got.events();
    assert!(content.len() > 3 && events.starts_with(&content), "{name}: {}", got.text());
    let errors = events.iter().filter(|event| event["error"].is_object()).count();
    assert_eq!(errors, 1, "{name}: {}", got.text());
    assert!(events.last().is_some_and(|last| last["error"].is_object()), "{name}: {}", got.text());
}

/// No capture is passed over in silence, and none that is named is missing.
#[test]
fn every_capture_is_accounted_for() {
    let all = captures();
    let named = FAILED.iter().map(|row| row.0).chain(OTHERS);
    let named: BTreeSet<_> =
        named.inspect(|name| assert!(all.contains_key(*name), "{name}")).collect();
    assert_eq!(named.len(), FAILED.len() + OTHERS.len());
    for (name, bytes) in all.iter().filter(|(name, _)| !named.contains(name.as_str())) {
        let answer = Response::parse(bytes);
        assert!(answer.complete && answer.status() < 500, "{name} is of a failing engine");
        assert!(endpoint(name, &answer).is_some(), "{name} is of no endpoint");
    }
}
