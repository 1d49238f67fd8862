//! Dispatches of other gateways, on their way into the prefix index: bounded, and entered in slices
//! of time. On the control thread.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::decode::Batch;
use crate::prefix::Slot;
use crate::prompt::blocks::BlockHash;
use crate::replicas::ledger::Ledger;
use crate::replicas::pool::{Pool, PoolState};

/// Bytes of batches that wait: seconds of several busy gateways.
const BYTES_MAX: usize = 16 << 20;

/// Batches whose chains are to be entered.
#[derive(Default)]
pub(super) struct Inbox {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    /// The chain in hand.
    chain: Vec<BlockHash>,
}

struct Waiting {
    batch: Batch,
    pool: Arc<PoolState>,
    /// What each lane of the batch is here, if it is one of ours.
    lanes: Vec<Option<(Slot, Arc<Ledger>)>>,
    /// Chains entered.
    done: usize,
}

impl Waiting {
    fn left(&self) -> u64 {
        self.batch.chains().saturating_sub(self.done) as u64
    }
}

impl Inbox {
    /// Nothing to do?
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes in a batch about `pool`. Gives the number of older dispatches that had to go for it.
    pub(super) fn push(&mut self, pool: &Pool, batch: Batch) -> u64 {
        let ours = pool.lanes.iter().map(|lane| ((&*lane.replica.id, lane.rank), lane));
        let ours: HashMap<_, _> = ours.collect();
        let found = batch.lanes.iter().map(|name| {
            let lane = ours.get(&(&*name.replica, name.rank))?;
            Some((lane.slot, Arc::clone(&lane.ledger)))
        });
        let lanes = found.collect();
        self.bytes += batch.bytes();
        self.waiting.push_back(Waiting { batch, pool: Arc::clone(&pool.state), lanes, done: 0 });
        let mut lost = 0;
        while self.bytes > BYTES_MAX
            && let Some(oldest) = self.waiting.pop_front()
        {
            self.bytes -= oldest.batch.bytes();
            lost += oldest.left();
        }
        lost
    }

    /// Enters chains, the oldest first, until `time_is_up` says so or none is left.
    pub(super) fn enter(&mut self, now_ms: u64, time_is_up: impl Fn() -> bool) {
        while let Some(first) = self.waiting.front_mut() {
            while first.left() > 0 {
                let told = first.batch.chain(first.done, &mut self.chain);
                if let Some((lane, adapter)) = told
                    && let Some(Some((slot, ledger))) = first.lanes.get(lane)
                {
                    let chain = &self.chain;
                    first.pool.index.write(|index| index.dispatched(*slot, chain, now_ms));
                    if adapter != 0 {
                        ledger.adapter_used(adapter, now_ms);
                    }
                }
                first.done += 1;
                if time_is_up() {
                    return;
                }
            }
            self.bytes -= first.batch.bytes();
            self.waiting.pop_front();
        }
    }
}
