//! What the metrics page tells of sharing. The control thread writes; anyone reads.

use crate::runtime::cells::{Counter, Gauge, Histogram};

/// Why something that was told or to be told is lost. A lost hint costs time only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Dispatches that the cores made faster than batches took them.
    Outbox,
    /// Dispatches of others that came faster than they were entered.
    Inbox,
    /// Messages that are no batch, or one of a version that we do not know.
    Refused,
    /// Batches that newer ones have overtaken, and those of gateways past the limit.
    Unheard,
    /// Dispatches in blocks of another size, or of text where ours are of tokens.
    OtherBlocks,
}

impl Lost {
    /// All, with their labels.
    pub const ALL: [(Lost, &'static str); 5] = [
        (Lost::Outbox, "outbox"),
        (Lost::Inbox, "inbox"),
        (Lost::Refused, "refused"),
        (Lost::Unheard, "unheard"),
        (Lost::OtherBlocks, "other_blocks"),
    ];
}

/// Counts of sharing.
#[derive(Debug, Default)]
pub struct Stats {
    /// 1 while our own batches come back from the store.
    pub up: Gauge,
    /// Other gateways heard of lately.
    pub peers: Gauge,
    /// Batches sent.
    pub sent: Counter,
    /// Batches of others received.
    pub received: Counter,
    /// From sending a batch to its coming back, store and both queues included.
    pub lag: Histogram,
    lost: [Counter; Lost::ALL.len()],
}

impl Stats {
    /// The counter of a reason.
    #[must_use]
    pub fn lost(&self, why: Lost) -> &Counter {
        let [outbox, inbox, refused, unheard, other_blocks] = &self.lost;
        match why {
            Lost::Outbox => outbox,
            Lost::Inbox => inbox,
            Lost::Refused => refused,
            Lost::Unheard => unheard,
            Lost::OtherBlocks => other_blocks,
        }
    }
}
