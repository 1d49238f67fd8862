//! What happens next: events by time, those of one time in the order in which they were entered.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An event of a run. A request's events name the sending that they belong to, so that those of a
/// sending that has failed are known as stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// The session of that number begins.
    Start(usize),
    /// A conversation's next turn comes to the gateway.
    Turn(usize),
    /// The gateway picks a replica for the conversation's turn.
    Pick(usize),
    /// A request reaches its replica.
    Deliver(u64),
    /// A step of the replica's engine ends.
    Step(usize),
    /// The gateway sees the first token.
    First {
        /// The sending.
        id: u64,
        /// Tokens of the prompt that the replica's cache spared.
        cached_tokens: u64,
    },
    /// The gateway sees the end.
    End(u64),
    /// A request has been held long enough.
    HoldOver(u64),
    /// The gateways read the metrics.
    Scrape,
    /// The gateways tell each other.
    Gossip,
    /// The replica of that crash dies.
    Crash(usize),
    /// Its death shows.
    CrashSeen(usize),
    /// It is back.
    Back(usize),
}

/// The events to come.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    entered: u64,
}

impl Agenda {
    pub(super) fn at(&mut self, us: u64, event: Event) {
        self.heap.push(Reverse((us, self.entered, event)));
        self.entered += 1;
    }

    /// Takes the next event with its time.
    pub(super) fn next(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse((us, _, event))| (us, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_then_order_of_entry() {
        let mut agenda = Agenda::default();
        let events = [(5, Event::Step(1)), (3, Event::Scrape), (5, Event::Deliver(0))];
        events.iter().for_each(|&(us, event)| agenda.at(us, event));
        let taken: Vec<_> = std::iter::from_fn(|| agenda.next()).collect();
        assert_eq!(taken, [(3, Event::Scrape), (5, Event::Step(1)), (5, Event::Deliver(0))]);
    }
}
