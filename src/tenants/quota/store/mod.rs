//! Budgets in a store that several gateways share: Redis 7.0 or Valkey.
//!
//! One script is one decision over a tenant's account and its key's (`lua/`): the bucket's level by
//! the store's own clock, and sequences in flight as the sum of leases, one a request, that their
//! owner renews. A gateway that dies frees its sequences within a lease's time; the tokens of its
//! requests stay spent. Every step is safe to repeat, since requests are known by their id.
//!
//! * [`Client`], one a core: decides, settles, renews (`client.rs`, `keep.rs`), over one connection
//!   to each server (`lane.rs`, `drive.rs`), by `resp.rs` and `script.rs`.
//! * [`Advance`]: what a gateway takes ahead of a busy account, so that most decisions need no
//!   round trip, and what it goes on with while the store is away.
//! * [`Shared`]: what all cores have in common. [`find_servers`], a task of the control thread,
//!   keeps it told of where the servers are (`topology.rs`).
//!
//! Nobody on a core waits for a lock or a name server, and no decision waits longer than its limit.

mod advance;
mod client;
mod drive;
mod keep;
mod lane;
mod look;
mod op;
mod resp;
mod script;
mod shared;
mod slot;
mod stats;
mod topology;
mod url;
mod who;

pub use advance::{Advance, Grant, Message};
pub use client::{Client, Denied, Hold};
pub use look::{Desk, Shown};
pub use resp::{Garbage, Reply, parse};
pub use script::{Decided, Scripts, Stands, decided, granted, settled};
pub use shared::{Say, Shared};
pub use stats::{Stats, Trouble};
pub use topology::run as find_servers;
pub use who::Who;
