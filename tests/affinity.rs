//! Requests go where their prompts are, and it can be said why: over a simulated fleet whose
//! tokens are counted exactly.

mod common;
#[path = "support/tiny_tokenizer.rs"]
mod tiny_tokenizer;

use common::gateway::{AUTH, Bed, KEY, Settings};
use common::{ask, eventually, faults::at_rest, faults::states, get, post_with};
use expedite::config::KeyDigest;
use expedite::openai::{Endpoint, read_call};
use expedite::prompt::Prompt;
use expedite::prompt::blocks::Root;
use expedite::prompt::model::{Ask, Model};
use expedite::prompt::segments::SegmentCache;
use expedite::prompt::work::{Terms, Work};
use expedite::sim::{Fleet, SimConfig, SimHandle};
use serde_json::{Value, json};

struct Scene {
    bed: Bed,
    fleet: SimHandle,
    model: Model,
    _folder: tempfile::TempDir,
}

impl Scene {
    fn new(replicas: usize, more: &str) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        tiny_tokenizer::write(folder.path());
        let fleet = Fleet::start(SimConfig {
            ports: vec![0; replicas],
            model: "base".to_owned(),
            tokenizer: Some(folder.path().to_owned()),
            ..SimConfig::default()
        });
        let fleet = fleet.unwrap();
        let pool = format!("tokenizer = \"{}\"\nblock_size = 16", folder.path().display());
        let addrs: Vec<_> = (0..replicas).map(|i| fleet.addr(i)).collect();
        let more = format!("may_choose_policy = true\n{more}");
        let bed = Bed::unready(&addrs, Settings { pool, more, ..Settings::default() });
        eventually("the replicas are up", || states(&bed).iter().all(|state| state == "up"));
        let model = Model::load(folder.path(), None).unwrap();
        Scene { bed, fleet, model, _folder: folder }
    }

    fn chat(&self, body: &Value, fields: &str) -> common::Response {
        let fields = format!("{AUTH}{fields}");
        let response =
            ask(self.bed.addr, &post_with("/v1/chat/completions", &fields, &body.to_string()));
        assert_eq!(response.status(), 200, "{}", response.text());
        response
    }

    /// The prompt of a body, by the library alone.
    fn prompt(&self, body: &Value) -> Prompt {
        let bytes = body.to_string();
        let endpoint = Endpoint::ChatCompletions;
        let call = read_call(endpoint, bytes.as_bytes()).unwrap();
        let ask = Ask { endpoint, call: &call, body: bytes.as_bytes(), unix_s: 0 };
        let source = self.model.source(&ask).unwrap();
        let terms = Terms::new(endpoint, &call, None, (Root::new(None, None), 16));
        let mut work = Work::new(Some(self.model.tokenizer()), source, terms);
        work.rest(&mut SegmentCache::new(0)).unwrap();
        work.finish().0
    }

    fn admin(&self, path: &str) -> Value {
        ask(self.bed.admin, &get(path)).json()
    }

    fn explain(&self, body: &Value) -> Value {
        let path = "/explain?path=/v1/chat/completions";
        ask(self.bed.admin, &post_with(path, "", &body.to_string())).json()
    }
}

/// A system prompt of some hundred tokens, its own for each `n`.
fn system(n: usize) -> String {
    format!("You are assistant number {n}. ").repeat(60)
}

fn body(n: usize, user: &str) -> Value {
    json!({"model": "m", "max_tokens": 4, "messages": [
        {"role": "system", "content": system(n)}, {"role": "user", "content": user},
    ]})
}

fn node(response: &common::Response) -> String {
    response.field("x-gateway-assigned-node").unwrap().to_owned()
}

fn number(response: &common::Response, name: &str) -> u64 {
    response.field(name).unwrap().parse().unwrap()
}

#[test]
fn a_prefix_stays_where_it_is_and_is_predicted_exactly() {
    let scene = Scene::new(4, "");
    let (mut predicted, mut reported) = (0, 0);
    let mut owners = Vec::new();
    for round in 0..6 {
        for n in 0..12 {
            let body = body(n, &format!("Question {round} of {n}?"));
            let response = scene.chat(&body, "");
            let cached = number(&response, "x-gateway-cached-tokens");
            let told = &response.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
            assert_eq!(told.as_u64().unwrap_or(0), cached, "round {round} of prefix {n}");
            predicted += cached;
            reported += told.as_u64().unwrap_or(0);
            if round == 0 {
                owners.push(node(&response));
                continue;
            }
            assert_eq!(node(&response), owners[n], "round {round} of prefix {n}");
            // The hash is that of the last block that was there.
            let prompt = scene.prompt(&body);
            let last = prompt.hashes[(cached / 16) as usize - 1];
            assert_eq!(response.field("x-gateway-prefix-hash").unwrap(), format!("{last:032x}"));
            assert!(cached * 10 >= prompt.tokens * 9, "{cached} of {}", prompt.tokens);
        }
    }
    owners.sort();
    owners.dedup();
    assert!(owners.len() > 1, "all prefixes went to one replica");
    assert!(predicted > 0 && predicted == reported, "{predicted} predicted, {reported} reported");
    let records = scene.bed.records(72);
    for record in &records {
        assert_eq!(record["predicted_cached_tokens"], record["cached_tokens"]);
        let ttft = record["predicted_ttft_ms"].as_f64().unwrap();
        assert!(ttft > 0.0 && ttft < 10_000.0, "{ttft}");
    }
    let hits = |kind: &str| {
        let kind = format!("kind=\"{kind}\"");
        scene.bed.metric("expedite_prefix_hit_tokens_total", &kind)
    };
    assert_eq!((hits("predicted"), hits("actual")), (predicted as f64, reported as f64));
    assert!(scene.bed.metric("expedite_prefix_index_blocks", "") > 12.0);
    assert_eq!(scene.bed.metric("expedite_prefix_mode", "mode=\"approximate\""), 4.0);
    at_rest(&scene.bed);
}

/// Two tenants of one group, and one of none; `acme` is the bed's own, of no group.
fn tenants() -> String {
    let tenant = |id: &str, more: &str| {
        let key = KeyDigest::of(id.as_bytes()).to_text();
        format!("[[tenant]]\nid = \"{id}\"\nkeys = [\"{key}\"]\n{more}\n")
    };
    let group = "trust_group = \"friends\"";
    format!(
        "[routing]\ncache_salt_secret = \"0123456789abcdef\"\n{}{}{}",
        tenant("one", group),
        tenant("two", group),
        tenant("other", "")
    )
}

#[test]
fn tenants_that_do_not_trust_each_other_share_no_prefix() {
    let scene = Scene::new(1, &tenants());
    let ask = |key: &str, salt: Option<&str>| {
        let mut body = body(0, "Hello?");
        if let Some(salt) = salt {
            body["cache_salt"] = salt.into();
        }
        let fields = format!("Authorization: Bearer {key}\r\n");
        let wire = post_with("/v1/chat/completions", &fields, &body.to_string());
        let response = ask(scene.bed.addr, &wire);
        assert_eq!(response.status(), 200, "{}", response.text());
        let told = &response.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
        let told = told.as_u64().unwrap_or(0);
        // What is predicted is keyed as the engine keys it.
        assert_eq!(number(&response, "x-gateway-cached-tokens"), told, "{key} {salt:?}");
        told > 0
    };
    assert!(!ask("one", None));
    assert!(ask("one", None) && ask("two", None), "a group shares");
    assert!(!ask("other", None) && ask("other", None), "nobody else does");
    assert!(!ask(KEY, None), "not even the tenant that has the fleet's first key");
    // A caller's own salt separates within the group, and leads into nobody else's.
    assert!(!ask("one", Some("mine")) && ask("two", Some("mine")));
    assert!(!ask("other", Some("mine")));
    // An explanation is a tenant's, too.
    let cached = |tenant: &str| {
        let path = format!("/explain?path=/v1/chat/completions{tenant}");
        let body = body(0, "Hello?").to_string();
        let said = common::ask(scene.bed.admin, &post_with(&path, "", &body));
        (said.status(), said.json()["candidates"][0]["cached_tokens"].as_u64())
    };
    assert!(matches!(cached("&tenant=two"), (200, Some(1..))));
    assert_eq!(cached(""), (200, Some(0)));
    assert_eq!(cached("&tenant=nobody").0, 404);
    at_rest(&scene.bed);
}

#[test]
fn a_salt_that_is_no_text_is_refused_where_ours_goes_out() {
    let scene = Scene::new(1, &tenants());
    for salt in [json!(5), json!(""), json!(["a"])] {
        let mut body = body(0, "Hello?");
        body["cache_salt"] = salt.clone();
        let wire = post_with("/v1/chat/completions", AUTH, &body.to_string());
        let response = ask(scene.bed.addr, &wire);
        assert_eq!(response.status(), 400, "{salt}");
        assert_eq!(response.json()["error"]["param"], "cache_salt");
    }
}

#[test]
fn a_first_request_has_no_known_prefix() {
    let scene = Scene::new(2, "");
    let response = scene.chat(&body(0, "Hello?"), "");
    assert_eq!(response.field("x-gateway-prefix-hash"), None);
    assert_eq!(number(&response, "x-gateway-cached-tokens"), 0);
}

#[test]
fn a_policy_is_chosen_for_a_request() {
    let scene = Scene::new(3, "");
    let ask_by = |policy: &str| {
        let field = format!("X-Gateway-Policy: {policy}\r\n");
        node(&scene.chat(&body(0, "Where?"), &field))
    };
    let turns: Vec<_> = (0..6).map(|_| ask_by("round_robin")).collect();
    assert_eq!(turns[..3], turns[3..]);
    let mut three = turns[..3].to_vec();
    three.sort();
    three.dedup();
    assert_eq!(three.len(), 3, "each in turn");
    for policy in expedite::routing::Policy::ALL {
        assert!(three.contains(&ask_by(policy.name())), "{}", policy.name());
    }
    let decisions = scene.admin("/decisions");
    let used: Vec<_> = decisions["decisions"].as_array().unwrap().iter().collect();
    assert_eq!((used.len(), used[0]["policy"].as_str()), (16, Some("llm_d")));
    let fields = format!("{AUTH}X-Gateway-Policy: best\r\n");
    let request = post_with("/v1/chat/completions", &fields, &body(0, "Where?").to_string());
    let refused = ask(scene.bed.addr, &request);
    assert_eq!(refused.status(), 400);
    assert_eq!(refused.json()["error"]["param"], "x-gateway-policy");
    assert!(refused.text().contains("must be one of cost, "), "{}", refused.text());
}

#[test]
fn a_policy_of_a_caller_that_may_not_choose_is_ignored() {
    let scene = Scene::new(3, "");
    let bed = Bed::unready(
        &[scene.fleet.addr(0), scene.fleet.addr(1)],
        Settings { more: "[routing]\npolicy = \"round_robin\"\n".into(), ..Settings::default() },
    );
    eventually("the replicas are up", || states(&bed).iter().all(|state| state == "up"));
    for policy in ["best", "cost"] {
        let fields = format!("{AUTH}X-Gateway-Policy: {policy}\r\n");
        let request = post_with("/v1/chat/completions", &fields, &body(0, "x").to_string());
        assert_eq!(ask(bed.addr, &request).status(), 200);
    }
    let decisions = ask(bed.admin, &get("/decisions")).json();
    for decision in decisions["decisions"].as_array().unwrap() {
        assert_eq!(decision["policy"], "round_robin");
    }
}

#[test]
fn an_explanation_agrees_with_what_happens() {
    let scene = Scene::new(4, "");
    for n in 0..8 {
        scene.chat(&body(n, "First."), "");
    }
    for n in 0..8 {
        let asked = body(n, "Second, and a little longer.");
        let said = scene.explain(&asked);
        let best = &said["candidates"][0];
        let prompt = scene.prompt(&asked);
        assert_eq!(said["prompt"]["tokens"], prompt.tokens);
        assert_eq!(said["prompt"]["basis"], "exact");
        let hashes: Vec<_> = prompt.hashes.iter().map(|hash| format!("{hash:032x}")).collect();
        assert_eq!(said["prompt"]["hashes"], json!(hashes));
        let response = scene.chat(&asked, "X-Request-Id: told\r\n");
        assert_eq!(best["replica"], node(&response));
        assert_eq!(best["cached_tokens"], number(&response, "x-gateway-cached-tokens"));
        let kept = scene.admin("/decisions");
        let made = &kept["decisions"][0];
        assert_eq!((&made["request_id"], &made["replica"]), (&json!("told"), &best["replica"]));
        assert_eq!(made["cached_tokens"], best["cached_tokens"]);
        assert_eq!(made["request"]["prompt_tokens"], prompt.tokens);
        let near = |a: &Value, b: &Value| (a.as_f64().unwrap() - b.as_f64().unwrap()).abs();
        assert!(near(&made["prefill_ms"], &best["prefill_ms"]) < 1.0, "{made} {best}");
    }
    let kept = scene.admin("/decisions")["decisions"].clone();
    let whole: Vec<_> =
        kept.as_array().unwrap().iter().filter(|d| !d["candidates"].is_null()).collect();
    assert_eq!(whole[0]["candidates"].as_array().unwrap().len(), 4, "the first is kept whole");
}

#[test]
fn what_cannot_be_explained_says_so() {
    let scene = Scene::new(1, "");
    let post = |path: &str, body: &str| {
        let response = ask(scene.bed.admin, &post_with(path, "", body));
        (response.status(), response.json()["error"].as_str().unwrap_or_default().to_owned())
    };
    let chat = "/explain?path=/v1/chat/completions";
    assert_eq!(post(chat, "{").0, 400);
    assert_eq!(post(chat, r#"{"model":"no","messages":[{}]}"#).0, 404);
    assert_eq!(post("/explain?path=/nowhere", "{}").0, 400);
    assert_eq!(ask(scene.bed.admin, &get("/explain")).status(), 405);
    let snapshot = scene.admin("/snapshot");
    assert_eq!(snapshot["pools"][0]["lanes"][0]["seen"]["eligible"], true);
    assert_eq!(snapshot["pools"][0]["block_tokens"], 16);
}
