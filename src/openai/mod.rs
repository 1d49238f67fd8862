//! The shapes of the OpenAI API: what we read, refuse, edit in place and pass through.
//!
//! - [`endpoint`]: method and path to an [`Endpoint`]; everything else is refused.
//! - [`json`]: the strict scanner under all of it.
//! - [`call`]: a request body to a [`Call`], or to the reason why not.
//! - [`constraint`]: the limits of what it asks its answer to look like.
//! - [`media`]: the URLs in it that the engine would fetch.
//! - [`edit`]: the few bytes of a body that we change, without writing it anew.
//! - [`multipart`]: the same for audio uploads.
//! - [`answer`]: usage, errors and ends in what the engine sends.
//! - [`error`]: the error bodies and error events that we send.
//! - [`models`]: the merged model list.
//!
//! No I/O, no clock, no thread of its own; nothing allocates for each event of a stream. Whatever
//! a peer sends ends in an answer or an error here, never in a panic.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod answer;
pub mod call;
#[cfg(test)]
pub(crate) mod captures;
pub mod constraint;
pub mod edit;
pub mod endpoint;
pub mod error;
pub mod event;
pub mod json;
pub mod media;
pub mod models;
pub mod multipart;
mod prompt;

pub use crate::http1::Span;
pub use answer::{Answer, EngineError, Usage, read_answer, text_bytes, usage_in_tail};
pub use call::{Call, Truncate, member, read_call};
pub use edit::Edits;
pub use endpoint::{Endpoint, Method, RouteError, route};
pub use error::{ApiError, BodyError, BodyErrorCode};
pub use event::{EventFacts, EventKind, EventReader, Opener};
pub use prompt::{PROMPTS_MAX, Prompt, texts, token_ids};
