//! The sets of holders that do not fit into a word: one bit a holder.
//!
//! [`Masks`] is what readers see: cells of a fixed width in chunks that never move. [`Cells`] is
//! the writer's: which cells are free, and how a set grows into one and shrinks out of it. A cell
//! that is given back and taken again while a reader looks at it costs that reader a wrong hint;
//! the reader notices by the word that named the cell.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::set::Set;

/// Cells of a chunk.
const CHUNK_CELLS: usize = 1024;
/// A set of so few goes back into its word; less than a word's most, so that one holder who comes
/// and goes does not move it each time.
const SHRINK_AT: u32 = 2;

/// The cells.
#[derive(Clone)]
pub(super) struct Masks {
    /// Words of a cell.
    width: usize,
    chunks: Vec<Arc<[AtomicU64]>>,
}

impl Masks {
    /// Words of a cell.
    #[inline]
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// The words of a cell; none when it does not exist.
    #[inline]
    pub(super) fn cell(&self, cell: u32) -> &[AtomicU64] {
        let (chunk, at) = (cell as usize / CHUNK_CELLS, cell as usize % CHUNK_CELLS * self.width);
        let words = self.chunks.get(chunk).and_then(|chunk| chunk.get(at..at + self.width));
        words.unwrap_or_default()
    }

    fn push_chunk(&mut self) {
        self.chunks.push((0..CHUNK_CELLS * self.width).map(|_| AtomicU64::new(0)).collect());
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
        self.masks.chunks.len() * CHUNK_CELLS * self.masks.width * 8 + self.free.capacity() * 4
    }

    /// Whether readers must be given new masks before a word may name a cell; once each.
    pub(super) fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.stale)
    }

    /// Adds a holder.
    pub(super) fn add(&mut self, set: Set, id: u16) -> Change {
        if let Some(cell) = set.cell() {
            self.reach(id);
            return Change::Inside { changed: self.put(cell, id, true) };
        }
        if set.names(id) {
            return Change::Inside { changed: false };
        }
        if let Some(set) = set.with(id) {
            return Change::Word(set);
        }
        set.ids().chain([id]).for_each(|id| self.reach(id));
        let cell = self.take_cell();
        set.ids().chain([id]).for_each(|id| drop(self.put(cell, id, true)));
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

    /// Whether `id` is in the set.
    pub(super) fn has(&self, set: Set, id: u16) -> bool {
        match set.cell() {
            Some(cell) => {
                let word = self.masks.cell(cell).get(usize::from(id) / 64);
                word.is_some_and(|word| word.load(Ordering::Relaxed) >> (id % 64) & 1 == 1)
            }
            None => set.names(id),
        }
    }

    /// The set without those whose bit is in `gone`.
    pub(super) fn strip(&mut self, set: Set, gone: &[u64]) -> Set {
        let is_gone = |id: u16| bit(gone, id);
        let Some(cell) = set.cell() else {
            return Set::of(set.ids().filter(|&id| !is_gone(id)));
        };
        for (word, gone) in self.masks.cell(cell).iter().zip(gone) {
            word.store(word.load(Ordering::Relaxed) & !gone, Ordering::Relaxed);
        }
        if self.count(cell) <= SHRINK_AT { self.shrink(cell) } else { set }
    }

    /// The set is no longer in the table.
    pub(super) fn give_back(&mut self, set: Set) {
        self.free.extend(set.cell());
    }

    fn shrink(&mut self, cell: u32) -> Set {
        let set = Set::of(ones(self.masks.cell(cell)));
        self.free.push(cell);
        set
    }

    fn count(&self, cell: u32) -> u32 {
        self.masks.cell(cell).iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum()
    }

    /// Sets or clears a bit; whether that was a change.
    fn put(&mut self, cell: u32, id: u16, on: bool) -> bool {
        let Some(word) = self.masks.cell(cell).get(usize::from(id) / 64) else { return false };
        let (before, bit) = (word.load(Ordering::Relaxed), 1 << (id % 64));
        let after = if on { before | bit } else { before & !bit };
        word.store(after, Ordering::Relaxed);
        before != after
    }

    /// An empty cell.
    fn take_cell(&mut self) -> u32 {
        if let Some(cell) = self.free.pop() {
            for word in self.masks.cell(cell) {
                word.store(0, Ordering::Relaxed);
            }
            return cell;
        }
        let cell = self.used;
        if cell as usize / CHUNK_CELLS >= self.masks.chunks.len() {
            Arc::make_mut(&mut self.masks).push_chunk();
            self.stale = true;
        }
        self.used += 1;
        cell
    }

    /// Makes all cells as wide as `id` needs. Copies them: this is when a fleet has grown.
    fn reach(&mut self, id: u16) {
        let needed = usize::from(id) / 64 + 1;
        if needed <= self.masks.width {
            return;
        }
        let mut wide = Masks { width: needed.next_power_of_two(), chunks: Vec::new() };
        self.masks.chunks.iter().for_each(|_| wide.push_chunk());
        for cell in 0..self.used {
            for (to, from) in wide.cell(cell).iter().zip(self.masks.cell(cell)) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        self.masks = Arc::new(wide);
        self.stale = true;
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
