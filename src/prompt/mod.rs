//! From a request to the text and tokens that its engine will see.
//!
//! - [`tree`]: a request's JSON as a tree that borrows from it, with Python's view of it.
//! - [`convert`]: `/v1/messages` and `/v1/responses` bodies as the chat that the engine makes of
//!   them.
//! - [`harmony`]: a chat as gpt-oss reads it.
//!
//! No I/O, no clock (the date is an argument), no thread of its own. Whatever a peer sends ends in
//! a prompt or an error here, never in a panic.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod convert;
pub mod harmony;
pub mod tree;
