//! The record of what was served, and its sinks.
//!
//! | file | what |
//! | --- | --- |
//! | `record` | the data and its JSON line: no I/O, no clock |
//! | `ring` | the cores' end: bounded, never blocking |
//! | `table`, `recover` | open requests, and what the start after a kill makes of them |
//! | `writer`, `batch`, `log_file` | the thread that owns the log |
//! | `stream` | a copy of each record in a stream of Redis, on a thread of its own |
//! | `sum` | sums over logs, for `expedite usage sum`: no I/O, no clock |

mod batch;
mod log_file;
mod record;
mod recover;
mod ring;
mod stream;
pub mod sum;
mod table;
mod writer;

pub use record::{Outcome, SmallId, TokensSource, UsageRecord, write_escaped, write_rfc3339_ms};
pub use ring::{Slot, UsageCounters, UsageSink, UsageUnavailable};
pub use table::Opening;
pub use writer::{Copy, Say, UsageWriter};
