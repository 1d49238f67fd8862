//! Several gateways over one fleet: each tells the others what it has dispatched and what it has in
//! flight, through a Redis or Valkey store.
//!
//! Alone, each would see a quarter of four gateways' load and of the fleet's caches, herd onto the
//! same idle replica, and prefill everywhere what one replica has. So every tick (100 ms) each
//! publishes one batch a pool (`wire`): its ledger sums of each lane, which the others keep
//! beside their own and count while they are fresh, and its dispatches, which the others enter in
//! their prefix index as if they were their own. Publish/subscribe, not streams: as fast when
//! measured, and it leaves nothing behind in a store whose memory belongs to quotas. What is
//! lost costs time, never an answer.
//!
//! Who owns what: cores put dispatches into a pool's bounded [`Outbox`]; all else is [`run`], one
//! task of the control thread, in slices that leave the thread to others. Without a store, or
//! while it is away, a gateway goes on by its own view. The store itself is trusted to be the
//! operator's, those who publish on it are not: a batch is checked and bounded before it is used.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod decode;
mod encode;
mod exchange;
mod inbox;
mod outbox;
mod peers;
mod run;
mod stats;
mod wire;

#[cfg(test)]
mod codec_tests;

pub use decode::{Batch, Refused};
pub use encode::Encoder;
pub use outbox::Outbox;
pub use run::{Share, run};
pub use stats::{Lost, Stats};
pub use wire::{
    BATCH_BYTES_MAX, BLOCKS_MAX, CHAIN_BLOCKS_MAX, CHAINS_MAX, Head, LANES_MAX, LaneName,
    NAME_BYTES_MAX,
};
