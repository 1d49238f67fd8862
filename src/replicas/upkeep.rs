//! Keeps a pool's prefix index in step with its replicas: how much each lane can hold, who has
//! started anew, what has aged. Called by the control thread about once a second; each call is
//! short.

use std::collections::HashMap;

use super::events::state::Mode;
use super::pool::Pool;
use crate::prefix::Slot;

/// Tokens that a chunk of text stands for, about.
const CHUNK_TOKENS: u64 = 64;
/// Tokens in a block while a pool's are not known: vLLM's default.
const BLOCK_TOKENS_DEFAULT: u64 = 16;

/// What was last entered for each lane of a pool.
#[derive(Debug, Default)]
pub struct Upkeep {
    capacities: HashMap<Slot, u64>,
    began: HashMap<Slot, u64>,
}

impl Upkeep {
    /// Enters what has changed since the last call.
    pub fn run(&mut self, pool: &Pool, now_ms: u64) {
        let index = &pool.state.index;
        for lane in &pool.lanes {
            // Whoever was away may have lost its cache; its own events, where there are any, tell.
            let began_ms = lane.replica.health.began_ms();
            let news = self.began.insert(lane.slot, began_ms).is_some_and(|at| at != began_ms);
            if news && lane.known.mode() != Mode::Exact {
                index.write(|writer| writer.clear(lane.slot));
            }
            let blocks = lane.replica.signals.gauges(lane.rank).blocks();
            let capacity = capacity(pool, blocks);
            if blocks > 0 && self.capacities.insert(lane.slot, capacity) != Some(capacity) {
                index.write(|writer| writer.set_capacity(lane.slot, capacity));
            }
        }
        index.write(|writer| writer.expire(now_ms));
    }
}

/// Entries that stand for all of a cache of `blocks` blocks.
fn capacity(pool: &Pool, blocks: u64) -> u64 {
    if pool.prefix_is_text() {
        let block_tokens = match pool.block_tokens() {
            0 => BLOCK_TOKENS_DEFAULT,
            tokens => u64::from(tokens),
        };
        return blocks.saturating_mul(block_tokens) / CHUNK_TOKENS;
    }
    blocks
}
