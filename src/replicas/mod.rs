//! What we know of the fleet.
//!
//! The control thread owns the registry: it resolves names, asks `/health` and `/v1/models`, and
//! publishes a [`Fleet`] whenever its shape changes. Cores only read: the shape as a snapshot,
//! health and load as atomics of the [`Replica`]s, which keep their identity from one published
//! fleet to the next, so that ledgers and evidence survive.

mod fleet;
mod health;
mod in_use;
mod learn;
mod ledger;
mod pool;
pub mod probe;
mod replica;
pub mod share;
mod signals;
mod upkeep;

pub use fleet::{Fleet, Served, Unresolved};
pub use health::{Failure, Health, State};
pub use ledger::{Dispatch, InFlight, Ledger, Sums};
pub use pool::{LANES_MAX, Lane, Pool, PoolState};
pub use replica::Replica;
pub use signals::{Gauges, Load, RANKS_MAX, Signals};
pub use upkeep::Upkeep;
