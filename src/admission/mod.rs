//! May a request start now: only what can finish in time, and queued only where waiting helps.
//!
//! - [`limits`]: the times that a request has to meet, and whether a prediction meets them.
//! - [`judge()`]: start, wait, or be refused.
//! - [`fair`]: what each tenant has had of a pool, so that who floods is who is refused.
//! - [`queue`]: requests for which no replica has room, in the order in which they are tried.
//! - [`release`]: when room will be, by what runs: the truth behind `retry-after`.
//!
//! Pure: no I/O, no clock; times are arguments, in ms of the caller's clock. The counters of
//! [`fair`] are atomics that all cores write; a queue belongs to one core. The planner runs the
//! same code in virtual time.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod fair;
mod judge;
pub mod limits;
pub mod queue;
pub mod release;

pub use fair::{Counters, Share, Standing};
pub use judge::{Case, Verdict, judge};
pub use limits::{Limits, Predicted, Why};
pub use queue::{Queue, Waiting};
pub use release::Running;
