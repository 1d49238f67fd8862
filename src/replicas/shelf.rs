//! Which adapter makes room for another on a replica, and what a replica is known to load or to
//! refuse. The choice is pure; the marks are read by cores and written by the control thread.

use std::sync::Arc;

use arc_swap::ArcSwap;

/// Refusals that are remembered of one replica.
const REFUSALS_MAX: usize = 256;

/// An adapter that was loaded on demand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shelved {
    /// Requests for it are in flight there.
    pub busy: bool,
    /// Since its last request, in ms; `u64::MAX` when that is not remembered.
    pub idle_ms: u64,
}

/// There is no room, and nobody can make any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// The index of the one to unload before another is loaded where `room` fit; `None` = there is
/// room. The first of those that have been idle for equally long was loaded first.
pub(super) fn victim(shelved: &[Shelved], room: usize) -> Result<Option<usize>, Full> {
    if shelved.len() < room.max(1) {
        return Ok(None);
    }
    let idle = shelved.iter().enumerate().filter(|(_, one)| !one.busy);
    let longest = idle.rev().max_by_key(|(_, one)| one.idle_ms);
    longest.map(|(at, _)| Some(at)).ok_or(Full)
}

/// What is known of one replica beyond its list.
#[derive(Clone, Debug, Default)]
struct Marks {
    /// Hashes of adapters that it is loading.
    expected: Vec<u64>,
    /// Hashes of adapters that it would not load, and until when that is believed, in ms.
    refused: Vec<(u64, u64)>,
}

/// The marks of one replica.
#[derive(Debug, Default)]
pub struct Loads(ArcSwap<Marks>);

impl Loads {
    /// Is it loading the adapter with this hash?
    #[must_use]
    pub fn expects(&self, adapter: u64) -> bool {
        self.0.load().expected.contains(&adapter)
    }

    /// Would it load the adapter with this hash, as far as is known?
    #[must_use]
    pub fn may_load(&self, adapter: u64, now_ms: u64) -> bool {
        let marks = self.0.load();
        !marks.refused.iter().any(|(hash, until_ms)| *hash == adapter && now_ms < *until_ms)
    }

    /// Begins or ends a load; several orders for one adapter count.
    pub(super) fn expect(&self, adapter: u64, begins: bool) {
        let mut marks = Marks::clone(&self.0.load());
        match marks.expected.iter().position(|hash| *hash == adapter) {
            _ if begins => marks.expected.push(adapter),
            Some(at) => drop(marks.expected.swap_remove(at)),
            None => {}
        }
        self.0.store(Arc::new(marks));
    }

    /// It refused; not to be asked again before `until_ms`.
    pub(super) fn refuse(&self, adapter: u64, until_ms: u64) {
        let mut marks = Marks::clone(&self.0.load());
        marks.refused.retain(|(hash, _)| *hash != adapter);
        if marks.refused.len() >= REFUSALS_MAX {
            marks.refused.remove(0);
        }
        marks.refused.push((adapter, until_ms));
        self.0.store(Arc::new(marks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle(idle_ms: u64) -> Shelved {
        Shelved { busy: false, idle_ms }
    }

    #[test]
    fn the_longest_idle_makes_room_and_nobody_in_use() {
        let busy = Shelved { busy: true, idle_ms: u64::MAX };
        assert_eq!(victim(&[], 2), Ok(None));
        assert_eq!(victim(&[idle(9)], 2), Ok(None));
        assert_eq!(victim(&[idle(5), idle(9), idle(7)], 3), Ok(Some(1)));
        assert_eq!(victim(&[busy, idle(0)], 2), Ok(Some(1)));
        assert_eq!(victim(&[idle(3), idle(3)], 2), Ok(Some(0)), "the first loaded");
        assert_eq!(victim(&[busy, busy], 2), Err(Full));
        assert_eq!(victim(&[], 0), Ok(None), "one always fits");
        assert_eq!(victim(&[idle(u64::MAX), idle(1)], 1), Ok(Some(0)));
    }

    #[test]
    fn marks_are_counted_and_forgotten() {
        let loads = Loads::default();
        loads.expect(7, true);
        loads.expect(7, true);
        loads.expect(7, false);
        assert!(loads.expects(7) && !loads.expects(8));
        loads.expect(7, false);
        loads.expect(7, false);
        assert!(!loads.expects(7));
        loads.refuse(7, 100);
        assert!(!loads.may_load(7, 99) && loads.may_load(7, 100) && loads.may_load(8, 0));
        (0..1_000).for_each(|hash| loads.refuse(hash, 500));
        assert!(loads.may_load(7, 0) && !loads.may_load(999, 0), "bounded");
    }
}
