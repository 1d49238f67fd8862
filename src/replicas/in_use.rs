//! Which adapters the requests in flight at a lane use: a small table of atomics that all cores
//! share, since the same adapter on two cores takes one slot of the engine's.
//!
//! A place holds an adapter's hash and the number of its requests in one word, so that the last
//! one to leave frees the place in the same step. Only requests for adapters come here.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Places: more than an engine has slots. Requests that find none are not told apart.
const PLACES: usize = 32;
/// Low bits of a word: requests in flight; the rest is of the adapter's hash.
const COUNT_BITS: u32 = 24;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct InUse {
    places: [AtomicU64; PLACES],
}

fn hash_of(adapter: u64) -> u64 {
    // Never 0, which is a free place.
    (adapter | 1 << COUNT_BITS) & !COUNT
}

impl InUse {
    /// A request of the adapter with this hash comes: its place, for [`leave`](Self::leave).
    pub(super) fn enter(&self, adapter: u64) -> Option<usize> {
        let hash = hash_of(adapter);
        let found = self.places.iter().position(|place| place.load(Relaxed) & !COUNT == hash);
        if let Some(at) = found
            && self.change(at, |word| {
                (word & !COUNT == hash && word & COUNT < COUNT).then(|| word + 1)
            })
        {
            return Some(at);
        }
        (0..PLACES).find(|at| self.change(*at, |word| (word == 0).then_some(hash + 1)))
    }

    /// The request at that place ends.
    pub(super) fn leave(&self, at: usize) {
        self.change(at, |word| Some(if word & COUNT <= 1 { 0 } else { word - 1 }));
    }

    /// Different adapters in use.
    pub(super) fn different(&self) -> u32 {
        let words = self.places.each_ref().map(|place| place.load(Relaxed) & !COUNT);
        let mut known = words.iter().enumerate().filter(|(_, word)| **word != 0);
        // Two cores may have given one adapter a place each.
        let first = |(at, word): (usize, &u64)| !words.iter().take(at).any(|w| w == word);
        known.by_ref().filter(|(at, word)| first((*at, *word))).count() as u32
    }

    /// Is the adapter with this hash in use?
    pub(super) fn holds(&self, adapter: u64) -> bool {
        let hash = hash_of(adapter);
        self.places.iter().any(|place| place.load(Relaxed) & !COUNT == hash)
    }

    fn change(&self, at: usize, to: impl Fn(u64) -> Option<u64>) -> bool {
        let place = self.places.get(at);
        place.is_some_and(|place| place.fetch_update(Relaxed, Relaxed, to).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_takes_one_place_until_its_last_request_ends() {
        let table = InUse::default();
        let (a, b) = (0xaaaa_0000_0000_0000, 0xbbbb_0000_0000_0000);
        let first = table.enter(a);
        assert_eq!(table.enter(a), first);
        let other = table.enter(b);
        assert_ne!(other, first);
        assert_eq!(table.different(), 2);
        table.leave(first.unwrap());
        assert!(table.holds(a) && table.holds(b));
        table.leave(first.unwrap());
        assert!(!table.holds(a));
        table.leave(other.unwrap());
        assert_eq!(table.different(), 0);
    }

    #[test]
    fn what_finds_no_place_is_not_counted_and_harms_nothing() {
        let table = InUse::default();
        let places: Vec<_> = (0..40_u64).map(|n| table.enter(n << 32)).collect();
        assert_eq!(places.iter().flatten().count(), PLACES);
        assert_eq!(table.different(), PLACES as u32);
        places.into_iter().flatten().for_each(|at| table.leave(at));
        assert!(table.places.iter().all(|place| place.load(Relaxed) == 0));
    }

    #[test]
    fn threads_leave_nothing_behind() {
        let table = InUse::default();
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let table = &table;
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed);
                    let mut held = Vec::new();
                    for _ in 0..20_000 {
                        if rng.bool() {
                            held.extend(table.enter(rng.u64(1..20) << 40));
                        } else if let Some(at) = held.pop() {
                            table.leave(at);
                        }
                    }
                    held.into_iter().for_each(|at| table.leave(at));
                });
            }
        });
        assert!(table.places.iter().all(|place| place.load(Relaxed) == 0));
    }
}
