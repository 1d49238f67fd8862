//! One session with the store: a batch a pool at each tick, and what others publish in between.
//!
//! The store is believed to be there while our own batches come back through it: one that accepts
//! bytes and does nothing is as good as none. All of it is one task, so that nothing is locked;
//! what takes long is cut into slices, between which the thread's other tasks run.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use futures_core::Stream;
use redis::Msg;
use redis::aio::{MultiplexedConnection, PubSubStream};
use tokio::task::yield_now;
use tokio::time::{MissedTickBehavior, interval};

use super::decode::{Batch, Refused};
use super::encode::Encoder;
use super::inbox::Inbox;
use super::peers::{Heard, Peers};
use super::run::{Down, Share};
use super::stats::Lost;
use super::wire::{Head, LaneName};
use crate::prefix::Slot;
use crate::replicas::fleet::Fleet;
use crate::replicas::pool::Pool;
use crate::runtime::clock;
use crate::runtime::log::Log;

/// Our own batches must come back within so long, and within this many ticks.
const ECHO_MS_MAX: u64 = 1_000;
const ECHO_TICKS_MAX: u64 = 5;
/// The control thread is held for so long at a time.
const SLICE_NS: u64 = 500_000;
/// Prefill time in ms below which a lane that is idle otherwise is not mentioned.
const PREFILL_MS_MIN: f64 = 0.5;

/// What outlives a session.
pub(super) struct Exchange<'l, F> {
    share: Share,
    log: &'l Log,
    fleet: F,
    peers: Peers,
    inbox: Inbox,
    /// Number of the last batch.
    number: u64,
    /// When a batch of ours last came back, ms.
    echo_ms: u64,
    /// One has, in this session.
    up: bool,
    /// A gateway of another version was mentioned.
    said_version: bool,
}

impl<'l, F: Fn() -> Arc<Fleet>> Exchange<'l, F> {
    pub(super) fn new(share: Share, log: &'l Log, fleet: F) -> Exchange<'l, F> {
        Exchange {
            share,
            log,
            fleet,
            peers: Peers::default(),
            inbox: Inbox::default(),
            number: 0,
            echo_ms: 0,
            up: false,
            said_version: false,
        }
    }

    /// Connects and exchanges until the store is gone, and says why it is.
    pub(super) async fn session(&mut self) -> Down {
        let connected = self.share.connect().await;
        let (mut sending, mut messages) = match connected {
            Ok(connected) => connected,
            Err(down) => return down,
        };
        let mut tick = interval(self.share.every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.echo_ms = clock::now_ms();
        loop {
            tokio::select! {
                biased;
                _ = tick.tick() => {
                    if let Err(down) = self.publish(&mut sending).await {
                        return down;
                    }
                }
                message = next(&mut messages) => match message {
                    Some(message) => self.receive(message.get_payload_bytes().to_vec()),
                    None => return Down::Closed,
                },
                () = yield_now(), if !self.inbox.is_empty() => {
                    let until = clock::now_ns() + SLICE_NS;
                    self.inbox.enter(clock::now_ms(), || clock::now_ns() >= until);
                }
            }
        }
    }

    /// The session is over. True: the store was there for a while.
    pub(super) fn ended(&mut self) -> bool {
        self.share.stats.up.set(0);
        self.peers.forget_silent(clock::now_ms());
        self.share.stats.peers.set(self.peers.count() as i64);
        std::mem::take(&mut self.up)
    }

    /// One batch a pool.
    async fn publish(&mut self, sending: &mut MultiplexedConnection) -> Result<(), Down> {
        let now_ms = clock::now_ms();
        let every_ms = self.share.every.as_millis() as u64;
        let patience_ms = ECHO_MS_MAX.max(ECHO_TICKS_MAX * every_ms);
        if now_ms.saturating_sub(self.echo_ms) > patience_ms {
            return Err(Down::Silent);
        }
        self.peers.forget_silent(now_ms);
        self.share.stats.peers.set(self.peers.count() as i64);
        let fleet = (self.fleet)();
        let mut batches = redis::pipe();
        let mut count = 0;
        for pool in &fleet.pools {
            if let Some(bytes) = self.batch(pool).await {
                batches.cmd("PUBLISH").arg(&self.share.channel).arg(bytes).ignore();
                count += 1;
            }
        }
        batches.query_async::<()>(sending).await?;
        self.share.stats.sent.add(count);
        Ok(())
    }

    /// What there is to tell of a pool.
    async fn batch(&mut self, pool: &Pool) -> Option<Vec<u8>> {
        let outbox = &pool.state.outbox;
        outbox.open();
        let (mut encoder, now_ms) = (Encoder::default(), clock::now_ms());
        let mut names: HashMap<Slot, LaneName> = HashMap::new();
        for lane in &pool.lanes {
            let name = LaneName { replica: Arc::clone(&lane.replica.id), rank: lane.rank };
            let sums = lane.ledger.own(now_ms);
            if sums.requests > 0 || sums.prefill_ms > PREFILL_MS_MIN {
                encoder.sums(usize::from(lane.slot), &name, &sums);
            }
            names.insert(lane.slot, name);
        }
        let mut until = clock::now_ns() + SLICE_NS;
        while let Some(next) = outbox.take() {
            // Whose lane is gone, nobody will ask for what it held.
            let Some(name) = names.get(&next.slot) else { continue };
            let key = usize::from(next.slot);
            if !encoder.dispatched(key, name, next.adapter, &next.chain) {
                self.share.stats.lost(Lost::Outbox).inc();
                break;
            }
            if clock::now_ns() >= until {
                yield_now().await;
                until = clock::now_ns() + SLICE_NS;
            }
        }
        self.share.stats.lost(Lost::Outbox).add(outbox.take_dropped());
        self.number += 1;
        encoder.finish(&Head {
            gateway: self.share.gateway,
            number: self.number,
            sent_us: clock::now_ns() / 1_000,
            block_tokens: kind(pool),
            pool: Arc::clone(&pool.name),
        })
    }

    fn receive(&mut self, bytes: Vec<u8>) {
        let stats = Arc::clone(&self.share.stats);
        let batch = match Batch::decode(bytes) {
            Ok(batch) => batch,
            Err(refused) => {
                stats.lost(Lost::Refused).inc();
                if let Refused::Version(other) = refused
                    && !std::mem::replace(&mut self.said_version, true)
                {
                    let what = "another gateway shares in a form that this version does not know";
                    self.log.warn(&format!("{what} ({other}): the two do not see each other"));
                }
                return;
            }
        };
        let now_ms = clock::now_ms();
        if batch.head.gateway == self.share.gateway {
            return self.came_back(&batch.head, now_ms);
        }
        let Heard::News(peer) = self.peers.heard(batch.head.gateway, batch.head.number, now_ms)
        else {
            return stats.lost(Lost::Unheard).inc();
        };
        stats.received.inc();
        let fleet = (self.fleet)();
        let Some(pool) = fleet.pools.iter().find(|pool| pool.name == batch.head.pool) else {
            return;
        };
        self.peers.report(peer, pool, &batch, now_ms);
        let chains = batch.chains() as u64;
        if chains > 0 && batch.head.block_tokens == kind(pool) {
            stats.lost(Lost::Inbox).add(self.inbox.push(pool, batch));
        } else {
            stats.lost(Lost::OtherBlocks).add(chains);
        }
    }

    /// A batch of our own: the store passes on what it is given.
    fn came_back(&mut self, head: &Head, now_ms: u64) {
        let us = (clock::now_ns() / 1_000).saturating_sub(head.sent_us);
        self.share.stats.lag.observe_ns(us.saturating_mul(1_000));
        self.echo_ms = now_ms;
        if !std::mem::replace(&mut self.up, true) {
            self.share.stats.up.set(1);
            let place = &self.share.place;
            self.log.info(&format!("sharing load and prefixes with other gateways by {place}"));
        }
    }
}

/// The next message; `None` when the subscription has ended.
async fn next(messages: &mut PubSubStream) -> Option<Msg> {
    poll_fn(|context| Pin::new(&mut *messages).poll_next(context)).await
}

/// What the hashes of a pool's prompts are of: blocks of so many tokens, or chunks of text (0).
fn kind(pool: &Pool) -> u32 {
    if pool.model().is_some() { pool.block_tokens() } else { 0 }
}
