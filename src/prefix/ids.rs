//! Holders' numbers: what stands in the sets, for the slots that callers know.
//!
//! A slot has a number from its first block until it is cleared. The number is dead then: readers
//! find no slot behind it, and the table's next rebuild takes it out of every set before it is
//! given to another. Owned by the writer; readers see only [`Ids::slots`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use super::Slot;
use super::set::IDS_MAX;

/// No slot is behind this number.
pub(super) const NOBODY: Slot = Slot::MAX;

/// The numbers.
pub(super) struct Ids {
    /// Number -> slot.
    slots: Arc<[AtomicU16]>,
    /// Given before and free again; the lowest first, so that large sets stay narrow.
    free: BinaryHeap<Reverse<u16>>,
    /// From here on none was ever given.
    next: u16,
    /// Cleared since the running rebuild began, or since the last.
    dead: Vec<u16>,
    /// What the running rebuild takes out of every set.
    dying: Vec<u16>,
    /// Bits of both.
    gone: Vec<u64>,
}

impl Ids {
    pub(super) fn new() -> Ids {
        let slots = (0..IDS_MAX).map(|_| AtomicU16::new(NOBODY)).collect();
        let gone = vec![0; IDS_MAX / 64];
        Ids { slots, free: BinaryHeap::new(), next: 0, dead: Vec::new(), dying: Vec::new(), gone }
    }

    /// Number -> slot, for readers.
    pub(super) fn slots(&self) -> Arc<[AtomicU16]> {
        Arc::clone(&self.slots)
    }

    /// A number for a slot; none when all are given or dead.
    pub(super) fn take(&mut self, slot: Slot) -> Option<u16> {
        let id = match self.free.pop() {
            Some(Reverse(id)) => id,
            None => {
                let id = self.next;
                self.slots.get(usize::from(id))?;
                self.next += 1;
                id
            }
        };
        self.point(id, slot);
        Some(id)
    }

    /// The number is nobody's from now on.
    pub(super) fn retire(&mut self, id: u16) {
        self.point(id, NOBODY);
        self.mark(id, true);
        self.dead.push(id);
    }

    /// A number that stands in no set is free again.
    pub(super) fn give_back(&mut self, id: u16) {
        self.point(id, NOBODY);
        self.free.push(Reverse(id));
    }

    /// Whether a rebuild would free numbers.
    pub(super) fn any_dead(&self) -> bool {
        !self.dead.is_empty()
    }

    /// The bits of all numbers that are to go out of the sets; none when there is none.
    pub(super) fn gone(&self) -> Option<&[u64]> {
        (!self.dead.is_empty() || !self.dying.is_empty()).then_some(&*self.gone)
    }

    /// A rebuild begins.
    pub(super) fn rebuild_begins(&mut self) {
        self.dying.append(&mut self.dead);
    }

    /// It has passed every set.
    pub(super) fn rebuild_ends(&mut self) {
        for id in std::mem::take(&mut self.dying) {
            self.mark(id, false);
            self.free.push(Reverse(id));
        }
    }

    fn point(&self, id: u16, slot: Slot) {
        if let Some(place) = self.slots.get(usize::from(id)) {
            place.store(slot, Ordering::Release);
        }
    }

    fn mark(&mut self, id: u16, gone: bool) {
        if let Some(word) = self.gone.get_mut(usize::from(id) / 64) {
            let bit = 1 << (id % 64);
            *word = if gone { *word | bit } else { *word & !bit };
        }
    }
}
