//! Reads a batch that anyone may have written: checked as a whole before any of it is used. Pure.

use std::ops::Range;
use std::sync::Arc;

use super::wire::{
    BATCH_BYTES_MAX, BLOCKS_MAX, CHAIN_BLOCKS_MAX, CHAIN_BYTES, CHAINS_MAX, HASH_BYTES, Head,
    LANE_BYTES, LANES_MAX, LaneName, MAGIC, NAME_BYTES_MAX, NO_RANK, SUMS_BYTES, VERSION, sums,
};
use crate::prompt::blocks::BlockHash;
use crate::replicas::ledger::Sums;

/// Why bytes are no batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Written by a version that this one does not know.
    Version(u8),
    /// No batch, or one past the limits.
    Malformed,
}

/// A batch that was received.
#[derive(Debug)]
pub struct Batch {
    /// Who sent it, and about what.
    pub head: Head,
    /// The lanes that it speaks of.
    pub lanes: Vec<LaneName>,
    /// Index in `lanes`, and what the sender has in flight there.
    pub sums: Vec<(usize, Sums)>,
    chains: Vec<Chain>,
    bytes: Vec<u8>,
}

/// The first `shared` blocks of chain `from`, then those at `tail`.
#[derive(Debug)]
struct Chain {
    lane: usize,
    from: usize,
    shared: usize,
    adapter: u64,
    tail: Range<usize>,
}

impl Chain {
    fn blocks(&self) -> usize {
        self.shared + self.tail.len() / HASH_BYTES
    }
}

impl Batch {
    /// Takes a message apart.
    ///
    /// # Errors
    /// It is none that we know.
    pub fn decode(bytes: Vec<u8>) -> Result<Batch, Refused> {
        let mut reader = Reader { bytes: &bytes, at: 0 };
        let head = reader.head()?;
        let (lanes, sums, chains) = reader.sections().ok_or(Refused::Malformed)?;
        Ok(Batch { head, lanes, sums, chains, bytes })
    }

    /// Bytes that it takes up.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Number of chains.
    #[must_use]
    pub fn chains(&self) -> usize {
        self.chains.len()
    }

    /// Puts chain `index` together in `out`, which is cleared first; gives its index in `lanes` and
    /// the hash of its adapter, 0 = none.
    pub fn chain(&self, index: usize, out: &mut Vec<BlockHash>) -> Option<(usize, u64)> {
        out.clear();
        let mut chain = self.chains.get(index)?;
        let told = (chain.lane, chain.adapter);
        let mut blocks = chain.blocks();
        out.resize(blocks, 0);
        // From the end: each step writes at least one block, since `Reader::chain` has seen to it.
        loop {
            let tail = self.bytes.get(chain.tail.clone())?.as_chunks::<HASH_BYTES>().0;
            for (place, hash) in out.get_mut(chain.shared..blocks)?.iter_mut().zip(tail) {
                *place = BlockHash::from_le_bytes(*hash);
            }
            blocks = chain.shared;
            if blocks == 0 {
                return Some(told);
            }
            chain = self.chains.get(chain.from)?;
        }
    }
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

type Sections = (Vec<LaneName>, Vec<(usize, Sums)>, Vec<Chain>);

impl Reader<'_> {
    fn take(&mut self, n: usize) -> Option<&[u8]> {
        let end = self.at.checked_add(n)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.first_chunk().copied()
    }

    fn u16(&mut self) -> Option<usize> {
        self.array().map(|b| usize::from(u16::from_le_bytes(b)))
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn name(&mut self) -> Option<Arc<str>> {
        let length = self.u16().filter(|n| *n <= NAME_BYTES_MAX)?;
        std::str::from_utf8(self.take(length)?).ok().map(Arc::from)
    }

    /// The count of a section, if that many entries of at least `bytes` each can follow.
    fn count(&mut self, max: usize, bytes: usize) -> Option<usize> {
        let count = self.u16()?;
        let left = self.bytes.len() - self.at.min(self.bytes.len());
        (count <= max && count.saturating_mul(bytes) <= left).then_some(count)
    }

    fn head(&mut self) -> Result<Head, Refused> {
        let magic = self.array().filter(|_| self.bytes.len() <= BATCH_BYTES_MAX);
        let version = magic.filter(|magic| *magic == MAGIC).and_then(|_| self.array());
        match version {
            Some([VERSION]) => self.named_head().ok_or(Refused::Malformed),
            Some([other]) => Err(Refused::Version(other)),
            None => Err(Refused::Malformed),
        }
    }

    fn named_head(&mut self) -> Option<Head> {
        Some(Head {
            gateway: self.u64()?,
            number: self.u64()?,
            sent_us: self.u64()?,
            block_tokens: self.u32()?,
            pool: self.name()?,
        })
    }

    fn sections(&mut self) -> Option<Sections> {
        let count = self.count(LANES_MAX, LANE_BYTES)?;
        let lanes: Vec<_> = (0..count).map(|_| self.lane()).collect::<Option<_>>()?;
        let count = self.count(LANES_MAX, SUMS_BYTES)?;
        let sums = (0..count).map(|_| self.sums(lanes.len())).collect::<Option<_>>()?;
        let count = self.count(CHAINS_MAX, CHAIN_BYTES)?;
        let mut chains = Vec::with_capacity(count);
        let mut blocks = 0;
        for _ in 0..count {
            let chain = self.chain(lanes.len(), &chains)?;
            blocks += chain.blocks();
            chains.push(chain);
        }
        let whole = self.at == self.bytes.len() && blocks <= BLOCKS_MAX;
        whole.then_some((lanes, sums, chains))
    }

    fn lane(&mut self) -> Option<LaneName> {
        let replica = self.name()?;
        let rank = self.u32()?;
        Some(LaneName { replica, rank: (rank != NO_RANK).then_some(rank) })
    }

    fn sums(&mut self, lanes: usize) -> Option<(usize, Sums)> {
        let lane = self.u16().filter(|lane| *lane < lanes)?;
        let mut numbers = [0; 7];
        for n in &mut numbers {
            *n = self.u32()?;
        }
        let prefill_ms = f32::from_le_bytes(self.array()?);
        Some((lane, sums(numbers, prefill_ms)))
    }

    fn chain(&mut self, lanes: usize, before: &[Chain]) -> Option<Chain> {
        let lane = self.u16().filter(|lane| *lane < lanes)?;
        let from = self.u16()?;
        let (shared, tail) = (self.u32()? as usize, self.u32()? as usize);
        let adapter = self.u64()?;
        shared.checked_add(tail).filter(|blocks| *blocks <= CHAIN_BLOCKS_MAX)?;
        if shared > 0 {
            let head = before.get(from)?;
            // Its own tail has our last shared block.
            (head.shared < shared && shared <= head.blocks()).then_some(())?;
        }
        let start = self.at;
        self.take(tail.checked_mul(HASH_BYTES)?)?;
        Some(Chain { lane, from, shared, adapter, tail: start..self.at })
    }
}
