//! Picks one replica for a request by predicted time. Pure: the view of the fleet, the request,
//! the time and the random numbers are arguments; no I/O, no clock.
//!
//! - [`types`]: what a policy sees and what it answers.
//! - [`picker`]: one [`Picker`] a core: its scratch, and the state of policies that keep some.
//! - `predict`: the times that a request would meet at a replica; `cost`: what it would cost;
//!   `decide`: one of the best, or hold; `echo`: own picks that the view does not show yet.
//! - [`explain()`]: the same for people.
//! - [`fit`]: how real times compare with the model's; [`output`]: how long answers will be.
//! - `simple`, `affinity`, `published`: policies to compare with.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod affinity;
mod choose;
mod cost;
mod decide;
mod echo;
mod explain;
pub mod fit;
mod others;
pub mod output;
pub mod picker;
mod predict;
mod published;
mod simple;
pub mod types;

#[cfg(test)]
#[path = "cost_tests.rs"]
mod cost_tests;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod properties;

pub use explain::explain;
pub use others::Others;
pub use picker::Picker;
pub use types::{
    Candidate, Decision, Explained, FleetView, Model, Pick, Policy, Request, Residency, Rng,
};
