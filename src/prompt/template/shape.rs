//! What vLLM 0.32 makes of a chat request before its template sees it: which members a message
//! has and in which order, tool calls with their arguments parsed, tools with the members that
//! vLLM's models know.
//!
//! Follows `renderers/chat_utils.py` (`parse_chat_messages`), `renderers/hf.py`
//! (`safe_apply_chat_template`) and the request models. Pure.

use minijinja::Value;

use super::RenderError;
use super::chat::{Chat, Message, present, slice};
use super::content::{Media, content};
use super::detect::ContentFormat;
use super::value::{self, Dict, List};
use crate::openai::Span;
use crate::openai::json::{self, Kind};

/// The messages of `chat` as the template sees them.
///
/// # Errors
/// A message that vLLM would refuse.
pub(super) fn messages(
    chat: &Chat<'_>,
    format: ContentFormat,
    knows_developer: bool,
    media: &mut Media,
) -> Result<Vec<Dict>, RenderError> {
    let mut all = Vec::with_capacity(chat.messages.len());
    let mut developer = false;
    for one in &chat.messages {
        let shaped = message(chat, one, format, media)?;
        developer |= is_role(&shaped, "developer");
        all.push(shaped);
    }
    if developer && !knows_developer {
        all = without_developer(all);
    }
    Ok(all)
}

fn is_role(message: &Dict, role: &str) -> bool {
    message.get("role").and_then(Value::as_str) == Some(role)
}

fn message(
    chat: &Chat<'_>,
    message: &Message,
    format: ContentFormat,
    media: &mut Media,
) -> Result<Dict, RenderError> {
    let text = chat.text;
    let role = match message.role {
        Some(role) if role.kind == Kind::String => value::string(slice(text, role.span)),
        _ => return Err(RenderError::Shape("a message without a role")),
    };
    let name = role.as_str().unwrap_or_default();
    let mut shaped = Dict::with_capacity(4);
    let content = content(text, name, message.content, format, media)?;
    shaped.set("role".into(), role.clone());
    shaped.set("content".into(), content);
    match name {
        "assistant" => {
            if let Some(calls) = tool_calls(text, present(message.tool_calls))? {
                shaped.set("tool_calls".into(), calls);
            }
            if let Some(reasoning) = present(message.reasoning) {
                let reasoning = value::at(text, reasoning.span)?;
                shaped.set("reasoning".into(), reasoning.clone());
                shaped.set("reasoning_content".into(), reasoning);
            }
        }
        "tool" => {
            if let Some(id) = message.tool_call_id {
                shaped.set("tool_call_id".into(), value::at(text, id.span)?);
            }
        }
        _ => {}
    }
    for (key, given) in [("name", message.name), ("task", message.task)] {
        match given {
            Some(given) if given.kind == Kind::String => {
                shaped.set(key.into(), value::string(slice(text, given.span)));
            }
            Some(_) if key == "name" => return Err(RenderError::Shape("a name is not a string")),
            _ => {}
        }
    }
    if name == "developer" {
        let tools = message.tools.map(|tools| value::at(text, tools.span)).transpose()?;
        let tools = tools.map(|tools| ordered_tools(&tools).unwrap_or(tools));
        shaped.set("tools".into(), tools.unwrap_or_else(|| Value::from(())));
    }
    Ok(shaped)
}

/// The calls of an assistant, in the member order of `ChatCompletionMessageFunctionToolCallParam`
/// and with their arguments as objects. An empty list is left out.
fn tool_calls(text: &str, calls: Option<json::Value>) -> Result<Option<Value>, RenderError> {
    let Some(calls) = calls else { return Ok(None) };
    let calls = value::at(text, calls.span)?;
    let calls = calls.downcast_object_ref::<List>().ok_or(RenderError::Shape("tool_calls"))?;
    let mut shaped = Vec::with_capacity(calls.0.len());
    for call in &calls.0 {
        shaped.push(tool_call(call).ok_or(RenderError::Shape("a tool call"))??);
    }
    Ok((!shaped.is_empty()).then(|| Value::from_object(List(shaped))))
}

fn tool_call(call: &Value) -> Option<Result<Value, RenderError>> {
    let call = call.downcast_object_ref::<Dict>()?;
    let id = call.get("id").filter(|id| id.as_str().is_some())?;
    let kind = call.get("type").filter(|kind| kind.as_str() == Some("function"))?;
    let given = call.get("function")?.downcast_object_ref::<Dict>()?;
    let arguments = given.get("arguments")?.as_str()?;
    let name = given.get("name").filter(|name| name.as_str().is_some())?;
    let mut function = Dict::with_capacity(2);
    function.set("arguments".into(), Value::from(()));
    function.set("name".into(), name.clone());
    extend(&mut function, given);
    match parse_arguments(arguments) {
        Ok(arguments) => function.set("arguments".into(), arguments),
        Err(error) => return Some(Err(error)),
    }
    let mut shaped = Dict::with_capacity(3);
    shaped.set("id".into(), id.clone());
    shaped.set("function".into(), Value::from(()));
    shaped.set("type".into(), kind.clone());
    extend(&mut shaped, call);
    shaped.set("function".into(), Value::from_object(function));
    Some(Ok(Value::from_object(shaped)))
}

/// A developer's tools in the member order of `ChatCompletionFunctionToolParam`.
fn ordered_tools(tools: &Value) -> Option<Value> {
    let reordered = |value: &Value, first: &[&str]| {
        let from = value.downcast_object_ref::<Dict>()?;
        let mut to = Dict::with_capacity(4);
        for key in first {
            from.get(key).into_iter().for_each(|value| to.set((*key).into(), value.clone()));
        }
        extend(&mut to, from);
        Some(to)
    };
    let tool = |tool: &Value| {
        let mut tool = reordered(tool, &["function", "type"])?;
        let members = ["name", "description", "parameters", "strict"];
        let function = reordered(tool.get("function")?, &members)?;
        tool.set("function".into(), Value::from_object(function));
        Some(Value::from_object(tool))
    };
    let tools = tools.downcast_object_ref::<List>()?;
    Some(Value::from_object(List(tools.0.iter().map(tool).collect::<Option<Vec<_>>>()?)))
}

/// Adds what `from` has beyond `to`.
fn extend(to: &mut Dict, from: &Dict) {
    for (key, value) in from.entries() {
        if key.as_str().is_some_and(|name| to.get(name).is_none()) {
            to.set(key.clone(), value.clone());
        }
    }
}

/// `json.loads` of the arguments; what is not an object becomes an empty one.
fn parse_arguments(arguments: &str) -> Result<Value, RenderError> {
    let span = Span::between(0, arguments.len());
    let parsed = match value::at(arguments, span) {
        Ok(parsed) => Some(parsed),
        // Python reads these, and we do not: better to say so than to leave the arguments out.
        Err(_) if ["NaN", "Infinity", "\\u"].iter().any(|word| arguments.contains(word)) => {
            return Err(RenderError::Unsupported("arguments beyond strict JSON"));
        }
        Err(error) if error.what.starts_with("an integer of more") => {
            return Err(RenderError::Shape("arguments with an integer that Python refuses"));
        }
        Err(error) if error.what.starts_with("nested") => {
            return Err(RenderError::Limit("arguments are nested too deep"));
        }
        Err(_) => None,
    };
    let object = parsed.filter(|value| value.downcast_object_ref::<Dict>().is_some());
    Ok(object.unwrap_or_else(|| Value::from_object(Dict::default())))
}

/// For a template that does not know the role: its messages become the system's, and all of the
/// system's are drawn together at the start (`_convert_developer_to_system`,
/// `_consolidate_system_messages`).
fn without_developer(all: Vec<Dict>) -> Vec<Dict> {
    let mut converted = Vec::with_capacity(all.len());
    for message in all {
        if !is_role(&message, "developer") {
            converted.push(message);
            continue;
        }
        let mut system = Dict::with_capacity(4);
        for (key, value) in message.entries() {
            match key.as_str() {
                Some("tools") => {}
                Some("role") => system.set(key.clone(), "system".into()),
                _ => system.set(key.clone(), value.clone()),
            }
        }
        converted.push(system);
    }
    let later = converted.iter().skip(1).any(|message| is_role(message, "system"));
    if !later {
        return converted;
    }
    let (system, others): (Vec<_>, Vec<_>) =
        converted.into_iter().partition(|message| is_role(message, "system"));
    let texts: Vec<String> =
        system.iter().map(plain_text).filter(|text| !text.is_empty()).collect();
    let mut merged = Dict::with_capacity(2);
    merged.set("role".into(), "system".into());
    merged.set("content".into(), Value::from(texts.join("\n\n")));
    std::iter::once(merged).chain(others).collect()
}

fn plain_text(message: &Dict) -> String {
    let Some(content) = message.get("content") else { return String::new() };
    let Some(parts) = content.downcast_object_ref::<List>() else {
        return content.as_str().unwrap_or_default().to_owned();
    };
    let part = |part: &Value| {
        let text = part.downcast_object_ref::<Dict>()?.get("text")?.as_str()?;
        Some(text.to_owned())
    };
    parts.0.iter().filter_map(part).collect::<Vec<_>>().join("\n")
}

/// The tools as `ChatCompletionToolsParam.model_dump` gives them.
///
/// # Errors
/// A tool that vLLM would refuse.
pub(super) fn tools(text: &str, span: Span) -> Result<Value, RenderError> {
    let given = value::at(text, span)?;
    let given = given.downcast_object_ref::<List>().ok_or(RenderError::Shape("tools"))?;
    let shaped = given.0.iter().map(tool).collect::<Option<Vec<_>>>();
    shaped.map(|tools| Value::from_object(List(tools))).ok_or(RenderError::Shape("a tool"))
}

fn tool(given: &Value) -> Option<Value> {
    let none = || Value::from(());
    let given = given.downcast_object_ref::<Dict>()?;
    if given.get("type").is_some_and(|kind| kind.as_str() != Some("function")) {
        return None;
    }
    let from = given.get("function")?.downcast_object_ref::<Dict>()?;
    let optional = |dict: &Dict, key: &str| dict.get(key).filter(|value| !value.is_none()).cloned();
    let mut function = Dict::with_capacity(4);
    let name = from.get("name").filter(|name| name.as_str().is_some())?;
    function.set("name".into(), name.clone());
    let description = optional(from, "description");
    if description.as_ref().is_some_and(|text| text.as_str().is_none()) {
        return None;
    }
    function.set("description".into(), description.unwrap_or_else(none));
    let parameters = optional(from, "parameters");
    if parameters.as_ref().is_some_and(|value| value.downcast_object_ref::<Dict>().is_none()) {
        return None;
    }
    function.set("parameters".into(), parameters.unwrap_or_else(none));
    let deferred = optional(given, "defer_loading");
    let own = optional(from, "defer_loading").or_else(|| deferred.clone());
    for (key, value) in [("strict", optional(from, "strict")), ("defer_loading", own)] {
        if let Some(value) = value {
            bool::try_from(value.clone()).ok()?;
            function.set(key.into(), value);
        }
    }
    let mut shaped = Dict::with_capacity(3);
    shaped.set("type".into(), "function".into());
    shaped.set("function".into(), Value::from_object(function));
    if let Some(deferred) = deferred {
        shaped.set("defer_loading".into(), deferred);
    }
    Some(Value::from_object(shaped))
}
