//! What a simulated gateway believes of the adapters that a replica has loaded: those that it sent
//! there last, as many as there are slots.

use crate::routing::Residency;

/// The adapters of one replica.
#[derive(Clone, Debug, Default)]
pub(super) struct Adapters {
    slots: usize,
    /// Adapter, requests of ours in flight, last use; at most `slots` that are not in flight.
    known: Vec<(u32, u32, u64)>,
}

impl Adapters {
    pub(super) fn new(slots: u32) -> Adapters {
        Adapters { slots: slots as usize, known: Vec::new() }
    }

    /// A request of ours for `adapter` is sent; 0 = the base model.
    pub(super) fn begin(&mut self, adapter: u32, now_us: u64) {
        self.seen(adapter, now_us);
        if let Some(entry) = self.entry(adapter) {
            entry.1 += 1;
        }
    }

    /// It has ended.
    pub(super) fn end(&mut self, adapter: u32) {
        if let Some(entry) = self.entry(adapter) {
            entry.1 = entry.1.saturating_sub(1);
        }
    }

    /// Somebody has sent a request for `adapter`: it is, or soon will be, loaded.
    pub(super) fn seen(&mut self, adapter: u32, now_us: u64) {
        if adapter == 0 || self.slots == 0 {
            return;
        }
        if let Some(entry) = self.entry(adapter) {
            entry.2 = now_us;
            return;
        }
        if self.known.len() >= self.slots {
            let idle = self.known.iter().enumerate().filter(|(_, known)| known.1 == 0);
            let oldest = idle.min_by_key(|(_, known)| known.2).map(|(i, _)| i);
            oldest.map(|i| self.known.swap_remove(i));
        }
        self.known.push((adapter, 0, now_us));
    }

    /// The replica has started anew.
    pub(super) fn forget(&mut self) {
        self.known.retain(|known| known.1 > 0);
    }

    /// Where the replica stands with `adapter`.
    pub(super) fn residency(&self, adapter: u32) -> Residency {
        if adapter == 0 || self.known.iter().any(|known| known.0 == adapter) {
            Residency::Resident
        } else if self.slots == 0 {
            Residency::Absent
        } else {
            Residency::Loadable
        }
    }

    /// Adapters with requests of ours in flight.
    pub(super) fn busy(&self) -> u32 {
        self.known.iter().filter(|known| known.1 > 0).count() as u32
    }

    fn entry(&mut self, adapter: u32) -> Option<&mut (u32, u32, u64)> {
        self.known.iter_mut().find(|known| known.0 == adapter)
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
        // No slot is free: this one waits in the engine, and counts as coming.
        adapters.begin(4, 40);
        assert_eq!((adapters.busy(), adapters.residency(4)), (3, Residency::Resident));
        [1, 3, 4].iter().for_each(|&a| adapters.end(a));
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
