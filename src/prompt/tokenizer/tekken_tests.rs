//! What a `tekken.json` may say, and what of it is refused.

use serde_json::Value;

use super::super::{LoadError, Tokenizer};
use super::*;

/// All bytes and two merges under five ids of special tokens, three of them named.
fn json() -> Value {
    let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
    let tokens = bytes.chain([b"ab".to_vec(), b"abc".to_vec(), b"left out".to_vec()]);
    let entry = |(rank, token): (usize, Vec<u8>)| {
        let bytes = base64(&token);
        json!({"rank": rank, "token_bytes": bytes, "token_str": null})
    };
    let named = ["<unk>", "<s>", "[INST]"].iter().enumerate();
    let special = |(rank, name)| json!({"rank": rank, "token_str": name, "is_control": true});
    json!({
        "config": {"pattern": fastokens::tiktoken::TEKKEN_PATTERN, "version": "v13",
            "num_vocab_tokens": 259, "default_vocab_size": 263, "default_num_special_tokens": 5},
        "special_tokens": named.map(special).collect::<Vec<_>>(),
        "vocab": tokens.enumerate().map(entry).collect::<Vec<_>>(),
    })
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = bytes.chunks(3).flat_map(|chunk| {
        let word = chunk.iter().fold(0u32, |word, &byte| word << 8 | u32::from(byte));
        let word = word << (8 * (3 - chunk.len()));
        (0..=chunk.len()).map(move |i| DIGITS[(word >> (18 - 6 * i)) as usize & 63] as char)
    });
    let text: String = digits.collect();
    format!("{text:=<width$}", width = text.len().div_ceil(4) * 4)
}

fn load(json: &Value) -> Result<Tekken, String> {
    Tekken::load(Parsed::read(json.to_string().as_bytes())?)
}

fn ids(tekken: &Tekken, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    tekken.encode(text, &mut ids).unwrap();
    ids
}

#[test]
fn special_tokens_come_first_and_are_never_typed() {
    let tekken = load(&json()).unwrap();
    assert_eq!(ids(&tekken, "abcab"), [262, 261]);
    assert_eq!(ids(&tekken, "<s>").len(), 3);
    let names = (0..5).map(|id| tekken.id_to_token(id).unwrap()).collect::<Vec<_>>();
    assert_eq!(names, ["<unk>", "<s>", "[INST]", "<SPECIAL_3>", "<SPECIAL_4>"]);
    assert_eq!(tekken.id_to_token(262).unwrap(), "abc");
    assert_eq!(tekken.id_to_token(263), None, "what the configuration leaves out");
    assert!(tekken.has_token("[INST]") && tekken.has_token("ab") && !tekken.has_token("left out"));
}

#[test]
fn a_character_does_not_go_on_behind_a_special_token() {
    let tekken = load(&json()).unwrap();
    let [a, b] = [0xc3 + 5, 0xa9 + 5];
    assert_eq!(tekken.decode(&[a, b], false).unwrap(), "é");
    assert_eq!(tekken.decode(&[a, 2, b], false).unwrap(), "\u{fffd}[INST]\u{fffd}");
    assert_eq!(tekken.decode(&[a, 2, b], true).unwrap(), "\u{fffd}\u{fffd}");
    assert_eq!(tekken.id_to_token(a).unwrap(), "\u{fffd}");
    assert!(tekken.decode(&[263], true).is_err());
}

#[test]
fn old_versions_name_no_special_tokens() {
    let mut old = json();
    old["special_tokens"] = Value::Null;
    old["config"]["version"] = "v3".into();
    old["config"]["default_num_special_tokens"] = 22.into();
    old["config"]["default_vocab_size"] = 280.into();
    let tekken = load(&old).unwrap();
    let name = |id| tekken.id_to_token(id).unwrap();
    assert_eq!(
        [name(1), name(3), name(19), name(21)],
        ["<s>", "[INST]", "[TOOL_CONTENT]", "<SPECIAL_21>"]
    );
    old.as_object_mut().unwrap().remove("special_tokens");
    assert!(load(&old).is_ok());
    old["config"]["version"] = "v11".into();
    assert!(load(&old).err().unwrap().contains("special_tokens are missing in version v11"));
}

#[test]
fn what_mistral_common_would_not_take_is_refused() {
    let error = |change: &dyn Fn(&mut Value)| {
        let mut json = json();
        change(&mut json);
        load(&json).err().unwrap()
    };
    let config =
        |name: &'static str, value: u32| error(&move |json| json["config"][name] = value.into());
    assert!(config("default_vocab_size", 300).contains("too short"));
    assert!(config("default_vocab_size", 4).contains("more special tokens than tokens"));
    assert!(config("default_vocab_size", 200).contains("not all bytes first"));
    assert!(config("default_num_special_tokens", 2).contains("default_num_special_tokens"));
    // Names are not made for as many ids as a file may claim.
    assert!(config("default_num_special_tokens", u32::MAX).contains("more than 65536"));
    assert!(error(&|json| json["special_tokens"][1]["token_str"] = "x".into()).contains("<s>"));
    assert!(error(&|json| json["special_tokens"][1]["rank"] = 2.into()).contains("order"));
    assert!(error(&|json| json["vocab"][7]["token_bytes"] = "AA==".into()).contains("bytes first"));
    assert!(error(&|json| json["vocab"][257]["rank"] = 7.into()).contains("order of ranks"));
    assert!(error(&|json| json["vocab"][257]["token_bytes"] = "?".into()).contains("base64"));
    assert!(error(&|json| json["vocab"][257]["token_bytes"] = "".into()).contains("rank"));
    // A token that no merge makes, one that is there twice, and no pattern.
    assert!(error(&|json| json["vocab"][256]["token_bytes"] = "YWJjZA==".into()).contains("2"));
    assert!(!error(&|json| json["vocab"][257]["token_bytes"] = "YWI=".into()).is_empty());
    assert!(!error(&|json| json["config"]["pattern"] = "(".into()).is_empty());
    assert!(Parsed::read(b"{}").is_err());
}

#[test]
fn a_folder_is_loaded_by_the_files_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("tekken.json", "{");
    let broken = Tokenizer::load(folder.path());
    assert!(matches!(broken, Err(LoadError::Json("tekken.json", _))));
    write("tekken.json", &json().to_string());
    let tokenizer = Tokenizer::load(folder.path()).unwrap();
    assert!(tokenizer.is_tekken() && tokenizer.is_fast());
    assert_eq!(tokenizer.vocab_size(), 263);
    let mut out = Vec::new();
    tokenizer.encode_whole("abc", true, &mut out).unwrap();
    assert_eq!(out, [1, 262]);
    write("params.json", r#"{"vocab_size": 300}"#);
    assert_eq!(Tokenizer::load(folder.path()).unwrap().vocab_size(), 300);
    // Without Mistral's weights beside it the engine takes the other file.
    write("tokenizer.json", "{");
    let other = Tokenizer::load(folder.path());
    assert!(matches!(other, Err(LoadError::Json("tokenizer.json", _))));
}
