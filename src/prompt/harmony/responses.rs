//! `/v1/responses` for gpt-oss: item by item a harmony message, as vLLM 0.32 makes them.
//!
//! Against a chat: an answer is shown also when it is empty, all texts of a reasoning are shown, a
//! result needs its call before it, and the namespace of a call is not told.
//!
//! Owns no state and no thread; does no I/O.

use super::message::{self, Names, flat, is_instructions, push_contents, push_quoted};
use super::pieces::Pieces;
use super::{Harmony, RenderError, effort, push_preamble, refuse_ids};
use crate::prompt::tree::{self, Node, Quoted};

/// Appends to `out` the prompt of a `/v1/responses` body, as [`super::render`] does for a chat.
/// A `truncation` that the request asks for is not applied: it cuts ids, and only of a prompt that
/// is longer than the context.
///
/// # Errors
/// As [`super::render`]; unsupported is also what depends on what the engine keeps
/// (`previous_response_id`, `previous_input_messages`) and any tool that is not a function.
pub fn render_responses(body: &[u8], date: &str, out: &mut String) -> Result<Harmony, RenderError> {
    let body = tree::read(body)?;
    refuse_ids(&body)?;
    for name in ["previous_response_id", "previous_input_messages"] {
        if body.given(name).is_some() {
            return Err(RenderError::unsupported(format!("{name}: the engine has the rest")));
        }
    }
    if body.given("prompt").is_some() {
        return Err(RenderError::shape("a prompt template"));
    }
    let tools = tools(&body)?;
    let (text, items) = match body.get("input") {
        Some(Node::Text(text)) => (Some(*text), [].as_slice()),
        Some(Node::List(items)) => (None, items.as_slice()),
        _ => return Err(RenderError::shape("input is neither a string nor a list")),
    };
    let (instructions, items) = match (body.given("instructions"), items.split_first()) {
        (Some(Node::Text(text)), _) => (Some(text.text()), items),
        (Some(_), _) => return Err(RenderError::shape("instructions are not a string")),
        (None, Some((first, rest))) if is_instructions(first) => {
            (flat(first.get("content"))?, rest)
        }
        (None, _) => (None, items),
    };
    let mut pieces = Pieces::new(out);
    let effort = effort(body.given("reasoning").and_then(|reasoning| reasoning.given("effort")))?;
    push_preamble(effort, date, instructions.as_deref(), tools, &mut pieces)?;
    if let Some(text) = text {
        pieces.format("<|start|>user<|message|>");
        push_quoted(text, &mut pieces)?;
        pieces.format("<|end|>");
    }
    let answer = |item: &Node<'_>| is_message(item) && item.says("role", "assistant");
    let last_final = items.iter().rposition(answer);
    let mut names = Names::new();
    for (i, item) in items.iter().enumerate() {
        push_item(item, &mut names, last_final.is_none_or(|last| i > last), &mut pieces)?;
    }
    Ok(pieces.finish())
}

/// The tools, all of them functions; none of an empty list.
fn tools<'b, 'a>(body: &'b Node<'a>) -> Result<Option<&'b [Node<'a>]>, RenderError> {
    let tools = match body.get("tools") {
        None => return Ok(None),
        Some(Node::List(tools)) => tools.as_slice(),
        Some(_) => return Err(RenderError::shape("tools is not a list")),
    };
    if let Some(other) = tools.iter().find(|tool| !tool.says("type", "function")) {
        let kind = other.text("type").unwrap_or_default();
        return Err(RenderError::unsupported(format!("a tool of the type {kind:?}")));
    }
    Ok(Some(tools).filter(|tools| !tools.is_empty()))
}

fn is_message(item: &Node<'_>) -> bool {
    item.get("type").is_none() || item.says("type", "message")
}

/// Appends an item; `names` are of the calls before it, the last one of an id counts.
fn push_item<'a>(
    item: &Node<'a>,
    names: &mut Names<'a>,
    reasoning: bool,
    pieces: &mut Pieces<'_>,
) -> Result<(), RenderError> {
    if is_message(item) {
        return push_message(item, pieces);
    }
    match item.text("type").as_deref() {
        Some("function_call") => {
            let name = required(item, "name")?.text();
            message::push_call(&name, Some(required(item, "arguments")?), pieces)?;
            names.insert(required(item, "call_id")?.text(), name);
            Ok(())
        }
        Some("function_call_output") => {
            let name = names.get(&required(item, "call_id")?.text());
            let name = name.ok_or_else(|| RenderError::shape("an output without its call"))?;
            message::push_result_header(name, pieces)?;
            push_quoted(required(item, "output")?, pieces)?;
            pieces.format("<|end|>");
            Ok(())
        }
        Some("reasoning") => match item.given("content") {
            None => Ok(()),
            Some(Node::List(parts)) if !parts.is_empty() && reasoning => {
                pieces.format("<|start|>assistant<|channel|>analysis<|message|>");
                pieces.ordinary(|out| {
                    for (i, part) in parts.iter().enumerate() {
                        out.push_str(if i > 0 { "\n" } else { "" });
                        required(part, "text")?.push_to(out);
                    }
                    Ok::<_, RenderError>(())
                })?;
                pieces.format("<|end|>");
                Ok(())
            }
            Some(Node::List(_)) => Ok(()),
            Some(_) => Err(RenderError::shape("content of a reasoning is not a list")),
        },
        _ => Err(RenderError::unsupported("an item of another type")),
    }
}

fn required<'a>(item: &Node<'a>, name: &str) -> Result<Quoted<'a>, RenderError> {
    let text = item.get(name).and_then(Node::quoted);
    text.ok_or_else(|| RenderError::shape(format!("an item whose {name} is not a string")))
}

fn push_message(item: &Node<'_>, pieces: &mut Pieces<'_>) -> Result<(), RenderError> {
    let content = item.get("content");
    let sent = item.get("id").is_some() && item.get("status").is_some();
    match item.text("role").as_deref() {
        Some("system" | "developer") => {
            let text = flat(content)?.unwrap_or_default();
            if text.is_empty() {
                return Ok(());
            }
            return message::push_instructions(&text, pieces);
        }
        // The engine's request model takes such a string for a list of its characters.
        Some("assistant") if sent && content.is_some_and(|node| node.quoted().is_some()) => {
            return Err(RenderError::unsupported("a sent answer whose content is a string"));
        }
        Some("assistant") => pieces.format("<|start|>assistant<|channel|>final<|message|>"),
        Some("user") => pieces.format("<|start|>user<|message|>"),
        _ => return Err(RenderError::shape("a role that is not one of the API")),
    }
    if content.is_none() {
        return Err(RenderError::shape("a message without content"));
    }
    push_contents(content, pieces)?;
    pieces.format("<|end|>");
    Ok(())
}
