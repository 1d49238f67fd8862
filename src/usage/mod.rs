//! The record of what was served, and its sinks.
//!
//! `record` is the data and its JSON line: no I/O, no clock. `writer` owns the file, on a thread of
//! its own; the cores reach it through a bounded ring that never blocks them.

mod record;
mod writer;

pub use record::{Outcome, SmallId, TokensSource, UsageRecord};
pub use writer::{Slot, UsageCounters, UsageSink, UsageUnavailable, UsageWriter};
