//! One engine's messages on their way into the prefix index: in order, mapped, in short batches.
//!
//! Owns what is known of one engine process: the [`Map`] of its blocks, the [`Sequence`] of its
//! messages, and whether both are complete. Events go on being mapped while the replica is not
//! exact; the index is told of them only when they are worth more than our own dispatches. Runs on
//! the control thread and yields between batches, so that a flood of events starves nobody. No I/O.

use std::sync::Arc;

use crate::prefix::{self, Index, Slot};
use crate::prompt::blocks::BlockHash;
use crate::runtime::clock;

use super::decode::{Batch, Decoder, Event};
use super::map::{Map, Sink};
use super::sequence::{Seen, Sequence};
use super::state::{Happened, Mode, State, Why};

/// Blocks that the index is told of at once: some tens of microseconds.
const BATCH_BLOCKS: usize = 512;
/// From this share of its blocks on, an engine whose early events were missed is known well enough.
const KNOWN_SHARE: (u64, u64) = (9, 10);

/// What a feed needs of the replica that it is of.
pub trait Host {
    /// The pool's index.
    fn index(&self) -> &Index;
    /// The replica's (or rank's) number in it.
    fn slot(&self) -> Slot;
    /// Tokens in the pool's blocks; 0 while they are not known or differ.
    fn block_tokens(&self) -> u32;
    /// Blocks of the replica's cache; 0 while not known.
    fn blocks(&self) -> u64;
    /// A line for the log; `bad`: an operator should look at it.
    fn say(&self, bad: bool, line: &str);
}

/// What to do about a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It is dealt with.
    Nothing,
    /// A replay first, then the message again; without one, [`Feed::unfilled`].
    Replay,
}

/// See the module.
pub struct Feed<H> {
    out: Out<H>,
    state: Arc<State>,
    rank: Option<u32>,
    decoder: Decoder,
    map: Map,
    block_tokens: u32,
    blocks: u64,
    sequence: Sequence,
    /// Nothing that the engine holds is unknown to the map, but for what cannot be named.
    complete: bool,
    reachable: bool,
    other_rank: bool,
    /// Its hits did not agree with its events; it may do better after a restart.
    distrusted: bool,
    /// Counts at the beginning of this process.
    at_start: (u64, u64),
}

enum Change {
    Stored(BlockHash),
    Removed(BlockHash),
    Clear,
}

/// Changes on their way to the index.
struct Out<H> {
    host: H,
    changes: Vec<Change>,
    exact: bool,
}

impl<H: Host> Sink for Out<H> {
    fn stored(&mut self, hash: BlockHash) {
        if self.exact {
            self.changes.push(Change::Stored(hash));
        }
    }
    fn removed(&mut self, hash: BlockHash) {
        if self.exact {
            self.changes.push(Change::Removed(hash));
        }
    }
    fn clear(&mut self) {
        self.changes.clear();
        // Our own dispatches are forgotten too: the engine has.
        self.changes.push(Change::Clear);
    }
}

impl<H: Host> Out<H> {
    async fn flush(&mut self) {
        let slot = self.host.slot();
        for some in self.changes.chunks(BATCH_BLOCKS) {
            self.host.index().write(|index| {
                for change in some {
                    match *change {
                        Change::Stored(hash) => index.stored(slot, hash),
                        Change::Removed(hash) => index.removed(slot, hash),
                        Change::Clear => index.clear(slot),
                    }
                }
            });
            if some.len() == BATCH_BLOCKS {
                tokio::task::yield_now().await;
            }
        }
        self.changes.clear();
        self.changes.shrink_to(BATCH_BLOCKS * 4);
    }
}

impl<H: Host> Feed<H> {
    /// A feed that has heard nothing.
    pub fn new(host: H, state: Arc<State>, rank: Option<u32>) -> Feed<H> {
        let block_tokens = host.block_tokens();
        Feed {
            out: Out { host, changes: Vec::new(), exact: false },
            state,
            rank,
            decoder: Decoder::default(),
            map: Map::new(block_tokens, 0),
            block_tokens,
            blocks: 0,
            sequence: Sequence::default(),
            complete: false,
            reachable: false,
            other_rank: false,
            distrusted: false,
            at_start: (0, 0),
        }
    }

    /// What is shown of it.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The replica that it is of.
    pub fn host(&self) -> &H {
        &self.out.host
    }

    /// Has the pool's block size become another than the one that blocks are mapped by?
    pub fn is_outdated(&self) -> bool {
        self.out.host.block_tokens() != self.block_tokens
    }

    /// Is the pool's block size the one that blocks are mapped by? If it has become known or has
    /// changed, all begins anew.
    pub async fn is_ready(&mut self) -> bool {
        let block_tokens = self.out.host.block_tokens();
        if block_tokens != self.block_tokens {
            self.block_tokens = block_tokens;
            self.map.set_block_tokens(block_tokens);
            self.forget().await;
        }
        block_tokens != 0
    }

    /// A connection is made.
    pub fn connected(&mut self) {
        self.reachable = true;
        self.sequence.reconnected();
    }

    /// There has been no connection for so long that what is known is stale.
    pub async fn unreachable(&mut self) {
        self.reachable = false;
        self.settle().await;
    }

    /// Its port is closed: the process has ended, and its cache with it.
    pub async fn ended(&mut self) {
        if self.sequence.expected() > 0 {
            self.restarted().await;
        }
    }

    /// A message from the subscription.
    pub async fn message(&mut self, seq: u64, payload: &[u8]) -> Need {
        match self.sequence.see(seq) {
            Seen::Next => self.take_and_settle(seq, payload).await,
            Seen::Stale => self.state.count(Happened::Stale),
            Seen::Gap { .. } => return Need::Replay,
            Seen::Restart => {
                self.restarted().await;
                // A process is new once: this is the first message of it, or there is a gap.
                match self.sequence.see(seq) {
                    Seen::Next => self.take_and_settle(seq, payload).await,
                    _ => return Need::Replay,
                }
            }
        }
        Need::Nothing
    }

    /// Where the replay that is needed has to start.
    pub fn replay_from(&self) -> u64 {
        self.sequence.replay_from()
    }

    /// A replayed message; behind the last, [`Feed::settle`] says what all are worth. True: it is
    /// of a new process, the replay has to begin anew.
    pub async fn replayed(&mut self, seq: u64, payload: &[u8]) -> bool {
        match self.sequence.replayed(seq, payload) {
            Seen::Next => self.take(seq, payload).await,
            Seen::Stale => {}
            Seen::Gap { .. } => {
                // The engine keeps its last messages only.
                self.lose(seq).await;
                self.take(seq, payload).await;
            }
            Seen::Restart => {
                self.restarted().await;
                return true;
            }
        }
        false
    }

    /// The replay has ended. True: nothing in it was of the process we knew, it has to begin anew.
    pub async fn replay_ended(&mut self) -> bool {
        let gone = self.sequence.is_unsure();
        if gone {
            self.restarted().await;
        } else if self.sequence.expected() == 0 {
            // It was asked from the first message on, and there is none yet: nothing is held.
            self.complete = true;
        }
        gone
    }

    /// Nothing replays what is missing before message `seq`.
    pub async fn unfilled(&mut self, seq: u64) {
        if self.sequence.is_unsure() && seq == self.sequence.expected() {
            // Its port was never closed and its number is the right one: the same process.
            self.sequence.confirm();
        } else if seq != self.sequence.expected() {
            self.lose(seq).await;
        }
    }

    async fn lose(&mut self, next: u64) {
        self.state.count(Happened::Purge);
        self.forget().await;
        self.sequence.resume_at(next);
    }

    async fn restarted(&mut self) {
        self.state.count(Happened::Restart);
        self.state.check.reset();
        self.distrusted = false;
        self.forget().await;
        self.out.host.say(false, "its engine is a new process: its blocks are forgotten");
    }

    /// Forgets all, to begin with whatever message comes next.
    async fn forget(&mut self) {
        self.map.clear(&mut self.out);
        self.out.flush().await;
        self.sequence.restart();
        self.complete = false;
        self.other_rank = false;
        let counts = self.map.counts();
        self.at_start = (counts.stored, counts.other_size);
    }
}

impl<H: Host> Feed<H> {
    /// Takes in a message whose turn it is.
    async fn take(&mut self, seq: u64, payload: &[u8]) {
        self.state.count(Happened::Message);
        let mut decoder = std::mem::take(&mut self.decoder);
        match decoder.read(payload) {
            Ok(batch)
                if self.rank.is_some() && batch.rank.is_some_and(|r| Some(r) != self.rank) =>
            {
                self.state.count(Happened::OtherRank);
                self.other_rank = true;
            }
            Ok(batch) => {
                self.complete |= seq == 0;
                self.events(&batch).await;
            }
            // Whatever it said is not known: as if it had been lost.
            Err(_) => {
                self.state.count(Happened::Garbage);
                self.lose(seq).await;
            }
        }
        self.decoder = decoder;
        self.sequence.taken(seq, payload);
        self.state.show(self.map.counts(), self.map.live(), clock::now_ms());
    }

    async fn take_and_settle(&mut self, seq: u64, payload: &[u8]) {
        self.take(seq, payload).await;
        self.settle().await;
    }

    async fn events(&mut self, batch: &Batch<'_>) {
        self.map.expect(batch.keys);
        for event in batch.events() {
            let overflows = self.map.counts().overflows;
            self.map.apply(&event, &mut self.out);
            match event {
                Event::Cleared => self.complete = true,
                Event::Odd => self.complete = false,
                _ => {}
            }
            if self.map.counts().overflows != overflows {
                self.complete = false;
            }
            if self.out.changes.len() >= BATCH_BLOCKS {
                self.out.flush().await;
            }
        }
        self.out.flush().await;
    }

    /// Brings the index in line with what the events are worth by now.
    pub async fn settle(&mut self) {
        let blocks = self.out.host.blocks();
        if blocks != self.blocks {
            self.blocks = blocks;
            self.map.set_blocks(blocks);
            let slot = self.out.host.slot();
            self.out.host.index().write(|index| index.set_capacity(slot, blocks));
        }
        self.distrusted |= self.out.exact && self.state.check.is_mismatched();
        let mode = self.worth();
        if !self.state.set_mode(mode) && self.out.exact == (mode == Mode::Exact) {
            return;
        }
        let slot = self.out.host.slot();
        self.out.exact = mode == Mode::Exact;
        if self.out.exact {
            self.out.host.index().write(|index| index.set_mode(slot, prefix::Mode::Exact));
            for (hash, copies) in self.map.held() {
                (0..copies).for_each(|_| self.out.stored(hash));
            }
            self.out.flush().await;
            let line = format!("its prefix index is exact: {} blocks known", self.map.live());
            self.out.host.say(false, &line);
        } else {
            self.out.host.index().write(|index| index.set_mode(slot, prefix::Mode::Approximate));
            let bad = mode != Mode::Approximate(Why::Unheard);
            let line = format!("its prefix index is approximate: {}", mode.reason());
            self.out.host.say(bad, &line);
        }
    }

    fn worth(&self) -> Mode {
        let counts = self.map.counts();
        let (stored, other_size) = self.at_start;
        let (share, of) = KNOWN_SHARE;
        let well_known = self.blocks > 0 && self.map.live() * of >= self.blocks * share;
        Mode::Approximate(if !self.reachable || self.block_tokens == 0 {
            Why::Unreachable
        } else if counts.other_size > other_size && counts.stored == stored {
            Why::BlockSize
        } else if self.other_rank {
            Why::OtherRank
        } else if self.distrusted {
            Why::Mismatch
        } else if self.complete || well_known {
            return Mode::Exact;
        } else if self.sequence.expected() == 0 {
            Why::Unheard
        } else {
            Why::Incomplete
        })
    }
}
