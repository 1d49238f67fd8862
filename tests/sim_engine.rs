//! Simulated replicas with a modelled engine: what runs, waits and is preempted shows in
//! `/metrics`, and never in an answer.

mod common;
#[path = "support/tiny_tokenizer.rs"]
mod tiny_tokenizer;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use common::{ask, eventually, get, post};
use expedite::engine::{EngineParams, StepModel};
use expedite::sim::{EngineKind, Fleet, SimConfig, SimHandle, token_text};
use serde_json::{Value, json};

/// An engine of so many blocks that is much faster than any.
fn fast(blocks: u64, more: SimConfig) -> SimHandle {
    let step = StepModel::a100_8b().slowed(0.02);
    let engine = EngineKind::Modelled(EngineParams { step, ..EngineParams::a100_8b() });
    Fleet::start(SimConfig { engine, blocks, ..more }).expect("a fleet")
}

fn complete(addr: SocketAddr, body: &Value) -> Value {
    let answer = ask(addr, &post("/v1/completions", &body.to_string()));
    assert_eq!(answer.status(), 200, "{}", answer.text());
    answer.json()
}

fn words(tag: u64, count: u64) -> String {
    (0..count).map(|i| String::from_utf8(token_text(tag, i).to_vec()).expect("words")).collect()
}

/// The value of a series.
fn metric(fleet: &SimHandle, series: &str) -> f64 {
    let text = ask(fleet.addr(0), &get("/metrics")).text();
    let line = text.lines().find(|line| line.starts_with("vllm:") && line.contains(series));
    let line = line.unwrap_or_else(|| panic!("no {series} in {text}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

#[test]
fn preempted_requests_answer_in_full() {
    let fleet = fast(40, SimConfig::default());
    let addr = fleet.addr(0);
    let ask_for = |tag: u64| {
        let body =
            json!({"prompt": format!("[[tag:{tag}]] {}", "x".repeat(200)), "max_tokens": 300});
        std::thread::spawn(move || complete(addr, &body))
    };
    let asked: Vec<_> = (1..=4).map(|tag| (tag, ask_for(tag))).collect();
    for (tag, answer) in asked {
        let answer = answer.join().expect("an answer");
        assert_eq!(answer["choices"][0]["text"], words(tag, 300));
        assert_eq!(answer["usage"]["completion_tokens"], 300);
    }
    assert!(metric(&fleet, "num_preemptions_total") > 0.0);
    assert_eq!(metric(&fleet, "kv_cache_usage_perc{"), 0.0);
    assert_eq!(metric(&fleet, "num_requests_running{"), 0.0);
}

#[test]
fn who_waits_for_an_adapter_is_deferred() {
    let loras = ["one", "two"].map(|name| (name.to_owned(), format!("/srv/{name}")));
    let config = SimConfig { loras: loras.to_vec(), loras_max: 1, ..SimConfig::default() };
    let engine = EngineKind::Modelled(EngineParams::a100_8b());
    let fleet = Fleet::start(SimConfig { engine, ..config }).expect("a fleet");
    let addr = fleet.addr(0);
    // Six minutes, if its client stayed.
    let long = json!({"model": "one", "prompt": "hello", "max_tokens": 30_000}).to_string();
    let mut first = TcpStream::connect(addr).expect("it listens");
    first.write_all(&post("/v1/completions", &long)).expect("it takes a request");
    eventually("it runs", || fleet.stats(0).running == 1);
    let short = json!({"model": "two", "prompt": "hello", "max_tokens": 2});
    let second = std::thread::spawn(move || complete(addr, &short));
    eventually("it waits", || metric(&fleet, "reason=\"deferred\"") == 1.0);
    assert_eq!(metric(&fleet, "num_requests_waiting{"), 1.0);
    assert_eq!(metric(&fleet, "reason=\"capacity\""), 0.0);
    assert!(ask(addr, &get("/metrics")).text().contains("max_lora=\"1\""));
    drop(first);
    assert_eq!(second.join().expect("an answer")["usage"]["completion_tokens"], 2);
    assert_eq!(metric(&fleet, "reason=\"deferred\""), 0.0);
}

#[test]
fn prompts_of_one_call_share_what_they_have_in_common() {
    let fleet = fast(1000, SimConfig { block_tokens: 32, ..SimConfig::default() });
    let prompt = |end: &str| format!("{}{end}", "a".repeat(1280));
    let body = json!({"prompt": [prompt("first"), prompt("second")], "max_tokens": 2, "n": 2});
    let usage = complete(fleet.addr(0), &body)["usage"].clone();
    // 320 tokens in common, which the second finds while the first is computed or after it.
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 320);
    assert_eq!(usage["completion_tokens"], 8);
    assert!(ask(fleet.addr(0), &get("/metrics")).text().contains("block_size=\"32\""));
    assert_eq!(metric(&fleet, "prefix_cache_hits_total"), 320.0);
}

#[test]
fn a_next_turn_finds_the_answer_of_the_last() {
    let folder = tempfile::tempdir().expect("a folder");
    tiny_tokenizer::write(folder.path());
    for engine in [EngineKind::instant(), EngineKind::Modelled(EngineParams::a100_8b())] {
        let tokenizer = Some(folder.path().to_owned());
        let fleet = Fleet::start(SimConfig { engine, tokenizer, ..SimConfig::default() });
        let fleet = fleet.expect("a fleet");
        let mut messages = vec![json!({"role": "user", "content": "Once upon a time? ".repeat(9)})];
        let chat = |messages: &[Value]| {
            let body = json!({"messages": messages, "max_tokens": 60}).to_string();
            let answer = ask(fleet.addr(0), &post("/v1/chat/completions", &body)).json();
            let number = |value: &Value| value.as_u64().expect("a number");
            let usage = &answer["usage"];
            let cached = number(&usage["prompt_tokens_details"]["cached_tokens"]);
            (answer["choices"][0]["message"].clone(), number(&usage["prompt_tokens"]), cached)
        };
        let (said, prompt_tokens, cached) = chat(&messages);
        assert_eq!(cached, 0);
        messages.push(json!({"role": "assistant", "content": said["content"]}));
        messages.push(json!({"role": "user", "content": "And then?"}));
        let (_, _, cached) = chat(&messages);
        // All tokens of the answer but the last were computed; the template ends the prompt as it
        // begins an answer.
        assert_eq!(cached, (prompt_tokens + 59) / 16 * 16);
    }
}
