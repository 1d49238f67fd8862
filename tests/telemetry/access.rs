//! The access log: a line for each request, whatever came of it, and nothing of a caller's own in
//! it.

use std::path::Path;

use serde_json::Value;

use crate::common::gateway::{AUTH, Bed, Settings};
use crate::common::{Client, ask, eventually, get, post_with};
use crate::engine;

const CHAT: &str = "{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\
                    \"content\":\"canary-prompt\"}]}";

fn settings(format: &str, path: &Path) -> Settings {
    let log =
        format!("level = \"off\"\naccess = \"{format}\"\naccess_path = \"{}\"", path.display());
    Settings { log, ..Settings::default() }
}

/// The lines of the log once there are `n`, but for those of the bed's own questions.
fn lines(path: &Path, n: usize) -> Vec<String> {
    let read = || -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let lines = text.lines().filter(|line| !line.contains("/v1/models"));
        lines.map(str::to_owned).collect()
    };
    eventually("the lines are written", || read().len() >= n);
    let lines = read();
    assert_eq!(lines.len(), n, "{lines:#?}");
    lines
}

#[test]
fn every_request_has_a_line_and_no_line_tells_what_a_caller_wrote() {
    let engine = engine();
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("access.jsonl");
    let bed = Bed::start(&[engine.addr], settings("json", &path));
    let fields = format!("{AUTH}x-request-id: mine-1\r\n");
    let answer = ask(bed.addr, &post_with("/v1/chat/completions?canary-query=1", &fields, CHAT));
    assert_eq!(answer.words(), "ab");
    let wrong = "Authorization: Bearer canary-key\r\n";
    assert_eq!(ask(bed.addr, &post_with("/v1/chat/completions", wrong, CHAT)).status(), 401);
    assert_eq!(ask(bed.addr, &get("/canary-path")).status(), 404);
    assert_eq!(ask(bed.addr, &get("/health")).status(), 200);
    let unknown = CHAT.replace("\"m\"", "\"canary-model\"");
    assert_eq!(ask(bed.addr, &post_with("/v1/chat/completions", AUTH, &unknown)).status(), 404);
    let mut broken = Client::connect(bed.addr);
    broken.send(b"canary-method / HTTP/1.1\r\n\r\n");
    assert!(broken.response().status() >= 400);
    let lines = lines(&path, 6);
    assert!(lines.iter().all(|line| !line.contains("canary")), "{lines:#?}");
    let read = |n: usize| serde_json::from_str::<Value>(&lines[n]).expect("JSON");
    let shown = |line: &Value, keys: &[&str]| -> Vec<Value> {
        keys.iter().map(|key| line[key].clone()).collect()
    };
    let whole = read(0);
    let keys = ["method", "path", "status", "tenant", "request_id", "model", "pool", "outcome"];
    let want = ["POST", "/v1/chat/completions", "200", "acme", "mine-1", "m", "p", "ok"];
    for (key, want) in keys.iter().zip(want) {
        assert_eq!(whole[key].to_string().trim_matches('"'), want, "{key}");
    }
    assert_eq!(whole["replica"], bed.records(2)[0]["replica"]);
    assert_eq!(whole["key_id"].as_str().map(str::len), Some(8));
    // The head of the answer and its two words, and at least the body that was sent.
    assert!(
        whole["bytes_out"].as_u64() > Some(300)
            && whole["bytes_in"].as_u64() > Some(CHAT.len() as u64)
    );
    assert!(whole["total_ms"].as_f64() >= whole["ttft_ms"].as_f64());
    let few = ["method", "path", "status", "tenant", "outcome"];
    assert_eq!(
        Value::from(shown(&read(1), &few)),
        serde_json::json!(["POST", "/v1/chat/completions", 401, null, null])
    );
    assert_eq!(
        Value::from(shown(&read(2), &few)),
        serde_json::json!(["GET", null, 404, null, null])
    );
    assert_eq!(Value::from(shown(&read(3), &few[..3])), serde_json::json!(["GET", "/health", 200]));
    let fourth =
        serde_json::json!(["POST", "/v1/chat/completions", 404, "acme", "rejected_invalid"]);
    assert_eq!(Value::from(shown(&read(4), &few)), fourth);
    assert_eq!((&read(5)["method"], read(5)["path"].is_null()), (&"-".into(), true));
    assert_eq!(bed.metric("expedite_access_lines_total", "result=\"dropped\""), 0.0);
}

#[test]
fn a_log_for_people_is_opened_anew_when_it_was_renamed() {
    let engine = engine();
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("access.log");
    let bed = Bed::start(&[engine.addr], settings("text", &path));
    let chat = || ask(bed.addr, &post_with("/v1/chat/completions", AUTH, CHAT)).words();
    assert_eq!(chat(), "ab");
    let first = lines(&path, 1).remove(0);
    assert!(first.starts_with("ts=") && first.contains(" method=POST path=/v1/chat/completions "));
    assert!(first.contains(" status=200 tenant=acme ") && first.contains(" model=m pool=p "));
    std::fs::rename(&path, folder.path().join("old")).expect("renamed");
    bed.gateway.reopen_logs();
    eventually("there is a new file", || path.exists());
    assert_eq!(chat(), "ab");
    assert!(lines(&path, 1)[0].contains(" outcome=ok "));
}

#[test]
fn a_log_that_cannot_be_written_costs_no_request() {
    let engine = engine();
    let bed = Bed::start(&[engine.addr], settings("json", Path::new("/dev/full")));
    for _ in 0..10 {
        assert_eq!(ask(bed.addr, &post_with("/v1/chat/completions", AUTH, CHAT)).words(), "ab");
    }
    let lost = || bed.metric("expedite_access_lines_total", "result=\"failed\"");
    eventually("the lines are counted", || lost() >= 10.0);
    assert_eq!(bed.metric("expedite_access_lines_total", "result=\"written\""), 0.0);
}
