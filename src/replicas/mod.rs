//! What we know of the fleet.
//!
//! The control thread owns the [`registry`]: it takes the lists of the sources, resolves names,
//! asks each replica for its health, models and load, and publishes a [`Fleet`] whenever its shape
//! changes. Cores only read: the shape as a snapshot, health and load as atomics of the
//! [`Replica`]s, which keep their identity from one published fleet to the next, so that ledgers
//! and evidence survive.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod adapters;
mod client;
mod describe;
mod discover;
pub mod events;
mod exposition;
mod fleet;
mod followers;
mod health;
mod in_use;
mod learn;
mod ledger;
mod members;
mod pool;
mod probe;
pub mod registry;
mod replica;
mod report;
mod scrape;
mod seats;
pub mod share;
mod shelf;
mod signals;
mod silence;
mod upkeep;

pub use describe::read_replica;
pub use discover::SourceHealth;
pub use fleet::{Files, Fleet, Served, Unresolved};
pub use health::{Failure, Health, State};
pub use ledger::{Dispatch, InFlight, Ledger, Sums};
pub use members::{Refused, Source};
pub use pool::{LANES_MAX, Lane, Pool, PoolState};
pub use replica::Replica;
pub use report::{Lines, Tone};
pub use shelf::Loads;
pub use signals::{Facts, Gauges, Load, RANKS_MAX, Signals, Totals};
pub use silence::{Awaiting, Silence, Stall};
pub use upkeep::Upkeep;
