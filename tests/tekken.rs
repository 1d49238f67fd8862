//! Ids, tokens and text of a `tekken.json` are those of vLLM with mistral-common, as recorded by
//! `tests/data/tekken/generate.py`: of a tiny one of our own, and of the one that
//! `scripts/fetch-tokenizers tekken` brings.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use expedite::openai::{Endpoint, read_call};
use expedite::prompt::Basis;
use expedite::prompt::blocks::Root;
use expedite::prompt::encode::{EncodeJob, Progress};
use expedite::prompt::model::{Ask, Model, Unknown};
use expedite::prompt::segments::SegmentCache;
use expedite::prompt::tokenizer::{Engine, Tokenizer};
use expedite::prompt::work::{Terms, Work};
use serde::Deserialize;
use sha2::{Digest, Sha256};

#[path = "support/hostile.rs"]
mod hostile;
#[path = "support/prompts.rs"]
mod prompts;

use prompts::{Marks, Prompts};

#[derive(Deserialize)]
struct Golden {
    texts: Vec<String>,
    tiny: Recorded,
    tekken: Recorded,
}

#[derive(Deserialize)]
struct Recorded {
    vocab_size: u32,
    /// All tokens with a NUL between.
    tokens: String,
    /// With BOS: how many ids, and their digest.
    texts: Vec<(usize, String)>,
    /// Ids; their text, and that without special tokens.
    decoded: Vec<(Vec<u32>, String, String)>,
    code_points: Vec<String>,
}

fn golden() -> Golden {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tekken/golden.json");
    serde_json::from_slice(&std::fs::read(data).unwrap()).unwrap()
}

/// A folder with no more than our own `tekken.json` in it.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tekken/tiny.json");
    std::fs::copy(file, folder.path().join("tekken.json")).unwrap();
    folder
}

fn tiny() -> Arc<Tokenizer> {
    load(folder().path())
}

fn fetched() -> Arc<Tokenizer> {
    let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/tokenizers/tekken");
    assert!(folder.is_dir(), "run scripts/fetch-tokenizers tekken");
    load(&folder)
}

fn load(folder: &Path) -> Arc<Tokenizer> {
    let tokenizer = Tokenizer::load(folder).unwrap();
    assert_eq!(tokenizer.engine(), Engine::Fastokens);
    assert!(tokenizer.is_tekken());
    tokenizer.warm();
    Arc::new(tokenizer)
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn ids_digest(ids: &[u32]) -> String {
    digest(&ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>())
}

fn ids(tokenizer: &Tokenizer, text: &str, add_special: bool) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode_whole(text, add_special, &mut ids).unwrap();
    ids
}

/// The ids in turns of `budget` bytes, with a cache.
fn turns(
    tokenizer: &Arc<Tokenizer>,
    text: &str,
    cache: &mut SegmentCache,
    budget: usize,
) -> Vec<u32> {
    let (mut job, mut ids) = (EncodeJob::new(tokenizer, true), Vec::new());
    loop {
        match job.advance(text, cache, budget, &mut ids).unwrap() {
            Progress::More => {}
            Progress::Done => return ids,
            Progress::TooLong { .. } => job.finish(text, cache, &mut ids).unwrap(),
        }
    }
}

fn texts(tokenizer: &Arc<Tokenizer>, texts: &[String], recorded: &Recorded) {
    assert!(texts.len() >= 200 && texts.len() == recorded.texts.len());
    let mut cache = SegmentCache::new(1 << 16);
    for (text, (count, sha256)) in texts.iter().zip(&recorded.texts) {
        let found = ids(tokenizer, text, true);
        assert_eq!((found.len(), &ids_digest(&found)), (*count, sha256), "{text:?}");
        assert_eq!(found[0], 1, "BOS");
        assert_eq!(ids(tokenizer, text, false), found[1..]);
        assert_eq!(tokenizer.decode(&found, true).unwrap(), *text);
        assert_eq!(tokenizer.decode(&found, false).unwrap(), format!("<s>{text}"));
        for budget in [50, 40_000] {
            assert_eq!(turns(tokenizer, text, &mut cache, budget), found, "{text:?}");
        }
    }
    assert!(cache.stats().hits > 0);
}

fn tokens(tokenizer: &Tokenizer, recorded: &Recorded) {
    let size = recorded.vocab_size;
    assert_eq!(tokenizer.vocab_size(), size);
    let tokens: Vec<String> = (0..size).map(|id| tokenizer.id_to_token(id).unwrap()).collect();
    assert_eq!(digest(tokens.join("\0").as_bytes()), recorded.tokens);
    assert_eq!(tokenizer.id_to_token(size), None);
    assert_eq!(tokenizer.bytes(), size as usize * 1024);
    for (ids, text, without) in &recorded.decoded {
        assert_eq!(digest(tokenizer.decode(ids, false).unwrap().as_bytes()), *text, "{ids:?}");
        assert_eq!(digest(tokenizer.decode(ids, true).unwrap().as_bytes()), *without, "{ids:?}");
    }
    assert!(tokenizer.decode(&[0, size], false).is_err(), "the engine refuses it");
}

/// Every code point alone and after a letter.
fn code_points(tokenizer: &Tokenizer, recorded: &Recorded) {
    for (block, sha256) in (0u32..).step_by(0x1000).zip(&recorded.code_points) {
        let mut found = Vec::new();
        for c in (block..block + 0x1000).filter_map(char::from_u32) {
            tokenizer.encode_whole(&c.to_string(), false, &mut found).unwrap();
            tokenizer.encode_whole(&format!("a{c}"), false, &mut found).unwrap();
        }
        assert_eq!(ids_digest(&found), *sha256, "from U+{block:04X}");
    }
}

/// Each place where a text may be cut, and how many there are.
fn cuts(tokenizer: &Tokenizer, texts: &[String]) -> usize {
    assert_eq!((&tokenizer.cuts().added, &tokenizer.cuts().letter_space), (&Ok(()), &Ok(())));
    let mut tried = 0;
    for text in texts {
        let whole = ids(tokenizer, text, false);
        for ((at, after), before) in text.char_indices().skip(1).zip(text.chars()) {
            if tokenizer.cuts().between(before, after) {
                let (left, right) = text.split_at(at);
                let parts = [ids(tokenizer, left, false), ids(tokenizer, right, false)].concat();
                assert_eq!(parts, whole, "cut between {before:?} and {after:?} in {text:?}");
                tried += 1;
            }
        }
    }
    tried
}

#[test]
fn our_own_is_read_as_the_engine_reads_it() {
    let (golden, tokenizer) = (golden(), tiny());
    texts(&tokenizer, &golden.texts, &golden.tiny);
    tokens(&tokenizer, &golden.tiny);
    assert_eq!(tokenizer.id_to_token(21).unwrap(), "[é]");
    assert_eq!(tokenizer.id_to_token(29).unwrap(), "<SPECIAL_29>");
}

#[test]
fn a_tiny_vocabulary_may_be_cut_too() {
    let tried = cuts(&tiny(), &golden().texts);
    assert!(tried > 3000, "{tried}");
}

#[test]
#[ignore = "needs scripts/fetch-tokenizers"]
fn a_real_one_is_read_as_the_engine_reads_it() {
    let (golden, tokenizer) = (golden(), fetched());
    texts(&tokenizer, &golden.texts, &golden.tekken);
    tokens(&tokenizer, &golden.tekken);
    code_points(&tokenizer, &golden.tekken);
    assert!(cuts(&tokenizer, &golden.texts) > 3000);
}

#[test]
#[ignore = "needs scripts/fetch-tokenizers"]
fn a_real_one_may_be_cut_wherever_the_rules_allow_it() {
    let (tokenizer, marks) = (fetched(), Marks { open: "[INST]", close: "[/INST]" });
    let (mut prompts, mut tried) = (Prompts::new(6, marks), 0);
    while tried < 12_000 {
        let text = match prompts.random.bool() {
            true => prompts.chat(400),
            false => hostile::text(&mut prompts.random, marks),
        };
        tried += cuts(&tokenizer, &[text]);
    }
}

#[test]
fn every_code_point_of_the_tiny_one() {
    code_points(&tiny(), &golden().tiny);
}

/// How many tokens the prompts of a body have, and what that stands on.
fn count(model: &Model, endpoint: Endpoint, body: &str) -> Result<(u64, Basis), Unknown> {
    let call = read_call(endpoint, body.as_bytes()).unwrap();
    let ask = Ask { endpoint, call: &call, body: body.as_bytes(), unix_s: 0 };
    let source = model.source(&ask)?;
    let terms = Terms::new(endpoint, &call, None, (Root::new(None, None), 16));
    let mut work = Work::new(Some(model.tokenizer()), source, terms);
    work.rest(&mut SegmentCache::new(1 << 16)).unwrap();
    let (prompt, _) = work.finish();
    Ok((prompt.tokens, prompt.basis))
}

#[test]
fn texts_are_counted_and_chats_are_not() {
    let folder = folder();
    // The engine reads no template with a tekken.json, so neither do we.
    std::fs::write(folder.path().join("chat_template.jinja"), "{% broken").unwrap();
    let model = Model::load(folder.path(), None).unwrap();
    assert_eq!(model.chats(), "none");
    let remarks = model.remarks();
    assert!(matches!(remarks.as_slice(), [one] if one.contains("chats of tekken.json")));
    let typed = r#"{"prompt":"<s>"}"#;
    assert_eq!(count(&model, Endpoint::Completions, typed), Ok((4, Basis::Exact)));
    let bare = r#"{"prompt":"<s>","add_special_tokens":false}"#;
    assert_eq!(count(&model, Endpoint::Completions, bare), Ok((3, Basis::Exact)));
    let chat = r#"{"messages":[{"role":"user","content":"a"}]}"#;
    for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages, Endpoint::Tokenize] {
        let unknown = count(&model, endpoint, chat);
        assert!(matches!(unknown, Err(Unknown::Unsupported(_))), "{unknown:?}");
    }
}
