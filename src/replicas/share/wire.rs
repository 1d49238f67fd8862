//! What gateways tell each other, as bytes: one batch a pool and tick. Pure.
//!
//! A batch carries the sender's ledger sums of each lane in whole, so that a lost batch is healed
//! by the next one, and the prompts that it has dispatched since, as chains of block hashes.
//! Prompts share heads, so a chain is written as "the first `shared` blocks of an earlier chain,
//! then these". All numbers are little-endian:
//!
//! ```text
//! "xps" version:u8  gateway:u64 number:u64 sent_us:u64 block_tokens:u32 pool:name
//! lanes:u16  x (replica:name rank:u32, u32::MAX = none)
//! sums:u16   x (lane:u16, 7 x u32, prefill_ms:f32)
//! chains:u16 x (lane:u16 head:u16 shared:u32 tail:u32 adapter:u64, tail x u128)
//! name = length:u16, UTF-8
//! ```
//!
//! Whoever may publish on the store's channel may send anything, so every length is held against
//! what is there and against the limits below before anything is reserved for it. `head` must be
//! an earlier chain whose own tail has block `shared - 1`: then a chain is put together in steps
//! that each yield a block, however a sender has nested them.

use std::sync::Arc;

use crate::prompt::blocks::BlockHash;
use crate::replicas::ledger::Sums;
use crate::replicas::pool;

/// Most bytes of a batch: 0.65 M hashes a second from one gateway at the usual ten batches.
pub const BATCH_BYTES_MAX: usize = 1 << 20;
/// Most blocks of one chain: 65,536 tokens in blocks of 16. A longer prompt is told by its head,
/// since a chain is written and entered without a pause.
pub const CHAIN_BLOCKS_MAX: usize = 4_096;
/// Most chains of a batch.
pub const CHAINS_MAX: usize = 8_192;
/// Most blocks of all chains of a batch, heads included: what a receiver must walk.
pub const BLOCKS_MAX: usize = 1 << 19;
/// Most lanes of a batch: those of a whole pool.
pub const LANES_MAX: usize = pool::LANES_MAX;
/// Most bytes of a pool's or replica's name.
pub const NAME_BYTES_MAX: usize = 512;

pub(super) const MAGIC: [u8; 3] = *b"xps";
pub(super) const VERSION: u8 = 1;
pub(super) const NO_RANK: u32 = u32::MAX;
pub(super) const HASH_BYTES: usize = size_of::<BlockHash>();
/// Lane, head, shared, tail, adapter.
pub(super) const CHAIN_BYTES: usize = 2 + 2 + 4 + 4 + 8;
/// Replica's length, rank.
pub(super) const LANE_BYTES: usize = 2 + 4;
/// Lane, seven numbers, prefill time.
pub(super) const SUMS_BYTES: usize = 2 + 7 * 4 + 4;
/// All but the pool's name and the counted sections.
pub(super) const HEAD_BYTES: usize = 4 + 3 * 8 + 4 + 2 + 3 * 2;

/// Where work runs, by names that every gateway knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LaneName {
    /// The replica's id.
    pub replica: Arc<str>,
    /// Its data-parallel rank, when ranks are routed apart.
    pub rank: Option<u32>,
}

/// Who sends, and about what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The sender: drawn at its start.
    pub gateway: u64,
    /// Grows with each batch of the sender.
    pub number: u64,
    /// The sender's own clock; it means something to the sender only, when its batch comes back.
    pub sent_us: u64,
    /// Tokens in a block of the hashes; 0 = chunks of text.
    pub block_tokens: u32,
    /// Name of the pool.
    pub pool: Arc<str>,
}

/// The whole numbers of [`Sums`] in the order of the wire.
pub(super) fn numbers(sums: &Sums) -> [u64; 7] {
    [
        sums.requests,
        sums.tokens,
        sums.pending_tokens,
        sums.pending_requests,
        sums.decodes,
        sums.decode_kv_tokens,
        sums.held_tokens,
    ]
}

/// The inverse of [`numbers`]. Half a day of prefills or an odd number is no sum of seconds.
pub(super) fn sums(numbers: [u32; 7], prefill_ms: f32) -> Sums {
    let [requests, tokens, pending_tokens, pending_requests, decodes, kv, held] =
        numbers.map(u64::from);
    let sound = prefill_ms.is_finite() && (0.0..4e7).contains(&prefill_ms);
    Sums {
        requests,
        tokens,
        pending_tokens,
        pending_requests,
        decodes,
        decode_kv_tokens: kv,
        begun_ms: 0,
        held_tokens: held,
        prefill_ms: if sound { f64::from(prefill_ms) } else { 0.0 },
    }
}
