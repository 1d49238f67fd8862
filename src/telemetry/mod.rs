//! What the gateway tells of single requests: an access log, traces, and copies of usage records
//! for a collector.
//!
//! | file | what |
//! | --- | --- |
//! | `context` | the trace context that travels with a request: no I/O, no clock |
//! | `request` | what is told of a request that has ended, and its access line: no I/O, no clock |
//! | `access` | the cores' end of the access log, and the thread that writes it |
//! | `trace` | the spans of a request while it is served: no I/O, no clock |
//! | `queue` | the cores' end of the traces: who is sampled, and a bounded queue |
//! | `otlp` | traces and records as OTLP's JSON: no I/O, no clock |
//! | `export` | the task of the control thread that sends them to the collector |
//!
//! All of this may be lost: a queue that is full drops and counts, and no core ever waits. No
//! secret and no text of a prompt or an answer ever comes here.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod access;
mod context;
mod export;
mod otlp;
mod queue;
mod request;
mod trace;

pub use access::{AccessCounts, AccessLog, AccessWriter};
pub use context::{Parent, SAMPLED, is_state};
pub use export::Exporter;
pub use queue::{Counts, Traces};
pub use request::Request;
pub use trace::Trace;
