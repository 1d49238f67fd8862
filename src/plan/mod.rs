//! The planner: a workload against a fleet in virtual time, with the router, the prefix index and
//! the engine model that the gateway and the simulator run.
//!
//! - [`workload`], [`mix`], [`trace`]: what comes, the same for every policy of a seed.
//! - [`scenario`]: the fleet, its gateways, what fails, the limits.
//! - `replay`: the run, from an `agenda` of events; `gateway` (its `books`, its `adapters`) and
//!   `replica` are who acts in it, `endless` is the bound of what caches can do.
//! - [`outcome`], [`capacity`], [`report`], [`html`]: what came of it.
//!
//! The load generator sends the same workloads in real time, draws by the same laws (`random`), and
//! writes its page with the same pieces (`svg`).
//!
//! Beside it are calculators, which run nothing: [`size`] (of [`shapes`], [`presets`], [`gpus`]),
//! [`fluid`] (on engines that are profiled, or by [`roofline`]); [`sweep`] and [`fleet`] hold it
//! against replays. What they say is a [`sheet`].
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
pub mod cost;
pub mod cost_sheet;
pub mod documents;
mod endless;
pub mod fleet;
pub mod fluid;
mod gateway;
pub mod gpus;
pub mod html;
pub mod mix;
pub mod outcome;
pub mod page;
pub mod pd;
pub mod pd_sheet;
pub mod presets;
pub(crate) mod random;
mod replay;
mod replica;
pub mod report;
pub mod roofline;
pub mod scenario;
pub mod shapes;
pub mod sheet;
pub mod size;
pub mod size_sheet;
pub(crate) mod svg;
pub mod sweep;
mod tally;
pub mod trace;
pub mod uniform;
pub mod workload;

pub use mix::Mix;
pub use outcome::Outcome;
pub use scenario::{Crash, Scenario, Slo, Slow};
pub use trace::Trace;
pub use workload::Workload;
