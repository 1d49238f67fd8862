//! Bodies that would hold a core: millions of bytes, escapes or list items. They are read and
//! encoded beside it, and clients, engines and the next request on the connection see no
//! difference.

mod common;
#[path = "support/tiny_tokenizer.rs"]
mod tiny_tokenizer;

use std::io::Write;
use std::sync::{Mutex, mpsc};

use common::engine::{After, Engine, chunk};
use common::faults::{at_rest, hello, states, stream_for_acme};
use common::gateway::{AUTH, Bed, Settings};
use common::{Client, ask, eventually, post_with};
use expedite::sim::{Fleet, SimConfig, SimHandle};
use serde_json::{Value, json};

struct Scene {
    bed: Bed,
    fleet: SimHandle,
    _folder: tempfile::TempDir,
}

impl Scene {
    /// A simulator in front of which a gateway reads the same tokenizer, or none.
    fn new(with_tokenizer: bool) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        tiny_tokenizer::write(folder.path());
        let fleet = Fleet::start(SimConfig {
            model: "base".to_owned(),
            model_len_max: 8_000_000,
            // Room for such a context, or the gateway would refuse what never fits.
            blocks: 500_000,
            tokenizer: with_tokenizer.then(|| folder.path().to_owned()),
            ..SimConfig::default()
        });
        let fleet = fleet.unwrap();
        let tokenizer = format!("tokenizer = \"{}\"\n", folder.path().display());
        let mut pool = "context_tokens = 8_000_000\nblock_size = 16".to_owned();
        if with_tokenizer {
            pool.insert_str(0, &tokenizer);
        }
        let bed = Bed::unready(&[fleet.addr(0)], Settings { pool, ..Settings::default() });
        eventually("the replica is up", || states(&bed) == ["up"]);
        Scene { bed, fleet, _folder: folder }
    }

    fn differing(&self) -> f64 {
        self.bed.metric("expedite_prompt_checks_total", "result=\"differs\"")
    }
}

fn completion(prompt: &Value) -> Value {
    json!({"model": "m", "prompt": prompt, "max_tokens": 2})
}

/// Escapes, items and bytes beyond what a core reads at once.
fn heavy() -> [Value; 4] {
    let chat = json!([{"role": "user", "content": "\n \"quoted\"".repeat(40_000)}]);
    [
        json!({"model": "m", "messages": chat, "max_tokens": 2}),
        completion(&json!("a\n".repeat(40_000))),
        completion(&json!(vec![7; 40_000])),
        completion(&json!("some words and more of them ".repeat(50_000))),
    ]
}

fn path(body: &Value) -> &'static str {
    if body["messages"].is_array() { "/v1/chat/completions" } else { "/v1/completions" }
}

#[test]
fn heavy_bodies_are_served_and_counted_as_others() {
    let scene = Scene::new(true);
    let mut client = Client::connect(scene.bed.addr);
    for (i, body) in heavy().iter().enumerate() {
        client.send(&post_with(path(body), AUTH, &body.to_string()));
        let answer = client.response();
        assert_eq!(answer.status(), 200, "{i}: {}", answer.text());
        // The connection goes on with what comes behind the body.
        client.send(&post_with("/v1/completions", AUTH, &completion(&json!("x")).to_string()));
        assert_eq!(client.response().status(), 200, "{i}");
        scene.bed.records(2 * (i + 1));
        assert_eq!(scene.bed.metric("expedite_long_prompts_total", ""), (i + 1) as f64, "{i}");
    }
    assert_eq!(scene.bed.metric("expedite_prompt_checks_total", "result=\"same\""), 8.0);
    assert_eq!(scene.differing(), 0.0);
    assert_eq!(scene.fleet.stats(0).requests, 8);
}

#[test]
fn a_chunked_heavy_body_is_one_too() {
    let scene = Scene::new(true);
    let body = completion(&json!("a\n".repeat(40_000))).to_string();
    let mut request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: gw.test\r\n{AUTH}content-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n"
    );
    for piece in body.as_bytes().chunks(30_000) {
        request.push_str(&format!("{:x}\r\n{}\r\n", piece.len(), String::from_utf8_lossy(piece)));
    }
    request.push_str("0\r\n\r\n");
    assert_eq!(ask(scene.bed.addr, request.as_bytes()).status(), 200);
    scene.bed.records(1);
    assert_eq!(scene.bed.metric("expedite_long_prompts_total", ""), 1.0);
    assert_eq!(scene.differing(), 0.0);
}

#[test]
fn a_heavy_body_that_is_refused_leaves_the_connection_usable() {
    let scene = Scene::new(true);
    let mut client = Client::connect(scene.bed.addr);
    let items = vec!["1"; 50_000].join(",");
    let broken = format!("{{\"model\":\"m\",\"prompt\":[{items},\"x\"],\"max_tokens\":2}}");
    let unknown = completion(&json!(vec![7; 50_000])).to_string().replace("\"m\"", "\"nobody\"");
    for (body, status) in [(broken, 400), (unknown, 404)] {
        client.send(&post_with("/v1/completions", AUTH, &body));
        assert_eq!(client.response().status(), status);
    }
    client.send(&post_with("/v1/completions", AUTH, &completion(&json!("x")).to_string()));
    assert_eq!(client.response().status(), 200);
    assert_eq!(scene.fleet.stats(0).requests, 1);
}

#[test]
fn without_a_tokenizer_they_are_estimated() {
    let scene = Scene::new(false);
    for body in &heavy() {
        let answer = ask(scene.bed.addr, &post_with(path(body), AUTH, &body.to_string()));
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }
    let records = scene.bed.records(4);
    assert!(records.iter().all(|record| record["output_tokens"] == 2));
    // Only what came as ids is known.
    assert_eq!(scene.bed.metric("expedite_long_prompts_total", ""), 1.0);
}

#[test]
fn long_lists_of_tokens_are_written_and_read_beside_the_core() {
    let scene = Scene::new(true);
    let text = "some words, and\nmore of them ".repeat(20_000);
    let body = json!({"model": "m", "prompt": text, "return_token_strs": true});
    let answer = ask(scene.bed.addr, &post_with("/tokenize", AUTH, &body.to_string()));
    let listed = answer.json();
    let count = listed["count"].as_u64().unwrap();
    assert!(count > 40_000);
    for list in ["tokens", "token_strs"] {
        assert_eq!(listed[list].as_array().unwrap().len() as u64, count);
    }
    let ids = json!({"model": "m", "tokens": listed["tokens"]});
    let back = ask(scene.bed.addr, &post_with("/detokenize", AUTH, &ids.to_string()));
    assert_eq!(back.json()["prompt"], text);
    assert_eq!(scene.fleet.stats(0).requests, 0);
}

/// A long body is held until its answer begins, and all of them together have a limit.
#[test]
fn long_bodies_together_take_no_more_memory_than_they_may() {
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let engine = Engine::start(move |received, wire| {
        if received.body.len() > 1_000_000 {
            let _ = wait.lock().expect("lock").recv();
        }
        wire.write_all(&hello()).map(|()| After::Keep)
    });
    let server = "bodies_bytes_max = 8388608".to_owned();
    let bed = Bed::start(&[engine.addr], Settings { server, ..Settings::default() });
    let long = |mib: usize| {
        let text = "x ".repeat(mib << 19);
        format!("{{\"model\":\"m\",\"messages\":[{{\"content\":\"{text}\"}}],\"stream\":true}}")
    };
    let held = || bed.metric("expedite_request_body_bytes", "");
    let mut first = Client::connect(bed.addr);
    first.send(&post_with("/v1/chat/completions", AUTH, &long(5)));
    eventually("the first is held", || held() > 5e6);
    // Refused by its length, before it has come.
    let mut second = Client::connect(bed.addr);
    second.send(&post_with("/v1/chat/completions", AUTH, &long(4))[..100_000]);
    let second = second.response();
    assert_eq!((second.status(), second.field("retry-after")), (503, Some("1")));
    assert_eq!(second.json()["error"]["code"], "server_overloaded");
    // The same in chunks, of which nobody knows how many come.
    let chunks = long(4).as_bytes().chunks(60_000).map(chunk).collect::<Vec<_>>().concat();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n{AUTH}Transfer-Encoding: chunked\r\n\r\n"
    );
    let mut third = Client::connect(bed.addr);
    // It may be closed before everything is sent.
    let _ = third.0.write_all(&[head.as_bytes(), &chunks].concat());
    assert_eq!(third.response().status(), 503);
    assert_eq!(ask(bed.addr, &stream_for_acme()).words(), "hello", "a short one passes");
    go_on.send(()).expect("the engine waits");
    assert_eq!(first.response().words(), "hello");
    drop((first, third));
    eventually("nothing is held", || held() == 0.0);
    go_on.send(()).expect("the engine is there");
    let again = ask(bed.addr, &post_with("/v1/chat/completions", AUTH, &long(5)));
    assert_eq!(again.words(), "hello");
    at_rest(&bed);
}
