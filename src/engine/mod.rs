//! The model of a vLLM V1 engine, shared by the simulator, the planner and the router's
//! predictions. Pure: time is an argument; no clock, no I/O, no thread of its own.
//!
//! - [`step`]: how long one step of an engine takes.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod step;

pub use step::{Step, StepModel};
