//! Writes a batch: lanes as they come up, sums, and chains by what they share. Pure.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

use super::wire::{
    BATCH_BYTES_MAX, BLOCKS_MAX, CHAIN_BLOCKS_MAX, CHAIN_BYTES, CHAINS_MAX, HASH_BYTES, HEAD_BYTES,
    Head, LANE_BYTES, LANES_MAX, LaneName, MAGIC, NAME_BYTES_MAX, NO_RANK, SUMS_BYTES, VERSION,
    numbers,
};
use crate::prompt::blocks::BlockHash;
use crate::replicas::ledger::Sums;

/// A batch being written.
#[derive(Default)]
pub struct Encoder {
    lanes: Part,
    sums: Part,
    chains: Part,
    /// Number of each lane by the caller's own number of it.
    numbers: HashMap<usize, u16>,
    /// In which chain's tail a block was last written, and how far from that chain's start.
    seen: HashMap<BlockHash, (u16, usize), Keyed>,
    blocks: usize,
}

/// Hashes of hashes: a product with two random keys, so that nobody can make a batch slow.
struct Keyed(u64, u64);

impl Default for Keyed {
    fn default() -> Keyed {
        Keyed(fastrand::u64(..), fastrand::u64(..))
    }
}

impl BuildHasher for Keyed {
    type Hasher = Mixed;

    fn build_hasher(&self) -> Mixed {
        Mixed { keys: (self.0, self.1), hash: 0 }
    }
}

struct Mixed {
    keys: (u64, u64),
    hash: u64,
}

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.hash
    }

    fn write(&mut self, bytes: &[u8]) {
        let (halves, _) = bytes.as_chunks::<8>();
        let mut halves = halves.iter().map(|half| u64::from_le_bytes(*half));
        let mut next = || halves.next().unwrap_or_default();
        let (low, high) = (next() ^ self.keys.0, next() ^ self.keys.1);
        let product = u128::from(low) * u128::from(high);
        self.hash ^= product as u64 ^ (product >> 64) as u64;
    }
}

/// A counted section.
#[derive(Default)]
struct Part {
    count: u16,
    bytes: Vec<u8>,
}

impl Part {
    fn u16(&mut self, n: u16) {
        self.bytes.extend_from_slice(&n.to_le_bytes());
    }

    fn u32(&mut self, n: u32) {
        self.bytes.extend_from_slice(&n.to_le_bytes());
    }

    fn close(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.bytes);
    }
}

impl Encoder {
    /// Is there room for so many bytes more?
    fn fits(&self, bytes: usize) -> bool {
        let parts = self.lanes.bytes.len() + self.sums.bytes.len() + self.chains.bytes.len();
        HEAD_BYTES + NAME_BYTES_MAX + parts + bytes <= BATCH_BYTES_MAX
    }

    /// The number of a lane in this batch; `key` is the caller's own number of it. `None`: too
    /// many lanes, or a name too long.
    fn lane(&mut self, key: usize, name: &LaneName) -> Option<u16> {
        if let Some(number) = self.numbers.get(&key) {
            return Some(*number);
        }
        let replica = name.replica.as_bytes();
        let number = self.lanes.count;
        let told = usize::from(number) < LANES_MAX && replica.len() <= NAME_BYTES_MAX;
        if !told || !self.fits(LANE_BYTES + replica.len()) {
            return None;
        }
        self.lanes.count = number + 1;
        self.lanes.u16(replica.len() as u16);
        self.lanes.bytes.extend_from_slice(replica);
        self.lanes.u32(name.rank.unwrap_or(NO_RANK));
        self.numbers.insert(key, number);
        Some(number)
    }

    /// What the sender has in flight at a lane. A lane that is not mentioned has nothing.
    pub fn sums(&mut self, key: usize, name: &LaneName, sums: &Sums) {
        let Some(lane) = self.lane(key, name) else { return };
        if usize::from(self.sums.count) >= LANES_MAX || !self.fits(SUMS_BYTES) {
            return;
        }
        self.sums.count += 1;
        self.sums.u16(lane);
        for n in numbers(sums) {
            self.sums.u32(n.try_into().unwrap_or(u32::MAX));
        }
        self.sums.bytes.extend_from_slice(&(sums.prefill_ms as f32).to_le_bytes());
    }

    /// A prompt that was sent to a lane, for the adapter with that hash (0 = none). False: the
    /// batch is full, and has not taken it.
    #[must_use]
    pub fn dispatched(
        &mut self,
        key: usize,
        name: &LaneName,
        adapter: u64,
        chain: &[BlockHash],
    ) -> bool {
        let chain = chain.get(..CHAIN_BLOCKS_MAX).unwrap_or(chain);
        // A hash stands for all blocks before it, so what is known is a head of the chain.
        let known = chain.partition_point(|hash| self.seen.contains_key(hash));
        let (head, _) = chain.split_at(known);
        let last = head.last().and_then(|hash| self.seen.get(hash)).copied();
        // Hashes that were made to collide may lie at different depths: then nothing is shared.
        let last = last.filter(|(_, depth)| depth + 1 == known);
        let (from, shared) = last.map_or((0, 0), |(from, depth)| (from, depth + 1));
        let (_, tail) = chain.split_at(shared);
        let full = usize::from(self.chains.count) >= CHAINS_MAX
            || self.blocks + chain.len() > BLOCKS_MAX
            || !self.fits(CHAIN_BYTES + tail.len() * HASH_BYTES);
        if full {
            return false;
        }
        let Some(lane) = self.lane(key, name) else { return true };
        let this = self.chains.count;
        self.chains.count = this + 1;
        self.chains.u16(lane);
        self.chains.u16(from);
        self.chains.u32(shared as u32);
        self.chains.u32(tail.len() as u32);
        self.chains.bytes.extend_from_slice(&adapter.to_le_bytes());
        for (hash, depth) in tail.iter().zip(shared..) {
            self.chains.bytes.extend_from_slice(&hash.to_le_bytes());
            self.seen.insert(*hash, (this, depth));
        }
        self.blocks += chain.len();
        true
    }

    /// Chains so far.
    #[must_use]
    pub fn chains(&self) -> usize {
        usize::from(self.chains.count)
    }

    /// The whole batch. `None`: the pool's name is too long to be told.
    #[must_use]
    pub fn finish(self, head: &Head) -> Option<Vec<u8>> {
        let pool = head.pool.as_bytes();
        let length =
            u16::try_from(pool.len()).ok().filter(|n| usize::from(*n) <= NAME_BYTES_MAX)?;
        let parts = self.lanes.bytes.len() + self.sums.bytes.len() + self.chains.bytes.len();
        let mut out = Vec::with_capacity(64 + pool.len() + parts);
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        for n in [head.gateway, head.number, head.sent_us] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.extend_from_slice(&head.block_tokens.to_le_bytes());
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(pool);
        self.lanes.close(&mut out);
        self.sums.close(&mut out);
        self.chains.close(&mut out);
        Some(out)
    }
}
