//! Who the other gateways are: each has a number while it is heard of, under which the ledgers keep
//! what it reports. On the control thread; no clock.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::decode::Batch;
use crate::prefix::Slot;
use crate::replicas::ledger::Sums;
use crate::replicas::pool::Pool;

/// A gateway that was silent for so long counts no more, as the ledgers see it too.
pub(super) const SILENT_MS_MAX: u64 = 1_000;
/// Gateways that are listened to; a ledger keeps as many.
pub(super) const PEERS_MAX: usize = 64;

/// The other gateways.
#[derive(Default)]
pub(super) struct Peers(Vec<Option<Peer>>);

struct Peer {
    gateway: u64,
    heard_ms: u64,
    /// Number of its last batch.
    number: u64,
    /// By pool, the lanes where it had something in flight when it last said.
    busy: HashMap<Arc<str>, HashSet<Slot>>,
}

/// What a batch's number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It is newer than all before; the sender's number for the ledgers.
    News(usize),
    /// It was overtaken by a newer one.
    Old,
    /// More gateways than are listened to.
    TooMany,
}

impl Peers {
    /// Gateways that were heard of lately.
    #[must_use]
    pub(super) fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// Forgets who is silent, so that others may have their numbers.
    pub(super) fn forget_silent(&mut self, now_ms: u64) {
        for place in &mut self.0 {
            let silent = |peer: &Peer| now_ms.saturating_sub(peer.heard_ms) > SILENT_MS_MAX;
            if place.as_ref().is_some_and(silent) {
                *place = None;
            }
        }
    }

    /// A gateway has sent its batch `number`.
    pub(super) fn heard(&mut self, gateway: u64, number: u64, now_ms: u64) -> Heard {
        let mut free = None;
        for (n, place) in self.0.iter_mut().enumerate() {
            match place {
                Some(peer) if peer.gateway == gateway => {
                    if number <= peer.number {
                        return Heard::Old;
                    }
                    (peer.number, peer.heard_ms) = (number, now_ms);
                    return Heard::News(n);
                }
                Some(_) => {}
                None => free = free.or(Some(n)),
            }
        }
        let n = free.unwrap_or(self.0.len());
        if n >= PEERS_MAX {
            return Heard::TooMany;
        }
        if n == self.0.len() {
            self.0.push(None);
        }
        if let Some(place) = self.0.get_mut(n) {
            *place = Some(Peer { gateway, heard_ms: now_ms, number, busy: HashMap::new() });
        }
        Heard::News(n)
    }

    /// Writes what gateway `n` has in flight into the ledgers of `pool`.
    pub(super) fn report(&mut self, n: usize, pool: &Pool, batch: &Batch, now_ms: u64) {
        let Some(Some(peer)) = self.0.get_mut(n) else { return };
        let told = batch.sums.iter().filter_map(|(lane, sums)| {
            let name = batch.lanes.get(*lane)?;
            Some(((&*name.replica, name.rank), sums))
        });
        let told: HashMap<_, _> = told.collect();
        let busy = peer.busy.entry(Arc::clone(&pool.name)).or_default();
        for lane in &pool.lanes {
            if let Some(sums) = told.get(&(&*lane.replica.id, lane.rank)) {
                busy.insert(lane.slot);
                lane.ledger.set_remote(n, **sums, now_ms);
            } else if busy.remove(&lane.slot) {
                lane.ledger.set_remote(n, Sums::default(), now_ms);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_keeps_its_number_while_it_is_heard() {
        let mut peers = Peers::default();
        assert_eq!(peers.heard(70, 1, 0), Heard::News(0));
        assert_eq!(peers.heard(71, 1, 10), Heard::News(1));
        assert_eq!(peers.heard(70, 1, 20), Heard::Old);
        assert_eq!(peers.heard(71, 2, 900), Heard::News(1));
        peers.forget_silent(SILENT_MS_MAX);
        assert_eq!(peers.count(), 2);
        peers.forget_silent(SILENT_MS_MAX + 1);
        assert_eq!(peers.count(), 1);
        assert_eq!(peers.heard(72, 5, 1_500), Heard::News(0), "the number of the silent one");
        assert_eq!(peers.heard(70, 9, 1_500), Heard::News(2));
    }

    #[test]
    fn their_number_is_bounded() {
        let mut peers = Peers::default();
        for gateway in 0..PEERS_MAX as u64 {
            assert_eq!(peers.heard(gateway, 1, 0), Heard::News(gateway as usize));
        }
        assert_eq!(peers.heard(1_000, 1, 0), Heard::TooMany);
        peers.forget_silent(SILENT_MS_MAX + 1);
        assert_eq!(peers.heard(1_000, 1, 2_000), Heard::News(0));
    }
}
