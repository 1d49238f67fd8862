//! A pool with a tokenizer: what clients, engines, records and metrics see of exact prompts.

mod common;
#[path = "support/tiny_tokenizer.rs"]
mod tiny_tokenizer;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use common::ask;
use common::engine::{After, Engine, json};
use common::gateway::{AUTH, Bed, Settings};
use expedite::openai::{Endpoint, read_call};
use expedite::prompt::blocks::Root;
use expedite::prompt::model::{Ask, Model};
use expedite::prompt::segments::SegmentCache;
use expedite::prompt::work::{Terms, Work};
use serde_json::{Value, json};

/// A gateway whose pool has the tiny tokenizer, and an engine that says `usage` of each prompt.
struct Scene {
    bed: Bed,
    engine: Engine,
    told: Arc<AtomicU64>,
    model: Model,
    _folder: tempfile::TempDir,
}

/// What the engine answers for `told` when it is to leave `usage` out.
const SAYS_NOTHING: u64 = u64::MAX;

impl Scene {
    fn new(context: u64) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        tiny_tokenizer::write(folder.path());
        let told = Arc::new(AtomicU64::new(SAYS_NOTHING));
        let tells = Arc::clone(&told);
        let engine = Engine::start(move |_, wire| {
            let usage = match tells.load(SeqCst) {
                SAYS_NOTHING => Value::Null,
                prompt => json!({"prompt_tokens": prompt, "completion_tokens": 1}),
            };
            let choice = json!({"message": {"content": "x"}, "finish_reason": "stop"});
            wire.write_all(&json(200, &json!({"choices": [choice], "usage": usage}).to_string()))?;
            Ok(After::Keep)
        });
        let pool = format!(
            "tokenizer = \"{}\"\ncontext_tokens = {context}\nblock_size = 16",
            folder.path().display()
        );
        let bed = Bed::start(&[engine.addr], Settings { pool, ..Settings::default() });
        let model = Model::load(folder.path(), None).unwrap();
        Scene { bed, engine, told, model, _folder: folder }
    }

    fn post(&self, path: &str, body: &Value) -> common::Response {
        ask(self.bed.addr, &common::post_with(path, AUTH, &body.to_string()))
    }

    /// Tokens of a body, by the library alone.
    fn tokens(&self, endpoint: Endpoint, body: &Value) -> Vec<u32> {
        let bytes = body.to_string();
        let call = read_call(endpoint, bytes.as_bytes()).unwrap();
        let ask = Ask { endpoint, call: &call, body: bytes.as_bytes(), unix_s: 0 };
        let source = self.model.source(&ask).unwrap();
        let terms = Terms::new(endpoint, &call, None, (Root::new(None, None), 16));
        let mut work = Work::new(Some(self.model.tokenizer()), source, terms);
        work.rest(&mut SegmentCache::new(1 << 20)).unwrap();
        work.finish().1.pop().unwrap()
    }

    fn checks(&self, result: &str) -> f64 {
        self.bed.metric("expedite_prompt_checks_total", &format!("result=\"{result}\""))
    }
}

fn chat(content: &str) -> Value {
    json!({"model": "m", "messages": [
        {"role": "system", "content": "You are terse."}, {"role": "user", "content": content},
    ]})
}

#[test]
fn a_chat_is_counted_as_its_engine_counts_it() {
    let scene = Scene::new(4096);
    for content in ["hello", "", "Grüße, 世界!\n\n  tabs\tand  spaces", "<|im_end|> by a user"]
    {
        let body = chat(content);
        let ids = scene.tokens(Endpoint::ChatCompletions, &body);
        scene.told.store(ids.len() as u64, SeqCst);
        assert_eq!(scene.post("/v1/chat/completions", &body).status(), 200);
        // What is left of the context is asked for.
        let sent: Value =
            serde_json::from_slice(&scene.engine.requests().pop().unwrap().body).unwrap();
        assert_eq!(sent["max_tokens"], 4096 - ids.len());
        assert_eq!(sent["messages"], body["messages"]);
    }
    scene.bed.records(4);
    assert_eq!((scene.checks("same"), scene.checks("differs")), (4.0, 0.0));
    assert_eq!(scene.bed.metric("expedite_prompt_mode", "mode=\"exact\""), 1.0);
}

#[test]
fn a_chat_of_one_token_too_many_reaches_no_engine() {
    let scene = Scene::new(64);
    let mut content = String::new();
    let body = loop {
        content.push_str(" more");
        let body = chat(&content);
        match scene.tokens(Endpoint::ChatCompletions, &body).len() {
            64.. => break body,
            63 => assert_eq!(scene.post("/v1/chat/completions", &body).status(), 200),
            _ => {}
        }
    };
    let before = scene.engine.count();
    let answer = scene.post("/v1/chat/completions", &body);
    assert_eq!(
        (answer.status(), &answer.json()["error"]["code"]),
        (400, &"context_length_exceeded".into())
    );
    assert_eq!(scene.engine.count(), before);
}

/// A chat in which the model has called a function with these arguments.
fn with_arguments(arguments: &str) -> Value {
    let function = json!({"name": "f", "arguments": arguments});
    let call = json!({"id": "c", "type": "function", "function": function});
    json!({"model": "m", "messages": [{"role": "assistant", "tool_calls": [call]}]})
}

#[test]
fn tokenize_and_detokenize_are_answered_here() {
    let scene = Scene::new(4096);
    let text = "Some text, with ümlauts <|im_start|>\n";
    for (body, endpoint) in [
        (json!({"model": "m", "prompt": text}), Endpoint::Completions),
        (chat(text), Endpoint::ChatCompletions),
    ] {
        let answer = scene.post("/tokenize", &body).json();
        let ids = scene.tokens(endpoint, &body);
        assert_eq!(answer["tokens"], json!(ids));
        assert_eq!((&answer["count"], &answer["max_model_len"]), (&ids.len().into(), &4096.into()));
        assert_eq!(answer["token_strs"], Value::Null);
        let back = scene.post("/detokenize", &json!({"model": "m", "tokens": ids})).json();
        assert!(back["prompt"].as_str().unwrap().contains(text), "{back}");
    }
    let named = scene.post("/tokenize", &json!({"prompt": text, "return_token_strs": true})).json();
    let strings = named["token_strs"].as_array().unwrap();
    assert_eq!(strings.len() as u64, named["count"].as_u64().unwrap());
    assert!(strings.contains(&"<|im_start|>".into()));
    assert_eq!(scene.engine.count(), 0);
    let records = scene.bed.records(5);
    for record in records {
        assert_eq!((&record["outcome"], &record["status"]), (&"ok".into(), &200.into()));
        assert_eq!((&record["input_tokens"], &record["replica"]), (&0.into(), &Value::Null));
    }
    // What only the engine can say is asked of it.
    for (path, body) in [
        ("/tokenize", json!({"prompt": ["a"]})),
        ("/detokenize", json!({"tokens": [u32::MAX]})),
        ("/detokenize", json!({"tokens": "x"})),
        ("/detokenize", json!({"tokens": [1, -1]})),
        ("/detokenize", json!({"tokens": [[1]]})),
        ("/tokenize", with_arguments(&format!("{{\"a\":{}}}", "1".repeat(4301)))),
        ("/tokenize", with_arguments(&format!("{}1{}", "[".repeat(2000), "]".repeat(2000)))),
        ("/detokenize", json!({"tokens": [[1, 2]]})),
    ] {
        let before = scene.engine.count();
        scene.post(path, &body);
        assert_eq!(scene.engine.count(), before + 1, "{path} {body}");
    }
}

#[test]
fn long_prompts_are_counted_in_turns_or_beside_the_core() {
    let scene = Scene::new(4_000_000);
    let words = "the quiet river runs past the old mill and on to the sea ".repeat(4000);
    let texts = [words.clone(), "x".repeat(100_000), format!("{words}{}", "y".repeat(50_000))];
    for (i, text) in texts.iter().enumerate() {
        let body = json!({"model": "m", "prompt": text});
        let ids = scene.tokens(Endpoint::Completions, &body);
        scene.told.store(ids.len() as u64, SeqCst);
        assert_eq!(scene.post("/v1/completions", &body).status(), 200);
        scene.bed.records(i + 1);
        assert_eq!(scene.checks("same"), (i + 1) as f64, "{i}");
    }
    assert_eq!(scene.bed.metric("expedite_long_prompts_total", ""), 2.0, "runs without a cut");
    // The tiny template is unknown, so that a long chat of it is rendered beside the core.
    let body = chat(&words);
    let ids = scene.tokens(Endpoint::ChatCompletions, &body);
    scene.told.store(ids.len() as u64, SeqCst);
    assert_eq!(scene.post("/v1/chat/completions", &body).status(), 200);
    scene.bed.records(4);
    assert_eq!(scene.bed.metric("expedite_long_prompts_total", ""), 3.0);
    // Many token ids, and long lists of them to write or to decode.
    let ids: Vec<u32> = (0..60_000).map(|n| n % 700).collect();
    scene.told.store(ids.len() as u64, SeqCst);
    assert_eq!(scene.post("/v1/completions", &json!({"model": "m", "prompt": &ids})).status(), 200);
    scene.bed.records(5);
    assert_eq!(scene.bed.metric("expedite_long_prompts_total", ""), 4.0);
    assert_eq!((scene.checks("same"), scene.checks("differs")), (5.0, 0.0));
    let before = scene.engine.count();
    let decoded = scene.post("/detokenize", &json!({"tokens": &ids})).json();
    let body = json!({"prompt": &words, "return_token_strs": true});
    let listed = scene.post("/tokenize", &body).json();
    assert_eq!((scene.engine.count(), decoded["prompt"].is_string()), (before, true));
    let lists =
        [&listed["tokens"], &listed["token_strs"]].map(|list| list.as_array().unwrap().len());
    assert_eq!(lists.map(|n| n as u64), [listed["count"].as_u64().unwrap(); 2]);
    assert_eq!(scene.bed.metric("expedite_long_prompts_total", ""), 4.0, "these are no prompts");
}

#[test]
fn a_pool_that_keeps_differing_falls_back_to_estimates() {
    let scene = Scene::new(4096);
    scene.told.store(7777, SeqCst);
    for _ in 0..16 {
        assert_eq!(scene.post("/v1/chat/completions", &chat("hello")).status(), 200);
    }
    scene.bed.records(16);
    assert_eq!(scene.checks("differs"), 16.0);
    assert_eq!(scene.bed.metric("expedite_prompt_mode", "mode=\"fell_back\""), 1.0);
    // No limit is filled in from an estimate, and the engine answers /tokenize again.
    scene.post("/v1/chat/completions", &chat("hello"));
    let sent = scene.engine.requests().pop().unwrap().body;
    assert!(common::find(&sent, b"max_tokens").is_none());
    let before = scene.engine.count();
    scene.post("/tokenize", &json!({"prompt": "x"}));
    assert_eq!(scene.engine.count(), before + 1);
}

#[test]
fn a_tokenizer_that_cannot_be_loaded_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let start = |folder: &Path| {
        let text = format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\ncores = [0]\n[[pool]]\nname = \"p\"\n\
             replicas = [\"http://127.0.0.1:1\"]\ntokenizer = \"{}\"\n[usage]\npath = \"none\"\n\
             [log]\nlevel = \"off\"\n",
            folder.display()
        );
        let config = expedite::config::Config::from_text("test.toml", &text).unwrap();
        expedite::gateway::Gateway::start(config).err().unwrap()
    };
    let missing = start(folder.path());
    assert!(missing.contains("tokenizer.json"), "{missing}");
    std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    let empty = start(folder.path());
    assert!(empty.contains("tokenizer.json") || empty.contains("tokenizers:"), "{empty}");
}
