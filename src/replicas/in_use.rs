//! Which adapters a lane's engine holds, as far as this gateway's requests tell: a small table of
//! atomics that all cores share, since the same adapter on two cores takes one slot of the
//! engine's.
//!
//! A place holds an adapter's hash and the number of its requests in flight in one word. After the
//! last of them the place keeps the hash, as the engine keeps the adapter in its slot until
//! another needs it (least recently used first, as in vLLM). Only requests for adapters come here.
//! Time (ms since process start) is an argument.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Places: more than an engine has slots. Requests that find none are not told apart.
const PLACES: usize = 32;
/// Low bits of a word: requests in flight; the rest is of the adapter's hash.
const COUNT_BITS: u32 = 24;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct InUse {
    places: [Place; PLACES],
}

#[derive(Debug, Default)]
struct Place {
    word: AtomicU64,
    /// When a request last came or went; low half of the time.
    used_ms: AtomicU32,
}

fn hash_of(adapter: u64) -> u64 {
    // Never 0, which is a place that nobody has had.
    (adapter | 1 << COUNT_BITS) & !COUNT
}

impl Place {
    fn read(&self) -> (u64, u64) {
        let word = self.word.load(Relaxed);
        (word & !COUNT, word & COUNT)
    }

    fn change(&self, to: impl Fn(u64) -> Option<u64>) -> bool {
        self.word.fetch_update(Relaxed, Relaxed, to).is_ok()
    }

    fn age_ms(&self, now_ms: u64) -> u32 {
        let age_ms = (now_ms as u32).wrapping_sub(self.used_ms.load(Relaxed));
        if age_ms > u32::MAX / 2 { 0 } else { age_ms }
    }
}

impl InUse {
    /// A request of the adapter with this hash comes: its place, for [`leave`](Self::leave).
    pub(super) fn enter(&self, adapter: u64, now_ms: u64) -> Option<usize> {
        let hash = hash_of(adapter);
        let mine = self.places.iter().position(|place| place.read().0 == hash);
        let at = mine.filter(|at| self.count_one(*at, hash)).or_else(|| {
            // A fresh place, or the one that has been idle the longest.
            let idle = self.places.iter().enumerate().filter(|(_, place)| place.read().1 == 0);
            let fresh = |place: &Place| place.read().0 == 0;
            let oldest = idle.max_by_key(|(_, place)| (fresh(place), place.age_ms(now_ms)));
            let at = oldest.map(|(at, _)| at)?;
            let took = self.places.get(at)?.change(|word| (word & COUNT == 0).then_some(hash | 1));
            took.then_some(at)
        })?;
        self.places.get(at)?.used_ms.store(now_ms as u32, Relaxed);
        Some(at)
    }

    fn count_one(&self, at: usize, hash: u64) -> bool {
        let one_more =
            |word: u64| (word & !COUNT == hash && word & COUNT < COUNT).then_some(word + 1);
        self.places.get(at).is_some_and(|place| place.change(one_more))
    }

    /// The request at that place ends.
    pub(super) fn leave(&self, at: usize) {
        let Some(place) = self.places.get(at) else { return };
        place.change(|word| (word & COUNT != 0).then_some(word.wrapping_sub(1)));
    }

    /// Different adapters in use.
    pub(super) fn different(&self) -> u32 {
        let busy = |place: &Place| match place.read() {
            (_, 0) => 0,
            (hash, _) => hash,
        };
        let busy = self.places.each_ref().map(busy);
        // Two cores may have given one adapter a place each.
        let first = |(at, hash): (usize, &u64)| !busy.iter().take(at).any(|other| other == hash);
        busy.iter().enumerate().filter(|(_, hash)| **hash != 0).filter(|at| first(*at)).count()
            as u32
    }

    /// Is the adapter with this hash in use, and how long is its last coming or going ago, in ms?
    /// When the table is full, any may be in use.
    pub(super) fn used(&self, adapter: u64, now_ms: u64) -> (bool, Option<u64>) {
        let hash = hash_of(adapter);
        let mine = || self.places.iter().filter(|place| place.read().0 == hash);
        let full = self.places.iter().all(|place| place.read().1 > 0);
        let busy = full || mine().any(|place| place.read().1 > 0);
        (busy, mine().map(|place| u64::from(place.age_ms(now_ms))).min())
    }

    /// Does the adapter with this hash have one of the engine's `slots`: in use, or among those
    /// used last?
    pub(super) fn resident(&self, adapter: u64, slots: u32, now_ms: u64) -> bool {
        let hash = hash_of(adapter);
        let Some(mine) = self.places.iter().find(|place| place.read().0 == hash) else {
            return false;
        };
        if mine.read().1 > 0 {
            return true;
        }
        let age_ms = mine.age_ms(now_ms);
        let before_it = self.places.iter().filter(|place| {
            let (other, count) = place.read();
            other != 0 && other != hash && (count > 0 || place.age_ms(now_ms) < age_ms)
        });
        before_it.count() < slots as usize
    }

    /// Requests in flight over all adapters.
    #[cfg(test)]
    pub(super) fn requests(&self) -> u64 {
        self.places.iter().map(|place| place.read().1).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = 0xaaaa_0000_0000_0000;
    const B: u64 = 0xbbbb_0000_0000_0000;
    const C: u64 = 0xcccc_0000_0000_0000;

    #[test]
    fn an_adapter_takes_one_place_until_its_last_request_ends() {
        let table = InUse::default();
        let first = table.enter(A, 0);
        assert_eq!(table.enter(A, 0), first);
        let other = table.enter(B, 0);
        assert_ne!(other, first);
        assert_eq!(table.different(), 2);
        table.leave(first.unwrap());
        assert_eq!(table.different(), 2);
        table.leave(first.unwrap());
        assert_eq!(table.different(), 1);
        table.leave(other.unwrap());
        table.leave(other.unwrap());
        assert_eq!((table.different(), table.requests()), (0, 0), "and never below");
    }

    #[test]
    fn the_last_used_keep_the_slots() {
        let table = InUse::default();
        assert!(!table.resident(A, 2, 0));
        for (adapter, now_ms) in [(A, 10), (B, 20)] {
            let at = table.enter(adapter, now_ms).unwrap();
            assert!(table.resident(adapter, 1, now_ms));
            table.leave(at);
        }
        assert!(table.resident(A, 2, 30) && table.resident(B, 2, 30));
        assert!(!table.resident(A, 1, 30) && table.resident(B, 1, 30));
        let c = table.enter(C, 40).unwrap();
        assert!(!table.resident(A, 2, 50) && table.resident(B, 2, 50) && table.resident(C, 2, 50));
        table.leave(c);
        table.leave(table.enter(A, 60).unwrap());
        assert!(!table.resident(B, 2, 70));
    }

    #[test]
    fn what_finds_no_place_is_not_counted_and_harms_nothing() {
        let table = InUse::default();
        let places: Vec<_> = (0..40_u64).map(|n| table.enter(n << 32, n)).collect();
        assert_eq!(places.iter().flatten().count(), PLACES);
        assert_eq!(table.different(), PLACES as u32);
        places.into_iter().flatten().for_each(|at| table.leave(at));
        assert_eq!(table.requests(), 0);
        // Idle ones make room, the longest idle first.
        assert!(table.enter(99 << 32, 100).is_some());
        assert!(!table.resident(0, 32, 100) && table.resident(1 << 32, 32, 100));
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
                    for now_ms in 0..20_000 {
                        if rng.bool() {
                            held.extend(table.enter(rng.u64(1..50) << 40, now_ms));
                        } else if let Some(at) = held.pop() {
                            table.leave(at);
                        }
                    }
                    held.into_iter().for_each(|at| table.leave(at));
                });
            }
        });
        assert_eq!((table.requests(), table.different()), (0, 0));
    }
}
