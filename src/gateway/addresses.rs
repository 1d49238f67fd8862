//! How many connections a client's address has open, over all cores: one address alone must not
//! take all that the gateway can hold.
//!
//! Two rows of counters, and an address has one in each by a keyed hash; the smaller of them is at
//! least its count, and almost always that. So the memory is fixed whoever comes, and no core waits
//! for another. Asked at accepts only, and not at all without a limit.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Counters of a row.
const ROW: usize = 1 << 14;

/// See the module.
#[derive(Default)]
pub(super) struct Addresses {
    rows: OnceLock<Rows>,
}

struct Rows {
    counts: Box<[AtomicU32]>,
    keys: [RandomState; 2],
}

/// A connection that counts, until it is dropped.
pub(super) struct Counted {
    of: Arc<Addresses>,
    at: [usize; 2],
}

impl Addresses {
    /// Counts one more of `addr`, which may have `max`. `None`: it has as many.
    pub(super) fn count(self: &Arc<Self>, addr: IpAddr, max: u32) -> Option<Counted> {
        let rows = self.rows.get_or_init(Rows::new);
        let counted = Counted { of: Arc::clone(self), at: rows.of(&whose(addr)) };
        // One that is refused has counted, too, until here.
        (rows.add(counted.at) <= max).then_some(counted)
    }
}

impl Rows {
    fn new() -> Rows {
        let counts = std::iter::repeat_with(AtomicU32::default).take(2 * ROW).collect();
        Rows { counts, keys: [RandomState::new(), RandomState::new()] }
    }

    fn of(&self, whose: &[u8; 16]) -> [usize; 2] {
        let [first, second] = &self.keys;
        let place = |key: &RandomState| key.hash_one(whose) as usize % ROW;
        [place(first), ROW + place(second)]
    }

    /// What its owner has with this one.
    fn add(&self, at: [usize; 2]) -> u32 {
        let one = |at: usize| match self.counts.get(at) {
            Some(count) => count.fetch_add(1, Relaxed).wrapping_add(1),
            None => 0,
        };
        one(at[0]).min(one(at[1]))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let Some(rows) = self.of.rows.get() else { return };
        for count in self.at.iter().filter_map(|&at| rows.counts.get(at)) {
            count.fetch_sub(1, Relaxed);
        }
    }
}

/// An address, or of IPv6 the network that its owner has: a /64 is the least that anybody is given.
fn whose(addr: IpAddr) -> [u8; 16] {
    match addr.to_canonical() {
        IpAddr::V4(addr) => addr.to_ipv6_mapped().octets(),
        IpAddr::V6(addr) => (u128::from(addr) & !u128::from(u64::MAX)).to_be_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_address_has_as_many_as_it_may_and_gets_back_what_has_ended() {
        let addresses = Arc::new(Addresses::default());
        let (one, other) = (addr("192.0.2.1"), addr("192.0.2.2"));
        let held: Vec<_> = (0..3).map_while(|_| addresses.count(one, 3)).collect();
        assert_eq!(held.len(), 3);
        for _ in 0..10 {
            assert!(addresses.count(one, 3).is_none(), "a refused one must not count on");
        }
        assert!(addresses.count(addr("::ffff:192.0.2.1"), 3).is_none(), "the same, mapped");
        assert!(addresses.count(other, 3).is_some());
        drop(held);
        assert!(addresses.count(one, 1).is_some());
        let left: u32 =
            addresses.rows.get().expect("rows").counts.iter().map(|n| n.load(Relaxed)).sum();
        assert_eq!(left, 0);
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one() {
        let addresses = Arc::new(Addresses::default());
        let _held = addresses.count(addr("2001:db8::1"), 1).expect("room");
        assert!(addresses.count(addr("2001:db8::ffff:2"), 1).is_none());
        assert!(addresses.count(addr("2001:db8:0:1::1"), 1).is_some());
    }

    #[test]
    fn ten_thousand_others_do_not_count_against_an_address() {
        let addresses = Arc::new(Addresses::default());
        let others = |n: u32| IpAddr::from((0x0a00_0000 + n).to_be_bytes());
        let held: Vec<_> = (0..10_000).filter_map(|n| addresses.count(others(n), 64)).collect();
        assert_eq!(held.len(), 10_000);
        assert!(addresses.count(addr("192.0.2.1"), 64).is_some());
    }
}
