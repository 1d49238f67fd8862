//! The table as its writer sees it: block -> set of holders.
//!
//! Owns the buckets' contents, the cells of large sets, and the holders' numbers: a number is one
//! slot's until that slot is cleared, then nobody's until a rebuild of the table has taken it out
//! of every set; so that forgetting all blocks of a replica costs nothing at once. Rebuilds, here
//! and to another size, are in `rebuild.rs`. Runs under the writer's lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;

use super::Slot;
use super::directory::{Bucket, Directory, Side, committed_bytes};
use super::ids::Ids;
use super::masks::{Cells, Change};
use super::rebuild::homes_for;
use super::set::Set;

/// Keys whose lines are fetched together.
const BATCH: usize = 32;

/// What became of a block that was put in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    /// The slot holds it now.
    Added,
    /// The slot held it.
    Present,
    /// There is no place for it.
    Full,
}

/// The table.
pub(super) struct Table {
    /// What readers see; `directory` is the same.
    published: Arc<ArcSwap<Directory>>,
    pub(super) directory: Arc<Directory>,
    pub(super) cells: Cells,
    pub(super) ids: Ids,
    /// Blocks that stand in it.
    pub(super) entries: usize,
    /// Memory of all chunks that are there, in bytes.
    pub(super) chunk_bytes: usize,
    /// Room for the blocks that a rebuild moves, and how many homes it should have moved.
    pub(super) moving: Vec<(u64, Set)>,
    pub(super) owed: usize,
    /// It never has fewer homes.
    pub(super) homes_min: usize,
}

impl Table {
    /// An empty one with room for so many blocks, if that is within `bytes_max`.
    pub(super) fn new(blocks: u64, bytes_max: usize) -> Table {
        let homes_min = homes_for(blocks, bytes_max);
        let cells = Cells::new();
        let directory = Arc::new(Directory {
            old: None,
            cursor: AtomicUsize::new(0),
            new: Side::new(homes_min),
            masks: Arc::clone(cells.masks()),
        });
        let published = Arc::new(ArcSwap::new(Arc::clone(&directory)));
        let (ids, moving) = (Ids::new(), Vec::new());
        let (entries, chunk_bytes, owed) = (0, 0, 0);
        Table { published, directory, cells, ids, entries, chunk_bytes, moving, owed, homes_min }
    }

    /// Where readers find what is published.
    pub(super) fn published(&self) -> Arc<ArcSwap<Directory>> {
        Arc::clone(&self.published)
    }

    /// A number for a slot, if the masks' growth for it is within `room` bytes.
    pub(super) fn open(&mut self, slot: Slot, room: usize) -> Option<u16> {
        let id = self.ids.take(slot).or_else(|| {
            // More slots were cleared than there are numbers since the last rebuild.
            self.rebuild_whole();
            self.ids.take(slot)
        })?;
        if !self.cells.reach(id, room) {
            self.ids.give_back(id);
            return None;
        }
        if self.cells.take_stale() {
            self.publish_masks();
        }
        Some(id)
    }

    /// Memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.chunk_bytes + self.cells.bytes()
    }

    /// Memory in bytes when every chunk is there, and through any rebuild to this size or less.
    pub(super) fn committed_bytes(&self) -> usize {
        let old = self.directory.old.as_ref().map_or(0, |old| old.homes);
        committed_bytes(old.max(self.directory.new.homes)) + self.cells.bytes()
    }

    /// Fetches the lines of these keys all at once, where one after another would wait for each:
    /// their homes, then their other buckets where those are full.
    pub(super) fn touch(&self, keys: &[u64]) {
        for keys in keys.chunks(BATCH) {
            let mut near = 0;
            for &key in keys {
                let (side, home) = self.directory.place(key);
                near ^= side.bucket(home).map_or(0, Bucket::touch);
            }
            for &key in keys {
                let (side, home) = self.directory.place(key);
                near ^= side.touch_other(key, home);
            }
            std::hint::black_box(near);
        }
    }

    /// `id` holds the block from now on.
    pub(super) fn put(&mut self, key: u64, id: u16) -> Put {
        let (side, home) = self.directory.place(key);
        let Some((bucket, lane)) = side.find(key, home) else {
            let is_new = std::ptr::eq(side, &self.directory.new);
            return self.put_at(is_new, home, key, Set::of([id].into_iter()));
        };
        match self.cells.add(key, bucket.set(lane), id) {
            Change::Inside { changed: false } => Put::Present,
            Change::Inside { changed: true } => self.added(None),
            Change::Word(set) if set.cell().is_none() => {
                bucket.put(lane, set);
                Put::Added
            }
            Change::Word(set) => self.added(Some((key, set))),
        }
    }

    /// A set has changed in the masks, which may be new, and with it perhaps its word.
    fn added(&mut self, word: Option<(u64, Set)>) -> Put {
        if self.cells.take_stale() {
            self.publish_masks();
        }
        if let Some((key, set)) = word {
            let (side, home) = self.directory.place(key);
            if let Some((bucket, lane)) = side.find(key, home) {
                bucket.put(lane, set);
            }
        }
        Put::Added
    }

    /// `id` does not hold the block any more; whether it did.
    pub(super) fn remove(&mut self, key: u64, id: u16) -> bool {
        let (side, home) = self.directory.place(key);
        let Some((bucket, lane)) = side.find(key, home) else { return false };
        match self.cells.take(bucket.set(lane), id) {
            Change::Inside { changed } => return changed,
            Change::Word(Set::EMPTY) => {
                bucket.free(lane);
                side.bucket(home).filter(|home| !std::ptr::eq(*home, bucket)).inspect(|home| {
                    home.pass(false);
                });
                self.entries -= 1;
            }
            Change::Word(set) => bucket.put(lane, set),
        }
        true
    }

    /// Publishes new masks, before any word names one of their cells.
    fn publish_masks(&mut self) {
        let cursor = self.directory.cursor.load(Ordering::Relaxed);
        let (old, new) = (self.directory.old.clone(), self.directory.new.clone());
        self.publish_sides(old, cursor, new);
    }

    /// Publishes these sides, and the masks as they are.
    pub(super) fn publish_sides(&mut self, old: Option<Side>, cursor: usize, new: Side) {
        let (cursor, masks) = (AtomicUsize::new(cursor), Arc::clone(self.cells.masks()));
        self.directory = Arc::new(Directory { old, cursor, new, masks });
        self.published.store(Arc::clone(&self.directory));
    }
}
