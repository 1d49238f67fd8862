//! Picks one replica for a request by predicted time. Pure: the view of the fleet, the request,
//! the time and the random numbers are arguments; no I/O, no clock.
//!
//! - [`types`]: what a policy sees and what it answers.
//! - [`picker`]: one [`Picker`] a core: its scratch, and the state of policies that keep some.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod affinity;
mod choose;
pub mod cost;
pub mod fit;
pub mod output;
pub mod picker;
mod predict;
mod published;
mod simple;
pub mod types;

pub use picker::Picker;
pub use types::{
    Candidate, Decision, Explained, FleetView, Model, Pick, Policy, Request, Residency, Rng,
};
