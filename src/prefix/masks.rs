//! The sets of holders that do not fit into a word: one bit a holder.
//!
//! [`Masks`] is what readers see: cells of a fixed width in chunks that never move. [`Cells`] is
//! the writer's: which cells are free, and how a set grows into one and shrinks out of it. A cell
//! says whose it is before its bits: one that was given back and taken again while a reader was on
//! its way tells that reader nothing wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::set::Set;

/// Words of all cells of a chunk, without their owners'.
const CHUNK_WORDS: usize = 4096;
/// A set of so few goes back into its word; less than a word's most, so that one holder who comes
/// and goes does not move it each time.
const SHRINK_AT: u32 = 2;

/// The cells.
#[derive(Clone)]
pub(super) struct Masks {
    /// Words of a cell's bits; a power of two.
    width: usize,
    chunks: Vec<Arc<[AtomicU64]>>,
}

impl Masks {
    /// Words of a cell's bits.
    #[inline]
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Memory of a chunk in bytes.
    fn chunk_bytes(&self) -> usize {
        (CHUNK_WORDS + CHUNK_WORDS / self.width) * 8
    }

    /// A cell's owner and bits; none when it does not exist.
    #[inline]
    fn cell(&self, cell: u32) -> Option<(&AtomicU64, &[AtomicU64])> {
        let shift = CHUNK_WORDS.trailing_zeros() - self.width.trailing_zeros();
        let at = (cell as usize & ((1 << shift) - 1)) * (self.width + 1);
        self.chunks.get(cell as usize >> shift)?.get(at..=at + self.width)?.split_first()
    }

    /// Copies the bits of `key`'s cell; whether they were its own all the while.
    #[inline]
    pub(super) fn read(&self, cell: u32, key: u64, bits: &mut [u64]) -> bool {
        let Some((owner, words)) = self.cell(cell) else { return false };
        let before = owner.load(Ordering::Acquire);
        for (to, from) in bits.iter_mut().zip(words) {
            *to = from.load(Ordering::Acquire);
        }
        before == key && owner.load(Ordering::Relaxed) == key
    }

    fn words(&self, cell: u32) -> &[AtomicU64] {
        self.cell(cell).map_or(&[], |(_, words)| words)
    }

    fn push_chunk(&mut self) {
        self.chunks.push((0..self.chunk_bytes() / 8).map(|_| AtomicU64::new(0)).collect());
    }
}

/// What became of a set.
pub(super) enum Change {
    /// It is this word now.
    Word(Set),
    /// The word stays as it is: the change was in the cell, or there was none to make.
    Inside {
        /// Whether there was a change.
        changed: bool,
    },
}

/// The writer's half.
pub(super) struct Cells {
    /// As published or about to be.
    masks: Arc<Masks>,
    free: Vec<u32>,
    used: u32,
    /// Readers do not see `masks` yet.
    stale: bool,
}

impl Cells {
    pub(super) fn new() -> Cells {
        let masks = Arc::new(Masks { width: 1, chunks: Vec::new() });
        Cells { masks, free: Vec::new(), used: 0, stale: false }
    }

    /// What readers should see.
    pub(super) fn masks(&self) -> &Arc<Masks> {
        &self.masks
    }

    /// Memory of the cells in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.masks.chunks.len() * self.masks.chunk_bytes() + self.free.capacity() * 4
    }

    /// Memory that one more cell may take, in bytes.
    pub(super) fn cell_bytes(&self) -> usize {
        (self.masks.width + 1) * 8
    }

    /// Whether readers must be given new masks before a word may name a cell; once each.
    pub(super) fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.stale)
    }

    /// Adds a holder to the set of `key`.
    pub(super) fn add(&mut self, key: u64, set: Set, id: u16) -> Change {
        if let Some(cell) = set.cell() {
            return Change::Inside { changed: self.put(cell, id, true) };
        }
        if set.names(id) {
            return Change::Inside { changed: false };
        }
        if let Some(set) = set.with(id) {
            return Change::Word(set);
        }
        let cell = self.take_cell();
        for id in set.ids().chain([id]) {
            self.put(cell, id, true);
        }
        if let Some((owner, _)) = self.masks.cell(cell) {
            owner.store(key, Ordering::Release);
        }
        Change::Word(Set::spilled(cell))
    }

    /// Takes a holder out.
    pub(super) fn take(&mut self, set: Set, id: u16) -> Change {
        let Some(cell) = set.cell() else {
            let held = set.names(id);
            let word = Change::Word(set.without(id));
            return if held { word } else { Change::Inside { changed: false } };
        };
        let changed = self.put(cell, id, false);
        if changed && self.count(cell) <= SHRINK_AT {
            return Change::Word(self.shrink(cell));
        }
        Change::Inside { changed }
    }

    /// The set without those whose bit is in `gone`.
    pub(super) fn strip(&mut self, set: Set, gone: &[u64]) -> Set {
        let is_gone = |id: u16| bit(gone, id);
        let Some(cell) = set.cell() else {
            return Set::of(set.ids().filter(|&id| !is_gone(id)));
        };
        for (word, gone) in self.masks.words(cell).iter().zip(gone) {
            word.store(word.load(Ordering::Relaxed) & !gone, Ordering::Relaxed);
        }
        if self.count(cell) <= SHRINK_AT { self.shrink(cell) } else { set }
    }

    /// The set is no longer in the table.
    pub(super) fn give_back(&mut self, set: Set) {
        if let Some(cell) = set.cell() {
            self.shrink(cell);
        }
    }

    fn shrink(&mut self, cell: u32) -> Set {
        let set = Set::of(ones(self.masks.words(cell)));
        if let Some((owner, words)) = self.masks.cell(cell) {
            owner.store(0, Ordering::Release);
            words.iter().for_each(|word| word.store(0, Ordering::Release));
        }
        self.free.push(cell);
        set
    }

    fn count(&self, cell: u32) -> u32 {
        self.masks.words(cell).iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum()
    }

    /// Sets or clears a bit; whether that was a change.
    fn put(&mut self, cell: u32, id: u16, on: bool) -> bool {
        let Some(word) = self.masks.words(cell).get(usize::from(id) / 64) else { return false };
        let (before, bit) = (word.load(Ordering::Relaxed), 1 << (id % 64));
        let after = if on { before | bit } else { before & !bit };
        word.store(after, Ordering::Relaxed);
        before != after
    }

    /// An empty cell, nobody's.
    fn take_cell(&mut self) -> u32 {
        if let Some(cell) = self.free.pop() {
            return cell;
        }
        let cell = self.used;
        self.used += 1;
        if self.masks.cell(cell).is_none() {
            Arc::make_mut(&mut self.masks).push_chunk();
            self.stale = true;
        }
        cell
    }

    /// Makes all cells as wide as `id` needs, if what that adds is within `room` bytes; whether
    /// they are. Copies them: this is when a fleet has grown.
    pub(super) fn reach(&mut self, id: u16, room: usize) -> bool {
        let width = (usize::from(id) / 64 + 1).next_power_of_two();
        if width <= self.masks.width {
            return true;
        }
        let mut wide = Masks { width, chunks: Vec::new() };
        let chunks = (self.used as usize * width).div_ceil(CHUNK_WORDS);
        if (chunks * wide.chunk_bytes()).saturating_sub(self.bytes()) > room {
            return false;
        }
        (0..chunks).for_each(|_| wide.push_chunk());
        for cell in 0..self.used {
            let (Some((owner, words)), Some((to, bits))) = (self.masks.cell(cell), wide.cell(cell))
            else {
                continue;
            };
            for (to, from) in [to].into_iter().chain(bits).zip([owner].into_iter().chain(words)) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        self.masks = Arc::new(wide);
        self.stale = true;
        true
    }
}

/// The numbers whose bits are set.
fn ones(words: &[AtomicU64]) -> impl Iterator<Item = u16> {
    words.iter().zip(0u16..).flat_map(|(word, at)| {
        let word = word.load(Ordering::Relaxed);
        (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit)
    })
}

/// Whether the bit of `id` is set.
#[inline]
pub(super) fn bit(words: &[u64], id: u16) -> bool {
    words.get(usize::from(id) / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
}
