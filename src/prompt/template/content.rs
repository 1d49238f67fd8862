//! The content of a message, as one string or as parts (`_parse_chat_message_content_parts` of
//! vLLM 0.32), and what it holds besides text.
//!
//! Pure. What an image, a sound or a video becomes in the prompt is the model's own affair: the
//! text is exact up to the first of them, and the caller is told where that is.

use minijinja::Value;

use super::RenderError;
use super::chat::slice;
use super::detect::ContentFormat;
use super::value::{self, Dict, List};
use crate::openai::json::{self, Kind};

/// Marks the first media part in a second rendering; no text holds it by chance.
pub(super) const MARK: &str = "\u{10fffd}expedite-media\u{10fffe}";

/// Media parts met so far.
#[derive(Debug, Default)]
pub(super) struct Media {
    /// How many.
    pub(super) parts: u32,
    /// Put [`MARK`] in the place of the first.
    pub(super) mark: bool,
}

/// Members of any part that vLLM knows; whatever else a part has is passed on to the template.
const KNOWN: [&str; 18] = [
    "audio_embeds",
    "audio_url",
    "closed",
    "data",
    "file",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "name",
    "prompt_cache_breakpoint",
    "refusal",
    "text",
    "thinking",
    "type",
    "uuid",
    "video_embeds",
    "video_url",
];

/// Media by the type of a part, or by a member that stands in for it.
const MEDIA: [(&str, &str); 8] = [
    ("image_url", "image"),
    ("input_image", "image"),
    ("image_embeds", "image"),
    ("audio_embeds", "audio"),
    ("video_embeds", "video"),
    ("audio_url", "audio"),
    ("input_audio", "audio"),
    ("video_url", "video"),
];

/// A line that one client puts before its system prompt, different in each request; vLLM drops it.
pub(super) const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// What a part is to the template.
enum Part {
    Text(Value, Vec<(Value, Value)>),
    Tool(Value),
    Media(&'static str, Vec<(Value, Value)>),
    Nothing,
}

/// The content of a message of `role`, given by its place in `text`.
///
/// # Errors
/// Content that vLLM would refuse.
pub(super) fn content(
    text: &str,
    role: &str,
    given: Option<json::Value>,
    format: ContentFormat,
    media: &mut Media,
) -> Result<Value, RenderError> {
    let mut parts = match given {
        None => Vec::new(),
        Some(it) if it.kind == Kind::Null && matches!(role, "assistant" | "function") => Vec::new(),
        Some(it) if it.kind == Kind::String => {
            let content = value::string(slice(text, it.span));
            let billed = role == "system" && starts_with_header(&content);
            if format == ContentFormat::Text && !billed {
                return Ok(content);
            }
            vec![Part::Text(content, Vec::new())]
        }
        Some(it) if it.kind == Kind::Array => {
            let list = value::at(text, it.span)?;
            let list = list.downcast_object_ref::<List>().ok_or(RenderError::Shape("content"))?;
            list.0.iter().map(part).collect::<Result<Vec<_>, _>>()?
        }
        Some(_) => return Err(RenderError::Shape("content is neither a string nor a list")),
    };
    if role == "system" {
        parts.iter_mut().for_each(drop_billing_header);
    }
    let all_text = parts.iter().all(|part| matches!(part, Part::Text(..) | Part::Nothing));
    if format == ContentFormat::Text || (role == "tool" && all_text) {
        return Ok(joined(parts, format, media));
    }
    let parts = parts.into_iter().filter_map(|part| wrapped(part, media)).collect();
    Ok(Value::from_object(List(parts)))
}

fn starts_with_header(text: &Value) -> bool {
    text.as_str().is_some_and(|text| text.starts_with(BILLING_HEADER))
}

fn drop_billing_header(part: &mut Part) {
    if let Part::Text(text, _) = part
        && starts_with_header(text)
    {
        let rest = text.as_str().and_then(|text| text.split_once('\n'));
        let rest = rest.map_or("", |(_, rest)| rest);
        if rest.is_empty() {
            *part = Part::Nothing;
        } else {
            *text = Value::from(rest);
        }
    }
}

/// One string: texts, of which the empty are left out, joined by line feeds. A tool's result that
/// the template would take as parts is joined with the empty ones.
fn joined(parts: Vec<Part>, format: ContentFormat, media: &mut Media) -> Value {
    let mut texts: Vec<String> = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            Part::Text(text, _) | Part::Tool(text) => {
                let text = text.as_str().unwrap_or_default();
                if !text.is_empty() || format == ContentFormat::Parts {
                    texts.push(text.to_owned());
                }
            }
            Part::Media(..) => {
                // vLLM puts the model's placeholder before the text of the message.
                if media.parts == 0 && media.mark {
                    texts.insert(0, MARK.to_owned());
                }
                media.parts += 1;
            }
            Part::Nothing => {}
        }
    }
    Value::from(texts.join("\n"))
}

/// A part as a dictionary.
fn wrapped(part: Part, media: &mut Media) -> Option<Value> {
    let mut dict = Dict::with_capacity(2);
    let more = match part {
        Part::Text(text, more) => {
            dict.set("type".into(), "text".into());
            dict.set("text".into(), text);
            more
        }
        Part::Tool(name) => {
            dict.set("type".into(), "tool_reference".into());
            dict.set("name".into(), name);
            Vec::new()
        }
        Part::Media(kind, more) => {
            media.parts += 1;
            if media.parts == 1 && media.mark {
                dict.set("type".into(), "text".into());
                dict.set("text".into(), MARK.into());
                return Some(Value::from_object(dict));
            }
            dict.set("type".into(), kind.into());
            more
        }
        Part::Nothing => return None,
    };
    more.into_iter().for_each(|(key, value)| dict.set(key, value));
    Some(Value::from_object(dict))
}

fn part(given: &Value) -> Result<Part, RenderError> {
    if given.as_str().is_some() {
        return Ok(Part::Text(given.clone(), Vec::new()));
    }
    let dict = given.downcast_object_ref::<Dict>().ok_or(RenderError::Shape("a content part"))?;
    let kind = dict.get("type").filter(|kind| !kind.is_none());
    let marked = dict.get("uuid").is_some_and(|uuid| !uuid.is_none());
    let Some(kind) = kind.filter(|_| !marked) else { return untyped(dict) };
    let kind = kind.as_str().ok_or(RenderError::Shape("the type of a content part"))?;
    let text = match kind {
        "text" | "input_text" | "output_text" => dict.get("text"),
        "thinking" => dict.get("thinking"),
        "refusal" => dict.get("refusal"),
        "tool_reference" => dict.get("name"),
        "prompt_embeds" | "image_pil" => return Err(RenderError::Unsupported("embedded prompts")),
        _ => {
            let known = MEDIA.iter().find(|(name, _)| *name == kind);
            let (_, kind) = known.ok_or(RenderError::Shape("the type of a content part"))?;
            return Ok(Part::Media(kind, extra(dict)));
        }
    };
    match text {
        Some(text) if text.as_str().is_some() && kind == "tool_reference" => {
            Ok(Part::Tool(text.clone()))
        }
        Some(text) if text.as_str().is_some() => Ok(Part::Text(text.clone(), extra(dict))),
        Some(text) if !text.is_none() => Err(RenderError::Shape("the text of a content part")),
        _ if matches!(kind, "text" | "refusal") => Ok(Part::Nothing),
        _ => Err(RenderError::Shape("the text of a content part")),
    }
}

/// A part without a type, or with an id for its media: told by the member that it has.
fn untyped(dict: &Dict) -> Result<Part, RenderError> {
    match MEDIA.iter().find(|(name, _)| dict.get(name).is_some()) {
        Some((_, kind)) => Ok(Part::Media(kind, extra(dict))),
        None => Err(RenderError::Shape("a content part without a type")),
    }
}

fn extra(dict: &Dict) -> Vec<(Value, Value)> {
    let unknown = |key: &Value| key.as_str().is_some_and(|key| !KNOWN.contains(&key));
    dict.entries().iter().filter(|(key, _)| unknown(key)).cloned().collect()
}
