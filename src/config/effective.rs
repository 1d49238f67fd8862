//! The effective configuration: every value with where it came from.
//!
//! The reader notes each value here as it takes it, so that a key cannot be read without being
//! shown. Secrets arrive already masked. No I/O.

use std::fmt::Write;

use serde_json::{Value, json};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Built in.
    Default,
    /// A line of the file, from 1.
    File(u32),
    /// A line of the file that took the value of environment variables.
    Env(u32, String),
    /// The command line.
    Flag,
}

/// One value as shown.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Dotted below an inline table: `slo.ttft_ms`.
    pub(super) key: String,
    /// `Null`: not set.
    pub(super) value: Value,
    pub(super) origin: Origin,
    /// For a list given in the file: the line of each item.
    pub(super) items: Vec<Origin>,
    /// What "not set" means, in a few words.
    pub(super) unset: &'static str,
    /// Differs from the default.
    pub(super) changed: bool,
}

/// One table of the file.
#[derive(Clone, Debug)]
pub(super) struct Section {
    /// `server`, `pool`, `tier`...
    pub(super) kind: &'static str,
    /// As written in a file: `[server]`, `[[pool]]`, `[tier.gold]`.
    pub(super) header: String,
    pub(super) entries: Vec<Entry>,
}

/// All tables, in the order of the documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct Effective {
    pub(super) file: String,
    pub(super) sections: Vec<Section>,
}

impl Effective {
    /// The n-th section of a kind.
    pub(super) fn section(&self, kind: &str, n: usize) -> Option<&Section> {
        self.sections.iter().filter(|section| section.kind == kind).nth(n)
    }

    /// The line of a key, or of the `item`-th entry of its list; 0 when it is not from the file.
    pub(super) fn line(&self, kind: &str, n: usize, key: &str, item: Option<usize>) -> u32 {
        let entry = self
            .section(kind, n)
            .and_then(|section| section.entries.iter().find(|entry| entry.key == key));
        let Some(entry) = entry else { return 0 };
        let origin = item.and_then(|i| entry.items.get(i)).unwrap_or(&entry.origin);
        origin.line()
    }

    /// Replaces a value by one from the command line.
    pub(super) fn set_flag(&mut self, kind: &str, key: &str, value: Value) {
        let sections = self.sections.iter_mut().filter(|section| section.kind == kind);
        for entry in sections.flat_map(|s| &mut s.entries).filter(|entry| entry.key == key) {
            entry.items = vec![Origin::Flag; value.as_array().map_or(0, Vec::len)];
            entry.value = value.clone();
            entry.origin = Origin::Flag;
            entry.changed = true;
        }
    }

    /// TOML that can be loaded again, apart from the masked secrets.
    pub(super) fn to_toml(&self) -> String {
        let mut out = String::new();
        for section in &self.sections {
            let gap = if out.is_empty() { "" } else { "\n" };
            let _ = writeln!(out, "{gap}{}", section.header);
            for entry in &section.entries {
                self.write_entry(&mut out, entry);
            }
        }
        out
    }

    fn write_entry(&self, out: &mut String, entry: &Entry) {
        let Entry { key, value, .. } = entry;
        let origin = self.origin_text(&entry.origin);
        match value {
            Value::Null => annotate(out, &format!("# {key}: {}", entry.unset), &origin),
            Value::Array(items) if entry.items.len() == items.len() && items.len() > 1 => {
                let _ = writeln!(out, "{key} = [");
                for (item, origin) in items.iter().zip(&entry.items) {
                    let line = format!("  {},", toml_of(item));
                    annotate(out, &line, &self.origin_text(origin));
                }
                out.push_str("]\n");
            }
            _ => annotate(out, &format!("{key} = {}", toml_of(value)), &origin),
        }
    }

    /// `{"server": {"listen": {"value": [...], "origin": "gw.toml:2"}}, "pool": [{...}], ...}`;
    /// tiers are an object by name.
    pub(super) fn to_json(&self) -> Value {
        let mut root = serde_json::Map::new();
        for section in &self.sections {
            let mut table = serde_json::Map::new();
            for entry in &section.entries {
                let shown = json!({
                    "value": entry.value, "origin": self.origin_text(&entry.origin)
                });
                table.insert(entry.key.clone(), shown);
            }
            if section.header.starts_with("[[") {
                let list = root.entry(section.kind).or_insert_with(|| json!([]));
                if let Some(list) = list.as_array_mut() {
                    list.push(Value::Object(table));
                }
            } else if section.kind == "tier" {
                let name = section.header.trim_matches(['[', ']']).trim_start_matches("tier.");
                root.entry("tier").or_insert_with(|| json!({}))[name.trim_matches('"')] =
                    Value::Object(table);
            } else {
                root.insert(section.kind.to_owned(), Value::Object(table));
            }
        }
        Value::Object(root)
    }

    fn origin_text(&self, origin: &Origin) -> String {
        match origin {
            Origin::Default => "default".to_owned(),
            Origin::Flag => "flag".to_owned(),
            Origin::File(line) => format!("{}:{line}", self.file),
            Origin::Env(line, names) => format!("{}:{line}, env {names}", self.file),
        }
    }
}

impl Origin {
    /// The line in the file, or 0.
    pub(super) fn line(&self) -> u32 {
        match self {
            Origin::File(line) | Origin::Env(line, _) => *line,
            Origin::Default | Origin::Flag => 0,
        }
    }
}

/// Writes a line with its origin as a comment, aligned where the line is short.
fn annotate(out: &mut String, line: &str, origin: &str) {
    let _ = writeln!(out, "{line:<44}  # {origin}");
}

/// A JSON value in TOML's spelling.
pub(super) fn toml_of(value: &Value) -> String {
    match value {
        // JSON's escapes are TOML's, but for DEL, which JSON leaves bare.
        Value::String(_) => value.to_string().replace('\u{7f}', "\\u007f"),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(toml_of).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let set = fields.iter().filter(|(_, value)| !value.is_null());
            let fields: Vec<String> =
                set.map(|(key, value)| format!("{key} = {}", toml_of(value))).collect();
            format!("{{ {} }}", fields.join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}
