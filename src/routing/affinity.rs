//! The prefix map of the usual Go gateway: a prefix belongs to the replica that had it last, while
//! that runs fewer than 64 requests; else it moves to the least busy.

use std::collections::{HashMap, VecDeque};

use super::simple::least_requests;
use super::types::{FleetView, Request, Rng};

/// Prefixes that are remembered.
const OWNERS_MAX: usize = 10_000;
/// Requests at which an owner is full: an absolute number of connections, as published.
const ACTIVE_MAX: u64 = 64;

/// Who owns which prefix, the least recently used forgotten first.
#[derive(Debug, Default)]
pub(super) struct Owners {
    owners: HashMap<u64, (usize, u64)>,
    /// Uses in order; stale ones are skipped when they come to the front.
    uses: VecDeque<(u64, u64)>,
    tick: u64,
}

impl Owners {
    pub(super) fn pick(
        &mut self,
        request: &Request,
        view: &impl FleetView,
        rng: &mut Rng,
    ) -> Option<usize> {
        let owner = self.owners.get(&request.owner_key).map(|&(owner, _)| owner);
        let free = |&owner: &usize| {
            let candidate = view.candidate(owner);
            candidate.eligible && candidate.requests < ACTIVE_MAX
        };
        let owner = owner.filter(|&o| o < view.len()).filter(free);
        let owner = owner.or_else(|| least_requests(view, rng))?;
        self.note(request.owner_key, owner);
        Some(owner)
    }

    fn note(&mut self, key: u64, owner: usize) {
        self.tick = self.tick.wrapping_add(1);
        self.owners.insert(key, (owner, self.tick));
        self.uses.push_back((key, self.tick));
        while self.owners.len() > OWNERS_MAX || self.uses.len() > 2 * OWNERS_MAX {
            let Some((key, tick)) = self.uses.pop_front() else { return };
            if self.owners.get(&key).is_some_and(|&(_, used)| used == tick) {
                self.owners.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Candidate;
    use super::super::fleet::{Fleet, usual};
    use super::*;

    fn of(key: u64) -> Request {
        Request { owner_key: key, ..usual() }
    }

    #[test]
    fn a_prefix_stays_until_its_owner_is_full_and_then_moves() {
        let mut fleet = Fleet::of(4, Candidate { requests: 5, ..Candidate::default() });
        let (mut owners, mut rng) = (Owners::default(), Rng::with_seed(1));
        let first = owners.pick(&of(9), &fleet, &mut rng).expect("somebody");
        fleet.0[first].requests = 63;
        assert_eq!(owners.pick(&of(9), &fleet, &mut rng), Some(first));
        fleet.0[first].requests = 64;
        let second = owners.pick(&of(9), &fleet, &mut rng).expect("somebody");
        assert_ne!(second, first);
        // It has moved for good.
        fleet.0[first].requests = 0;
        assert_eq!(owners.pick(&of(9), &fleet, &mut rng), Some(second));
        fleet.0[second].eligible = false;
        assert_eq!(owners.pick(&of(9), &fleet, &mut rng), Some(first));
    }

    #[test]
    fn the_map_is_bounded_and_forgets_the_oldest() {
        let fleet = Fleet::of(4, Candidate::default());
        let (mut owners, mut rng) = (Owners::default(), Rng::with_seed(1));
        for key in 0..30_000 {
            owners.pick(&of(key), &fleet, &mut rng);
            // Used all the while, this one is never the oldest.
            owners.pick(&of(0), &fleet, &mut rng);
        }
        assert!(owners.owners.len() <= OWNERS_MAX, "{}", owners.owners.len());
        assert!(owners.uses.len() <= 2 * OWNERS_MAX, "{}", owners.uses.len());
        assert!(owners.owners.contains_key(&0) && owners.owners.contains_key(&29_999));
        assert!(!owners.owners.contains_key(&1));
    }
}
