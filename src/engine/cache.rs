//! Paged KV memory with its prefix cache.
//!
//! Blocks are counted in *runs*: consecutive blocks of one chain that live and die alike. A block
//! hash stands for everything before it, so the cached runs form a tree: the children of a run
//! begin where it ends, a chain is looked up run by run (one probe by its first hash, one compare
//! at its end), and a run is split where a chain leaves it. Whoever holds a run holds its parents.
//!
//! The order of eviction is that of vLLM's queue of free blocks: least recently released first,
//! and of what was released at once the tail first. A child is therefore always before its parent,
//! and the first run of the list has no children. Blocks without a hash wait in the same list.
//!
//! When a request computes a block that is cached already, vLLM keeps both copies. Here the request
//! joins the run that is there, so that a hash has one place, and its own copy takes up memory, is
//! reported when it is stored and when it is evicted, and serves nobody.

mod check;

use std::sync::Arc;

use super::KvEvent;
use super::slab::{Linked, Links, List, NONE, Slab};
use super::table::Table;
use crate::prompt::blocks::BlockHash;

/// The chained hashes of a request's blocks.
pub type Chain = Arc<[BlockHash]>;

/// Upper half of the hash of a block that only its own request can find again.
const OWN: BlockHash = (u64::MAX as BlockHash) << 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    /// In the tree.
    #[default]
    Cached,
    /// A second copy of cached blocks.
    Copy,
    /// Blocks without a hash.
    Plain,
}

#[derive(Debug, Default)]
struct Run {
    kind: Kind,
    /// A chain that these blocks are part of; `None` for plain ones.
    chain: Option<Chain>,
    /// First block of the chain, and number of them.
    start: u32,
    len: u32,
    /// Requests that hold it; 0 = it waits for eviction.
    refs: u32,
    children: u32,
    /// The run before it; of a copy: the holder's next copy.
    parent: u32,
    lru: Links,
}

impl Linked<0> for Run {
    fn links(&self) -> &Links {
        &self.lru
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.lru
    }
}

impl Run {
    fn hashes(&self) -> &[BlockHash] {
        let (start, len) = (self.start as usize, self.len as usize);
        self.chain.as_deref().and_then(|c| c.get(start..start + len)).unwrap_or_default()
    }
}

/// What one request holds: a path of the tree, and blocks of its own.
#[derive(Debug)]
pub struct Holding {
    /// The last run of the path.
    leaf: u32,
    /// Its copies of cached blocks, as a list.
    copies: u32,
    /// Blocks of the path.
    path: u64,
    /// Blocks that nobody finds: the one that fills, and those beyond the chain.
    own: u64,
}

impl Holding {
    /// Blocks in all.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.path + self.own
    }
}

impl Default for Holding {
    fn default() -> Holding {
        Holding { leaf: NONE, copies: NONE, path: 0, own: 0 }
    }
}

/// What a chain finds in the cache.
#[derive(Clone, Copy, Debug)]
pub struct Hit {
    /// Leading blocks that are cached.
    pub blocks: u64,
    /// Those of them that nobody holds, so that holding them leaves less for others.
    pub idle: u64,
    leaf: u32,
    /// Blocks of the last run that match.
    in_leaf: u32,
}

/// See the module.
#[derive(Debug)]
pub struct KvCache {
    total: u64,
    /// Blocks that were never used.
    fresh: u64,
    /// Blocks of runs that nobody holds.
    idle: u64,
    runs: Slab<Run>,
    /// Cached runs by their first hash.
    firsts: Table,
    lru: List<0>,
    recording: bool,
    events: Vec<KvEvent>,
}

fn key(hash: BlockHash) -> u64 {
    hash as u64
}

/// Number of leading blocks that are the same: where a hash is the same, so are all before it.
fn shared(a: &[BlockHash], b: &[BlockHash]) -> usize {
    let n = a.len().min(b.len());
    let same = |i: usize| a.get(i) == b.get(i);
    if n > 0 && same(n - 1) {
        return n;
    }
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = low.midpoint(high);
        if same(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// A chain extended to `blocks` by hashes that only the request `id` has.
pub(super) fn own_chain(chain: &Chain, id: u64, blocks: u64) -> Chain {
    let mut longer = chain.to_vec();
    while (longer.len() as u64) < blocks {
        let before = longer.last().map_or(0, |h| key(*h));
        let mut x = (before ^ id.rotate_left(17)).wrapping_add(0x9E37_79B9_7F4A_7C15);
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        longer.push(OWN | BlockHash::from(x ^ x >> 31));
    }
    longer.into()
}

impl KvCache {
    /// An empty one.
    #[must_use]
    pub fn new(blocks: u64) -> KvCache {
        KvCache {
            total: blocks,
            fresh: blocks,
            idle: 0,
            runs: Slab::new(),
            firsts: Table::new(),
            lru: List::new(),
            recording: false,
            events: Vec::new(),
        }
    }

    /// Blocks in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Blocks that a request can have: never used, or to be evicted.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.fresh + self.idle
    }

    /// The leading blocks of `hashes` that are cached.
    #[must_use]
    pub fn lookup(&self, hashes: &[BlockHash]) -> Hit {
        let mut hit = Hit { blocks: 0, idle: 0, leaf: NONE, in_leaf: 0 };
        let mut rest = hashes;
        while let Some((at, run)) = self.find(rest) {
            let n = shared(run.hashes(), rest);
            hit.blocks += n as u64;
            hit.idle += if run.refs == 0 { n as u64 } else { 0 };
            (hit.leaf, hit.in_leaf) = (at, n as u32);
            if n < run.len as usize {
                break;
            }
            rest = rest.get(n..).unwrap_or_default();
        }
        hit
    }

    /// Holds what was found; nothing may have changed since.
    pub fn acquire(&mut self, hit: &Hit) -> Holding {
        let leaf = self.split(hit.leaf, hit.in_leaf);
        let mut at = leaf;
        while let Some(parent) = self.hold(at) {
            at = parent;
        }
        Holding { leaf, path: hit.blocks, ..Holding::default() }
    }

    /// Gives a request `blocks` of its own, evicting what it must; false and nothing if there are
    /// not so many.
    pub fn take(&mut self, holding: &mut Holding, blocks: u64) -> bool {
        if blocks > self.free() {
            return false;
        }
        holding.own += blocks;
        let fresh = blocks.min(self.fresh);
        self.fresh -= fresh;
        let mut left = blocks - fresh;
        self.idle -= left;
        while left > 0 {
            left -= self.evict(left);
        }
        true
    }

    /// Makes the first of a request's own blocks findable, so that the path reaches block `to` of
    /// its chain or the chain's end.
    pub fn store(&mut self, holding: &mut Holding, id: u64, chain: &Chain, to: u64) {
        let to = to.min(chain.len() as u64).min(holding.path + holding.own);
        while holding.path < to {
            let blocks = match self.store_some(holding, chain, to) {
                0 => return,
                blocks => blocks,
            };
            if self.recording {
                self.report_stored(id, chain, holding.path, blocks);
            }
            holding.path += blocks;
            holding.own -= blocks;
        }
    }

    /// Gives everything back: the tail first, so that it is evicted first.
    pub fn release(&mut self, holding: &mut Holding) {
        let Holding { leaf, copies, own, .. } = std::mem::take(holding);
        self.release_own(own);
        let mut copy = copies;
        while let Some(run) = self.runs.get_mut(copy) {
            run.refs = 0;
            self.idle += u64::from(run.len);
            let next = std::mem::replace(&mut run.parent, NONE);
            self.lru.push_back(&mut self.runs, copy);
            copy = next;
        }
        let mut at = leaf;
        while let Some(run) = self.runs.get_mut(at) {
            let parent = run.parent;
            run.refs -= 1;
            if run.refs == 0 {
                self.idle += u64::from(run.len);
                self.lru.push_back(&mut self.runs, at);
            }
            at = parent;
        }
    }

    /// Whether to keep [`KvEvent`]s; off at first.
    pub fn record_events(&mut self, on: bool) {
        self.recording = on;
    }

    pub(super) fn is_recording(&self) -> bool {
        self.recording
    }

    /// Moves the events so far to `out`, in order.
    pub fn take_events(&mut self, out: &mut Vec<KvEvent>) {
        out.append(&mut self.events);
    }

    /// Forgets all blocks, if nobody holds one.
    pub fn reset(&mut self) -> bool {
        if self.free() != self.total {
            return false;
        }
        self.runs = Slab::new();
        self.firsts.clear();
        self.lru = List::new();
        (self.fresh, self.idle) = (self.total, 0);
        if self.recording {
            self.events.push(KvEvent::Cleared);
        }
        true
    }

    /// Stores some of the blocks from the path's end to block `to`; returns how many.
    fn store_some(&mut self, holding: &mut Holding, chain: &Chain, to: u64) -> u64 {
        let (from, blocks) = (holding.path as u32, (to - holding.path) as u32);
        if let Some(leaf) = self.runs.get_mut(holding.leaf) {
            // Nobody else relies on where it ends. Its chain and ours are the same up to there.
            if leaf.refs == 1 && leaf.children == 0 {
                if !leaf.chain.as_ref().is_some_and(|c| Arc::ptr_eq(c, chain)) {
                    leaf.chain = Some(Arc::clone(chain));
                }
                leaf.len += blocks;
                return u64::from(blocks);
            }
        }
        let rest = chain.get(from as usize..to as usize).unwrap_or_default();
        let Some(&first) = rest.first() else { return 0 };
        if let Some((at, run)) = self.find(rest) {
            let n = shared(run.hashes(), rest) as u32;
            let there = self.split(at, n);
            self.hold(there);
            holding.leaf = there;
            let (kind, chain) = (Kind::Copy, Some(Arc::clone(chain)));
            let parent = holding.copies;
            let copy = Run { kind, chain, start: from, len: n, refs: 1, parent, ..Run::default() };
            holding.copies = self.runs.insert(copy);
            return u64::from(n);
        }
        if self.firsts.get(key(first)).is_some() {
            // Half of two different hashes is the same: the later one stays unknown.
            return 0;
        }
        let (parent, chain) = (holding.leaf, Some(Arc::clone(chain)));
        let run = Run { chain, start: from, len: blocks, refs: 1, parent, ..Run::default() };
        holding.leaf = self.runs.insert(run);
        self.firsts.insert(key(first), holding.leaf);
        if let Some(parent) = self.runs.get_mut(parent) {
            parent.children += 1;
        }
        u64::from(blocks)
    }

    /// The cached run that begins with the first of `hashes`.
    fn find(&self, hashes: &[BlockHash]) -> Option<(u32, &Run)> {
        let first = hashes.first()?;
        let at = self.firsts.get(key(*first))?;
        let run = self.runs.get(at)?;
        (run.hashes().first() == Some(first)).then_some((at, run))
    }

    /// Counts one more holder of a run; returns the run before it.
    fn hold(&mut self, at: u32) -> Option<u32> {
        let run = self.runs.get_mut(at)?;
        let parent = run.parent;
        run.refs += 1;
        if run.refs == 1 {
            self.idle -= u64::from(run.len);
            self.lru.unlink(&mut self.runs, at);
        }
        Some(parent)
    }

    /// Cuts a run behind its first `len` blocks, and returns that part. The rest keeps the number,
    /// for its holders and children know it by that.
    fn split(&mut self, at: u32, len: u32) -> u32 {
        let Some(run) = self.runs.get_mut(at) else { return NONE };
        if len >= run.len {
            return at;
        }
        let upper = Run {
            chain: run.chain.clone(),
            start: run.start,
            len,
            refs: run.refs,
            children: 1,
            parent: run.parent,
            ..Run::default()
        };
        run.start += len;
        run.len -= len;
        let (idle, lower_first) = (run.refs == 0, run.hashes().first().copied());
        let upper_first = upper.hashes().first().copied();
        let new = self.runs.insert(upper);
        if let Some(run) = self.runs.get_mut(at) {
            run.parent = new;
        }
        if let (Some(upper), Some(lower)) = (upper_first, lower_first) {
            self.firsts.insert(key(upper), new);
            self.firsts.insert(key(lower), at);
        }
        if idle {
            self.lru.insert_after(&mut self.runs, at, new);
        }
        new
    }

    /// Evicts up to `most` blocks of the run that is next; returns how many.
    fn evict(&mut self, most: u64) -> u64 {
        let at = self.lru.head();
        // The caller has made sure that there are so many blocks.
        let Some(run) = self.runs.get_mut(at) else { return most };
        let n = u64::from(run.len).min(most);
        if self.recording {
            let gone = run.hashes().iter().rev().take(n as usize).filter(|h| **h < OWN);
            self.events.extend(gone.map(|h| KvEvent::Removed(*h)));
        }
        let first = run.hashes().first().copied();
        run.len -= n as u32;
        if run.len > 0 {
            return n;
        }
        self.lru.unlink(&mut self.runs, at);
        let run = self.runs.remove(at);
        if run.kind == Kind::Cached {
            if let Some(first) = first {
                self.firsts.remove(key(first));
            }
            if let Some(parent) = self.runs.get_mut(run.parent) {
                parent.children -= 1;
            }
        }
        n
    }

    fn release_own(&mut self, own: u64) {
        if own == 0 {
            return;
        }
        self.idle += own;
        let tail = self.lru.tail();
        match self.runs.get_mut(tail).filter(|run| run.kind == Kind::Plain) {
            Some(run) => run.len += own as u32,
            None => {
                let (kind, parent) = (Kind::Plain, NONE);
                let plain =
                    self.runs.insert(Run { kind, len: own as u32, parent, ..Run::default() });
                self.lru.push_back(&mut self.runs, plain);
            }
        }
    }

    fn report_stored(&mut self, id: u64, chain: &Chain, from: u64, blocks: u64) {
        let range = from as usize..(from + blocks) as usize;
        let known = chain.get(range).unwrap_or_default().iter().take_while(|h| **h < OWN).count();
        if known > 0 {
            let (first_block, count) = (from as u32, known as u32);
            self.events.push(KvEvent::Stored { id, first_block, count });
        }
    }
}

#[cfg(test)]
mod tests;
