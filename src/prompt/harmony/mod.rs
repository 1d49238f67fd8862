//! A request as gpt-oss reads it: vLLM 0.32 renders no template for it but the harmony format.
//!
//! - [`render`]: `/v1/chat/completions`, and `/v1/messages` once converted to a chat.
//! - [`render_responses`]: `/v1/responses`, whose items vLLM takes another way.
//!
//! What vLLM does with `/v1/chat/completions` (its `OnlineRenderer._make_request_with_harmony`
//! over oss-harmony 0.0.11), step by step: a system message with the model's identity, the date
//! and the effort; a developer message with the text of a leading system or developer message and
//! the tools as TypeScript; then the other messages, each under its channel; reasoning before the
//! last final answer dropped; and the opening of the assistant's turn. The server's default
//! settings are assumed: `VLLM_GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS` off, tools shown also under
//! `tool_choice: none`.
//!
//! `chat_template_kwargs`, `add_generation_prompt`, `continue_final_message`, `response_format`
//! and `documents` do not reach the prompt of this model; images and other media vanish from it.
//!
//! Owns no state and no thread; does no I/O; the date is an argument.

mod json;
mod message;
mod pieces;
mod responses;
mod typescript;

use super::tree::{self, Node, Quoted};
use crate::openai::json::Error;
use message::{call_names, flat, is_final, is_instructions, push_message};
use pieces::Pieces;
pub use pieces::Segment;
pub use responses::render_responses;

/// Why a chat has no harmony text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenderError {
    /// The engine would refuse this body.
    Shape(String),
    /// The engine may accept it, but what it makes of it is not known here.
    Unsupported(String),
}

impl RenderError {
    fn shape(what: impl Into<String>) -> Self {
        RenderError::Shape(what.into())
    }

    fn unsupported(what: impl Into<String>) -> Self {
        RenderError::Unsupported(what.into())
    }
}

impl From<Error> for RenderError {
    fn from(error: Error) -> Self {
        RenderError::Shape(error.to_string())
    }
}

impl std::fmt::Display for RenderError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (RenderError::Shape(what) | RenderError::Unsupported(what)) = self;
        f.write_str(what)
    }
}

impl std::error::Error for RenderError {}

/// How to encode a rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Harmony {
    /// The pieces of the text in order, without a gap, none empty. The ids of the prompt are the
    /// ids of the pieces one behind the other, each encoded by itself and without added specials.
    pub segments: Vec<Segment>,
    /// Whether the ids of the whole text, special tokens matched, are the same: nobody's text
    /// spells a special token and no two pieces of others' text touch.
    pub whole: bool,
}

/// Appends to `out` the prompt of a `/v1/chat/completions` body; `date` is the day on which the
/// engine renders it (`YYYY-MM-DD`, its local time). `out` keeps what it held; the ends of the
/// segments count from its beginning.
///
/// # Errors
/// [`RenderError::Shape`] where the engine would answer 400, [`RenderError::Unsupported`] where
/// its prompt is not known; `out` may then hold a part.
pub fn render(body: &[u8], date: &str, out: &mut String) -> Result<Harmony, RenderError> {
    let body = tree::read(body)?;
    refuse_ids(&body)?;
    let messages = body.get("messages").and_then(Node::list);
    let messages = messages.ok_or_else(|| RenderError::shape("messages is not a list"))?;
    let tools = match body.given("tools") {
        None => None,
        // A chat may not hold an empty list; one that came from another API may.
        Some(Node::List(tools)) => Some(tools.as_slice()).filter(|tools| !tools.is_empty()),
        Some(_) => return Err(RenderError::shape("tools is not a list of tools")),
    };
    let (instructions, messages) = match messages.split_first() {
        Some((first, rest)) if is_instructions(first) => (flat(first.get("content"))?, rest),
        _ => (None, messages),
    };
    let mut pieces = Pieces::new(out);
    let effort = effort(body.given("reasoning_effort"))?;
    push_preamble(effort, date, instructions.as_deref(), tools, &mut pieces)?;
    let names = call_names(messages)?;
    let last_final = messages.iter().rposition(is_final);
    for (i, message) in messages.iter().enumerate() {
        // Reasoning that an answer has followed is not shown again; within that answer's own
        // message it stands before the answer, so it goes too.
        let reasoning = last_final.is_none_or(|last| i > last);
        push_message(message, &names, reasoning, &mut pieces)?;
    }
    Ok(pieces.finish())
}

/// Ids that a prefill replica hands on are the prompt, whatever the messages say.
fn refuse_ids(body: &Node<'_>) -> Result<(), RenderError> {
    match body.get("kv_transfer_params").and_then(|kv| kv.given("prompt_token_ids")) {
        None => Ok(()),
        Some(_) => Err(RenderError::unsupported("token ids in kv_transfer_params")),
    }
}

fn effort(given: Option<&Node<'_>>) -> Result<&'static str, RenderError> {
    let Some(effort) = given else { return Ok("medium") };
    match effort.quoted().map(Quoted::text).as_deref() {
        Some("low") => Ok("low"),
        Some("medium") => Ok("medium"),
        Some("high") => Ok("high"),
        _ => Err(RenderError::shape("a reasoning_effort that gpt-oss does not have")),
    }
}

/// The system message, and the developer message if there is anything to say in it.
fn push_preamble(
    effort: &str,
    date: &str,
    instructions: Option<&str>,
    tools: Option<&[Node<'_>]>,
    pieces: &mut Pieces<'_>,
) -> Result<(), RenderError> {
    push_system(effort, date, tools.is_some(), pieces);
    // Without tools an empty instruction is no message, with tools it is an empty section.
    if tools.is_some() || instructions.is_some_and(|text| !text.is_empty()) {
        push_developer(instructions, tools, pieces)?;
    }
    Ok(())
}

fn push_system(effort: &str, date: &str, tools: bool, pieces: &mut Pieces<'_>) {
    pieces.format(
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n\
         Knowledge cutoff: 2024-06\nCurrent date: ",
    );
    pieces.format(date);
    pieces.format("\n\nReasoning: ");
    pieces.format(effort);
    pieces.format(
        "\n\n# Valid channels: analysis, commentary, final. \
         Channel must be included for every message.",
    );
    if tools {
        pieces.format("\nCalls to these tools must go to the commentary channel: 'functions'.");
    }
    pieces.format("<|end|>");
}

fn push_developer(
    instructions: Option<&str>,
    tools: Option<&[Node<'_>]>,
    pieces: &mut Pieces<'_>,
) -> Result<(), RenderError> {
    pieces.format("<|start|>developer<|message|>");
    pieces.ordinary(|out| {
        if let Some(text) = instructions {
            out.push_str("# Instructions\n\n");
            out.push_str(text);
        }
        if instructions.is_some() && tools.is_some() {
            out.push_str("\n\n");
        }
        tools.map_or(Ok(()), |tools| typescript::push_tools(tools, out))
    })?;
    pieces.format("<|end|>");
    Ok(())
}
