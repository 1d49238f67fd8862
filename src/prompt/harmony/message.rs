//! One chat message as harmony messages, each under its role and channel.
//!
//! Owns no state and no thread; does no I/O.

use std::borrow::Cow;
use std::collections::HashMap;

use super::RenderError;
use super::pieces::Pieces;
use crate::prompt::tree::{Node, Quoted};

/// The function that each tool call named, by the id of the call.
pub(super) type Names<'a> = HashMap<Cow<'a, str>, Cow<'a, str>>;

/// Whether a message is one of instructions.
pub(super) fn is_instructions(message: &Node<'_>) -> bool {
    message.says("role", "system") || message.says("role", "developer")
}

/// Whether a message holds an answer in the final channel.
pub(super) fn is_final(message: &Node<'_>) -> bool {
    let calls = message.get("tool_calls").and_then(Node::list).unwrap_or_default();
    message.says("role", "assistant") && calls.is_empty() && has_text(message.get("content"))
}

/// Whether the first piece of an assistant's content has text: without it none is shown.
fn has_text(content: Option<&Node<'_>>) -> bool {
    match content {
        Some(Node::Text(text)) => !text.is_empty(),
        Some(Node::List(parts)) => {
            let first = parts.first().and_then(|part| part.get("text"));
            first.and_then(Node::quoted).is_some_and(|text| !text.is_empty())
        }
        _ => false,
    }
}

/// The names behind all ids; a later call of the same id counts for earlier results too.
///
/// # Errors
/// `tool_calls` that are no list of calls.
pub(super) fn call_names<'a>(messages: &[Node<'a>]) -> Result<Names<'a>, RenderError> {
    let mut names = Names::new();
    for message in messages {
        for call in calls(message)? {
            let id = call.text("id");
            let id = id.ok_or_else(|| RenderError::shape("a tool call without an id"))?;
            // The engine's own word for the name of a call that is not a function's.
            names.insert(id, call_name(call)?.unwrap_or(Cow::Borrowed("None")));
        }
    }
    Ok(names)
}

fn calls<'m, 'a>(message: &'m Node<'a>) -> Result<&'m [Node<'a>], RenderError> {
    match message.get("tool_calls") {
        None => Ok(&[]),
        Some(Node::List(calls)) => Ok(calls),
        Some(Node::Null) if message.says("role", "assistant") => Ok(&[]),
        Some(_) => Err(RenderError::shape("tool_calls is not a list")),
    }
}

fn call_name<'a>(call: &Node<'a>) -> Result<Option<Cow<'a, str>>, RenderError> {
    let Some(function) = call.get("function") else { return Ok(None) };
    let name = function.text("name");
    Ok(Some(name.ok_or_else(|| RenderError::shape("a tool call without a name"))?))
}

/// Appends what a message becomes: nothing, one harmony message or several. `reasoning` says
/// whether an assistant's reasoning is still shown.
///
/// # Errors
/// As [`super::render`].
pub(super) fn push_message(
    message: &Node<'_>,
    names: &Names<'_>,
    reasoning: bool,
    pieces: &mut Pieces<'_>,
) -> Result<(), RenderError> {
    let role = message.text("role");
    match role.as_deref() {
        Some("user") => {
            pieces.format("<|start|>user<|message|>");
            push_contents(message.get("content"), pieces)?;
        }
        Some("assistant") => return push_assistant(message, reasoning, pieces),
        Some("system" | "developer") => {
            let Some(text) = flat(message.get("content"))? else { return Ok(()) };
            return push_instructions(&text, pieces);
        }
        Some("tool") => push_result(message, names, pieces)?,
        _ => return Err(RenderError::shape("a role that gpt-oss does not have")),
    }
    pieces.format("<|end|>");
    Ok(())
}

/// Instructions behind the first ones.
pub(super) fn push_instructions(text: &str, pieces: &mut Pieces<'_>) -> Result<(), RenderError> {
    pieces.format("<|start|>developer<|message|>");
    pieces.ordinary(|out| {
        out.push_str("# Instructions\n\n");
        out.push_str(text);
        Ok::<_, RenderError>(())
    })?;
    pieces.format("<|end|>");
    Ok(())
}

fn push_result(
    message: &Node<'_>,
    names: &Names<'_>,
    pieces: &mut Pieces<'_>,
) -> Result<(), RenderError> {
    let id = match message.given("tool_call_id") {
        None => Cow::Borrowed(""),
        Some(Node::Text(id)) => id.text(),
        Some(_) => return Err(RenderError::shape("a tool_call_id that is not a string")),
    };
    push_result_header(names.get(&id).map_or("", Cow::as_ref), pieces)?;
    let text = flat(message.get("content"))?;
    push_text(text.as_deref().unwrap_or_default(), pieces)
}

/// The beginning of a function's result.
pub(super) fn push_result_header(name: &str, pieces: &mut Pieces<'_>) -> Result<(), RenderError> {
    pieces.format("<|start|>");
    pieces.ordinary(|out| {
        out.push_str("functions.");
        out.push_str(name);
        Ok::<_, RenderError>(())
    })?;
    pieces.format("<|channel|>commentary to=assistant<|message|>");
    Ok(())
}

fn push_assistant(
    message: &Node<'_>,
    reasoning: bool,
    pieces: &mut Pieces<'_>,
) -> Result<(), RenderError> {
    let calls = calls(message)?;
    if calls.is_empty() {
        push_reasoning(message, reasoning, pieces)?;
        if has_text(message.get("content")) {
            pieces.format("<|start|>assistant<|channel|>final<|message|>");
            push_contents(message.get("content"), pieces)?;
            pieces.format("<|end|>");
        }
        return Ok(());
    }
    if let Some(text) = flat(message.get("content"))?.filter(|text| !text.is_empty()) {
        pieces.format("<|start|>assistant<|channel|>commentary<|message|>");
        push_text(&text, pieces)?;
        pieces.format("<|end|>");
    }
    push_reasoning(message, reasoning, pieces)?;
    for call in calls {
        let arguments = match call.get("function").map(|function| function.get("arguments")) {
            None => None,
            Some(Some(Node::Text(arguments))) => Some(*arguments),
            Some(_) => return Err(RenderError::shape("arguments that are not a string")),
        };
        push_call(&call_name(call)?.unwrap_or_default(), arguments, pieces)?;
    }
    Ok(())
}

/// The analysis channel; `reasoning_content` is the older name, read where the newer is not given.
fn push_reasoning(
    message: &Node<'_>,
    shown: bool,
    pieces: &mut Pieces<'_>,
) -> Result<(), RenderError> {
    let reasoning = message.given("reasoning").or_else(|| message.given("reasoning_content"));
    let text = match reasoning {
        Some(Node::Text(text)) if shown && !text.is_empty() => text,
        None | Some(Node::Text(_)) => return Ok(()),
        Some(_) => return Err(RenderError::shape("reasoning that is not a string")),
    };
    pieces.format("<|start|>assistant<|channel|>analysis<|message|>");
    push_quoted(*text, pieces)?;
    pieces.format("<|end|>");
    Ok(())
}

/// A call of a function.
pub(super) fn push_call(
    name: &str,
    arguments: Option<Quoted<'_>>,
    pieces: &mut Pieces<'_>,
) -> Result<(), RenderError> {
    if name.contains("<|") {
        // The engine's encoder of this header refuses the spelling of a special token.
        return Err(RenderError::unsupported("a tool name with the beginning of a special token"));
    }
    pieces.format("<|start|>");
    // Author and recipient are one piece.
    pieces.ordinary(|out| {
        out.push_str("assistant to=functions.");
        out.push_str(name);
        Ok::<_, RenderError>(())
    })?;
    pieces.format("<|channel|>commentary json<|message|>");
    arguments.map_or(Ok(()), |arguments| push_quoted(arguments, pieces))?;
    pieces.format("<|call|>");
    Ok(())
}

/// A content as its pieces: a string is one, of a list each part is one.
pub(super) fn push_contents(
    content: Option<&Node<'_>>,
    pieces: &mut Pieces<'_>,
) -> Result<(), RenderError> {
    match content {
        None => Ok(()),
        Some(Node::Text(text)) => push_quoted(*text, pieces),
        Some(Node::List(parts)) => parts.iter().try_for_each(|part| match part.get("text") {
            Some(Node::Text(text)) => push_quoted(*text, pieces),
            // Of an image or another medium nothing is left.
            None if part.members().is_some() => Ok(()),
            _ => Err(RenderError::shape("a part without text")),
        }),
        Some(_) => Err(RenderError::shape("content that is neither a string nor a list")),
    }
}

/// A content as one text; `None` when it has none at all.
///
/// # Errors
/// A content or a part of another shape.
pub(super) fn flat<'a>(content: Option<&Node<'a>>) -> Result<Option<Cow<'a, str>>, RenderError> {
    let parts = match content {
        None | Some(Node::Null) => return Ok(None),
        Some(Node::Text(text)) => return Ok(Some(text.text())),
        Some(Node::List(parts)) => parts,
        Some(_) => return Err(RenderError::shape("content that is neither a string nor a list")),
    };
    let mut flat = None;
    for part in parts {
        let text = match part {
            Node::Text(text) => *text,
            Node::Map(_) => match part.given("text") {
                None => continue,
                Some(Node::Text(text)) => *text,
                Some(_) => return Err(RenderError::shape("a text that is not a string")),
            },
            _ => return Err(RenderError::shape("a part that is not an object")),
        };
        text.push_to(flat.get_or_insert_with(String::new));
    }
    Ok(flat.map(Cow::Owned))
}

pub(super) fn push_quoted(text: Quoted<'_>, pieces: &mut Pieces<'_>) -> Result<(), RenderError> {
    pieces.ordinary(|out| {
        text.push_to(out);
        Ok(())
    })
}

fn push_text(text: &str, pieces: &mut Pieces<'_>) -> Result<(), RenderError> {
    pieces.ordinary(|out| {
        out.push_str(text);
        Ok(())
    })
}
