//! What vLLM and transformers make of our conversations, byte for byte.
//!
//! `tests/data/templates/golden.py` wrote the golden file with the real ones. Our own templates
//! are always compared; those of vendors, which we do not keep, where `scripts/fetch-tokenizers`
//! has put them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use expedite::openai::Endpoint;
use expedite::prompt::template::{Chat, LocalTime, RenderError, Specials, Template};
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

#[derive(Deserialize)]
struct Conversation {
    name: String,
    body: Box<RawValue>,
}

/// The text, its length and SHA-256 when it is long, or null where vLLM answers with an error.
#[derive(Deserialize)]
#[serde(untagged)]
enum Golden {
    Text(String),
    Digest(usize, String),
    Error(()),
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/templates").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(data(name)).unwrap()
}

fn conversations() -> Vec<Conversation> {
    let text = read("conversations.jsonl");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn golden() -> BTreeMap<String, BTreeMap<String, Golden>> {
    serde_json::from_str(&read("golden.json")).unwrap()
}

/// The time that the generator's clock stood at.
fn now() -> LocalTime {
    LocalTime { year: 2024, month: 7, day: 26, hour: 9, minute: 5, second: 7, microsecond: 0 }
}

fn differs(golden: &Golden, ours: &Result<String, RenderError>) -> Option<String> {
    match (golden, ours) {
        (Golden::Error(_), Err(RenderError::Template(_) | RenderError::Shape(_))) => None,
        (Golden::Text(expected), Ok(text)) if expected == text => None,
        (Golden::Digest(length, digest), Ok(text)) => {
            let hash = Sha256::digest(text);
            let ours: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            let same = text.len() == *length && *digest == ours;
            (!same).then(|| format!("{length} bytes expected\n  ours ({}): {text:?}", text.len()))
        }
        (Golden::Text(expected), Ok(text)) => {
            Some(format!("expected: {expected:?}\n      ours: {text:?}"))
        }
        (Golden::Error(_), _) => Some(format!("an error expected\n  ours: {ours:?}")),
        (_, Err(error)) => Some(format!("a text expected\n  ours: {error:?}")),
    }
}

fn compare(name: &str, template: &Template) {
    let tokenize = name.ends_with("@tokenize");
    let endpoint = if tokenize { Endpoint::Tokenize } else { Endpoint::ChatCompletions };
    let golden = golden();
    let golden = &golden[name];
    let mut wrong = Vec::new();
    let conversations = conversations();
    assert!(conversations.len() >= 60 && conversations.len() == golden.len());
    for conversation in &conversations {
        let mut out = String::new();
        let body = conversation.body.get().as_bytes();
        let ours = Chat::read(endpoint, body)
            .and_then(|chat| template.render_chat(&chat, &now(), &mut out));
        if let Some(what) = differs(&golden[&conversation.name], &ours.map(|_| out)) {
            wrong.push(format!("{}: {what}", conversation.name));
        }
    }
    assert!(wrong.is_empty(), "{name}: {} differ\n{}", wrong.len(), wrong.join("\n"));
}

fn own(name: &str) {
    let mut specials = Specials::default();
    specials.add("bos_token", "<s>");
    specials.add("eos_token", "</s>");
    let source = read(&format!("{}.jinja", name.trim_end_matches("@tokenize")));
    compare(name, &Template::parse(&source, specials).unwrap());
}

fn fetched(name: &str) {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/tokenizers");
    let template = Template::load(&cache.join(name), None).unwrap();
    compare(name, &template.expect("the folder has a template"));
}

#[test]
fn what_templates_use_of_jinja_and_python_renders_alike() {
    own("features");
}

#[test]
fn a_template_of_parts_renders_alike() {
    own("parts");
}

#[test]
fn tokenize_knows_fewer_members() {
    own("parts@tokenize");
}

#[test]
fn a_template_like_llamas_with_tools_renders_alike() {
    own("llama_tools");
}

#[test]
fn a_template_like_mistrals_renders_alike() {
    own("mistral_like");
}

#[test]
#[ignore = "needs scripts/fetch-tokenizers"]
fn templates_of_vendors_render_alike() {
    for name in ["qwen3", "llama3", "llama3_1", "deepseek_v3", "gemma3"] {
        fetched(name);
    }
}
