//! Typed reading of a TOML table that notes every key it knows and every value it gives out.
//!
//! Reading a key is what makes it known: [`Table::finish`] reports the rest. Mistakes are collected
//! and a default stands in, so that one run reports them all. Environment variables are substituted
//! here and nowhere else. No I/O: the environment is an argument.

use std::ops::RangeInclusive;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::effective::{Effective, Entry, Origin, Section};
use super::error::{ConfigError, did_you_mean};

/// A table of no more keys is told whole where no key is near the wrong one.
const KEYS_TOLD: usize = 6;

/// The lookup of environment variables.
pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// One file being read.
pub(super) struct Reader<'a> {
    pub(super) file: &'a str,
    text: &'a str,
    env: Env<'a>,
    pub(super) errors: Vec<ConfigError>,
    pub(super) effective: Effective,
}

/// A string of the file after substitution.
#[derive(Clone)]
pub(super) struct Text {
    pub(super) text: String,
    pub(super) origin: Origin,
}

impl Text {
    /// For messages: never the value of a variable, which may be a secret.
    pub(super) fn quoted(&self) -> String {
        match &self.origin {
            Origin::Env(_, names) => format!("the value of {names}"),
            _ => format!("{:?}", self.text),
        }
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a str, text: &'a str, env: Env<'a>) -> Reader<'a> {
        let effective = Effective { file: file.to_owned(), sections: Vec::new() };
        Reader { file, text, env, errors: Vec::new(), effective }
    }

    /// The line, from 1, of a byte of the file.
    pub(super) fn line_at(&self, byte: usize) -> u32 {
        let before = self.text.as_bytes().get(..byte).unwrap_or_default();
        memchr::memchr_iter(b'\n', before).count() as u32 + 1
    }

    pub(super) fn error(&mut self, line: u32, what: impl Into<String>) {
        self.errors.push(ConfigError { file: self.file.to_owned(), line, what: what.into() });
    }

    /// Starts a section; without a table every value is its default.
    pub(super) fn section<'r>(
        &'r mut self,
        kind: &'static str,
        header: String,
        line: u32,
        table: Option<&'a DeTable<'a>>,
    ) -> Table<'r, 'a> {
        let place = header.clone();
        self.effective.sections.push(Section { kind, header, entries: Vec::new() });
        let (prefix, known) = (String::new(), Vec::new());
        Table { reader: self, table, line, place, prefix, known, quiet: false }
    }

    /// Replaces each `${NAME}`; a variable that is missing is an error that names it.
    pub(super) fn substitute(&mut self, raw: &str, line: u32) -> Text {
        let mut text = String::with_capacity(raw.len());
        let mut names: Vec<&str> = Vec::new();
        let mut rest = raw;
        while let Some(start) = rest.find("${") {
            let (before, after) = rest.split_at(start);
            text.push_str(before);
            let Some(end) = after.find('}') else {
                self.error(line, "\"${\" without its \"}\"");
                return Text { text: String::new(), origin: Origin::File(line) };
            };
            let name = &after[2..end];
            match (self.env)(name) {
                Some(value) => text.push_str(&value),
                None => self.error(line, format!("environment variable {name} is not set")),
            }
            names.push(name);
            rest = &after[end + 1..];
        }
        text.push_str(rest);
        // No path, address or name has one, and the kernel would see its beginning alone.
        if text.contains('\0') {
            self.error(line, "a string must not have the character NUL in it");
        }
        let origin = match names.is_empty() {
            true => Origin::File(line),
            false => Origin::Env(line, names.join(", ")),
        };
        Text { text, origin }
    }
}

/// One table of the file being read.
pub(super) struct Table<'r, 'a> {
    pub(super) reader: &'r mut Reader<'a>,
    table: Option<&'a DeTable<'a>>,
    /// Line of the table's header, 0 when the file has none.
    pub(super) line: u32,
    place: String,
    prefix: String,
    known: Vec<&'static str>,
    /// Values are shown by the caller as a whole, not one by one.
    quiet: bool,
}

impl<'a> Table<'_, 'a> {
    /// The raw value of a key, which is known from now on.
    pub(super) fn get(&mut self, key: &'static str) -> Option<(&'a DeValue<'a>, u32)> {
        self.known.push(key);
        let (_, value) = self.table?.iter().find(|(name, _)| name.get_ref() == key)?;
        Some((value.get_ref(), self.reader.line_at(value.span().start)))
    }

    /// The line of a key; 0 when the file does not have it.
    pub(super) fn line_of(&self, key: &str) -> u32 {
        let found = self.table.and_then(|t| t.iter().find(|(name, _)| name.get_ref() == key));
        found.map_or(0, |(name, _)| self.reader.line_at(name.span().start))
    }

    /// Notes a value for the effective configuration.
    pub(super) fn note(&mut self, entry: Entry) {
        if self.quiet {
            return;
        }
        let key = format!("{}{}", self.prefix, entry.key);
        if let Some(section) = self.reader.effective.sections.last_mut() {
            section.entries.push(Entry { key, ..entry });
        }
    }

    /// Notes a value that its caller has read by itself.
    pub(super) fn note_value(&mut self, key: &str, value: Value, origin: Origin, changed: bool) {
        let (key, items) = (key.to_owned(), Vec::new());
        self.note(Entry { key, value, origin, items, unset: "", changed });
    }

    fn note_one(&mut self, key: &str, value: Value, origin: Origin, default: &Value) {
        let changed = value != *default;
        self.note_value(key, value, origin, changed);
    }

    /// Notes that a key is not set.
    pub(super) fn note_unset(&mut self, key: &str, unset: &'static str) {
        let (key, items) = (key.to_owned(), Vec::new());
        let (value, origin) = (Value::Null, Origin::Default);
        self.note(Entry { key, value, origin, items, unset, changed: false });
    }

    pub(super) fn error(&mut self, line: u32, what: impl Into<String>) {
        self.reader.error(line, what);
    }

    fn wrong_type(&mut self, key: &str, line: u32, want: &str, got: &DeValue<'_>) {
        let what =
            format!("{key} in {} must be {want}, not of type {}", self.place, got.type_str());
        self.error(line, what);
    }

    /// A whole number within a range; `unit` for the message.
    pub(super) fn number(
        &mut self,
        key: &'static str,
        default: u64,
        range: RangeInclusive<u64>,
        unit: &str,
    ) -> u64 {
        let (value, origin) = match self.read_number(key, &range, unit) {
            Some((value, line)) => (value, Origin::File(line)),
            None => (default, Origin::Default),
        };
        self.note_one(key, value.into(), origin, &default.into());
        value
    }

    /// A whole number that need not be set.
    pub(super) fn opt_number(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
        unit: &str,
        unset: &'static str,
    ) -> Option<u64> {
        let Some((value, line)) = self.read_number(key, &range, unit) else {
            self.note_unset(key, unset);
            return None;
        };
        self.note_one(key, value.into(), Origin::File(line), &Value::Null);
        Some(value)
    }

    fn read_number(
        &mut self,
        key: &'static str,
        range: &RangeInclusive<u64>,
        unit: &str,
    ) -> Option<(u64, u32)> {
        let (raw, line) = self.get(key)?;
        let want = format!("a whole number of {unit} from {} to {}", range.start(), range.end());
        let DeValue::Integer(number) = raw else {
            self.wrong_type(key, line, &want, raw);
            return None;
        };
        match u64::from_str_radix(number.as_str(), number.radix()) {
            Ok(value) if range.contains(&value) => Some((value, line)),
            _ => {
                let place = &self.place;
                self.error(line, format!("{key} in {place} must be {want}, not {number}"));
                None
            }
        }
    }

    /// A number, whole or not, within a range.
    pub(super) fn float(
        &mut self,
        key: &'static str,
        default: f64,
        range: RangeInclusive<f64>,
        unit: &str,
    ) -> f64 {
        let (value, origin) = match self.read_float(key, &range, unit) {
            Some((value, line)) => (value, Origin::File(line)),
            None => (default, Origin::Default),
        };
        self.note_one(key, value.into(), origin, &default.into());
        value
    }

    /// A number that need not be set.
    pub(super) fn opt_float(
        &mut self,
        key: &'static str,
        range: RangeInclusive<f64>,
        unit: &str,
        unset: &'static str,
    ) -> Option<f64> {
        let Some((value, line)) = self.read_float(key, &range, unit) else {
            self.note_unset(key, unset);
            return None;
        };
        self.note_one(key, value.into(), Origin::File(line), &Value::Null);
        Some(value)
    }

    fn read_float(
        &mut self,
        key: &'static str,
        range: &RangeInclusive<f64>,
        unit: &str,
    ) -> Option<(f64, u32)> {
        let (raw, line) = self.get(key)?;
        let want = format!("a number ({unit}) from {} to {}", range.start(), range.end());
        let digits = match raw {
            DeValue::Float(number) => number.as_str(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
            _ => {
                self.wrong_type(key, line, &want, raw);
                return None;
            }
        };
        match digits.parse::<f64>() {
            Ok(value) if range.contains(&value) => Some((value, line)),
            _ => {
                let place = &self.place;
                self.error(line, format!("{key} in {place} must be {want}, not {digits}"));
                None
            }
        }
    }

    /// `true` or `false`.
    pub(super) fn flag(&mut self, key: &'static str, default: bool) -> bool {
        let mut read = (default, Origin::Default);
        match self.get(key) {
            Some((DeValue::Boolean(value), line)) => read = (*value, Origin::File(line)),
            Some((raw, line)) => self.wrong_type(key, line, "true or false", raw),
            None => {}
        }
        self.note_one(key, read.0.into(), read.1, &default.into());
        read.0
    }

    /// A string with its origin, not yet noted; for values that need a check first.
    pub(super) fn text(&mut self, key: &'static str) -> Option<Text> {
        match self.get(key)? {
            (DeValue::String(raw), line) => Some(self.reader.substitute(raw, line)),
            (raw, line) => {
                self.wrong_type(key, line, "a string", raw);
                None
            }
        }
    }

    /// Notes a string, or that it is not set.
    pub(super) fn note_text(&mut self, key: &str, text: Option<&Text>, unset: &'static str) {
        match text {
            Some(Text { text, origin }) => {
                self.note_one(key, text.as_str().into(), origin.clone(), &Value::Null)
            }
            None => self.note_unset(key, unset),
        }
    }

    /// A string that need not be set.
    pub(super) fn opt_text(&mut self, key: &'static str, unset: &'static str) -> Option<Text> {
        let text = self.text(key);
        self.note_text(key, text.as_ref(), unset);
        text
    }

    /// A string with a default.
    pub(super) fn text_or(&mut self, key: &'static str, default: &str) -> Text {
        let text = self.text(key).unwrap_or(Text { text: default.into(), origin: Origin::Default });
        self.note_one(key, text.text.as_str().into(), text.origin.clone(), &default.into());
        text
    }

    /// One of a few words; the first is the default.
    pub(super) fn choice<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)]) -> T {
        let default = words[0];
        let mut read = (default, Origin::Default);
        if let Some(given) = self.text(key) {
            match words.iter().find(|(word, _)| *word == given.text) {
                Some(word) => read = (*word, given.origin),
                None => {
                    let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                    let near = match given.origin {
                        Origin::Env(..) => String::new(),
                        _ => did_you_mean(&given.text, names.iter().copied()),
                    };
                    let what = format!(
                        "{key} in {} must be one of {}, not {}{near}",
                        self.place,
                        names.join(", "),
                        given.quoted()
                    );
                    self.error(given.origin.line(), what);
                }
            }
        }
        self.note_one(key, read.0.0.into(), read.1, &default.0.into());
        read.0.1
    }

    /// A list of strings, not yet noted; `None` when absent.
    pub(super) fn texts(&mut self, key: &'static str) -> Option<Vec<Text>> {
        let (raw, line) = self.get(key)?;
        let DeValue::Array(items) = raw else {
            self.wrong_type(key, line, "a list of strings", raw);
            return None;
        };
        let mut texts = Vec::new();
        for item in items.iter() {
            let line = self.reader.line_at(item.span().start);
            match item.get_ref() {
                DeValue::String(raw) => texts.push(self.reader.substitute(raw, line)),
                other => self.wrong_type(key, line, "a list of strings", other),
            }
        }
        Some(texts)
    }

    /// Notes a list; `values` as shown, one for each text.
    pub(super) fn note_list(&mut self, key: &str, values: Vec<Value>, items: Vec<Origin>) {
        let (key, value, changed) = (key.to_owned(), Value::Array(values), true);
        let origin = items.first().cloned().unwrap_or(Origin::Default);
        self.note(Entry { key, value, origin, items, unset: "", changed });
    }

    /// A list of strings with a default, noted.
    pub(super) fn texts_or(&mut self, key: &'static str, default: &[&str]) -> Vec<Text> {
        let given = self.texts(key);
        let changed = given.is_some();
        let texts = given.unwrap_or_else(|| {
            let text = |text: &&str| Text { text: (*text).into(), origin: Origin::Default };
            default.iter().map(text).collect()
        });
        let items: Vec<Origin> = texts.iter().map(|text| text.origin.clone()).collect();
        let origin = items.first().cloned().unwrap_or(Origin::Default);
        let value = texts.iter().map(|text| text.text.as_str()).collect::<Vec<_>>().into();
        self.note(Entry { key: key.to_owned(), value, origin, items, unset: "", changed });
        texts
    }

    /// An inline table, read by `read`; `None` when absent. Its values show as `key.name`.
    pub(super) fn inline<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Table<'_, 'a>) -> T,
    ) -> Option<T> {
        let (raw, line) = self.get(key)?;
        let DeValue::Table(table) = raw else {
            self.wrong_type(key, line, "a table", raw);
            return None;
        };
        let mut inner = Table {
            place: format!("{key} of {}", self.place),
            reader: self.reader,
            table: Some(table),
            line,
            prefix: format!("{}{key}.", self.prefix),
            known: Vec::new(),
            quiet: self.quiet,
        };
        let value = read(&mut inner);
        inner.finish();
        Some(value)
    }

    /// A table inside a list, read by `read`, whose values are not noted one by one.
    pub(super) fn detached<T>(
        &mut self,
        place: &str,
        line: u32,
        table: &'a DeTable<'a>,
        read: impl FnOnce(&mut Table<'_, 'a>) -> T,
    ) -> T {
        let mut inner = Table {
            place: place.to_owned(),
            reader: self.reader,
            table: Some(table),
            line,
            prefix: String::new(),
            known: Vec::new(),
            quiet: true,
        };
        let value = read(&mut inner);
        inner.finish();
        value
    }

    /// Reports every key that nobody asked for.
    pub(super) fn finish(self) {
        let Some(table) = self.table else { return };
        for (name, _) in table.iter() {
            if self.known.iter().any(|known| known == name.get_ref()) {
                continue;
            }
            let mut near = did_you_mean(name.get_ref(), self.known.iter().copied());
            if near.is_empty() && (1..=KEYS_TOLD).contains(&self.known.len()) {
                near = format!("; it has {}", self.known.join(", "));
            }
            let what = format!("unknown key {:?} in {}{near}", name.get_ref(), self.place);
            let line = self.reader.line_at(name.span().start);
            self.reader.error(line, what);
        }
    }
}

/// The entries of an array, or of a single value that is none.
pub(super) fn spans<'v, 'a>(value: &'v DeValue<'a>) -> &'v [Spanned<DeValue<'a>>] {
    value.as_array().map_or(&[], |items| items)
}
