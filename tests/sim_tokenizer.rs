//! A simulator with a tokenizer counts as the gateway does that reads the same folder: tokens of
//! every kind of prompt, and the blocks that a repeat finds in the cache.

mod common;
#[path = "support/tiny_tokenizer.rs"]
mod tiny_tokenizer;

use common::gateway::{AUTH, Bed, Settings};
use common::{ask, eventually, faults::states};
use expedite::openai::{Endpoint, read_call};
use expedite::prompt::blocks::{Root, reusable_tokens};
use expedite::prompt::model::{Ask, Model};
use expedite::prompt::segments::SegmentCache;
use expedite::prompt::work::{Terms, Work};
use expedite::sim::{Fleet, SimConfig, SimHandle};
use serde_json::{Value, json};

const CONTEXT: u64 = 4096;

struct Scene {
    bed: Bed,
    fleet: SimHandle,
    model: Model,
    _folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let folder = tempfile::tempdir().unwrap();
        tiny_tokenizer::write(folder.path());
        let fleet = Fleet::start(SimConfig {
            model: "base".to_owned(),
            loras: vec![("sql".to_owned(), "/srv/sql".to_owned())],
            model_len_max: CONTEXT,
            tokenizer: Some(folder.path().to_owned()),
            ..SimConfig::default()
        });
        let fleet = fleet.unwrap();
        let pool = format!(
            "tokenizer = \"{}\"\ncontext_tokens = {CONTEXT}\nblock_size = 16",
            folder.path().display()
        );
        let bed = Bed::unready(&[fleet.addr(0)], Settings { pool, ..Settings::default() });
        eventually("the replica is up", || states(&bed) == ["up"]);
        let model = Model::load(folder.path(), None).unwrap();
        Scene { bed, fleet, model, _folder: folder }
    }

    fn post(&self, path: &str, body: &Value) -> common::Response {
        ask(self.bed.addr, &common::post_with(path, AUTH, &body.to_string()))
    }

    /// Asks the simulator itself.
    fn ask_sim(&self, path: &str, body: &Value) -> common::Response {
        ask(self.fleet.addr(0), &common::post_with(path, "", &body.to_string()))
    }

    /// Tokens of each prompt of a body, by the library alone.
    fn tokens(&self, endpoint: Endpoint, body: &Value) -> Vec<Vec<u32>> {
        let bytes = body.to_string();
        let call = read_call(endpoint, bytes.as_bytes()).unwrap();
        let ask = Ask { endpoint, call: &call, body: bytes.as_bytes(), unix_s: 0 };
        let source = self.model.source(&ask).unwrap();
        let terms = Terms::new(endpoint, &call, Some(CONTEXT), (Root::new(None, None), 0));
        let mut work = Work::new(Some(self.model.tokenizer()), source, terms);
        work.rest(&mut SegmentCache::new(1 << 20)).unwrap();
        work.finish().1
    }

    fn checks(&self) -> (f64, f64) {
        let count = |result: &str| {
            self.bed.metric("expedite_prompt_checks_total", &format!("result=\"{result}\""))
        };
        (count("same"), count("differs"))
    }
}

const TEXT: &str =
    "Grüße, 世界! The quiet river\n\n  runs\tpast <|im_end|> the old mill. It's 12345.";

fn chat(content: &str) -> Value {
    json!({"model": "m", "messages": [
        {"role": "system", "content": "You are terse."}, {"role": "user", "content": content},
    ]})
}

fn with(mut body: Value, more: &Value) -> Value {
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

#[test]
fn the_gateway_agrees_with_every_count() {
    let scene = Scene::new();
    let limit = json!({"max_tokens": 3});
    let short = |body| with(body, &limit);
    let responses = json!({"model": "m", "input": TEXT, "max_output_tokens": 3, "store": false});
    let items = json!([{"role": "user", "content": TEXT}]);
    let said = json!({"instructions": "Be brief.", "input": items});
    let completion = |prompt: Value| json!({"model": "m", "prompt": prompt, "max_tokens": 3});
    let system = json!({"system": "Be brief.", "max_tokens": 3});
    // One token of the context is left for the answer.
    let cut = |most: i64| json!({"truncate_prompt_tokens": most, "max_tokens": 1});
    let cases = [
        ("/v1/chat/completions", short(chat(TEXT))),
        ("/v1/chat/completions", with(chat(TEXT), &cut(7))),
        ("/v1/chat/completions", with(chat("two"), &json!({"n": 2, "max_tokens": 3}))),
        ("/v1/chat/completions", chat("as long as it likes")),
        ("/v1/completions", completion(json!(TEXT))),
        ("/v1/completions", completion(json!(["one", TEXT, ""]))),
        ("/v1/completions", completion(json!([1, 2, 3, 4, 5]))),
        ("/v1/completions", completion(json!([[1, 2], [3, 4, 5, 6, 7, 8, 9]]))),
        ("/v1/completions", with(completion(json!(TEXT.repeat(300))), &cut(-1))),
        ("/v1/responses", responses.clone()),
        ("/v1/responses", with(responses, &said)),
        ("/v1/messages", short(json!({"model": "m", "messages": items}))),
        ("/v1/messages", with(json!({"model": "m", "messages": items}), &system)),
    ];
    let mut sent = 0;
    for (path, body) in &cases {
        for stream in [false, true] {
            let body = with(body.clone(), &json!({"stream": stream}));
            let answer = scene.post(path, &body);
            assert_eq!(answer.status(), 200, "{path}: {}", answer.text());
            sent += 1;
            let records = scene.bed.records(sent);
            let told = records[sent - 1]["input_tokens"].clone();
            assert_eq!(scene.checks(), (sent as f64, 0.0), "{path}, {told} tokens: {body:.200}");
        }
    }
    // An answer that only the context limits ends by itself.
    let words = scene.post("/v1/chat/completions", &chat("as long as it likes")).json();
    assert_eq!(words["usage"]["completion_tokens"], 65);
    assert_eq!(words["choices"][0]["finish_reason"], "stop");
}

#[test]
fn usage_is_that_of_the_library() {
    let scene = Scene::new();
    let of = |endpoint, body: &Value| -> usize {
        scene.tokens(endpoint, body).iter().map(Vec::len).sum()
    };
    let body = with(chat(TEXT), &json!({"model": "base"}));
    let told =
        scene.ask_sim("/v1/chat/completions", &body).json()["usage"]["prompt_tokens"].clone();
    assert_eq!(told, of(Endpoint::ChatCompletions, &body));
    let body = json!({"model": "base", "input": [TEXT, "two"]});
    let told = scene.ask_sim("/v1/embeddings", &body).json()["usage"]["prompt_tokens"].clone();
    assert_eq!(told, of(Endpoint::Embeddings, &body));
    let body = json!({"model": "base", "messages": [{"role": "user", "content": TEXT}]});
    let told = scene.ask_sim("/v1/messages/count_tokens", &body).json()["input_tokens"].clone();
    assert_eq!(told, of(Endpoint::Messages, &with(body, &json!({"max_tokens": 1}))));
}

#[test]
fn tokenize_and_detokenize_are_those_of_the_gateway() {
    let scene = Scene::new();
    for body in [json!({"prompt": TEXT, "return_token_strs": true}), chat(TEXT)] {
        let body = with(body, &json!({"model": "base"}));
        let [here, there] = [scene.post("/tokenize", &body), scene.ask_sim("/tokenize", &body)];
        assert_eq!((here.status(), here.json()), (200, there.json()));
        let ids = json!({"model": "base", "tokens": there.json()["tokens"]});
        let [here, there] = [scene.post("/detokenize", &ids), scene.ask_sim("/detokenize", &ids)];
        assert_eq!((here.status(), here.json()), (200, there.json()));
        assert!(there.json()["prompt"].as_str().unwrap().contains(TEXT));
    }
    let beyond = scene.ask_sim("/detokenize", &json!({"tokens": [u32::MAX]}));
    assert_eq!(beyond.status(), 400);
}

#[test]
fn cached_tokens_are_those_of_the_block_chain() {
    let scene = Scene::new();
    let cached = |body: &Value| -> u64 {
        let body = with(body.clone(), &json!({"max_tokens": 1}));
        let usage = scene.post("/v1/completions", &body).json()["usage"].clone();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let ids: Vec<u32> = (0..64).map(|i| 300 + i).collect();
    let of_ids = |ids: &[u32]| json!({"model": "m", "prompt": ids});
    assert_eq!(cached(&of_ids(&ids)), 0);
    // Whole blocks, but never the last token.
    assert_eq!(cached(&of_ids(&ids)), reusable_tokens(64, 16));
    assert_eq!(cached(&of_ids(&ids[..63])), 48);
    assert_eq!(cached(&of_ids(&[&ids[..], &[1]].concat())), 64);
    let mut other = ids.clone();
    other[20] = 7;
    assert_eq!(cached(&of_ids(&other)), 16);
    assert_eq!(cached(&with(of_ids(&ids), &json!({"model": "sql"}))), 0, "an adapter of its own");
    // A text finds the blocks of its own tokens.
    let text = json!({"model": "m", "prompt": TEXT.repeat(3)});
    let tokens = scene.tokens(Endpoint::Completions, &text).concat();
    assert_eq!(cached(&text), 0);
    assert_eq!(cached(&of_ids(&tokens)), reusable_tokens(tokens.len() as u64, 16));
    let grown = json!({"model": "m", "prompt": format!("{} and on", TEXT.repeat(3))});
    let all = scene.tokens(Endpoint::Completions, &grown).concat();
    let shared = tokens.iter().zip(&all).take_while(|(a, b)| a == b).count();
    assert_eq!(cached(&grown), shared as u64 / 16 * 16);
}

#[test]
fn the_context_is_that_of_real_tokens() {
    let scene = Scene::new();
    let most = usize::try_from(CONTEXT).unwrap();
    let ids = |n: usize, more: Value| with(json!({"model": "base", "prompt": vec![9; n]}), &more);
    let status = |body: Value| scene.ask_sim("/v1/completions", &body).status();
    assert_eq!(status(ids(most - 3, json!({"max_tokens": 3}))), 200);
    // An answer is cut to what the prompt leaves, as vLLM 0.32 does.
    let cut = scene.ask_sim("/v1/completions", &ids(most - 2, json!({"max_tokens": 3})));
    assert_eq!(cut.json()["usage"]["completion_tokens"], 2);
    assert_eq!(status(ids(most + 1, json!({"max_tokens": 3}))), 400);
    let cut = json!({"max_tokens": 3, "truncate_prompt_tokens": 100});
    let answer = scene.ask_sim("/v1/completions", &ids(2 * most, cut));
    assert_eq!((answer.status(), &answer.json()["usage"]["prompt_tokens"]), (200, &100.into()));
}

#[test]
fn a_folder_without_a_tokenizer_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = Some(folder.path().to_owned());
    let failed = Fleet::start(SimConfig { tokenizer, ..SimConfig::default() }).err().unwrap();
    assert!(failed.to_string().contains("tokenizer.json"), "{failed}");
}
