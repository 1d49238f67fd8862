//! The adapters that an engine has resident: a few slots, given to the least recently used.
//!
//! An adapter that is not resident is loaded into a slot that no running request uses. The load
//! delays those who wait for it and nobody else: vLLM reads the adapter between two steps, which
//! would hold up the others for a part of that time too.

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Its adapter; 0 = none.
    adapter: u32,
    /// Running requests that use it.
    users: u32,
    ready_us: u64,
    used_us: u64,
}

/// What a request finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It can run; the slot is to be given to [`Adapters::enter`].
    Ready(u32),
    /// It waits: the adapter is being loaded, or no slot is free.
    Wait,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Adapters {
    slots: Vec<Slot>,
    load_us: u64,
    /// Something has changed since the waiting ones were asked last.
    changed: bool,
}

impl Adapters {
    pub(super) fn new(slots: u32, load_ms: f64) -> Adapters {
        let load_us = (load_ms.max(0.0) * 1e3).round() as u64;
        Adapters { slots: vec![Slot::default(); slots as usize], load_us, changed: false }
    }

    /// Finds an adapter, or begins to load it where there is a slot.
    pub(super) fn find(&mut self, now_us: u64, adapter: u32) -> Found {
        if let Some(at) = self.slots.iter().position(|s| s.adapter == adapter) {
            let ready = self.slots.get(at).is_some_and(|s| s.ready_us <= now_us);
            return if ready { Found::Ready(at as u32) } else { Found::Wait };
        }
        let vacant = |s: &&mut Slot| s.users == 0 && s.ready_us <= now_us;
        let Some(slot) = self.slots.iter_mut().filter(vacant).min_by_key(|s| s.used_us) else {
            return Found::Wait;
        };
        let ready_us = now_us.saturating_add(self.load_us);
        *slot = Slot { adapter, users: 0, ready_us, used_us: now_us };
        // Without a load time it is there at once.
        if self.load_us == 0 { self.find(now_us, adapter) } else { Found::Wait }
    }

    /// A request begins to run in a slot.
    pub(super) fn enter(&mut self, now_us: u64, slot: u32) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.users += 1;
            slot.used_us = now_us;
        }
    }

    /// A request of a slot stops.
    pub(super) fn leave(&mut self, now_us: u64, slot: u32) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.users = slot.users.saturating_sub(1);
            slot.used_us = now_us;
            self.changed |= slot.users == 0;
        }
    }

    /// When the next load ends.
    pub(super) fn next_us(&self, now_us: u64) -> Option<u64> {
        self.slots.iter().map(|s| s.ready_us).filter(|&ready| ready > now_us).min()
    }

    /// Whether those who wait may find something else than the last time.
    pub(super) fn changed(&mut self, since_us: u64, now_us: u64) -> bool {
        let loaded = self.slots.iter().any(|s| s.ready_us > since_us && s.ready_us <= now_us);
        std::mem::take(&mut self.changed) || loaded
    }

    /// Those who wait are to be asked in the next step too.
    pub(super) fn ask_again(&mut self) {
        self.changed = true;
    }

    /// Resident adapters that can be used, by slot.
    pub(super) fn resident(&self, now_us: u64) -> impl Iterator<Item = u32> {
        self.slots.iter().filter(move |s| s.ready_us <= now_us && s.adapter != 0).map(|s| s.adapter)
    }

    /// Running requests of all slots.
    pub(super) fn users(&self) -> u32 {
        self.slots.iter().map(|s| s.users).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_in_use_stays_and_the_least_recently_used_goes() {
        let mut adapters = Adapters::new(2, 1.0);
        for adapter in [1, 2] {
            assert_eq!(adapters.find(0, adapter), Found::Wait, "it is being loaded");
        }
        assert_eq!(adapters.find(500, 3), Found::Wait, "both slots are loading");
        assert_eq!(adapters.next_us(0), Some(1000));
        assert!(adapters.changed(0, 1000) && !adapters.changed(1000, 1100));
        let (Found::Ready(one), Found::Ready(two)) =
            (adapters.find(1000, 1), adapters.find(1000, 2))
        else {
            panic!("both are loaded")
        };
        adapters.enter(1000, one);
        adapters.enter(1001, two);
        assert_eq!(adapters.find(2000, 3), Found::Wait);
        assert_eq!(adapters.next_us(2000), None, "nothing is loaded while all slots are in use");
        adapters.leave(3000, two);
        adapters.leave(3001, one);
        assert!(adapters.changed(2000, 3001));
        assert_eq!(adapters.find(3002, 3), Found::Wait);
        assert_eq!(adapters.resident(3002).collect::<Vec<_>>(), [1], "2 was used before 1");
        assert!(matches!(adapters.find(4002, 3), Found::Ready(_)));
    }

    #[test]
    fn an_engine_without_slots_serves_no_adapter() {
        assert_eq!(Adapters::new(0, 0.0).find(0, 7), Found::Wait);
        assert!(matches!(Adapters::new(1, 0.0).find(0, 7), Found::Ready(0)));
    }
}
