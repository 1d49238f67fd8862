//! How deep each slot holds a chain: the readers' walk.
//!
//! Every block of the chain is looked at until nobody is left who held all before it, so the
//! answer is right also where a slot has lost a block from the middle. Blocks are fetched sixteen
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

/// Blocks fetched together: as many misses as a core has in flight.
const BATCH: usize = 16;
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
    for blocks in chain.chunks(BATCH) {
        let (mut keys, mut near) = ([0; BATCH], 0);
        for (&hash, key) in blocks.iter().zip(&mut keys) {
            *key = key_of(hash);
            let (side, home) = directory.place(*key);
            near ^= side.bucket(home).map_or(0, Bucket::touch);
        }
        std::hint::black_box(near);
        for &key in keys.iter().take(blocks.len()) {
            walk.meet(key);
            if !walk.anyone() {
                return;
            }
            walk.depth += 1;
        }
    }
    walk.leave_all();
}

/// Who has held every block so far.
enum Alive {
    /// Nobody was asked yet.
    All,
    /// These.
    Few(Set),
    /// Those whose bits are set.
    Many,
}

/// One walk along one chain.
struct Walk<'a> {
    directory: &'a Directory,
    /// Number -> slot.
    slots: &'a [AtomicU16],
    /// Slot -> depth.
    out: &'a mut [u32],
    /// Blocks behind us.
    depth: u32,
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
        Walk { directory, slots, out, depth: 0, alive: Alive::All, width, bits, mask }
    }

    fn anyone(&self) -> bool {
        match self.alive {
            Alive::All | Alive::Many => true,
            Alive::Few(set) => set != Set::EMPTY,
        }
    }

    /// Who does not hold the block has `depth` blocks.
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
            if let Some(cell) = set.cell() {
                let words = self.directory.masks.cell(cell);
                for (to, from) in self.mask.iter_mut().zip(words) {
                    *to = from.load(Ordering::Acquire);
                }
                if Set::of_bits(word.load(Ordering::Relaxed)) != set {
                    continue;
                }
            }
            // The lane may have been given to another block in between, which has then moved or gone.
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
            Alive::Few(alive) => {
                alive.ids().filter(|&id| !set.names(id)).for_each(|id| self.leave(id));
                self.alive = Alive::Few(Set::of(alive.ids().filter(|&id| set.names(id))));
            }
            Alive::Many => {
                let alive = Set::of(set.ids().filter(|&id| bit(&self.bits, id)));
                self.leave_bits(|id| !alive.names(id));
                self.alive = Alive::Few(alive);
            }
        }
    }

    fn meet_mask(&mut self) {
        match self.alive {
            Alive::All => {
                self.bits = self.mask;
                self.alive = Alive::Many;
            }
            Alive::Few(alive) => {
                let held = |id: u16| bit(&self.mask, id);
                let left = Set::of(alive.ids().filter(|&id| held(id)));
                alive.ids().filter(|&id| !left.names(id)).for_each(|id| self.leave(id));
                self.alive = Alive::Few(left);
            }
            Alive::Many => self.meet_bits(),
        }
    }

    fn meet_bits(&mut self) {
        let (mut left, mut gone) = (0, 0);
        for (bits, mask) in self.bits.iter().zip(&self.mask).take(self.width) {
            left |= bits & mask;
            gone |= bits & !mask;
        }
        if gone != 0 {
            let mask = self.mask;
            self.leave_bits(|id| !bit(&mask, id));
            self.bits.iter_mut().zip(&mask).for_each(|(bits, mask)| *bits &= mask);
        }
        if left == 0 {
            self.alive = Alive::Few(Set::EMPTY);
        }
    }

    /// Those of `bits` that are so chosen leave.
    fn leave_bits(&mut self, chosen: impl Fn(u16) -> bool) {
        let bits = self.bits;
        for (&word, at) in bits.iter().take(self.width).zip(0u16..) {
            let mut rest = word;
            while rest != 0 {
                let id = at * 64 + rest.trailing_zeros() as u16;
                rest &= rest - 1;
                if chosen(id) {
                    self.leave(id);
                }
            }
        }
    }

    /// Whoever is still there holds the whole chain, or all that was looked at.
    fn leave_all(&mut self) {
        match self.alive {
            Alive::All => {}
            Alive::Few(alive) => alive.ids().for_each(|id| self.leave(id)),
            Alive::Many => self.leave_bits(|_| true),
        }
    }

    #[inline]
    fn leave(&mut self, id: u16) {
        let slot = self.slots.get(usize::from(id)).map_or(NOBODY, |at| at.load(Ordering::Acquire));
        if let Some(out) = self.out.get_mut(usize::from(slot)) {
            *out = self.depth;
        }
    }
}

