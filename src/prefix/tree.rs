//! What one slot holds by its dispatches: a tree of runs of blocks in the order of their use.
//!
//! The engine's LRU puts out the block that was used longest ago, and of one prompt the tail
//! before the head (vLLM frees a request's blocks from the last to the first). So blocks that were
//! last used by the same dispatch and follow each other stay together: a segment. A dispatch moves
//! the segments along its chain to the front, the tip first and the root last, and splits at most
//! one; it never touches a block. What is put out is the end of the last segment, which has no
//! children, since a parent is always newer than they are. The order is exactly that of a list of
//! single blocks.
//!
//! Pure, one slot's, under the writer's lock. Keys must come from chains: the same key means the
//! same blocks before it. Where that fails (a collision), a block may be listed twice or not
//! found, and nothing worse.

use crate::prompt::segments::AsItIs;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

/// No segment.
const NONE: u32 = u32::MAX;
/// What the allocator adds to a segment's keys, in bytes.
const ALLOCATION_BYTES: usize = 16;
/// An entry of a map from key to segment, in bytes, without its load.
const ENTRY_BYTES: usize = 17;

/// A map by block key.
pub(super) type KeyMap<V> = HashMap<u64, V, BuildHasherDefault<AsItIs>>;

/// Blocks that follow each other and were last used together.
struct Segment {
    keys: Vec<u64>,
    parent: u32,
    children: u32,
    newer: u32,
    /// In a free segment: the next free one.
    older: u32,
}

/// The tree and its order.
pub(super) struct Tree {
    segments: Vec<Segment>,
    free: u32,
    /// First key -> segment.
    first: KeyMap<u32>,
    /// Entries that its memory is for; what it says itself leaves out those that were removed.
    first_max: usize,
    newest: u32,
    oldest: u32,
    blocks: usize,
    /// Memory of all segments' keys, in bytes.
    key_bytes: usize,
    /// The segments along the chain at hand.
    path: Vec<u32>,
}

impl Tree {
    pub(super) fn new() -> Tree {
        Tree {
            segments: Vec::new(),
            free: NONE,
            first: KeyMap::default(),
            first_max: 0,
            newest: NONE,
            oldest: NONE,
            blocks: 0,
            key_bytes: 0,
            path: Vec::new(),
        }
    }

    /// Blocks held.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        let segments = self.segments.capacity() * size_of::<Segment>();
        segments + map_bytes(self.first_max) + self.key_bytes
    }

    /// Bytes that the next chain may add beside its keys: two segments, two entries.
    pub(super) fn more_bytes(&self) -> usize {
        let (segments, entries) = (self.segments.len(), self.first.len());
        let grown = if self.segments.capacity() - segments < 2 { segments / 4 + 8 } else { 0 };
        let doubles = self.first.capacity() - entries < 2 && entries * 2 >= self.first_max;
        let map = if doubles { map_bytes(self.first_max + 8) } else { 0 };
        grown * size_of::<Segment>() + map + 4 * ALLOCATION_BYTES
    }

    /// A chain is used: its blocks are the newest, head before tail. How many of them, from the
    /// head, were there already; the others are now.
    pub(super) fn admit(&mut self, keys: &[u64]) -> usize {
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        let (mut depth, mut last) = (0, NONE);
        while let Some((found, len)) = self.child(last, keys.get(depth..).unwrap_or_default()) {
            let common = self.common(found, keys.get(depth..).unwrap_or_default());
            depth += common;
            last = if common < len { self.split(found, common) } else { found };
            path.push(last);
            if common < len {
                break;
            }
        }
        if let Some(new @ [_, ..]) = keys.get(depth..) {
            self.blocks += new.len();
            path.extend(self.extend(last, new));
        }
        for &id in path.iter().rev() {
            self.unlink(id);
            self.link_newest(id);
        }
        self.path = path;
        self.first_max = self.first_max.max(self.first.capacity());
        depth
    }

    /// Puts out so many of the oldest blocks, or all.
    pub(super) fn evict(&mut self, count: usize, out: &mut Vec<u64>) {
        let keep_blocks = self.blocks.saturating_sub(count);
        while self.blocks > keep_blocks {
            let id = self.oldest;
            let Some(segment) = self.segments.get_mut(id as usize) else { break };
            let keep = segment.keys.len().saturating_sub(self.blocks - keep_blocks);
            self.blocks -= segment.keys.len() - keep;
            let first = segment.keys.first().copied();
            out.extend(segment.keys.drain(keep..).rev());
            if keep == 0 {
                self.remove(id, first);
            } else if segment.keys.capacity() / 2 > keep {
                self.key_bytes -= held_bytes(&segment.keys);
                segment.keys.shrink_to_fit();
                self.key_bytes += held_bytes(&segment.keys);
            }
        }
        if self.blocks == 0 {
            *self = Tree::new();
        }
    }

    /// The segment that goes on from `parent` with the first of `keys`, and its length.
    fn child(&self, parent: u32, keys: &[u64]) -> Option<(u32, usize)> {
        let id = *self.first.get(keys.first()?)?;
        let segment = self.segments.get(id as usize)?;
        (segment.parent == parent).then_some((id, segment.keys.len()))
    }

    /// How far `keys` go along with a segment whose first key is theirs.
    fn common(&self, id: u32, keys: &[u64]) -> usize {
        let Some(segment) = self.segments.get(id as usize) else { return 0 };
        let len = segment.keys.len().min(keys.len());
        let same = |at: usize| segment.keys.get(at) == keys.get(at);
        // One equal key means that all before it are.
        if same(len.saturating_sub(1)) {
            return len;
        }
        let (mut equal, mut other) = (1, len);
        while equal < other {
            let middle = equal.midpoint(other);
            if same(middle) { equal = middle + 1 } else { other = middle }
        }
        equal
    }

    /// Cuts a segment behind `len` blocks. The front is a new segment, in no order yet; the rest
    /// stays where it was, with its children.
    fn split(&mut self, id: u32, len: usize) -> u32 {
        let Some(rest) = self.segments.get_mut(id as usize) else { return NONE };
        let before = held_bytes(&rest.keys);
        let (front, behind) = rest.keys.split_at(len.min(rest.keys.len()));
        let (front, behind) = (front.to_vec(), behind.to_vec());
        let (first, next) = (front.first().copied(), behind.first().copied());
        self.key_bytes += held_bytes(&behind);
        self.key_bytes -= before;
        rest.keys = behind;
        let parent = rest.parent;
        let head = self.insert(front, parent, 1);
        if let Some(rest) = self.segments.get_mut(id as usize) {
            rest.parent = head;
        }
        self.first.extend(first.map(|key| (key, head)));
        self.first.extend(next.map(|key| (key, id)));
        head
    }

    /// Adds blocks behind `last`: to itself when nothing else follows it, else as its child, which
    /// is returned.
    fn extend(&mut self, last: u32, keys: &[u64]) -> Option<u32> {
        if let Some(segment) = self.segments.get_mut(last as usize) {
            if segment.children == 0 {
                let before = held_bytes(&segment.keys);
                segment.keys.reserve_exact(keys.len());
                segment.keys.extend_from_slice(keys);
                self.key_bytes += held_bytes(&segment.keys);
                self.key_bytes -= before;
                return None;
            }
            segment.children += 1;
        }
        let id = self.insert(keys.to_vec(), last, 0);
        self.first.extend(keys.first().map(|&key| (key, id)));
        Some(id)
    }

    /// A segment in no order yet.
    fn insert(&mut self, keys: Vec<u64>, parent: u32, children: u32) -> u32 {
        self.key_bytes += held_bytes(&keys);
        let segment = Segment { keys, parent, children, newer: NONE, older: NONE };
        let id = self.free;
        if let Some(place) = self.segments.get_mut(id as usize) {
            self.free = place.older;
            *place = segment;
            return id;
        }
        if self.segments.len() == self.segments.capacity() {
            // A quarter at a time: half of a list that doubles may lie idle.
            self.segments.reserve_exact(self.segments.len() / 4 + 4);
        }
        self.segments.push(segment);
        self.segments.len() as u32 - 1
    }

    /// Forgets a segment without blocks or children, whose first key was `first`.
    fn remove(&mut self, id: u32, first: Option<u64>) {
        self.unlink(id);
        let Some(segment) = self.segments.get_mut(id as usize) else { return };
        self.key_bytes -= held_bytes(&segment.keys);
        segment.keys = Vec::new();
        segment.older = std::mem::replace(&mut self.free, id);
        let parent = segment.parent;
        if let Some(parent) = self.segments.get_mut(parent as usize) {
            parent.children = parent.children.saturating_sub(1);
        }
        if let Some(key) = first.filter(|key| self.first.get(key) == Some(&id)) {
            self.first.remove(&key);
        }
    }

    fn unlink(&mut self, id: u32) {
        let Some(segment) = self.segments.get_mut(id as usize) else { return };
        let newer = std::mem::replace(&mut segment.newer, NONE);
        let older = std::mem::replace(&mut segment.older, NONE);
        match self.segments.get_mut(newer as usize) {
            Some(segment) => segment.older = older,
            None if self.newest == id => self.newest = older,
            None => {}
        }
        match self.segments.get_mut(older as usize) {
            Some(segment) => segment.newer = newer,
            None if self.oldest == id => self.oldest = newer,
            None => {}
        }
    }

    fn link_newest(&mut self, id: u32) {
        let newest = std::mem::replace(&mut self.newest, id);
        if let Some(segment) = self.segments.get_mut(id as usize) {
            segment.older = newest;
        }
        match self.segments.get_mut(newest as usize) {
            Some(segment) => segment.newer = id,
            None => self.oldest = id,
        }
    }
}

/// Memory of a map for so many entries, in bytes: it is at most seven eighths full.
fn map_bytes(entries: usize) -> usize {
    entries * 8 / 7 * ENTRY_BYTES
}

/// Memory of a segment's keys in bytes.
fn held_bytes(keys: &Vec<u64>) -> usize {
    if keys.capacity() == 0 { 0 } else { keys.capacity() * 8 + ALLOCATION_BYTES }
}
