//! What a simulated gateway believes of the adapters that a replica has loaded: those that were
//! sent there last, as many as there are slots. One that is sent while requests of others hold
//! every slot waits in the engine, and is loaded when a slot is free.

use crate::routing::Residency;

/// The adapters of one replica.
#[derive(Clone, Debug, Default)]
pub(super) struct Adapters {
    slots: usize,
    /// At most `slots` are loaded.
    known: Vec<Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    adapter: u32,
    /// Requests of this gateway in flight.
    in_flight: u32,
    used_us: u64,
    loaded: bool,
}

impl Adapters {
    pub(super) fn new(slots: u32) -> Adapters {
        Adapters { slots: slots as usize, known: Vec::new() }
    }

    /// A request of ours for `adapter` is sent; 0 = the base model.
    pub(super) fn begin(&mut self, adapter: u32, now_us: u64) {
        self.seen(adapter, now_us);
        if let Some(known) = self.entry(adapter) {
            known.in_flight += 1;
        }
    }

    /// It has ended; who waits for a slot may have it.
    pub(super) fn end(&mut self, adapter: u32) {
        let Some(known) = self.entry(adapter) else { return };
        known.in_flight = known.in_flight.saturating_sub(1);
        if known.in_flight == 0 && !known.loaded {
            self.known.retain(|known| known.adapter != adapter);
            return;
        }
        let waiting = self.known.iter().filter(|known| !known.loaded);
        let Some(first) = waiting.min_by_key(|known| known.used_us).map(|k| k.adapter) else {
            return;
        };
        if self.make_room() {
            self.entry(first).into_iter().for_each(|known| known.loaded = true);
        }
    }

    /// Somebody has sent a request for `adapter`: it is, or soon will be, loaded.
    pub(super) fn seen(&mut self, adapter: u32, now_us: u64) {
        if adapter == 0 || self.slots == 0 {
            return;
        }
        if let Some(known) = self.entry(adapter) {
            known.used_us = now_us;
            return;
        }
        let loaded = self.make_room();
        self.known.push(Known { adapter, in_flight: 0, used_us: now_us, loaded });
    }

    /// Whether a slot is free, or the longest unused one can give way and does.
    fn make_room(&mut self) -> bool {
        if self.known.iter().filter(|known| known.loaded).count() < self.slots {
            return true;
        }
        let idle = self.known.iter().enumerate().filter(|(_, k)| k.loaded && k.in_flight == 0);
        let oldest = idle.min_by_key(|(_, known)| known.used_us).map(|(i, _)| i);
        oldest.map(|i| self.known.swap_remove(i)).is_some()
    }

    /// The replica has started anew.
    pub(super) fn forget(&mut self) {
        self.known.retain(|known| known.in_flight > 0);
    }

    /// Where the replica stands with `adapter`.
    pub(super) fn residency(&self, adapter: u32) -> Residency {
        if adapter == 0 || self.known.iter().any(|k| k.adapter == adapter && k.loaded) {
            Residency::Resident
        } else if self.slots == 0 {
            Residency::Absent
        } else {
            Residency::Loadable
        }
    }

    /// Adapters with requests of ours in flight.
    pub(super) fn busy(&self) -> u32 {
        self.known.iter().filter(|known| known.in_flight > 0).count() as u32
    }

    fn entry(&mut self, adapter: u32) -> Option<&mut Known> {
        self.known.iter_mut().find(|known| known.adapter == adapter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_gives_way_and_the_busy_stay() {
        let mut adapters = Adapters::new(2);
        adapters.begin(1, 10);
        adapters.begin(2, 20);
        adapters.end(2);
        adapters.begin(3, 30);
        assert_eq!(adapters.residency(1), Residency::Resident);
        assert_eq!(adapters.residency(2), Residency::Loadable);
        assert_eq!(adapters.busy(), 2);
    }

    #[test]
    fn who_finds_every_slot_busy_waits_for_one() {
        let mut adapters = Adapters::new(2);
        [1, 2, 3].iter().for_each(|&a| adapters.begin(a, 10 * u64::from(a)));
        assert_eq!((adapters.busy(), adapters.residency(3)), (3, Residency::Loadable));
        adapters.end(1);
        assert_eq!(adapters.residency(1), Residency::Loadable);
        assert_eq!(adapters.residency(3), Residency::Resident);
        [2, 3].iter().for_each(|&a| adapters.end(a));
        assert_eq!(adapters.busy(), 0);
    }

    #[test]
    fn the_base_model_is_everywhere_and_no_slots_is_absent() {
        let mut adapters = Adapters::new(0);
        adapters.begin(0, 1);
        adapters.begin(5, 1);
        assert_eq!(adapters.residency(0), Residency::Resident);
        assert_eq!(adapters.residency(5), Residency::Absent);
    }
}
