//! A map from `u64` to an index: open addressing, linear probing, at most half full, deletion by
//! shifting back. It is asked a few times for each request and never more, so it is small and its
//! keys lie beside its values.

use super::slab::NONE;

/// 2^64 over the golden ratio: spreads keys that count up, and does no harm to hashes.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// See the module.
#[derive(Debug)]
pub(super) struct Table {
    /// Key and value; a value of [`NONE`] is an empty place. A power of two of them.
    places: Vec<(u64, u32)>,
    used: usize,
}

impl Table {
    pub(super) fn new() -> Table {
        Table { places: vec![(0, NONE); 64], used: 0 }
    }

    pub(super) fn get(&self, key: u64) -> Option<u32> {
        self.place(key).map(|(_, value)| value)
    }

    /// Sets the value of a key.
    pub(super) fn insert(&mut self, key: u64, value: u32) {
        if self.used * 2 >= self.places.len() {
            self.double();
        }
        let mut at = self.home(key);
        loop {
            let Some(place) = self.places.get_mut(at) else { return };
            let vacant = place.1 == NONE;
            if vacant || place.0 == key {
                *place = (key, value);
                self.used += usize::from(vacant);
                return;
            }
            at = self.next(at);
        }
    }

    pub(super) fn remove(&mut self, key: u64) {
        let Some((mut hole, _)) = self.place(key) else { return };
        self.used -= 1;
        let mut at = hole;
        loop {
            at = self.next(at);
            let Some(&(moved, value)) = self.places.get(at).filter(|p| p.1 != NONE) else { break };
            // It may move back only as far as its home.
            let mask = self.places.len() - 1;
            let from_home = at.wrapping_sub(self.home(moved)) & mask;
            if from_home >= at.wrapping_sub(hole) & mask {
                self.set(hole, (moved, value));
                hole = at;
            }
        }
        self.set(hole, (0, NONE));
    }

    pub(super) fn clear(&mut self) {
        self.places.fill((0, NONE));
        self.used = 0;
    }

    pub(super) fn len(&self) -> usize {
        self.used
    }

    fn place(&self, key: u64) -> Option<(usize, u32)> {
        let mut at = self.home(key);
        loop {
            let &(found, value) = self.places.get(at).filter(|p| p.1 != NONE)?;
            if found == key {
                return Some((at, value));
            }
            at = self.next(at);
        }
    }

    fn set(&mut self, at: usize, to: (u64, u32)) {
        if let Some(place) = self.places.get_mut(at) {
            *place = to;
        }
    }

    fn home(&self, key: u64) -> usize {
        let bits = self.places.len().trailing_zeros();
        (key.wrapping_mul(SPREAD) >> (64 - bits)) as usize
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }

    fn double(&mut self) {
        let doubled = vec![(0, NONE); self.places.len() * 2];
        let old = std::mem::replace(&mut self.places, doubled);
        self.used = 0;
        for (key, value) in old.into_iter().filter(|p| p.1 != NONE) {
            self.insert(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn it_agrees_with_the_standard_map_through_any_changes() {
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut table, mut map) = (Table::new(), HashMap::new());
        for round in 0..60_000u32 {
            // Few homes, so that runs of places wrap around and shift.
            let key = rng.u64(..200) << if rng.bool() { 58 } else { 0 };
            if rng.u8(..5) < 3 {
                table.insert(key, round);
                map.insert(key, round);
            } else {
                table.remove(key);
                map.remove(&key);
            }
            assert_eq!(table.get(key), map.get(&key).copied());
            assert_eq!(table.len(), map.len());
        }
        assert!(map.iter().all(|(&key, &value)| table.get(key) == Some(value)));
        table.clear();
        assert!(map.keys().all(|&key| table.get(key).is_none()));
    }
}
