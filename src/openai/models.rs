//! The model list: the engines' entries merged into one, each kept as the engine wrote it.
//!
//! An alias is shown as vLLM shows a second served name: the same entry under another `id`, with
//! `root` and `parent` as they were. For the control thread: it allocates.

use super::json::{Error, Kind, Scanner, text};
use super::{Span, error::write_string};

/// One entry of an engine's `/v1/models`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelEntry {
    /// Its `id`: the name that requests use.
    pub id: String,
    /// Its `root`: for vLLM the path or repository that it was loaded from.
    pub root: Option<String>,
    /// Its `parent`: an adapter's base model.
    pub parent: Option<String>,
    /// Its `max_model_len`, in tokens.
    pub max_model_len: Option<u64>,
    /// The entry as JSON, as the engine wrote it.
    json: Vec<u8>,
    /// The `id` value in it.
    id_span: Span,
}

/// Reads an engine's answer to `GET /v1/models`.
///
/// # Errors
/// Not JSON, no `data` list, or an entry that is not an object with an `id`.
pub fn parse_models(json: &[u8]) -> Result<Vec<ModelEntry>, Error> {
    let mut scanner = Scanner::new(json)?;
    let mut entries = None;
    scanner.object(|scanner, key| {
        if key.name != b"data" {
            return scanner.value().map(drop);
        }
        let mut list = Vec::new();
        scanner.array(|scanner, _| {
            list.push(parse_entry(scanner, json)?);
            Ok::<(), Error>(())
        })?;
        entries = Some(list);
        Ok(())
    })?;
    scanner.finish()?;
    entries.ok_or(Error { offset: 0, what: "a model list without data" })
}

fn parse_entry(scanner: &mut Scanner<'_>, json: &[u8]) -> Result<ModelEntry, Error> {
    let mut fields = [None, None, None, None];
    let span = scanner.object(|scanner, key| {
        let value = scanner.value()?;
        let [id, root, parent, max_model_len] = &mut fields;
        let (place, kind) = match key.name {
            b"id" => (id, Kind::String),
            b"root" => (root, Kind::String),
            b"parent" => (parent, Kind::String),
            b"max_model_len" => (max_model_len, Kind::Number),
            _ => return Ok(()),
        };
        *place = (value.kind == kind).then_some(value.span);
        Ok::<(), Error>(())
    })?;
    let [id, root, parent, max_model_len] = fields;
    let id = id.ok_or(Error { offset: span.start(), what: "a model without an id" })?;
    let string = |span: Option<Span>| span.map(|span| text(span.within(json)));
    let number = |span: Span| std::str::from_utf8(span.within(json)).ok()?.parse().ok();
    Ok(ModelEntry {
        id: text(id.within(json)),
        root: string(root),
        parent: string(parent),
        max_model_len: max_model_len.and_then(number),
        json: span.within(json).to_vec(),
        id_span: Span::between(id.start() - span.start(), id.end() - span.start()),
    })
}

impl ModelEntry {
    /// The same entry under another name.
    #[must_use]
    pub fn with_id(&self, id: &str) -> ModelEntry {
        let mut json = self.json.get(..self.id_span.start()).unwrap_or_default().to_vec();
        write_string(&mut json, id.as_bytes());
        let id_span = Span::between(self.id_span.start(), json.len());
        json.extend_from_slice(self.json.get(self.id_span.end()..).unwrap_or_default());
        ModelEntry { id: id.to_owned(), json, id_span, ..self.clone() }
    }

    /// The entry as JSON, for `GET /v1/models/{id}`.
    #[must_use]
    pub fn json(&self) -> &[u8] {
        &self.json
    }
}

/// The body of `GET /v1/models`: each id once, the first entry given for it.
#[must_use]
pub fn write_list<'a>(entries: impl IntoIterator<Item = &'a ModelEntry>) -> Vec<u8> {
    let mut out = b"{\"object\":\"list\",\"data\":[".to_vec();
    let mut seen = std::collections::HashSet::new();
    for entry in entries {
        if !seen.insert(entry.id.as_str()) {
            continue;
        }
        if seen.len() > 1 {
            out.push(b',');
        }
        out.extend_from_slice(&entry.json);
    }
    out.extend_from_slice(b"]}");
    out
}

/// The first entry whose id is `id` as it stands in a path: percent-encoded or not.
#[must_use]
pub fn find<'a>(
    entries: impl IntoIterator<Item = &'a ModelEntry>,
    id: &[u8],
) -> Option<&'a ModelEntry> {
    let id = percent_decoded(id)?;
    entries.into_iter().find(|entry| entry.id.as_bytes() == id)
}

fn percent_decoded(path: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(path.len());
    let mut bytes = path.iter();
    while let Some(&byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || char::from(*bytes.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        out.push((high << 4 | low) as u8);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn capture(name: &str) -> Vec<u8> {
        crate::openai::captures::read(name).body
    }

    #[test]
    fn entries_keep_their_fields() {
        let body = capture("get_models_with_lora");
        let entries = parse_models(&body).unwrap();
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[0].max_model_len, Some(8192));
        assert_eq!(entries[0].parent, None);
        assert_eq!(entries[1].id, "lora-a");
        assert_eq!(entries[1].parent.as_deref(), Some("tiny-qwen3"));
        assert_eq!(entries[1].root.as_deref(), Some("/srv/tiny/lora-a"));
        assert_eq!(entries[1].max_model_len, None);
        assert_eq!(write_list(&entries), body, "one engine's list is unchanged");
    }

    #[test]
    fn lists_are_merged_by_id() {
        let first = parse_models(&capture("get_models_with_lora")).unwrap();
        let second = parse_models(&capture("b_models_alias")).unwrap();
        let merged: Value =
            serde_json::from_slice(&write_list(first.iter().chain(&second))).unwrap();
        let ids: Vec<_> = merged["data"].as_array().unwrap().iter().map(|m| &m["id"]).collect();
        assert_eq!(ids, ["tiny-qwen3", "lora-a", "lora-b", "tiny-alias"]);
        assert_eq!(merged["data"][0]["max_model_len"], 8192, "the first one wins");
        assert_eq!(write_list([]), b"{\"object\":\"list\",\"data\":[]}");
    }

    #[test]
    fn an_alias_differs_by_id_alone() {
        let entries = parse_models(&capture("b_models_alias")).unwrap();
        let alias = entries[0].with_id("gpt \"fast\"");
        let mut expected: Value = serde_json::from_slice(entries[0].json()).unwrap();
        expected["id"] = "gpt \"fast\"".into();
        assert_eq!(serde_json::from_slice::<Value>(alias.json()).unwrap(), expected);
        assert_eq!(alias.with_id("tiny-qwen3"), entries[0]);
    }

    #[test]
    fn an_id_is_found_encoded_or_not() {
        let entries = parse_models(b"{\"data\":[{\"id\":\"meta/L 3\"}]}").unwrap();
        assert!(find(&entries, b"meta%2FL%203").is_some());
        assert!(find(&entries, b"meta/L%203").is_some());
        for id in [&b"meta"[..], b"meta/L 3x", b"meta%2", b"%zz", b""] {
            assert!(find(&entries, id).is_none());
        }
    }

    #[test]
    fn a_list_that_is_none_is_refused() {
        for json in ["", "[]", "{}", "{\"data\":[1]}", "{\"data\":[{}]}", "{\"data\":[{\"id\":1}]}"]
        {
            assert!(parse_models(json.as_bytes()).is_err(), "{json}");
        }
    }
}
