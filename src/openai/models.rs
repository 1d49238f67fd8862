//! The engine's `/v1/models`: read, merged over the fleet, every field of an entry kept.
//!
//! Runs on the control thread and for rare requests; serde_json is fine here.

use serde_json::{Map, Value};

/// One model or adapter as a replica lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its name.
    pub id: String,
    /// The base model, for an adapter.
    pub parent: Option<String>,
    /// Where the engine loaded it from: for an adapter, the path that loads it elsewhere too.
    pub root: Option<String>,
    /// Its context length in tokens, when told.
    pub max_model_len: Option<u64>,
    fields: Map<String, Value>,
}

impl Entry {
    fn new(fields: Map<String, Value>) -> Option<Entry> {
        let text = |key: &str| fields.get(key).and_then(Value::as_str).map(str::to_owned);
        Some(Entry {
            id: text("id").filter(|id| !id.is_empty())?,
            parent: text("parent"),
            root: text("root"),
            max_model_len: fields.get("max_model_len").and_then(Value::as_u64),
            fields,
        })
    }

    /// Does the other say the same? `created` and permission ids differ at each asking.
    #[must_use]
    pub fn same(&self, other: &Entry) -> bool {
        (&self.id, &self.parent, &self.root, self.max_model_len)
            == (&other.id, &other.parent, &other.root, other.max_model_len)
    }

    /// A model that no replica has described yet.
    #[must_use]
    pub fn plain(id: &str) -> Entry {
        let mut fields = Map::new();
        fields.insert("id".to_owned(), id.into());
        fields.insert("object".to_owned(), "model".into());
        fields.insert("owned_by".to_owned(), "vllm".into());
        Entry { id: id.to_owned(), parent: None, root: None, max_model_len: None, fields }
    }

    /// The same model under another name, as vLLM lists its further served names.
    #[must_use]
    pub fn renamed(&self, id: &str) -> Entry {
        let mut entry = self.clone();
        entry.fields.insert("id".to_owned(), id.into());
        id.clone_into(&mut entry.id);
        entry
    }
}

/// Reads a replica's list. Entries without an id are left out.
///
/// # Errors
/// It is not JSON, or has no list.
pub fn parse(json: &[u8]) -> Result<Vec<Entry>, &'static str> {
    let value: Value = serde_json::from_slice(json).map_err(|_| "not JSON")?;
    let list = value.get("data").and_then(Value::as_array).ok_or("no list of models")?;
    Ok(list.iter().filter_map(Value::as_object).cloned().filter_map(Entry::new).collect())
}

/// The body of `GET /v1/models`.
#[must_use]
pub fn list<'e>(entries: impl Iterator<Item = &'e Entry>) -> Vec<u8> {
    let data: Vec<_> = entries.map(|e| Value::Object(e.fields.clone())).collect();
    serde_json::json!({"object": "list", "data": data}).to_string().into_bytes()
}

/// The body of `GET /v1/models/{id}`.
#[must_use]
pub fn one(entry: &Entry) -> Vec<u8> {
    Value::Object(entry.fields.clone()).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &[u8] = br#"{"object":"list","data":[{"id":"base","object":"model","created":1,
        "root":"/m","parent":null,"max_model_len":8192,"permission":[{"x":1.50}]},
        {"id":"lora","parent":"base","max_model_len":null},{"object":"model"},7]}"#;

    #[test]
    fn entries_keep_their_fields() {
        let entries = parse(LIST).unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!((entries[0].max_model_len, entries[0].parent.as_deref()), (Some(8192), None));
        assert_eq!(entries[1].parent.as_deref(), Some("base"));
        let merged: Value = serde_json::from_slice(&list(entries.iter())).unwrap();
        assert_eq!(merged["data"][0]["permission"][0]["x"], 1.5);
        let alias: Value = serde_json::from_slice(&one(&entries[0].renamed("gpt-fast"))).unwrap();
        assert_eq!((&alias["id"], &alias["root"]), (&"gpt-fast".into(), &"/m".into()));
    }

    #[test]
    fn anything_else_is_an_error() {
        for bad in [&b"[]"[..], b"{}", b"nope", b"{\"data\":{}}"] {
            assert!(parse(bad).is_err());
        }
    }
}
