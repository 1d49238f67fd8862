//! The admin listener, never on the clients' addresses: metrics, readiness, status, drain, reload,
//! profiles.
//!
//! Runs on the control thread (tokio, hyper); reads the cores' cells and the fleet's atomics,
//! writes nothing that a core waits for. `shard` has the cells themselves, which the cores write.

mod exposition;
mod genai;
mod guard;
mod heap;
mod metrics;
mod page;
mod prefill;
mod process;
mod profile;
mod prompts;
mod queue;
mod quota;
mod recent;
mod replicas;
mod routing;
mod server;
mod shard;
mod share;
mod signals;
mod status;
mod telemetry;
mod tenants;

pub use recent::Recent;
pub use server::{Flags, Reloads, View, all_turn, serve};
pub use shard::{
    GenAi, OPERATIONS, Phase, PoolCells, PoolIndex, PrefillResult, RETRY_REASONS, SHED_REASONS,
    Shard, Stage,
};
