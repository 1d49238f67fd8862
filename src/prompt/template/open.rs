//! `continue_final_message`: the last message is left open for the model to go on with.
//!
//! Follows `render_jinja_template` of transformers 5: a tag behind the message's text, and the
//! prompt cut there. Pure.

use minijinja::Value;

use super::RenderError;
use super::chat::Chat;
use super::python::{is_space, strip};
use super::value::{Dict, List};

const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
const TAG_BARE: &str = "CONTINUE_FINAL_MESSAGE_TAG";

fn refused(what: &str) -> RenderError {
    RenderError::Template(format!("continue_final_message is set but {what}"))
}

/// Puts the tag behind the text of the last message; answers the text.
///
/// # Errors
/// There is no text to continue, or a generation prompt is to follow.
pub(super) fn mark(messages: &mut [Dict], chat: &Chat<'_>) -> Result<String, RenderError> {
    if chat.add_generation_prompt {
        let what = "continue_final_message and add_generation_prompt are not compatible.";
        return Err(RenderError::Template(what.to_owned()));
    }
    let last = messages.last_mut().ok_or_else(|| refused("there is no message"))?;
    let content = last.get("content").cloned().unwrap_or_default();
    if let Some(text) = content.as_str() {
        let text = text.to_owned();
        last.set("content".into(), Value::from([&text, TAG].concat()));
        return Ok(text);
    }
    let mut parts = match content.downcast_object_ref::<List>() {
        Some(list) => list.0.clone(),
        None => return Err(refused("the final message has no content to continue!")),
    };
    for part in parts.iter_mut().rev() {
        let Some(dict) = part.downcast_object_ref::<Dict>() else { continue };
        let Some(text) = dict.get("text").and_then(Value::as_str).map(str::to_owned) else {
            continue;
        };
        let mut tagged = Dict::with_capacity(2);
        for (key, value) in dict.entries() {
            tagged.set(key.clone(), value.clone());
        }
        tagged.set("text".into(), Value::from([&text, TAG].concat()));
        *part = Value::from_object(tagged);
        last.set("content".into(), Value::from_object(List(parts)));
        return Ok(text);
    }
    Err(refused("we could not find any text to continue in the final message!"))
}

/// Cuts `out`, of which the prompt begins at `from`, where the tag stands.
///
/// # Errors
/// The template dropped the message, or changed it.
pub(super) fn cut(out: &mut String, from: usize, last: &str) -> Result<(), RenderError> {
    let prompt = out.get(from..).unwrap_or_default();
    let tag = prompt.rfind(TAG_BARE).filter(|_| prompt.contains(strip(last)));
    let Some(tag) = tag else {
        return Err(refused(
            "the final message does not appear in the chat after applying the chat template!",
        ));
    };
    let whole = prompt.get(tag..).is_some_and(|rest| rest.starts_with(TAG));
    let kept = prompt.get(..tag).unwrap_or_default();
    // Where the template trimmed the text, white space before the tag was not the text's.
    let kept = if whole { kept } else { kept.trim_end_matches(is_space) };
    out.truncate(from + kept.len());
    Ok(())
}
