//! Exact knowledge of what each engine holds, from its own KV events.
//!
//! - [`source`]: where an engine publishes them, as configured or as it tells.
//! - [`subscribe`]: one task a replica or rank: connections, reconnects, replays.
//! - [`feed`]: its messages in order into the prefix index, and what they are worth.
//! - [`sequence`]: gaps, restarts and stragglers; [`msgpack`] and [`decode`]: the payload;
//!   [`map`]: the engine's keys to our block hashes.
//! - [`state`]: what is shown of it; [`check`]: whether it agrees with the hits that the engine
//!   reports.
//!
//! On the control thread. A lost, garbled or endless stream costs exactness of that replica alone,
//! never memory or a request; the mode of each replica is shown and its changes are logged.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod check;
pub mod decode;
pub mod feed;
pub mod map;
pub mod msgpack;
pub mod sequence;
pub mod source;
pub mod state;
pub mod subscribe;

/// Payloads as engines write them.
#[cfg(test)]
#[allow(dead_code)] // Each user takes its part.
#[path = "../../../tests/support/kv_wire.rs"]
mod wire;
