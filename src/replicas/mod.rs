//! What we know of the fleet.
//!
//! The control thread owns the registry: it resolves names, asks `/health` and `/v1/models`, and
//! publishes a [`Fleet`] whenever its shape changes. Cores only read: the shape as a snapshot,
//! health and load as atomics of the [`Replica`]s, which keep their identity from one published
//! fleet to the next, so that ledgers and evidence survive.

pub mod events;
mod fleet;
mod health;
mod learn;
mod ledger;
pub mod probe;

pub use fleet::{Fleet, Pool, Replica, Served, Unresolved};
pub use health::{Failure, Health, State};
pub use ledger::{InFlight, Ledger};
