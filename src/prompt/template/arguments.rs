//! The variables of a render besides the messages: flags, tools, documents, the arguments that
//! the request and the operator give the template, special tokens.
//!
//! Follows vLLM 0.32: `build_chat_params`, `merge_kwargs`, `resolve_chat_template_kwargs`; and
//! transformers' `apply_chat_template`. Pure.

use minijinja::Value;

use super::chat::{Chat, slice};
use super::value::{self, Dict, List};
use super::{RenderError, Template, shape, whole};

/// Arguments of `apply_chat_template` itself, which the template does not see.
const TAKEN: [&str; 10] = [
    "add_generation_prompt",
    "continue_final_message",
    "max_length",
    "padding",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
];

/// Arguments that make vLLM or transformers fail, each in its own way.
const REFUSED: [&str; 8] = [
    "chat_template",
    "conversation",
    "conversations",
    "messages",
    "model_config",
    "return_assistant_tokens_mask",
    "self",
    "tokenizer",
];

const EFFORTS: [&str; 7] =
    ["\"none\"", "\"minimal\"", "\"low\"", "\"medium\"", "\"high\"", "\"xhigh\"", "\"max\""];

impl Template {
    /// All variables but `messages`.
    ///
    /// # Errors
    /// Arguments that vLLM would refuse.
    pub(super) fn arguments(&self, chat: &Chat<'_>) -> Result<Dict, RenderError> {
        let none = || Value::from(());
        let mut context = Dict::with_capacity(12);
        for (name, token) in self.specials.iter() {
            context.set(name.into(), token.into());
        }
        let hidden = chat.tool_choice_none && self.options.exclude_tools_when_tool_choice_none;
        let given = chat.tools.filter(|_| !hidden);
        let tools = given.map(|span| shape::tools(chat.text, span)).transpose()?;
        if chat.full && tools.as_ref().and_then(Value::len) == Some(0) {
            return Err(RenderError::Shape("tools are an empty list"));
        }
        context.set("tools".into(), none());
        context.set("documents".into(), none());
        if !self.options.default_kwargs.is_empty() {
            give(&mut context, &whole(&self.options.default_kwargs)?, true)?;
        }
        if let Some(tools) = tools {
            context.set("tools".into(), tools);
        }
        let mut thinking_given = false;
        if let Some(span) = chat.kwargs {
            let kwargs = value::at(chat.text, span)?;
            let dict = kwargs.downcast_object_ref::<Dict>();
            thinking_given = dict.is_some_and(|dict| dict.get("enable_thinking").is_some());
            give(&mut context, &kwargs, false)?;
        }
        if let Some(span) = chat.documents {
            context.set("documents".into(), documents(chat, span)?);
        }
        if let Some(span) = chat.reasoning_effort {
            let effort = slice(chat.text, span);
            if !EFFORTS.contains(&effort) {
                return Err(RenderError::Shape("reasoning_effort"));
            }
            context.set("reasoning_effort".into(), value::string(effort));
            if !thinking_given {
                context.set("enable_thinking".into(), Value::from(effort != "\"none\""));
            }
        }
        context.set("add_generation_prompt".into(), Value::from(chat.add_generation_prompt));
        Ok(context)
    }
}

/// Passes arguments on to the template. Of a request, null and "auto" count as not given.
fn give(context: &mut Dict, arguments: &Value, all: bool) -> Result<(), RenderError> {
    let Some(arguments) = arguments.downcast_object_ref::<Dict>() else { return Ok(()) };
    for (key, value) in arguments.entries() {
        if !all && (value.is_none() || value.as_str() == Some("auto")) {
            continue;
        }
        let name = key.as_str().unwrap_or_default();
        if REFUSED.contains(&name) {
            return Err(RenderError::Unsupported("a reserved name in chat_template_kwargs"));
        }
        let dicts = ["tools", "documents"].contains(&name);
        if dicts && !value.is_none() && !is_dicts(value) {
            return Err(RenderError::Template(format!("{name} are not a list of objects")));
        }
        if dicts || !TAKEN.contains(&name) {
            context.set(key.clone(), value.clone());
        }
    }
    Ok(())
}

fn is_dicts(value: &Value) -> bool {
    let is_dict = |item: &Value| item.downcast_object_ref::<Dict>().is_some();
    value.downcast_object_ref::<List>().is_some_and(|list| list.0.iter().all(is_dict))
}

/// `list[dict[str, str]]`.
fn documents(chat: &Chat<'_>, span: crate::openai::Span) -> Result<Value, RenderError> {
    let documents = value::at(chat.text, span)?;
    let texts = |item: &Value| {
        let dict = item.downcast_object_ref::<Dict>();
        dict.is_some_and(|dict| dict.entries().iter().all(|(_, text)| text.as_str().is_some()))
    };
    let list = documents.downcast_object_ref::<List>();
    if list.is_some_and(|list| list.0.iter().all(texts)) {
        Ok(documents)
    } else {
        Err(RenderError::Shape("documents are not a list of texts"))
    }
}
