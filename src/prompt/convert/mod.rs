//! Bodies of the other APIs as the chat that vLLM 0.32 makes of them before its template.
//!
//! - [`messages_to_chat`]: `/v1/messages` and `/v1/messages/count_tokens` (Anthropic's API).
//! - [`responses_to_chat`]: `/v1/responses` (for models with a template; gpt-oss renders these
//!   itself).
//!
//! The answer is the JSON of a `/v1/chat/completions` body with what matters for the prompt and
//! nothing else: `messages`, `tools`, `tool_choice`, `chat_template_kwargs`, `reasoning_effort`,
//! `cache_salt`, and, where the API differs from a chat in it, `add_generation_prompt`,
//! `continue_final_message`, `add_special_tokens` and `truncate_prompt_tokens`. It is written for
//! our own renderers: an empty `tools` may stand in it, which the chat API refuses and the engine
//! nevertheless hands to its template.
//!
//! Owns no state and no thread; does no I/O; reads no clock.

mod chat;
mod messages;
mod python;
mod responses;

pub use messages::{Server, messages_to_chat};
pub use responses::responses_to_chat;

use crate::openai::json::Error;

/// Why a body has no equal chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConvertError {
    /// The engine would refuse this body.
    Shape(String),
    /// What the engine makes of it depends on what only the engine knows, or is not known here.
    Unsupported(String),
}

impl ConvertError {
    fn shape(what: impl Into<String>) -> Self {
        ConvertError::Shape(what.into())
    }

    fn unsupported(what: impl Into<String>) -> Self {
        ConvertError::Unsupported(what.into())
    }
}

impl From<Error> for ConvertError {
    fn from(error: Error) -> Self {
        ConvertError::Shape(error.to_string())
    }
}

impl std::fmt::Display for ConvertError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (ConvertError::Shape(what) | ConvertError::Unsupported(what)) = self;
        f.write_str(what)
    }
}

impl std::error::Error for ConvertError {}
