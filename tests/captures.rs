//! Every answer recorded from a real vLLM 0.32, replayed through the gateway: it arrives with its
//! status, type and payload; of streams only the usage event is missing that nobody asked for.

mod common;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use common::engine::{After, Engine};
use common::gateway::{AUTH, Bed, Settings};
use common::{Response, ask, find};

fn captures() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vllm");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("captures").map(|e| e.expect("entry").path()).collect();
    paths.sort();
    let read = |path: &PathBuf| {
        let name = path.file_stem()?.to_str()?.to_owned();
        (path.extension()? == "resp").then(|| (name, std::fs::read(path).expect("capture")))
    };
    paths.iter().filter_map(read).collect()
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

fn request(path: &str, stream: bool) -> Vec<u8> {
    let body = match path {
        "/v1/chat/completions" | "/v1/messages" | "/v1/messages/count_tokens" => {
            format!(r#"{{"model":"m","stream":{stream},"messages":[{{"role":"user"}}]}}"#)
        }
        "/v1/responses" => format!(r#"{{"model":"m","stream":{stream},"input":"x"}}"#),
        "/detokenize" => r#"{"model":"m","tokens":[1]}"#.to_owned(),
        "/tokenize" => r#"{"model":"m","prompt":"x"}"#.to_owned(),
        _ => format!(r#"{{"model":"m","stream":{stream},"prompt":"x"}}"#),
    };
    let body = body.replace(r#","stream":false"#, "");
    format!(
        "POST {path} HTTP/1.1\r\nHost: gw.test\r\n{AUTH}Content-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// The payload without the event that only has the usage.
fn without_usage(payload: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(payload);
    let events = text.split_inclusive("\n\n");
    events.filter(|event| !event.contains("\"choices\":[],\"usage\"")).collect::<String>().into()
}

#[test]
fn every_capture_arrives_as_it_was() {
    let mut kinds = BTreeSet::new();
    let mut compared = 0;
    for (name, bytes) in captures() {
        let sent = Response::parse(&bytes);
        // What is no whole answer of a healthy engine is told apart in the other tests.
        let failed = sent.status() >= 500
            || find(&bytes, b"\"finish_reason\":\"abort\"").is_some()
            || find(&bytes, b"data: {\"error\"").is_some()
            || bytes.starts_with(b"HTTP/1.1 100 ");
        let Some((path, stream)) = endpoint(&name, &sent) else { continue };
        if failed || !sent.complete {
            continue;
        }
        let script = bytes.clone();
        let engine = Engine::start(move |_, wire| wire.write_all(&script).map(|()| After::Close));
        let settings = Settings { more: "[retry]\nattempts_max = 1".into(), ..Settings::default() };
        let bed = Bed::start(&[engine.addr], settings);
        let got = ask(bed.addr, &request(path, stream));
        assert_eq!(got.status(), sent.status(), "{name}: {}", got.text());
        assert_eq!(got.field("content-type"), sent.field("content-type"), "{name}");
        assert!(got.complete, "{name}");
        let wanted = if stream { without_usage(&sent.body()) } else { sent.body() };
        assert_eq!(got.text(), String::from_utf8_lossy(&wanted), "{name}");
        kinds.insert((path, stream));
        compared += 1;
    }
    println!("{compared} captures, {} endpoints and forms", kinds.len());
    assert!(compared >= 70 && kinds.len() >= 9, "{compared} captures of {kinds:?}");
}
