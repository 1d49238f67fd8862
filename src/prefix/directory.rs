//! What readers see of the table: buckets of four blocks in one cache line, in chunks.
//!
//! A block's key is 64 bits. Its home is the bucket at that fraction of the table, and it may stand
//! in one other, within a window behind its home: two lines are all that a search ever reads. When
//! both are full a block that stands in one of them makes room by going to its own other bucket
//! (cuckoo hashing). A bucket counts the blocks that have it as home and stand in their other one
//! (`passed`); while there is none, a search ends at home.
//!
//! While the table is rebuilt in another size there are two sides: homes below `cursor` are on the
//! new side, the others still on the old, and nothing on the old side behind the cursor changes any
//! more.
//!
//! Everything is an atomic with one writer. A block that moves stands in both buckets for a moment
//! rather than in none. A reader checks the key again after the set: a lane that changed hands in
//! between is read again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::masks::Masks;
use super::set::{SET_BITS, Set};

/// Blocks of a bucket: keys and sets fill one cache line.
pub(super) const LANES: usize = 4;
/// A block's other bucket is less than so many behind its home. In a simulation of random blocks
/// that come and go, at four fifths full one in 100,000 found no place; with 16 one in 2,000.
pub(super) const WINDOW: usize = 64;
/// Buckets of a chunk, as a power of two, at least and at most: 4 KiB to 256 KiB, small enough to
/// be made on a core.
const CHUNK_BITS: (u32, u32) = (6, 12);
/// The count that sticks: a bucket passed so often is passed for ever.
const PASSED_MAX: u64 = 255;

/// Four blocks.
#[repr(align(64))]
#[derive(Default)]
pub(super) struct Bucket {
    /// 0 is nobody.
    keys: [AtomicU64; LANES],
    /// Their holders; the top byte of the first is `passed`.
    sets: [AtomicU64; LANES],
}

impl Bucket {
    /// Brings its line near; the value serves only to keep the load.
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        self.keys.first().map_or(0, |key| key.load(Ordering::Relaxed))
    }

    /// Where `key` stands. Without branches on the way: which lane it is, nothing predicts.
    #[inline]
    pub(super) fn lane(&self, key: u64) -> Option<usize> {
        let [a, b, c, d] = &self.keys;
        let is = |lane: &AtomicU64| usize::from(lane.load(Ordering::Acquire) == key);
        let at = is(a) | is(b) << 1 | is(c) << 2 | is(d) << 3;
        (at != 0).then_some(at.trailing_zeros() as usize)
    }

    /// A lane's key and set.
    #[inline]
    pub(super) fn cell(&self, lane: usize) -> Option<(&AtomicU64, &AtomicU64)> {
        self.keys.get(lane).zip(self.sets.get(lane))
    }

    /// A lane's set.
    #[inline]
    pub(super) fn set(&self, lane: usize) -> Set {
        let word = self.sets.get(lane).map_or(0, |set| set.load(Ordering::Relaxed));
        Set::of_bits(word)
    }

    /// A lane's key and set.
    pub(super) fn at(&self, lane: usize) -> Option<(u64, Set)> {
        Some((self.keys.get(lane)?.load(Ordering::Relaxed), self.set(lane)))
    }

    /// Every lane's key and set.
    pub(super) fn cells(&self) -> impl Iterator<Item = (u64, Set)> {
        self.keys.iter().zip(&self.sets).map(|(key, set)| {
            (key.load(Ordering::Relaxed), Set::of_bits(set.load(Ordering::Relaxed)))
        })
    }

    /// Blocks whose home it is and that stand in their other bucket.
    #[inline]
    pub(super) fn passed(&self) -> u64 {
        self.sets.first().map_or(0, |set| set.load(Ordering::Relaxed) >> 56)
    }

    /// One more or one less of them.
    pub(super) fn pass(&self, on: bool) {
        let Some(first) = self.sets.first() else { return };
        let word = first.load(Ordering::Relaxed);
        let passed = match (word >> 56, on) {
            (PASSED_MAX, _) => PASSED_MAX,
            (passed, true) => passed + 1,
            (passed, false) => passed.saturating_sub(1),
        };
        first.store(word & SET_BITS | passed << 56, Ordering::Release);
    }

    /// Changes a lane's set.
    pub(super) fn put(&self, lane: usize, set: Set) {
        let Some(word) = self.sets.get(lane) else { return };
        let passed = word.load(Ordering::Relaxed) & !SET_BITS;
        word.store(passed | set.bits(), Ordering::Release);
    }

    /// Gives a free lane to a block, its set before its key.
    pub(super) fn take(&self, lane: usize, key: u64, set: Set) {
        self.put(lane, set);
        if let Some(place) = self.keys.get(lane) {
            place.store(key, Ordering::Release);
        }
    }

    /// Frees a lane.
    pub(super) fn free(&self, lane: usize) {
        if let Some(place) = self.keys.get(lane) {
            place.store(0, Ordering::Release);
        }
    }
}

/// A table of one size.
#[derive(Clone)]
pub(super) struct Side {
    /// Buckets that can be a home; [`WINDOW`] more stand behind the last.
    pub(super) homes: usize,
    /// Buckets of a chunk, as a power of two.
    pub(super) chunk_bits: u32,
    /// Chunks that are not yet there, or not any more, are empty.
    pub(super) chunks: Vec<Option<Arc<[Bucket]>>>,
}

impl Side {
    /// An empty one. Chunks come when something is put into them.
    pub(super) fn new(homes: usize) -> Side {
        let (chunk_bits, chunks) = shape(homes);
        Side { homes, chunk_bits, chunks: vec![None; chunks] }
    }

    /// The home of a key.
    #[inline]
    pub(super) fn home(&self, key: u64) -> usize {
        ((u128::from(key) * self.homes as u128) >> 64) as usize
    }

    /// The bucket at a position.
    #[inline]
    pub(super) fn bucket(&self, at: usize) -> Option<&Bucket> {
        let chunk = self.chunks.get(at >> self.chunk_bits)?.as_ref()?;
        chunk.get(at & ((1 << self.chunk_bits) - 1))
    }

    /// The other bucket of a key with this home.
    #[inline]
    pub(super) fn other(key: u64, home: usize) -> usize {
        let spread = key as usize % WINDOW;
        home + 1 + (spread * (WINDOW - 1)) / WINDOW
    }

    /// Where a block stands: its bucket and the lane.
    #[inline]
    pub(super) fn find(&self, key: u64, home: usize) -> Option<(&Bucket, usize)> {
        let bucket = self.bucket(home)?;
        if let Some(lane) = bucket.lane(key) {
            return Some((bucket, lane));
        }
        if bucket.passed() == 0 {
            return None;
        }
        let bucket = self.bucket(Side::other(key, home))?;
        Some((bucket, bucket.lane(key)?))
    }

    /// Brings near the other bucket, where a search may go on. Computed, not branched to: a wrong
    /// guess would wait for memory.
    #[inline]
    pub(super) fn touch_other(&self, key: u64, home: usize) -> u64 {
        let Some(bucket) = self.bucket(home) else { return 0 };
        let goes_on = bucket.lane(key).is_none() & (bucket.passed() > 0);
        let at = home + usize::from(goes_on) * (Side::other(key, home) - home);
        self.bucket(at).map_or(0, Bucket::touch)
    }

    /// The blocks of these homes.
    pub(super) fn at_homes(&self, homes: Range<usize>, out: &mut Vec<(u64, Set)>) {
        for bucket in (homes.start..homes.end + WINDOW).filter_map(|at| self.bucket(at)) {
            let is_ours = |key| key != 0 && homes.contains(&self.home(key));
            out.extend(bucket.cells().filter(|(key, _)| is_ours(*key)));
        }
    }
}

/// A table of so many homes: its chunks' buckets, as a power of two, and how many chunks.
fn shape(homes: usize) -> (u32, usize) {
    let chunk_bits = (homes / 48).max(1).ilog2().clamp(CHUNK_BITS.0, CHUNK_BITS.1);
    (chunk_bits, (homes + WINDOW).div_ceil(1 << chunk_bits))
}

/// Memory of a table of so many homes, in bytes, and of two of its chunks: while one side is left
/// for another, at most a chunk of each is there too many.
pub(super) fn committed_bytes(homes: usize) -> usize {
    let (chunk_bits, chunks) = shape(homes);
    ((chunks + 2) * size_of::<Bucket>()) << chunk_bits
}

/// The whole, as published.
pub(super) struct Directory {
    /// The side that is being left.
    pub(super) old: Option<Side>,
    /// Homes of the old side below this have been left.
    pub(super) cursor: AtomicUsize,
    /// The side where everything is, or will be.
    pub(super) new: Side,
    /// The sets that fill no word.
    pub(super) masks: Arc<Masks>,
}

impl Directory {
    /// The side and the home of a key.
    #[inline]
    pub(super) fn place(&self, key: u64) -> (&Side, usize) {
        if let Some(old) = &self.old {
            let home = old.home(key);
            if home >= self.cursor.load(Ordering::Acquire) {
                return (old, home);
            }
        }
        (&self.new, self.new.home(key))
    }
}
