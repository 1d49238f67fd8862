//! The `tojson` filter as transformers sets it: Python's `json.dumps` with `ensure_ascii=False`
//! unless told otherwise, without the HTML escapes of Jinja's own.
//!
//! Pure; bounded in depth. Its output is paid for with the fuel of the render that calls it.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::python;
use super::value::{DEPTH_MAX, Dict, Huge, List, as_float};
use crate::prompt::escape::push_string;

/// What `json.dumps` is told.
struct Style {
    ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item: String,
    key: String,
}

/// `tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
///
/// # Errors
/// What Python does not serialise, an argument of the wrong kind, or nested too deep.
pub(super) fn filter(value: &Value, given: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let style = Style::read(&given, &kwargs)?;
    kwargs.assert_all_used()?;
    let mut out = String::new();
    style.push(&mut out, value, 0)?;
    Ok(Value::from(out))
}

impl Style {
    fn read(given: &[Value], kwargs: &Kwargs) -> Result<Self, Error> {
        let argument = |place: usize, name: &str| -> Result<Option<Value>, Error> {
            let named = kwargs.get::<Option<Value>>(name)?;
            Ok(given.get(place).cloned().or(named).filter(|value| !value.is_none()))
        };
        let indent = match argument(1, "indent")? {
            Some(value) if value.as_str().is_some() => value.as_str().map(str::to_owned),
            Some(value) => {
                let width = i64::try_from(value).map_err(|_| invalid("indent is not a number"))?;
                Some(" ".repeat(usize::try_from(width.clamp(0, 64)).unwrap_or(0)))
            }
            None => None,
        };
        let (item, key) = match argument(2, "separators")? {
            Some(pair) => {
                let part = |place| pair.get_item_by_index(place).map(|part| part.to_string());
                (part(0)?, part(1)?)
            }
            None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
            None => (", ".to_owned(), ": ".to_owned()),
        };
        Ok(Style {
            ascii: argument(0, "ensure_ascii")?.is_some_and(|value| value.is_true()),
            sort_keys: argument(3, "sort_keys")?.is_some_and(|value| value.is_true()),
            indent,
            item,
            key,
        })
    }

    fn push(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(invalid("tojson: nested too deep"));
        }
        if let Some(text) = value.as_str() {
            push_string(text, out, self.ascii);
            return Ok(());
        }
        if let Some(dict) = value.downcast_object_ref::<Dict>() {
            return self.push_entries(out, dict.entries(), depth);
        }
        if let Some(list) = value.downcast_object_ref::<List>() {
            return self.push_items(out, &list.0, depth);
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => push_number(out, value),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
                return self.push_items(out, &items, depth);
            }
            ValueKind::Map => {
                let keys = value.try_iter()?.checked();
                let entry = |key: Result<Value, Error>| {
                    let key = key?;
                    value.get_item(&key).map(|value| (key, value))
                };
                return self.push_entries(
                    out,
                    &keys.map(entry).collect::<Result<Vec<_>, _>>()?,
                    depth,
                );
            }
            _ if value.downcast_object_ref::<Huge>().is_some() => out.push_str(&value.to_string()),
            kind => return Err(invalid(format!("Object of type {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn push_items(&self, out: &mut String, items: &[Value], depth: usize) -> Result<(), Error> {
        if items.is_empty() {
            out.push_str("[]");
            return Ok(());
        }
        out.push('[');
        for (place, item) in items.iter().enumerate() {
            self.push_gap(out, place, depth + 1);
            self.push(out, item, depth + 1)?;
        }
        self.push_line(out, depth);
        out.push(']');
        Ok(())
    }

    fn push_entries(
        &self,
        out: &mut String,
        entries: &[(Value, Value)],
        depth: usize,
    ) -> Result<(), Error> {
        if entries.is_empty() {
            out.push_str("{}");
            return Ok(());
        }
        let mut sorted = Vec::new();
        if self.sort_keys {
            sorted.extend_from_slice(entries);
            sorted.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        out.push('{');
        let entries = if self.sort_keys { sorted.as_slice() } else { entries };
        for (place, (key, value)) in entries.iter().enumerate() {
            self.push_gap(out, place, depth + 1);
            self.push_key(out, key)?;
            out.push_str(&self.key);
            self.push(out, value, depth + 1)?;
        }
        self.push_line(out, depth);
        out.push('}');
        Ok(())
    }

    fn push_key(&self, out: &mut String, key: &Value) -> Result<(), Error> {
        if let Some(text) = key.as_str() {
            push_string(text, out, self.ascii);
            return Ok(());
        }
        out.push('"');
        match key.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if key.is_true() { "true" } else { "false" }),
            ValueKind::Number => push_number(out, key),
            kind => {
                return Err(invalid(format!(
                    "keys must be str, int, float, bool or None, not {kind}"
                )));
            }
        }
        out.push('"');
        Ok(())
    }

    fn push_gap(&self, out: &mut String, place: usize, depth: usize) {
        out.push_str(if place == 0 { "" } else { &self.item });
        self.push_line(out, depth);
    }

    fn push_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }
}

fn invalid(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

fn push_number(out: &mut String, value: &Value) {
    match as_float(value) {
        Some(float) if float.is_nan() => out.push_str("NaN"),
        Some(f64::INFINITY) => out.push_str("Infinity"),
        Some(f64::NEG_INFINITY) => out.push_str("-Infinity"),
        Some(float) => python::push_float(out, float),
        None => match i64::try_from(value.clone()) {
            Ok(number) => out.push_str(itoa::Buffer::new().format(number)),
            Err(_) => out.push_str(&value.to_string()),
        },
    }
}

#[cfg(test)]
#[path = "tojson_tests.rs"]
mod tests;
