//! A chat body being written: its messages as JSON fragments, its tools in the engine's own order.
//!
//! Owns no state and no thread; does no I/O.

use std::borrow::Cow;

use super::ConvertError;
use crate::prompt::tree::{Node, Quoted, push_string};

/// A message; each field is a JSON fragment, and `None` where the message lacks the member.
#[derive(Debug, Default)]
pub(super) struct Message<'a> {
    pub(super) role: &'static str,
    pub(super) content: Option<Cow<'a, str>>,
    pub(super) reasoning: Option<Cow<'a, str>>,
    pub(super) calls: Vec<String>,
    pub(super) call_id: Option<Cow<'a, str>>,
}

impl<'a> Message<'a> {
    pub(super) fn new(role: &'static str) -> Self {
        Message { role, ..Message::default() }
    }

    pub(super) fn with_content(role: &'static str, content: impl Into<Cow<'a, str>>) -> Self {
        Message { content: Some(content.into()), ..Message::new(role) }
    }

    fn push_to(&self, out: &mut String) {
        out.push_str("{\"role\":\"");
        out.push_str(self.role);
        out.push('"');
        for (name, fragment) in [
            (",\"content\":", &self.content),
            (",\"reasoning\":", &self.reasoning),
            (",\"tool_call_id\":", &self.call_id),
        ] {
            if let Some(fragment) = fragment {
                out.push_str(name);
                out.push_str(fragment);
            }
        }
        if !self.calls.is_empty() {
            out.push_str(",\"tool_calls\":[");
            push_joined(&self.calls, out);
            out.push(']');
        }
        out.push('}');
    }
}

/// A chat body under way.
#[derive(Debug, Default)]
pub(super) struct Chat<'a> {
    pub(super) messages: Vec<Message<'a>>,
    /// Tools as the engine shows them; `None` when the template gets none at all.
    pub(super) tools: Option<Vec<String>>,
    /// Members beside messages and tools: a name and a JSON fragment.
    pub(super) members: Vec<(&'static str, Cow<'a, str>)>,
}

impl<'a> Chat<'a> {
    /// Takes over members of the request that a chat body has as well.
    pub(super) fn keep(&mut self, body: &Node<'a>, names: &[&'static str]) {
        for name in names {
            if let Some(node) = body.given(name) {
                self.members.push((name, fragment(node)));
            }
        }
    }

    /// The JSON of the body.
    pub(super) fn finish(self) -> Vec<u8> {
        let mut out = String::from("{\"messages\":[");
        for (i, message) in self.messages.iter().enumerate() {
            out.push_str(if i > 0 { "," } else { "" });
            message.push_to(&mut out);
        }
        out.push(']');
        if let Some(tools) = &self.tools {
            out.push_str(",\"tools\":[");
            push_joined(tools, &mut out);
            out.push(']');
        }
        for (name, value) in &self.members {
            out.push_str(",\"");
            out.push_str(name);
            out.push_str("\":");
            out.push_str(value);
        }
        out.push('}');
        out.into_bytes()
    }
}

fn push_joined(fragments: &[String], out: &mut String) {
    for (i, fragment) in fragments.iter().enumerate() {
        out.push_str(if i > 0 { "," } else { "" });
        out.push_str(fragment);
    }
}

/// A value as it was spelled.
pub(super) fn fragment<'a>(node: &Node<'a>) -> Cow<'a, str> {
    match node {
        Node::Text(text) => Cow::Borrowed(text.spelling()),
        Node::Number(spelling) => Cow::Borrowed(spelling),
        other => {
            let mut out = String::new();
            other.push_json(&mut out);
            Cow::Owned(out)
        }
    }
}

/// A text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_string(text, &mut out);
    out
}

/// Texts in one JSON string, `between` (already escaped) between them.
pub(super) fn joined(texts: &[Quoted<'_>], between: &str) -> String {
    let mut out = String::from("\"");
    for (i, text) in texts.iter().enumerate() {
        out.push_str(if i > 0 { between } else { "" });
        out.push_str(text.inner());
    }
    out.push('"');
    out
}

/// A call of a function; `id` and `arguments` are JSON strings.
pub(super) fn call(id: &str, name: &str, arguments: &str) -> String {
    let mut out = format!("{{\"id\":{id},\"type\":\"function\",\"function\":{{\"name\":");
    push_string(name, &mut out);
    out.push_str(",\"arguments\":");
    out.push_str(arguments);
    out.push_str("}}");
    out
}

/// A tool as the engine's own dump of it shows it to the template: description and parameters
/// always, the flags where they are set.
///
/// # Errors
/// A member of another shape.
pub(super) fn tool(
    name: &str,
    tool: &Node<'_>,
    parameters: Option<&str>,
) -> Result<String, ConvertError> {
    let mut out = String::from("{\"type\":\"function\",\"function\":{\"name\":");
    push_string(name, &mut out);
    out.push_str(",\"description\":");
    match tool.given("description") {
        None => out.push_str("null"),
        Some(Node::Text(text)) => out.push_str(text.spelling()),
        Some(_) => return Err(ConvertError::shape("a description that is not a string")),
    }
    out.push_str(",\"parameters\":");
    out.push_str(parameters.unwrap_or("null"));
    for (flag, member) in [("strict", ",\"strict\":"), ("defer_loading", ",\"defer_loading\":")] {
        match tool.given(flag) {
            None => {}
            Some(value @ Node::Bool(_)) => {
                out.push_str(member);
                value.push_json(&mut out);
            }
            Some(_) => return Err(ConvertError::unsupported("a flag that is not a boolean")),
        }
    }
    out.push_str("}}");
    Ok(out)
}
