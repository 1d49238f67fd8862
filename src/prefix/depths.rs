//! How deep each slot holds a chain: the readers' walk.
//!
//! Every block of the chain is looked at until nobody is left who held all before it, so the
//! answer is right also where a slot has lost a block from the middle. Blocks are fetched many
//! at a time, and memory serves them side by side; what is left of a walk is the work on their
//! sets, and along a chain most sets are equal to the one before.
//!
//! Lock-free and without allocation, on any thread. A write in between is seen in part or not at
//! all.

use std::sync::atomic::{AtomicU16, Ordering};

use super::directory::{Bucket, Directory};
use super::ids::NOBODY;
use super::masks::bit;
use super::set::{IDS_MAX, Set};
use crate::prompt::blocks::BlockHash;

/// Blocks fetched together: more misses than a core has in flight, and fewer at first, since most
/// of what nobody holds ends there.
const BATCH: usize = 32;
const FIRST_BATCH: usize = 8;
/// Words of the widest mask.
const WORDS_MAX: usize = IDS_MAX / 64;
/// How often a block is read that changes under its reader.
const TRIES: usize = 3;

/// `out[slot]` = leading blocks of `chain` that the slot holds.
pub(super) fn depths(
    directory: &Directory,
    slots: &[AtomicU16],
    chain: &[BlockHash],
    key_of: impl Fn(BlockHash) -> u64,
    out: &mut [u32],
) {
    out.fill(0);
    let mut walk = Walk::new(directory, slots, out);
    let (first, rest) = chain.split_at(chain.len().min(FIRST_BATCH));
    for blocks in [first].into_iter().chain(rest.chunks(BATCH)) {
        let (mut keys, mut near) = ([0; BATCH], 0);
        for (&hash, key) in blocks.iter().zip(&mut keys) {
            *key = key_of(hash);
            let (side, home) = directory.place(*key);
            near ^= side.bucket(home).map_or(0, Bucket::touch);
        }
        std::hint::black_box(near);
        for &key in keys.iter().take(blocks.len()) {
            walk.meet(key);
            if walk.alive == Alive::Few(Set::EMPTY) {
                return;
            }
            walk.leave.depth += 1;
        }
    }
    walk.leave_all();
}

/// Who has held every block so far.
#[derive(PartialEq, Eq)]
enum Alive {
    /// Nobody was asked yet.
    All,
    /// These.
    Few(Set),
    /// Those whose bits are set.
    Many,
}

/// Where the answer goes.
struct Leave<'a> {
    /// Number -> slot.
    slots: &'a [AtomicU16],
    /// Slot -> depth.
    out: &'a mut [u32],
    /// Blocks behind us.
    depth: u32,
}

impl Leave<'_> {
    /// This holder comes no further.
    #[inline]
    fn one(&mut self, id: u16) {
        let slot = self.slots.get(usize::from(id)).map_or(NOBODY, |at| at.load(Ordering::Acquire));
        if let Some(out) = self.out.get_mut(usize::from(slot)) {
            *out = self.depth;
        }
    }

    /// Those whose bits are set in the word at this place.
    #[inline]
    fn word(&mut self, at: u16, mut word: u64) {
        while word != 0 {
            self.one(at * 64 + word.trailing_zeros() as u16);
            word &= word - 1;
        }
    }
}

/// One walk along one chain.
struct Walk<'a> {
    directory: &'a Directory,
    leave: Leave<'a>,
    alive: Alive,
    /// Words in use of the two below.
    width: usize,
    /// Bits of those alive, when they are many.
    bits: [u64; WORDS_MAX],
    /// The mask of the block at hand.
    mask: [u64; WORDS_MAX],
}

impl<'a> Walk<'a> {
    fn new(directory: &'a Directory, slots: &'a [AtomicU16], out: &'a mut [u32]) -> Walk<'a> {
        let width = directory.masks.width().min(WORDS_MAX);
        let (bits, mask) = ([0; WORDS_MAX], [0; WORDS_MAX]);
        let leave = Leave { slots, out, depth: 0 };
        Walk { directory, leave, alive: Alive::All, width, bits, mask }
    }

    /// Who does not hold the block leaves.
    #[inline]
    fn meet(&mut self, key: u64) {
        match self.read(key) {
            Some(set) if set.cell().is_some() => self.meet_mask(),
            set => self.meet_few(set.unwrap_or(Set::EMPTY)),
        }
    }

    /// The block's set; when it is not in its word, its bits are in `mask`.
    #[inline]
    fn read(&mut self, key: u64) -> Option<Set> {
        let (side, home) = self.directory.place(key);
        for _ in 0..TRIES {
            let (bucket, lane) = side.find(key, home)?;
            let (held, word) = bucket.cell(lane)?;
            let set = Set::of_bits(word.load(Ordering::Acquire));
            let masks = &self.directory.masks;
            if set.cell().is_some_and(|cell| !masks.read(cell, key, &mut self.mask)) {
                continue;
            }
            // The lane may be another block's by now: this one has moved or gone.
            if held.load(Ordering::Relaxed) == key {
                return Some(set);
            }
        }
        None
    }

    #[inline]
    fn meet_few(&mut self, set: Set) {
        match self.alive {
            Alive::All => self.alive = Alive::Few(set),
            Alive::Few(alive) if alive == set => {}
            Alive::Few(alive) => self.keep(alive, |id| set.names(id)),
            Alive::Many => {
                let alive = Set::of(set.ids().filter(|&id| bit(&self.bits, id)));
                for id in alive.ids() {
                    if let Some(word) = self.bits.get_mut(usize::from(id) / 64) {
                        *word &= !(1 << (id % 64));
                    }
                }
                self.leave_bits();
                self.alive = Alive::Few(alive);
            }
        }
    }

    #[inline]
    fn meet_mask(&mut self) {
        match self.alive {
            Alive::All => {
                self.bits = self.mask;
                self.alive = Alive::Many;
            }
            Alive::Few(alive) => {
                let left = Set::of(alive.ids().filter(|&id| bit(&self.mask, id)));
                self.keep(alive, |id| left.names(id));
            }
            Alive::Many => {
                let mut left = 0;
                for ((bits, mask), at) in
                    self.bits.iter_mut().zip(&self.mask).zip(0..).take(self.width)
                {
                    self.leave.word(at, *bits & !mask);
                    *bits &= mask;
                    left |= *bits;
                }
                if left == 0 {
                    self.alive = Alive::Few(Set::EMPTY);
                }
            }
        }
    }

    /// Of these few, some stay.
    fn keep(&mut self, alive: Set, stays: impl Fn(u16) -> bool) {
        alive.ids().filter(|&id| !stays(id)).for_each(|id| self.leave.one(id));
        self.alive = Alive::Few(Set::of(alive.ids().filter(|&id| stays(id))));
    }

    fn leave_bits(&mut self) {
        for (&word, at) in self.bits.iter().zip(0..).take(self.width) {
            self.leave.word(at, word);
        }
    }

    /// Whoever is still there holds the whole chain.
    fn leave_all(&mut self) {
        match self.alive {
            Alive::All => {}
            Alive::Few(alive) => alive.ids().for_each(|id| self.leave.one(id)),
            Alive::Many => self.leave_bits(),
        }
    }
}
