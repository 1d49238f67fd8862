//! The data plane: everything that runs on a pinned core, in the order of a request's life.
//!
//! `core` accepts, `connection` reads heads, `request` is THE PATH, `pick` chooses a lane
//! by `view` and what is `learned`, `upstream` asks it and others, `exchange` makes it begin to
//! answer, `relay` and `answer` bring its answer to the client, `ticket` closes the books, `reply`
//! writes every answer of our own. What would hold the core goes `beside` it, to the threads of
//! `side`. `decisions` keeps what was chosen, and `explain` says why.
//!
//! `process` starts all of it: `entry` and `doors` have the sockets, `supervise` the cores, `drain`
//! and `handover` are the two ways in which it ends, `watchdog` sees who stalls.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod adapters;
mod addresses;
mod answer;
mod beside;
mod bodies;
mod body;
mod buffer;
mod comments;
mod connection;
mod core;
mod decisions;
mod doors;
mod drain;
mod entry;
mod exchange;
mod explain;
mod frames;
mod gate;
mod handover;
mod identity;
mod idle;
mod ids;
mod learned;
mod local;
mod models;
mod offline;
mod openings;
mod permit;
mod pick;
mod plan;
mod poison;
mod prefill;
mod process;
mod prompt;
mod quota;
mod relay;
mod reload;
mod reply;
mod request;
mod retry;
mod shared;
mod side;
mod supervise;
mod sweep;
mod ticket;
mod tokenize;
mod upstream;
mod view;
mod waiting;
mod watchdog;

pub use handover::withdraw;
pub use identity::{load as load_identity, load_trusts, remark as remark_on_identity};
pub use offline::explain_snapshot;
pub use process::Gateway;
pub use reload::{Reloaded, Reopen};
