//! The cores' end of the usage log: a bounded ring that never blocks them, and the place of each
//! open request in the table that outlives the process.
//!
//! A core reserves a [`Slot`] before a request starts and pushes the record through it when the
//! request ends. Neither blocks, waits or wakes anybody: the writer thread polls. Slots, queued
//! records and lines not yet written together never exceed the ring, so that the push of a reserved
//! record cannot fail.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};

use crossbeam_queue::ArrayQueue;

use super::record::UsageRecord;
use super::table::{Opening, Place, Table};
use crate::config::OnFull;

/// The usage log cannot take another request; clients get 503 `usage_unavailable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageUnavailable;

/// Records so far, as metrics show them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageCounters {
    /// Records handed to the kernel.
    pub written: u64,
    /// Records lost: by the policy `drop`, or at a stop while writes failed.
    pub dropped: u64,
    /// Writes, opens, syncs and rotations that failed.
    pub failed: u64,
    /// Requests that an ended process had left open, listed at this start.
    pub open: u64,
    /// Records that the stream has taken.
    pub streamed: u64,
    /// Records that the stream never got: it was away for too long.
    pub stream_dropped: u64,
}

/// What all threads share.
pub(super) struct Shared {
    pub(super) ring: ArrayQueue<Ended>,
    /// Slots not yet pushed, records in the ring, lines not yet written.
    claimed: AtomicUsize,
    /// Open requests; set once there is room for it.
    pub(super) table: OnceLock<Table>,
    pub(super) policy: OnFull,
    off: bool,
    pub(super) healthy: AtomicBool,
    pub(super) stop: AtomicBool,
    pub(super) reopen: AtomicBool,
    pub(super) written: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) open: AtomicU64,
    pub(super) streamed: AtomicU64,
    pub(super) stream_dropped: AtomicU64,
}

/// A record on its way, with the place that it still holds.
pub(super) struct Ended {
    pub(super) record: UsageRecord,
    pub(super) place: Option<Place>,
}

impl Shared {
    /// `off`: nothing is kept, nothing refused.
    pub(super) fn new(capacity: usize, policy: OnFull, off: bool) -> Shared {
        let zero = || AtomicU64::new(0);
        let no = || AtomicBool::new(false);
        Shared {
            ring: ArrayQueue::new(capacity.max(1)),
            claimed: AtomicUsize::new(0),
            table: OnceLock::new(),
            policy,
            off,
            healthy: AtomicBool::new(true),
            stop: no(),
            reopen: no(),
            written: zero(),
            dropped: zero(),
            failed: zero(),
            open: zero(),
            streamed: zero(),
            stream_dropped: zero(),
        }
    }

    /// Gives back what a record held. Without its line written the place may stay (`keep`), so that
    /// the next start records it.
    pub(super) fn release(&self, place: Option<Place>, keep: bool) {
        match (place, self.table.get()) {
            (Some(place), Some(table)) if keep => table.unwritten(place),
            (Some(place), Some(table)) => table.release(place),
            _ => {}
        }
        self.claimed.fetch_sub(1, AcqRel);
    }

    pub(super) fn outstanding(&self) -> usize {
        self.claimed.load(Acquire)
    }
}

/// The cores' end; cheap to clone.
#[derive(Clone)]
pub struct UsageSink(pub(super) Arc<Shared>);

/// Room for one record. Dropped without a push, it gives the room back.
pub struct Slot {
    shared: Arc<Shared>,
    claimed: bool,
    place: Option<Place>,
}

impl UsageSink {
    /// Makes sure that the record of a request which is about to start will be kept, or, should
    /// this process be killed, that the next one will know of the request.
    ///
    /// # Errors
    /// With the policy `refuse`, while writes fail or the ring is full. Never with `drop`.
    pub fn reserve(&self, opening: &Opening<'_>) -> Result<Slot, UsageUnavailable> {
        let shared = &self.0;
        let refuse = shared.policy == OnFull::Refuse;
        if shared.off {
            return Ok(Slot { shared: shared.clone(), claimed: false, place: None });
        }
        if !self.takes_requests() {
            return Err(UsageUnavailable);
        }
        let more = |claimed: usize| (claimed < shared.ring.capacity()).then_some(claimed + 1);
        let claimed = shared.claimed.fetch_update(AcqRel, Relaxed, more).is_ok();
        if refuse && !claimed {
            return Err(UsageUnavailable);
        }
        // The table has as many places as may be claimed.
        let table = shared.table.get().filter(|_| claimed);
        let place = table.and_then(|table| table.take(opening));
        Ok(Slot { shared: shared.clone(), claimed, place })
    }

    /// False from a failed write until one succeeds.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.0.healthy.load(Acquire)
    }

    /// May a request start? With `refuse` only while its record can be written.
    #[must_use]
    pub fn takes_requests(&self) -> bool {
        self.0.policy == OnFull::Drop || self.is_healthy()
    }

    /// Has the writer open the log anew, as after somebody else renamed it. Does not wait.
    pub fn reopen(&self) {
        self.0.reopen.store(true, Release);
    }

    /// What became of the records so far.
    #[must_use]
    pub fn counters(&self) -> UsageCounters {
        UsageCounters {
            written: self.0.written.load(Relaxed),
            dropped: self.0.dropped.load(Relaxed),
            failed: self.0.failed.load(Relaxed),
            open: self.0.open.load(Relaxed),
            streamed: self.0.streamed.load(Relaxed),
            stream_dropped: self.0.stream_dropped.load(Relaxed),
        }
    }

    /// Open slots and records not yet written: zero at rest.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.0.outstanding()
    }
}

impl Slot {
    /// Hands the record over. Without room (policy `drop`, ring full) it is dropped and counted.
    pub fn push(mut self, record: UsageRecord) {
        if std::mem::take(&mut self.claimed) {
            if let (Some(place), Some(table)) = (self.place, self.shared.table.get()) {
                table.ended(place, &record);
            }
            // The ring holds as many as may be claimed, and this slot is one of them. Claim and
            // place go with the record, and the writer gives them back.
            let kept = self.shared.ring.push(Ended { record, place: self.place }).is_ok();
            debug_assert!(kept, "a claimed slot has room");
        } else if !self.shared.off {
            self.shared.dropped.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.claimed {
            self.shared.release(self.place, false);
        }
    }
}
