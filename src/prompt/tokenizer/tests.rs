//! The tiny tokenizer that tests load, and what loading finds out.

use std::sync::{Arc, LazyLock};

use super::*;

#[path = "../../../tests/support/tiny_tokenizer.rs"]
pub(in crate::prompt) mod tiny;

/// The tiny tokenizer, loaded once.
pub(in crate::prompt) fn loaded() -> Arc<Tokenizer> {
    static LOADED: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| loaded_with(|_| {}));
    Arc::clone(&LOADED)
}

/// The same with a change to its `tokenizer.json`.
pub(in crate::prompt) fn loaded_with(change: impl FnOnce(&mut Value)) -> Arc<Tokenizer> {
    Arc::new(load_with(change).unwrap())
}

fn load_with(change: impl FnOnce(&mut Value)) -> Result<Tokenizer, LoadError> {
    let folder = tempfile::tempdir().unwrap();
    tiny::write(folder.path());
    let path = folder.path().join("tokenizer.json");
    let mut json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut json);
    std::fs::write(&path, json.to_string()).unwrap();
    Tokenizer::load(folder.path())
}

/// Seeded text of the kinds that splitters treat differently.
pub(in crate::prompt) struct Random(fastrand::Rng);

impl Random {
    pub(in crate::prompt) fn new(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    /// At least `bytes` of anything.
    pub(in crate::prompt) fn text(&mut self, bytes: usize) -> String {
        const KINDS: [&str; 36] = [
            " ",
            " ",
            "  ",
            "\n",
            "\n\n",
            "\t",
            "\r\n",
            "a",
            "the",
            "request",
            "HELLO",
            "x9",
            "7",
            "12345",
            ".",
            ", ",
            "!?",
            "'s",
            "don't",
            "\"key\": ",
            "{}",
            "/* */",
            "日本語",
            "、。",
            "城市",
            "Погода",
            "é",
            "e\u{301}",
            "नमस्ते",
            "👍🏽",
            "\u{200d}",
            "\u{a0}",
            "<|im_end|>",
            "<think>",
            "<|im_",
            "end|>",
        ];
        let mut text = String::new();
        while text.len() < bytes {
            text.push_str(self.0.choice(KINDS).unwrap_or_default());
        }
        text
    }

    /// At least `bytes` of words with spaces between them.
    pub(in crate::prompt) fn words(&mut self, bytes: usize) -> String {
        let mut text = String::new();
        while text.len() < bytes {
            for _ in 0..self.0.usize(1..9) {
                text.push(self.0.lowercase());
            }
            text.push(' ');
        }
        text
    }
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode_whole(text, false, &mut ids).unwrap();
    ids
}

#[test]
fn the_tiny_tokenizer_is_fast_and_cut_everywhere() {
    let tokenizer = loaded();
    assert_eq!(tokenizer.engine(), Engine::Fastokens);
    assert!(tokenizer.cuts().added.is_ok() && tokenizer.cuts().letter_space.is_ok());
    let size = tokenizer.vocab_size();
    assert_eq!(tokenizer.id_to_token(size - 1).unwrap(), "</think>");
    assert_eq!(tokenizer.id_to_token(size), None);
    assert_eq!(ids(&tokenizer, "<think></think>"), [size - 2, size - 1]);
    // It has learned something: common words are one token, with their space.
    let the = ids(&tokenizer, "over the weather");
    assert!(the.iter().any(|&id| tokenizer.id_to_token(id).unwrap() == "Ġthe"));
    assert!(tokenizer.bytes() > 50_000);
    tokenizer.warm();
}

#[test]
fn no_library_starts_threads() {
    loaded();
    assert_eq!(library::one_thread(), 1);
}

#[test]
fn both_libraries_give_the_same_ids() {
    let tokenizer = loaded();
    let (json, config) = tiny::tiny();
    let file = json.to_string();
    let definition = Definition::read(file.as_bytes(), Some(&config)).unwrap();
    let library = Library::reference(file.as_bytes(), &definition).unwrap();
    let engine = Engine::Tokenizers("a test".to_owned());
    let reference = Tokenizer::new(&definition, library, engine, 0).unwrap();
    assert_eq!(reference.cuts(), tokenizer.cuts());
    assert_ne!(reference.tag(), tokenizer.tag());
    let mut random = Random::new(5);
    for _ in 0..200 {
        let text = random.text(300);
        let of = ids(&tokenizer, &text);
        assert_eq!(of, ids(&reference, &text), "{text:?}");
        for skip in [false, true] {
            let decoded = tokenizer.decode(&of, skip).unwrap();
            assert_eq!(decoded, reference.decode(&of, skip).unwrap());
        }
    }
    for id in 0..tokenizer.vocab_size() + 2 {
        assert_eq!(tokenizer.id_to_token(id), reference.id_to_token(id));
    }
}

#[test]
fn what_fastokens_refuses_is_loaded_by_the_other() {
    let tokenizer = load_with(|json| {
        json["model"] = serde_json::json!({"type": "WordLevel", "unk_token": "a",
            "vocab": {"a": 0, "b": 1}});
    });
    let tokenizer = tokenizer.unwrap();
    assert!(matches!(tokenizer.engine(), Engine::Tokenizers(why) if !why.is_empty()));
    assert!(tokenizer.cuts().added.is_err());
    assert_eq!(ids(&tokenizer, "b"), [1]);
}

#[test]
fn what_neither_takes_is_told() {
    let error = |change: fn(&mut Value)| load_with(change).err().unwrap().to_string();
    let refused = error(|json| json["model"]["type"] = "Other".into());
    assert!(refused.contains("no tokenizer library"), "{refused}");
    assert!(error(|json| json["model"] = Value::Null).contains("tokenizer.json"));
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(Tokenizer::load(folder.path()), Err(LoadError::Read("tokenizer.json", _))));
    std::fs::write(folder.path().join("tokenizer.json"), "{").unwrap();
    assert!(matches!(Tokenizer::load(folder.path()), Err(LoadError::Json("tokenizer.json", _))));
}

#[test]
fn the_vocabulary_is_the_larger_of_tokenizer_and_model() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write(folder.path());
    let size = |config: &str| {
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        Tokenizer::load(folder.path()).unwrap().vocab_size()
    };
    let own = loaded().vocab_size();
    assert_eq!(size("{}"), own);
    assert_eq!(size(r#"{"vocab_size": 5}"#), own);
    assert_eq!(size(r#"{"vocab_size": 5000}"#), 5000);
    assert_eq!(size(r#"{"vocab_size": 9, "text_config": {"vocab_size": 6000}}"#), 6000);
}

#[test]
fn a_cut_that_changes_ids_is_switched_off() {
    // The pattern is claimed to be known, and is another.
    let (mut json, config) = tiny::tiny();
    let file = json.to_string();
    let definition = Definition::read(file.as_bytes(), Some(&config)).unwrap();
    json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\p{L}+ \p{L}+|\s|.".into();
    let other = Library::reference(json.to_string().as_bytes(), &definition).unwrap();
    let added = Added::new(&definition.added, false).unwrap();
    let mut cuts = Cuts::judge(&definition.head, true, false);
    probe::cuts(&other, &definition.added, &added, &mut cuts).unwrap();
    assert!(cuts.added.is_ok());
    assert!(cuts.letter_space.unwrap_err().contains("a probe failed between"));
}

#[test]
fn limits_of_the_file_and_tokens_of_the_configuration_are_merged() {
    let tokenizer = loaded_with(|json| {
        json["truncation"] = serde_json::json!({"direction": "Right", "max_length": 3,
            "strategy": "LongestFirst", "stride": 0});
    });
    let text = "some words that are more than three tokens";
    assert_eq!(ids(&tokenizer, text), ids(&loaded(), text));
    // A token that only the configuration has: the end of a turn, here.
    let tokenizer = loaded_with(|json| {
        json["added_tokens"]
            .as_array_mut()
            .unwrap()
            .retain(|token| token["content"] != "<|im_end|>");
    });
    let found = ids(&tokenizer, "<|im_end|>");
    assert_eq!(found, [loaded().vocab_size()]);
    assert_eq!(tokenizer.id_to_token(found[0]).unwrap(), "<|im_end|>");
    assert_eq!(tokenizer.decode(&found, true).unwrap(), "");
}
