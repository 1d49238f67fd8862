//! The record of what was served, and its way to the disk.
//!
//! A core makes a [`UsageRecord`] and pushes it into a bounded ring; the writer thread takes it out
//! and appends it. A request reserves its place in the ring before it starts, so that a record is
//! never lost for want of room and no core ever waits for a disk.

mod record;
mod writer;

pub use record::{Outcome, SmallId, TokensSource, UsageRecord};
pub use writer::{Counts, Slot, UsageSink, UsageUnavailable, Writer};
