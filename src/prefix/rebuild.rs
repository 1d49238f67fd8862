//! The table moves to another size, or to the same one to forget dead holders, some homes at a
//! time.
//!
//! A home is a fraction of the table, so both sides are in the same order: the move is one pass
//! forward over both, chunks of the new side come as it reaches them and those of the old go as it
//! leaves them. Memory is never twice the table, and no write waits for the whole. Runs under the
//! writer's lock.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::directory::{Bucket, LANES, Side, WINDOW, committed_bytes};
use super::set::Set;
use super::stand::stand;
use super::table::{Put, Table};

/// Homes of the smallest table.
const HOMES_MIN: usize = 32;
/// Homes that move together: as many as a window, so that the blocks that stand apart from their
/// homes are looked for once and not for each home. A divisor of a chunk.
const RUN: usize = WINDOW;
/// A hint asks for no more.
const HOMES_EXPECTED_MAX: usize = 1 << 26;
/// Below this many a table grows to twice its size, above by a quarter.
const SMALL_HOMES: usize = 4096;
/// It grows when so many of a hundred lanes are taken, and shrinks when fewer than these.
const CROWDED: usize = 78;
const SPARSE: usize = 20;
/// So many are never taken: searches grow long.
const FULL: usize = 85;
/// How many are taken after a rebuild.
const ROOMY: usize = 64;
const ROOMY_SMALL: usize = 40;

/// Homes of a table that has room for so many blocks, or of the smallest where that would take more
/// than half of `bytes_max`: a rebuild needs room too.
pub(super) fn homes_for(blocks: u64, bytes_max: usize) -> usize {
    let homes = blocks.saturating_mul(100) / (ROOMY * LANES) as u64;
    let homes = usize::try_from(homes).unwrap_or(usize::MAX).min(HOMES_EXPECTED_MAX);
    if homes > HOMES_MIN && committed_bytes(homes) <= bytes_max / 2 { homes } else { HOMES_MIN }
}

impl Table {
    /// Whether a rebuild is under way.
    pub(super) fn is_rebuilding(&self) -> bool {
        self.directory.old.is_some()
    }

    /// Begins a rebuild when one is due for `blocks` more and, if it adds memory, that is within
    /// `room` bytes. Whether there are lanes for them now.
    pub(super) fn prepare(&mut self, blocks: usize, room: usize) -> bool {
        let homes = self.directory.new.homes;
        let entries = self.entries + blocks;
        let taken = entries * 100 / (homes * LANES);
        if self.is_rebuilding() {
            let fits = taken < FULL;
            // A small one is soon done, and then there may be a larger.
            if fits || homes > SMALL_HOMES {
                return fits;
            }
            self.step(usize::MAX);
            return self.prepare(blocks, room);
        }
        let load = if homes < SMALL_HOMES { ROOMY_SMALL } else { ROOMY };
        let wanted = (entries * 100 / load / LANES).max(self.homes_min);
        let more = committed_bytes(wanted).saturating_sub(committed_bytes(homes));
        let grows = taken >= CROWDED && more <= room;
        let shrinks = taken < SPARSE && wanted < homes;
        if grows || shrinks {
            self.begin(wanted);
        } else if self.ids.any_dead() {
            self.begin(homes);
        }
        entries * 100 < self.directory.new.homes * LANES * FULL
    }

    fn begin(&mut self, homes: usize) {
        self.ids.rebuild_begins();
        let old = Some(self.directory.new.clone());
        self.publish_sides(old, 0, Side::new(homes));
    }

    /// A rebuild from the beginning, at once: when there is no number left to give.
    pub(super) fn rebuild_whole(&mut self) {
        for _ in 0..2 {
            if !self.is_rebuilding() {
                self.begin(self.directory.new.homes);
            }
            self.step(usize::MAX);
        }
    }

    /// Moves so many homes on, sooner or later, or to the end. The two sides stay apart until then.
    pub(super) fn step(&mut self, homes: usize) {
        if self.directory.old.is_none() {
            return;
        }
        self.owed = self.owed.saturating_add(homes);
        while self.owed >= RUN {
            self.owed -= RUN;
            let Some(old) = &self.directory.old else { return };
            let first = self.directory.cursor.load(Ordering::Relaxed);
            let end = (first + RUN).min(old.homes);
            let (last, left) = (end == old.homes, first >> old.chunk_bits);
            let leaves = end >> old.chunk_bits != left;
            self.move_homes(first..end);
            self.directory.cursor.store(end, Ordering::Release);
            if last {
                self.end();
            } else if leaves {
                self.leave_chunk(left);
            }
        }
    }

    /// Moves the blocks of these homes. They stay on the old side too, for readers on their way.
    fn move_homes(&mut self, homes: Range<usize>) {
        let mut moving = std::mem::take(&mut self.moving);
        moving.clear();
        if let Some(old) = &self.directory.old {
            old.at_homes(homes, &mut moving);
        }
        for &(key, set) in &moving {
            let set = match self.ids.gone() {
                Some(gone) => self.cells.strip(set, gone),
                None => set,
            };
            let place = self.directory.new.home(key);
            self.entries -= 1;
            if set != Set::EMPTY && self.put_at(true, place, key, set) == Put::Full {
                self.cells.give_back(set);
            }
        }
        self.moving = moving;
    }

    /// Lets go of a chunk whose last home has been moved.
    fn leave_chunk(&mut self, at: usize) {
        let cursor = self.directory.cursor.load(Ordering::Relaxed);
        let (mut old, new) = (self.directory.old.clone(), self.directory.new.clone());
        let chunk = old.as_mut().and_then(|old| old.chunks.get_mut(at)?.take());
        self.chunk_bytes -= chunk.map_or(0, |chunk| size_of_val(&*chunk));
        self.publish_sides(old, cursor, new);
    }

    fn end(&mut self) {
        if let Some(old) = &self.directory.old {
            let left = old.chunks.iter().flatten().map(|chunk| size_of_val(&**chunk));
            self.chunk_bytes -= left.sum::<usize>();
        }
        let new = self.directory.new.clone();
        self.publish_sides(None, 0, new);
        self.owed = 0;
        self.ids.rebuild_ends();
    }

    /// Puts in a block that is not there, on that side.
    pub(super) fn put_at(&mut self, is_new: bool, home: usize, key: u64, set: Set) -> Put {
        self.ensure(is_new, home);
        let directory = &self.directory;
        let side = if is_new { Some(&directory.new) } else { directory.old.as_ref() };
        let stands = side.is_some_and(|side| stand(side, home, key, set));
        self.entries += usize::from(stands);
        if stands { Put::Added } else { Put::Full }
    }

    /// Makes the chunks that a block of this home may stand in.
    fn ensure(&mut self, is_new: bool, home: usize) {
        let directory = &self.directory;
        let side = if is_new { Some(&directory.new) } else { directory.old.as_ref() };
        let Some(side) = side else { return };
        let chunks = home >> side.chunk_bits..=(home + WINDOW) >> side.chunk_bits;
        let missing = |at: &usize| side.chunks.get(*at).is_some_and(Option::is_none);
        let missing: Vec<usize> = chunks.filter(missing).collect();
        if missing.is_empty() {
            return;
        }
        let (mut old, mut new) = (directory.old.clone(), directory.new.clone());
        let cursor = directory.cursor.load(Ordering::Relaxed);
        if let Some(side) = if is_new { Some(&mut new) } else { old.as_mut() } {
            for at in missing {
                let chunk: Arc<[Bucket]> =
                    (0..1 << side.chunk_bits).map(|_| Bucket::default()).collect();
                self.chunk_bytes += size_of_val(&*chunk);
                if let Some(place) = side.chunks.get_mut(at) {
                    *place = Some(chunk);
                }
            }
        }
        self.publish_sides(old, cursor, new);
    }
}
