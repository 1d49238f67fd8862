//! JSON as the dictionaries and lists that a template sees, built straight from the bytes.
//!
//! A [`Dict`] keeps the order of its keys and behaves as Python's `dict` does in a sandboxed Jinja:
//! `x["items"]` is the member, `x.items` the method. Immutable once built; nothing here does I/O.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectExt, ObjectRepr, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::python;
use crate::openai::Span;
use crate::openai::json::{self, Kind, Scanner};

/// From this many keys on a dictionary finds them by hash, so that a large one costs no square.
const INDEX_FROM: usize = 16;

/// Deepest value that is spelled out or compared: what a body holds ([`json::DEPTH_MAX`]) and what
/// a template may wrap around it. Bounds the native stack.
pub(super) const DEPTH_MAX: usize = 96;

/// A mapping with string keys in the order of their first appearance; of two values with the same
/// key the later one stays, in the place of the first, as in Python.
#[derive(Default)]
pub(super) struct Dict {
    entries: Vec<(Value, Value)>,
    index: HashMap<Box<str>, usize>,
}

impl Dict {
    /// An empty dictionary with room for `keys`.
    pub(super) fn with_capacity(keys: usize) -> Self {
        Dict { entries: Vec::with_capacity(keys), index: HashMap::new() }
    }

    /// Sets `key`, which must be a string value.
    pub(super) fn set(&mut self, key: Value, value: Value) {
        let name = key.as_str().unwrap_or_default();
        let place = self.position(name);
        if let Some(entry) = place.and_then(|place| self.entries.get_mut(place)) {
            entry.1 = value;
            return;
        }
        if self.entries.len() == INDEX_FROM {
            let names = self.entries.iter().map(|(key, _)| key.as_str().unwrap_or_default());
            self.index = names.enumerate().map(|(place, name)| (name.into(), place)).collect();
        }
        if self.entries.len() >= INDEX_FROM {
            self.index.insert(name.into(), self.entries.len());
        }
        self.entries.push((key, value));
    }

    /// The value of `key`.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(self.position(key)?).map(|(_, value)| value)
    }

    /// Keys and values in order.
    pub(super) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }

    fn position(&self, key: &str) -> Option<usize> {
        if self.index.is_empty() {
            return self.entries.iter().position(|(name, _)| name.as_str() == Some(key));
        }
        self.index.get(key).copied()
    }
}

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get(key.as_str()?).cloned()
    }

    /// `x.name`: Jinja asks for the attribute first, so a method hides a member of its name. The
    /// immutable sandbox knows no method that changes the dictionary.
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        const METHODS: [&str; 6] = ["items", "keys", "values", "get", "copy", "fromkeys"];
        const FORBIDDEN: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
        if let Some(name) = METHODS.iter().find(|name| **name == key) {
            return Some(Value::from_object(Method { owner: Arc::clone(self), name }));
        }
        if FORBIDDEN.contains(&key) { None } else { self.get(key).cloned() }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_key_value_enumerator(|dict| Box::new(dict.entries.iter().cloned()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.entries.len())
    }

    fn call_method(
        self: &Arc<Self>,
        _state: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        if method == "get" {
            let (key, default): (&Value, Option<Value>) = from_args(args)?;
            let found = key.as_str().and_then(|key| self.get(key)).cloned();
            return Ok(found.or(default).unwrap_or_else(|| Value::from(())));
        }
        let entries = self.entries.iter();
        let all: Vec<Value> = match method {
            "items" => entries.map(|(key, value)| pair(key, value)).collect(),
            "keys" => entries.map(|(key, _)| key.clone()).collect(),
            "values" => entries.map(|(_, value)| value.clone()).collect(),
            "copy" => return Ok(Value::from_dyn_object(Arc::clone(self))),
            _ => return Err(Error::from(ErrorKind::UnknownMethod)),
        };
        let () = from_args(args)?;
        Ok(Value::from(all))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Debug for Dict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        push_dict(&mut out, self, 0).map_err(|Deep| fmt::Error)?;
        f.write_str(&out)
    }
}

fn pair(key: &Value, value: &Value) -> Value {
    Value::from(Tuple::from([key.clone(), value.clone()]))
}

/// `x.items` that is not called on the spot.
#[derive(Debug)]
struct Method {
    owner: Arc<Dict>,
    name: &'static str,
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        self.owner.call_method(state, self.name, args)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {} of dict object>", self.name)
    }
}

/// An immutable list.
pub(super) struct List(pub(super) Vec<Value>);

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn get_value_by_str(self: &Arc<Self>, _key: &str) -> Option<Value> {
        None
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Debug for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        push_list(&mut out, &self.0, 0).map_err(|Deep| fmt::Error)?;
        f.write_str(&out)
    }
}

/// An integer beyond 128 bits, kept as its digits: a template can print it, not reckon with it.
#[derive(Debug)]
pub(super) struct Huge(pub(super) Box<str>);

impl Object for Huge {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value is nested deeper than [`DEPTH_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deep;

/// Appends `repr(value)`.
///
/// # Errors
/// Nested too deep.
pub(super) fn push_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Deep> {
    if depth > DEPTH_MAX {
        return Err(Deep);
    }
    if let Some(text) = value.as_str() {
        python::push_repr(out, text);
    } else if let Some(dict) = value.downcast_object_ref::<Dict>() {
        push_dict(out, dict, depth)?;
    } else if let Some(list) = value.downcast_object_ref::<List>() {
        push_list(out, &list.0, depth)?;
    } else if let Some(float) = as_float(value) {
        python::push_float(out, float);
    } else {
        return push_native(out, value, depth);
    }
    Ok(())
}

/// What a template built itself, item by item, since minijinja prints every sign as it is.
fn push_native(out: &mut String, value: &Value, depth: usize) -> Result<(), Deep> {
    let items = || value.try_iter().map(Iterator::collect::<Vec<_>>).unwrap_or_default();
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Seq | ValueKind::Iterable if value.downcast_object_ref::<Tuple>().is_some() => {
            let items = items();
            let mut inner = String::new();
            push_list(&mut inner, &items, depth)?;
            out.push('(');
            out.push_str(inner.get(1..inner.len() - 1).unwrap_or_default());
            out.push_str(if items.len() == 1 { ",)" } else { ")" });
        }
        ValueKind::Seq | ValueKind::Iterable => push_list(out, &items(), depth)?,
        ValueKind::Map => {
            out.push('{');
            for (place, key) in items().iter().enumerate() {
                out.push_str(if place == 0 { "" } else { ", " });
                push_repr(out, key, depth + 1)?;
                out.push_str(": ");
                push_repr(out, &value.get_item(key).unwrap_or_default(), depth + 1)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// The number, if it is a float and not an integer.
pub(super) fn as_float(value: &Value) -> Option<f64> {
    let float = value.kind() == ValueKind::Number && !value.is_integer();
    float.then(|| f64::try_from(value.clone()).ok()).flatten()
}

fn push_dict(out: &mut String, dict: &Dict, depth: usize) -> Result<(), Deep> {
    out.push('{');
    for (place, (key, value)) in dict.entries.iter().enumerate() {
        out.push_str(if place == 0 { "" } else { ", " });
        python::push_repr(out, key.as_str().unwrap_or_default());
        out.push_str(": ");
        push_repr(out, value, depth + 1)?;
    }
    out.push('}');
    Ok(())
}

fn push_list(out: &mut String, list: &[Value], depth: usize) -> Result<(), Deep> {
    out.push('[');
    for (place, value) in list.iter().enumerate() {
        out.push_str(if place == 0 { "" } else { ", " });
        push_repr(out, value, depth + 1)?;
    }
    out.push(']');
    Ok(())
}

/// Reads the value at `span` of `text`.
///
/// # Errors
/// Not JSON.
pub(super) fn at(text: &str, span: Span) -> Result<Value, json::Error> {
    let part = text.get(span.start()..span.end()).unwrap_or_default();
    let mut scanner = Scanner::of_text(part)?;
    let value = read(part, &mut scanner)?;
    scanner.finish()?;
    Ok(value)
}

/// Reads the value that comes next in `text`, which `scanner` is on.
fn read(text: &str, scanner: &mut Scanner<'_>) -> Result<Value, json::Error> {
    match scanner.peek() {
        Some(Kind::Object) => {
            let mut dict = Dict::with_capacity(4);
            scanner.object(|scanner, key| {
                let name = string(slice(text, key.span));
                let value = read(text, scanner)?;
                dict.set(name, value);
                Ok::<_, json::Error>(())
            })?;
            Ok(Value::from_object(dict))
        }
        Some(Kind::Array) => {
            let mut list = Vec::new();
            scanner.array(|scanner, _| {
                list.push(read(text, scanner)?);
                Ok::<_, json::Error>(())
            })?;
            Ok(Value::from_object(List(list)))
        }
        _ => {
            let value = scanner.value()?;
            Ok(scalar(value.kind, slice(text, value.span)))
        }
    }
}

fn slice(text: &str, span: Span) -> &str {
    text.get(span.start()..span.end()).unwrap_or_default()
}

/// A string, given with its quotes.
pub(super) fn string(quoted: &str) -> Value {
    if memchr::memchr(b'\\', quoted.as_bytes()).is_none() {
        return Value::from(quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default());
    }
    let mut text = String::with_capacity(quoted.len());
    json::push_text(quoted, &mut text);
    Value::from(text)
}

/// A value that holds no others, from its spelling.
pub(super) fn scalar(kind: Kind, spelling: &str) -> Value {
    match kind {
        Kind::String => string(spelling),
        Kind::True => Value::from(true),
        Kind::False => Value::from(false),
        Kind::Number => number(spelling),
        _ => Value::from(()),
    }
}

/// Python's reading: an integer of any size, or a float when there is a point or an exponent.
fn number(spelling: &str) -> Value {
    if let Ok(number) = spelling.parse::<i64>() {
        return Value::from(number);
    }
    if spelling.contains(['.', 'e', 'E']) {
        return Value::from(spelling.parse::<f64>().unwrap_or_default());
    }
    match spelling.parse::<i128>() {
        Ok(number) => Value::from(number),
        Err(_) => Value::from_object(Huge(spelling.into())),
    }
}

#[cfg(test)]
#[path = "value_tests.rs"]
mod tests;
