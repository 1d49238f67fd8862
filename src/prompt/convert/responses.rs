//! `/v1/responses` as a chat, item by item, as vLLM 0.32 does it for models with a template.
//!
//! Items of one assistant turn (reasoning, an answer, calls) become one message where they follow
//! each other. Unlike a chat this API encodes its prompt with the tokenizer's own special tokens
//! (`add_special_tokens`), which shows with a tokenizer that puts one in front.
//!
//! Owns no state and no thread; does no I/O.

use std::borrow::Cow;

use super::ConvertError;
use super::chat::{self, Chat, Message, fragment, quoted};
use crate::prompt::tree::{self, Node, Quoted, push_string};

/// What the engine shows for a custom tool: a function of one string.
const CUSTOM_PARAMETERS: &str = "{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\
    \"string\",\"description\":\"The freeform text payload for this tool.\"}},\"required\":\
    [\"input\"],\"additionalProperties\":false}";

/// Members of a message that a template could see and this conversion does not carry.
const SEEN: [&str; 7] =
    ["name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content", "tools", "task"];

/// The chat body of a `/v1/responses` body.
///
/// # Errors
/// [`ConvertError::Shape`] for what the engine refuses; [`ConvertError::Unsupported`] for what
/// depends on what it keeps (`previous_response_id`, `previous_input_messages`), for tools that it
/// may run itself, for files, and for token ids in `kv_transfer_params`.
pub fn responses_to_chat(body: &[u8]) -> Result<Vec<u8>, ConvertError> {
    let body = tree::read(body)?;
    refuse_state(&body)?;
    let mut chat = Chat::default();
    match body.given("instructions") {
        None => {}
        Some(Node::Text(text)) if text.is_empty() => {}
        Some(Node::Text(text)) => {
            chat.messages.push(Message::with_content("system", text.spelling()));
        }
        Some(_) => return Err(ConvertError::shape("instructions are not a string")),
    }
    match body.get("input") {
        Some(Node::Text(text)) => {
            chat.messages.push(Message::with_content("user", text.spelling()));
        }
        Some(Node::List(items)) => {
            let mut messages = Vec::new();
            for item in items {
                push_item(item, &mut messages)?;
            }
            chat.messages.append(&mut messages);
            if items.last().is_some_and(is_partial) {
                chat.members.push(("add_generation_prompt", "false".into()));
                chat.members.push(("continue_final_message", "true".into()));
            }
        }
        _ => return Err(ConvertError::shape("input is neither a string nor a list")),
    }
    chat.tools = tools(&body)?;
    if let (Some(_), Some(choice)) = (&chat.tools, tool_choice(&body)?) {
        chat.members.push(("tool_choice", choice));
    }
    if let Some(effort) = body.given("reasoning").and_then(|r| r.given("effort")) {
        chat.members.push(("reasoning_effort", fragment(effort)));
    }
    if body.get("truncation").is_some() && !body.says("truncation", "disabled") {
        chat.members.push(("truncate_prompt_tokens", "-1".into()));
    }
    chat.members.push(("add_special_tokens", "true".into()));
    chat.keep(&body, &["chat_template_kwargs", "cache_salt"]);
    Ok(chat.finish())
}

fn refuse_state(body: &Node<'_>) -> Result<(), ConvertError> {
    for name in ["previous_response_id", "previous_input_messages"] {
        if body.given(name).is_some() {
            return Err(ConvertError::unsupported(format!("{name}: the engine has the rest")));
        }
    }
    if body.given("prompt").is_some() {
        return Err(ConvertError::shape("a prompt template"));
    }
    if body.get("kv_transfer_params").is_some_and(|kv| kv.given("prompt_token_ids").is_some()) {
        return Err(ConvertError::unsupported("token ids in kv_transfer_params"));
    }
    Ok(())
}

/// Whether an item is a message or reasoning that stopped short, so that the model goes on with it.
fn is_partial(item: &Node<'_>) -> bool {
    let kind = item.get("type").is_none() || item.says("type", "message");
    let open = item.says("status", "in_progress") || item.says("status", "incomplete");
    open && (kind || item.says("type", "reasoning"))
}

/// Appends what an item becomes: a message, or more of the last one.
fn push_item<'a>(item: &Node<'a>, messages: &mut Vec<Message<'a>>) -> Result<(), ConvertError> {
    match item.text("type").as_deref() {
        Some("function_call") => {
            let name = required(item, "name")?.text();
            let name = match item.text("namespace").filter(|namespace| !namespace.is_empty()) {
                Some(namespace) => flat_name(&namespace, &name).into(),
                None => name,
            };
            let id = required(item, "call_id")?;
            let arguments = required(item, "arguments")?;
            let call = chat::call(id.spelling(), &name, arguments.spelling());
            to_assistant(messages, |_| true, |message| message.calls.push(call));
        }
        Some("custom_tool_call") => {
            let (id, name) = (required(item, "call_id")?, required(item, "name")?);
            let input = required(item, "input")?;
            let mut arguments = String::from("{\"input\": ");
            push_string(&input.text(), &mut arguments);
            arguments.push('}');
            let call = chat::call(id.spelling(), &name.text(), &quoted(&arguments));
            to_assistant(messages, |_| true, |message| message.calls.push(call));
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            let id = required(item, "call_id")?.spelling();
            let output = item.get("output");
            let output = output.ok_or_else(|| ConvertError::shape("an output without output"))?;
            let message = Message::with_content("tool", content(output)?);
            messages.push(Message { call_id: Some(id.into()), ..message });
        }
        Some("reasoning") => {
            let text = reasoning(item)?.spelling();
            let takes = |message: &Message<'a>| message.reasoning.is_none();
            to_assistant(messages, takes, |message| message.reasoning = Some(text.into()));
        }
        Some("message") | None => push_message(item, messages)?,
        Some(_) => return Err(ConvertError::unsupported("an item of another type")),
    }
    Ok(())
}

/// Changes the last message if it is an assistant's that `takes` more, else a new one.
fn to_assistant<'a>(
    messages: &mut Vec<Message<'a>>,
    takes: impl Fn(&Message<'a>) -> bool,
    change: impl FnOnce(&mut Message<'a>),
) {
    let last = messages.pop_if(|last| last.role == "assistant" && takes(last));
    let mut message = last.unwrap_or_else(|| Message::new("assistant"));
    change(&mut message);
    messages.push(message);
}

fn required<'a>(item: &Node<'a>, name: &str) -> Result<Quoted<'a>, ConvertError> {
    let text = item.get(name).and_then(Node::quoted);
    text.ok_or_else(|| ConvertError::shape(format!("an item whose {name} is not a string")))
}

/// The first text of the reasoning, or of its summary; no more of it reaches the template.
fn reasoning<'a>(item: &Node<'a>) -> Result<Quoted<'a>, ConvertError> {
    let sealed = item.given("encrypted_content");
    if sealed.is_some_and(|node| node.quoted().is_none_or(|text| !text.is_empty())) {
        return Err(ConvertError::shape("encrypted reasoning"));
    }
    let first = |name: &str| item.given(name).and_then(Node::list).and_then(<[_]>::first);
    match first("content").or_else(|| first("summary")) {
        None => Ok(Quoted::EMPTY),
        Some(part) => required(part, "text"),
    }
}

fn push_message<'a>(item: &Node<'a>, messages: &mut Vec<Message<'a>>) -> Result<(), ConvertError> {
    let role = match item.text("role").as_deref() {
        Some("user") => "user",
        Some("system") => "system",
        Some("developer") => "developer",
        Some("assistant") => {
            let text = answer(item)?.spelling();
            let takes = |message: &Message<'a>| message.content.is_none();
            to_assistant(messages, takes, |message| message.content = Some(text.into()));
            return Ok(());
        }
        _ => return Err(ConvertError::shape("a role that is not one of the API")),
    };
    if let Some(name) = SEEN.iter().find(|name| item.given(name).is_some()) {
        return Err(ConvertError::unsupported(format!("{name} in a message")));
    }
    let node = item.get("content");
    let node = node.ok_or_else(|| ConvertError::shape("a message without content"))?;
    messages.push(Message::with_content(role, content(node)?));
    Ok(())
}

/// Of an assistant's answer the first part alone is kept.
fn answer<'a>(item: &Node<'a>) -> Result<Quoted<'a>, ConvertError> {
    // Its request model takes such a string for a list of its characters.
    let whole = item.says("type", "message") && item.get("id").is_some();
    match item.get("content") {
        Some(Node::Text(_)) if whole && item.get("status").is_some() => {
            Err(ConvertError::unsupported("a sent answer whose content is a string"))
        }
        Some(Node::Text(text)) => Ok(*text),
        Some(Node::List(parts)) => match parts.first().map(|part| part.get("text")) {
            Some(Some(Node::Text(text))) => Ok(*text),
            _ => Err(ConvertError::unsupported("an answer without text")),
        },
        _ => Err(ConvertError::shape("content is neither a string nor a list")),
    }
}

/// A content with the parts of a chat: a text by another name is a text, an image an image.
fn content<'a>(node: &Node<'a>) -> Result<Cow<'a, str>, ConvertError> {
    let parts = match node {
        Node::Text(text) => return Ok(text.spelling().into()),
        Node::List(parts) => parts,
        _ => return Err(ConvertError::shape("content is neither a string nor a list")),
    };
    let mut out = String::from("[");
    for (i, part) in parts.iter().enumerate() {
        out.push_str(if i > 0 { "," } else { "" });
        match part.text("type").as_deref() {
            Some("input_text" | "output_text" | "text") => {
                required(part, "text")?;
                out.push_str("{\"type\":\"text\"");
                let others = part.members().unwrap_or_default().iter();
                for (name, value) in others.filter(|(name, _)| name != "type") {
                    out.push(',');
                    push_string(name, &mut out);
                    out.push(':');
                    value.push_json(&mut out);
                }
                out.push('}');
            }
            Some("input_image") => {
                let Some(url) = part.get("image_url").and_then(Node::quoted) else {
                    return Err(ConvertError::unsupported("an image without a URL"));
                };
                let url = url.spelling();
                out.push_str("{\"type\":\"image_url\",\"image_url\":{\"url\":");
                out.push_str(url);
                out.push_str("}}");
            }
            _ => return Err(ConvertError::unsupported("a part that is no text and no image")),
        }
    }
    out.push(']');
    Ok(out.into())
}

/// The engine's name for a function in a namespace.
fn flat_name(namespace: &str, name: &str) -> String {
    format!("{namespace}__{name}")
}

/// The tools that the template sees; none of an empty list, which may be of tools it does not see.
fn tools(body: &Node<'_>) -> Result<Option<Vec<String>>, ConvertError> {
    let tools = match body.get("tools") {
        None => return Ok(None),
        Some(Node::List(tools)) if tools.is_empty() => return Ok(None),
        Some(Node::List(tools)) => tools,
        Some(_) => return Err(ConvertError::shape("tools is not a list")),
    };
    let mut written = Vec::new();
    for tool in tools {
        match tool.text("type").as_deref() {
            Some("function") => written.push(function(&required(tool, "name")?.text(), tool)?),
            Some("custom") => {
                if tool.given("format").is_some_and(|format| format.says("type", "grammar")) {
                    return Err(ConvertError::shape("a custom tool with a grammar"));
                }
                let description = tool.get("description").cloned().unwrap_or(Node::Null);
                let shown = Node::Map(vec![("description".into(), description)]);
                let name = required(tool, "name")?.text();
                written.push(chat::tool(&name, &shown, Some(CUSTOM_PARAMETERS))?);
            }
            Some("namespace") => {
                let namespace = required(tool, "name")?.text();
                let inner = tool.get("tools").and_then(Node::list);
                let inner = inner.ok_or_else(|| ConvertError::shape("a namespace of no tools"))?;
                for tool in inner.iter().filter(|tool| tool.says("type", "function")) {
                    let name = flat_name(&namespace, &required(tool, "name")?.text());
                    written.push(function(&name, tool)?);
                }
            }
            Some("mcp" | "code_interpreter" | "container") => {
                return Err(ConvertError::unsupported("a tool that the engine may run"));
            }
            Some(name) if name.starts_with("web_search_preview") => {
                return Err(ConvertError::unsupported("a tool that the engine may run"));
            }
            Some(_) => {}
            None => return Err(ConvertError::shape("a tool without a type")),
        }
    }
    Ok(Some(written))
}

fn function(name: &str, tool: &Node<'_>) -> Result<String, ConvertError> {
    let parameters = match tool.given("parameters") {
        None => None,
        Some(parameters @ Node::Map(_)) => Some(fragment(parameters)),
        Some(_) => return Err(ConvertError::shape("parameters that are not an object")),
    };
    chat::tool(name, tool, parameters.as_deref())
}

/// The choice as a chat says it; a choice that a chat cannot say is left out, no template sees it.
fn tool_choice<'a>(body: &Node<'a>) -> Result<Option<Cow<'a, str>>, ConvertError> {
    match body.get("tool_choice") {
        None => Ok(Some("\"auto\"".into())),
        Some(Node::Text(choice)) => Ok(Some(choice.spelling().into())),
        Some(Node::Map(_)) => Ok(None),
        Some(_) => Err(ConvertError::shape("a tool_choice of another shape")),
    }
}
