//! A tokenizer as its files define it: `tokenizer.json` with what transformers adds to it from
//! `tokenizer_config.json` when an engine loads both.
//!
//! Follows `PreTrainedTokenizerFast.__init__` of transformers 5: truncation and padding of the file
//! are off, tokens of `added_tokens_decoder` that differ from the file's replace them or are added,
//! named special tokens are added when they are missing, and a file without a post-processor gets
//! `add_bos_token` and `add_eos_token` from the configuration. Pure functions of JSON.

use std::collections::HashMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, json};

/// Keys of `tokenizer_config.json` that name one special token.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Keys that name several, as a list or as an object of names.
const NAMED_LISTS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// An added token: text that becomes one id before anything else looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) content: String,
    /// It matches only where no word character touches it.
    pub(super) single_word: bool,
    /// It takes the white space before it, or after it, along.
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
    /// It matches in the normalized text, after those that match in the raw text.
    pub(super) normalized: bool,
    /// Decoding can leave it out.
    pub(super) special: bool,
}

impl AddedToken {
    fn read(entry: &Value, id: u32) -> Option<AddedToken> {
        let flag = |name: &str| entry.get(name).and_then(Value::as_bool);
        let special = flag("special").unwrap_or(false);
        Some(AddedToken {
            id,
            content: entry.get("content")?.as_str()?.to_owned(),
            single_word: flag("single_word").unwrap_or(false),
            lstrip: flag("lstrip").unwrap_or(false),
            rstrip: flag("rstrip").unwrap_or(false),
            normalized: flag("normalized").unwrap_or(!special),
            special,
        })
    }

    /// A special token that is only named: literal, with no flags.
    fn named(content: &str) -> AddedToken {
        AddedToken {
            id: 0,
            content: content.to_owned(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: true,
        }
    }

    fn write(&self) -> Value {
        json!({
            "id": self.id,
            "content": self.content,
            "single_word": self.single_word,
            "lstrip": self.lstrip,
            "rstrip": self.rstrip,
            "normalized": self.normalized,
            "special": self.special,
        })
    }

    /// Whether where it matches depends on the text around it.
    pub(super) fn has_flags(&self) -> bool {
        self.single_word || self.lstrip || self.rstrip
    }
}

/// What a tokenizer's files say, but for its merges: those are the libraries' to read.
#[derive(Debug)]
pub(super) struct Definition {
    /// `tokenizer.json` without the tables of its model.
    pub(super) head: Value,
    pub(super) added: Vec<AddedToken>,
    /// The added tokens are not those that `tokenizer.json` lists.
    pub(super) changed: bool,
    /// Ids before and after every text, when the file leaves that to the configuration.
    pub(super) affixes: Option<(Vec<u32>, Vec<u32>)>,
    /// One more than the largest id, of the vocabulary and of the added tokens.
    pub(super) vocab_size: u32,
}

impl Definition {
    /// Reads `tokenizer.json` and merges what the configuration adds.
    ///
    /// # Errors
    /// What is not as `tokenizer.json` has it.
    pub(super) fn read(file: &[u8], config: Option<&Value>) -> Result<Definition, String> {
        let head: Head = serde_json::from_slice(file).map_err(|error| error.to_string())?;
        let vocab = head.model.vocab;
        let listed = listed(&head.added_tokens)?;
        let mut added = listed.clone();
        if let Some(config) = config {
            for token in wanted(config) {
                add(&vocab, &mut added, token);
            }
            name(&vocab, &mut added, config);
        }
        let affixes = match head.post_processor {
            Value::Null => config.map(|config| affixes(&vocab, &added, config)),
            _ => None,
        };
        let largest = added.iter().map(|token| token.id).chain(vocab.ids.values().copied()).max();
        let head = json!({
            "normalizer": head.normalizer,
            "pre_tokenizer": head.pre_tokenizer,
            "model": {"type": head.model.kind, "dropout": head.model.dropout},
        });
        Ok(Definition {
            head,
            changed: added != listed,
            added,
            affixes,
            vocab_size: largest.map_or(0, |id| id.saturating_add(1)).max(vocab.len()),
        })
    }

    /// All of `file` with the merged tokens, and without truncation and padding.
    ///
    /// # Errors
    /// It is not JSON.
    pub(super) fn merged(&self, file: &[u8]) -> Result<Value, String> {
        let mut json: Value = serde_json::from_slice(file).map_err(|error| error.to_string())?;
        if let Value::Object(root) = &mut json {
            root.insert("truncation".to_owned(), Value::Null);
            root.insert("padding".to_owned(), Value::Null);
            let list = self.added.iter().map(AddedToken::write).collect();
            root.insert("added_tokens".to_owned(), Value::Array(list));
        }
        Ok(json)
    }
}

/// What is read of `tokenizer.json` here.
#[derive(serde::Deserialize)]
struct Head {
    #[serde(default)]
    added_tokens: Vec<Value>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    model: Model,
}

#[derive(serde::Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f64>,
    #[serde(default)]
    vocab: Vocab,
}

/// The ids of a vocabulary by their text; of one that is a list, only how many there are.
#[derive(Default)]
struct Vocab {
    ids: HashMap<String, u32>,
    listed: u32,
}

impl Vocab {
    fn get(&self, content: &str) -> Option<u32> {
        self.ids.get(content).copied()
    }

    fn len(&self) -> u32 {
        u32::try_from(self.ids.len()).unwrap_or(u32::MAX).max(self.listed)
    }
}

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Vocab, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Vocab;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map or a list of tokens")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
                let mut vocab = Vocab::default();
                while let Some((content, id)) = map.next_entry()? {
                    vocab.ids.insert(content, id);
                }
                Ok(vocab)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocab, A::Error> {
                let mut vocab = Vocab::default();
                while list.next_element::<IgnoredAny>()?.is_some() {
                    vocab.listed = vocab.listed.saturating_add(1);
                }
                Ok(vocab)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// The tokens that `tokenizer.json` lists itself.
fn listed(list: &[Value]) -> Result<Vec<AddedToken>, String> {
    let read = |entry: &Value| {
        let id = entry.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        id.and_then(|id| AddedToken::read(entry, id))
    };
    let tokens: Option<Vec<_>> = list.iter().map(read).collect();
    tokens.ok_or_else(|| "an added token without id or content".to_owned())
}

/// The tokens of `added_tokens_decoder`, in the order of their ids.
fn wanted(config: &Value) -> Vec<AddedToken> {
    let Some(Value::Object(decoder)) = config.get("added_tokens_decoder") else {
        return Vec::new();
    };
    let read = |(id, entry): (&String, &Value)| AddedToken::read(entry, id.parse().ok()?);
    let mut tokens: Vec<_> = decoder.iter().filter_map(read).collect();
    tokens.sort_by_key(|token| token.id);
    tokens
}

/// Adds `token`, or gives its flags to the one with the same text. The id is the library's choice:
/// that of the same text if there is any, else the next free one.
fn add(vocab: &Vocab, added: &mut Vec<AddedToken>, token: AddedToken) {
    if token.content.is_empty() {
        return;
    }
    if let Some(old) = added.iter_mut().find(|old| old.content == token.content) {
        *old = AddedToken { id: old.id, ..token };
        return;
    }
    let id = vocab.get(&token.content).unwrap_or_else(|| {
        let after = added.iter().map(|token| token.id.saturating_add(1)).max();
        after.unwrap_or(0).max(vocab.len())
    });
    added.push(AddedToken { id, ..token });
}

/// Adds the special tokens that the configuration names and nothing has added yet.
fn name(vocab: &Vocab, added: &mut Vec<AddedToken>, config: &Value) {
    let single = NAMED.iter().filter_map(|key| config.get(key));
    let lists = NAMED_LISTS.iter().filter_map(|key| config.get(key)).flat_map(|list| match list {
        Value::Array(list) => list.iter().collect::<Vec<_>>(),
        Value::Object(names) => names.values().collect(),
        _ => Vec::new(),
    });
    for value in single.chain(lists) {
        let token = match value {
            Value::String(content) => Some(AddedToken::named(content)),
            Value::Object(_) => AddedToken::read(value, 0),
            _ => None,
        };
        if let Some(token) = token
            && !added.iter().any(|old| old.content == token.content)
        {
            add(vocab, added, AddedToken { special: true, ..token });
        }
    }
}

/// What `add_bos_token` and `add_eos_token` put around a text.
fn affixes<'a>(vocab: &Vocab, added: &[AddedToken], config: &'a Value) -> (Vec<u32>, Vec<u32>) {
    let id = |switch: &str, name: &str| {
        if config.get(switch).and_then(Value::as_bool) != Some(true) {
            return Vec::new();
        }
        let token = config.get(name);
        let entry = |token: &'a Value| token.get("content").and_then(Value::as_str);
        let content = token.and_then(|token| token.as_str().or_else(|| entry(token)));
        let known = |content: &str| added.iter().find(|token| token.content == content);
        let id = content.and_then(|content| match known(content) {
            Some(token) => Some(token.id),
            None => vocab.get(content),
        });
        id.into_iter().collect()
    };
    (id("add_bos_token", "bos_token"), id("add_eos_token", "eos_token"))
}

#[cfg(test)]
#[path = "definition_tests.rs"]
mod tests;
