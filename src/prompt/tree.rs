//! A request's JSON as a tree that borrows from its bytes, seen as the engine's Python sees it.
//!
//! The engine reads a body into dicts, so here too the last of two equal keys wins and stands where
//! the first stood, numbers are compared and spelled as Python spells them, and a missing member
//! differs from a null one. Strings keep their spelling until someone asks for the text, so that
//! what is only passed on is copied as it is.
//!
//! Owns no state and no thread; does no I/O. Depth is bounded by the scanner (64), so recursion is
//! bounded too.

use std::borrow::Cow;
use std::collections::HashMap;

use super::escape;
use crate::openai::json::{self, Error, Kind, Scanner};

/// From this many members on, equal keys are looked for by hash and not by comparing all pairs.
const PAIRS_MAX: usize = 24;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub enum Node<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number as it is written.
    Number(&'a str),
    /// A string.
    Text(Quoted<'a>),
    /// An array.
    List(Vec<Node<'a>>),
    /// An object: keys with their escapes decoded, each once, in the order of first appearance.
    Map(Vec<(Cow<'a, str>, Node<'a>)>),
}

impl<'a> Node<'a> {
    /// The member `name` of an object; `None` when it is missing or this is no object.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Node<'a>> {
        let members = self.members()?;
        members.iter().find(|(key, _)| key == name).map(|(_, node)| node)
    }

    /// As [`Node::get`], a null taken for a missing member.
    #[must_use]
    pub fn given(&self, name: &str) -> Option<&Node<'a>> {
        self.get(name).filter(|node| **node != Node::Null)
    }

    /// The string, if it is one.
    #[must_use]
    pub fn quoted(&self) -> Option<Quoted<'a>> {
        match self {
            Node::Text(quoted) => Some(*quoted),
            _ => None,
        }
    }

    /// The text of the string member `name`.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        self.get(name)?.quoted().map(Quoted::text)
    }

    /// Whether the member `name` is the string `text`.
    #[must_use]
    pub fn says(&self, name: &str, text: &str) -> bool {
        self.text(name).is_some_and(|said| said == text)
    }

    /// Appends the value as JSON: numbers and strings as they were spelled, no white space.
    pub fn push_json(&self, out: &mut String) {
        match self {
            Node::Null => out.push_str("null"),
            Node::Bool(true) => out.push_str("true"),
            Node::Bool(false) => out.push_str("false"),
            Node::Number(spelling) => out.push_str(spelling),
            Node::Text(text) => out.push_str(text.spelling()),
            Node::List(items) => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    out.push_str(if i > 0 { "," } else { "" });
                    item.push_json(out);
                }
                out.push(']');
            }
            Node::Map(members) => {
                out.push('{');
                for (i, (name, value)) in members.iter().enumerate() {
                    out.push_str(if i > 0 { "," } else { "" });
                    push_string(name, out);
                    out.push(':');
                    value.push_json(out);
                }
                out.push('}');
            }
        }
    }

    /// The items, if it is an array.
    #[must_use]
    pub fn list(&self) -> Option<&[Node<'a>]> {
        match self {
            Node::List(items) => Some(items),
            _ => None,
        }
    }

    /// The members, if it is an object.
    #[must_use]
    pub fn members(&self) -> Option<&[(Cow<'a, str>, Node<'a>)]> {
        match self {
            Node::Map(members) => Some(members),
            _ => None,
        }
    }
}

/// A JSON string as it is written, with its quotes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quoted<'a>(&'a str);

impl<'a> Quoted<'a> {
    /// The empty string.
    pub const EMPTY: Quoted<'static> = Quoted("\"\"");

    /// The spelling, quotes included.
    #[must_use]
    pub fn spelling(self) -> &'a str {
        self.0
    }

    /// The text, escapes decoded.
    #[must_use]
    pub fn text(self) -> Cow<'a, str> {
        let inner = self.inner();
        if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
            return Cow::Borrowed(inner);
        }
        let mut text = String::with_capacity(inner.len());
        self.push_to(&mut text);
        Cow::Owned(text)
    }

    /// Appends the text to `out`.
    pub fn push_to(self, out: &mut String) {
        json::push_text(self.0, out);
    }

    /// Whether the text is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.inner().is_empty()
    }

    /// The spelling without the quotes: a piece of a JSON string.
    #[must_use]
    pub fn inner(self) -> &'a str {
        self.0.get(1..self.0.len().saturating_sub(1)).unwrap_or_default()
    }
}

/// Appends `text` as a JSON string; only what JSON demands is escaped.
pub fn push_string(text: &str, out: &mut String) {
    escape::push_string(text, out, false);
}

/// Reads a whole body.
///
/// # Errors
/// Not JSON (RFC 8259, as [`Scanner`] is strict about it).
pub fn read(body: &[u8]) -> Result<Node<'_>, Error> {
    let mut scanner = Scanner::new(body)?;
    // The scanner has just accepted the same bytes as UTF-8.
    let text = std::str::from_utf8(body)
        .map_err(|error| Error { offset: error.valid_up_to(), what: "invalid UTF-8" })?;
    let node = value(&mut scanner, text)?;
    scanner.finish()?;
    Ok(node)
}

fn value<'a>(scanner: &mut Scanner<'a>, text: &'a str) -> Result<Node<'a>, Error> {
    let spelled =
        |span: crate::openai::Span| text.get(span.start()..span.end()).unwrap_or_default();
    match scanner.peek() {
        Some(Kind::Object) => {
            let mut members = Vec::new();
            scanner.object(|scanner, key| {
                let name = Quoted(spelled(key.span)).text();
                members.push((name, value(scanner, text)?));
                Ok::<_, Error>(())
            })?;
            Ok(Node::Map(without_repeats(members)))
        }
        Some(Kind::Array) => {
            let mut items = Vec::new();
            scanner.array(|scanner, _| {
                items.push(value(scanner, text)?);
                Ok::<_, Error>(())
            })?;
            Ok(Node::List(items))
        }
        _ => {
            let value = scanner.value()?;
            Ok(match value.kind {
                Kind::String => Node::Text(Quoted(spelled(value.span))),
                Kind::True => Node::Bool(true),
                Kind::False => Node::Bool(false),
                Kind::Number => Node::Number(spelled(value.span)),
                _ => Node::Null,
            })
        }
    }
}

type Members<'a> = Vec<(Cow<'a, str>, Node<'a>)>;

/// As a Python dict: the last value of a key, in the place of the first.
fn without_repeats(members: Members<'_>) -> Members<'_> {
    let repeats = if members.len() < PAIRS_MAX {
        let mut rest = members.as_slice();
        let mut found = false;
        while let Some(((name, _), after)) = rest.split_first() {
            found |= after.iter().any(|(other, _)| other == name);
            rest = after;
        }
        found
    } else {
        let names: std::collections::HashSet<&str> =
            members.iter().map(|(name, _)| name.as_ref()).collect();
        names.len() < members.len()
    };
    if !repeats {
        return members;
    }
    let mut places: HashMap<Cow<'_, str>, usize> = HashMap::new();
    let mut kept: Members<'_> = Vec::with_capacity(members.len());
    for (name, node) in members {
        match places.get(&name).and_then(|&place| kept.get_mut(place)) {
            Some(member) => member.1 = node,
            None => {
                places.insert(name.clone(), kept.len());
                kept.push((name, node));
            }
        }
    }
    kept
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
