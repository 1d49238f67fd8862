//! The planner: a workload against a fleet in virtual time, with the router, the prefix index and
//! the engine model that the gateway and the simulator run.
//!
//! Pure: no clock, no files, no sockets; one thread a run. A seed gives the same run anywhere.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod adapters;
mod agenda;
mod books;
pub mod capacity;
mod endless;
mod gateway;
pub mod html;
pub mod mix;
pub mod outcome;
mod random;
mod replay;
mod replica;
pub mod report;
pub mod scenario;
mod tally;
pub mod trace;
pub mod workload;

pub use mix::Mix;
pub use outcome::Outcome;
pub use scenario::{Crash, Scenario, Slo, Slow};
pub use trace::Trace;
pub use workload::Workload;
