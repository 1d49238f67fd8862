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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::replicas::fleet::{Files, Fleet};
    use crate::replicas::share::{Encoder, Head, LaneName};
    use std::cell::Cell;

    fn fleet() -> Fleet {
        let text = "[[pool]]\nname = \"p\"\nreplicas = [{ url = \"http://r:1\", id = \"r1\" }]\n";
        let config = Config::from_text("test.toml", text).unwrap();
        Fleet::new(&config, 1, &Files::default(), 0)
    }

    fn batch(chains: &[Vec<BlockHash>]) -> Batch {
        let (mut encoder, pool) = (Encoder::default(), "p".into());
        let name = LaneName { replica: "r1".into(), rank: None };
        chains.iter().for_each(|chain| assert!(encoder.dispatched(0, &name, 5, chain)));
        let head = Head { gateway: 1, number: 1, sent_us: 0, block_tokens: 0, pool };
        Batch::decode(encoder.finish(&head).unwrap()).unwrap()
    }

    fn depth(pool: &Pool, chain: &[BlockHash]) -> u32 {
        let mut depths = [0];
        pool.state.index.depths(chain, &mut depths);
        depths[0]
    }

    #[test]
    fn chains_are_entered_in_slices() {
        let fleet = fleet();
        let pool = &fleet.pools[0];
        let chains: Vec<Vec<BlockHash>> = (0..5).map(|n| vec![n * 10 + 1, n * 10 + 2]).collect();
        let mut inbox = Inbox::default();
        assert_eq!(inbox.push(pool, batch(&chains[..3])), 0);
        assert_eq!(inbox.push(pool, batch(&chains[3..])), 0);
        let entered = || chains.iter().map(|chain| depth(pool, chain)).collect::<Vec<_>>();
        inbox.enter(0, || true);
        assert_eq!(entered(), [2, 0, 0, 0, 0], "at least one, so that it ends");
        let left = Cell::new(3);
        inbox.enter(0, || left.replace(left.get() - 1) == 1);
        assert_eq!(entered(), [2, 2, 2, 2, 0]);
        inbox.enter(0, || false);
        assert_eq!((entered(), inbox.is_empty(), inbox.bytes), (vec![2; 5], true, 0));
        assert!(pool.lanes[0].ledger.has_adapter(5, 1, 0));
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let fleet = fleet();
        let mut rng = fastrand::Rng::with_seed(1);
        let mut inbox = Inbox::default();
        let (mut lost, mut pushed) = (0, 0);
        while lost == 0 {
            let chains: Vec<Vec<BlockHash>> =
                (0..15).map(|_| (0..4_000).map(|_| rng.u128(..)).collect()).collect();
            lost = inbox.push(&fleet.pools[0], batch(&chains));
            pushed += 1;
        }
        assert_eq!((lost, pushed), (15, 18), "960 kB each");
        assert!(inbox.bytes <= BYTES_MAX);
        inbox.enter(0, || false);
        assert_eq!(inbox.bytes, 0);
    }
}
