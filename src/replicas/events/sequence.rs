//! Which message comes next: gaps, restarts and stragglers, told by sequence numbers alone.
//!
//! An engine numbers its messages from 0 at process start, without gaps. A number that goes back
//! to 0 is a new process with an empty cache. After a connection was lost a higher number may be of
//! a new process too, one that was quick: so the message that was last taken is asked for again,
//! and must be the same to the byte. Pure.

use xxhash_rust::xxh3::xxh3_64;

/// Messages in a row that go up by one from below what was taken: a new process whose message 0
/// was missed, behind a proxy that kept the connection. A straggler or two do not look like it.
const RESTART_RUN: u32 = 3;

/// What to do with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// It is the next: take it.
    Next,
    /// It was taken before, or comes too late: drop it.
    Stale,
    /// Messages from `from` on are missing: have them replayed, then ask again.
    Gap {
        /// The first number to ask for.
        from: u64,
    },
    /// A new process: forget all, [`Sequence::restart`], then ask again.
    Restart,
}

/// Where one engine's messages stand.
#[derive(Debug, Default)]
pub struct Sequence {
    last: Option<Taken>,
    /// Numbers below the last taken, seen in a row, and how many.
    below: Option<(u64, u32)>,
    /// The connection is new: the last message is not yet known to be of the same process.
    unsure: bool,
}

#[derive(Debug, Clone, Copy)]
struct Taken {
    seq: u64,
    digest: u64,
}

impl Sequence {
    /// A new process, or a new beginning after a gap that nothing fills.
    pub fn restart(&mut self) {
        *self = Sequence::default();
    }

    /// Takes up after a gap that nothing fills: `seq` is taken to be the next.
    pub fn resume_at(&mut self, seq: u64) {
        let last = seq.checked_sub(1).map(|seq| Taken { seq, digest: 0 });
        *self = Sequence { last, below: None, unsure: false };
    }

    /// The connection was lost and is back.
    pub fn reconnected(&mut self) {
        self.unsure = self.last.is_some();
        self.below = None;
    }

    /// Where a replay has to start, to know all up to now.
    #[must_use]
    pub fn replay_from(&self) -> u64 {
        match self.last {
            None => 0,
            Some(last) if self.unsure => last.seq,
            Some(last) => last.seq.saturating_add(1),
        }
    }

    /// Is the last message still to be confirmed?
    #[must_use]
    pub fn is_unsure(&self) -> bool {
        self.unsure
    }

    /// The message after the last one taken.
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.last.map_or(0, |last| last.seq.saturating_add(1))
    }

    /// The process is the same: so says what was replayed, or the lack of any other evidence.
    pub fn confirm(&mut self) {
        self.unsure = false;
    }

    /// A replayed message, which arrives in order: the last one again, or what comes after it.
    pub fn replayed(&mut self, seq: u64, payload: &[u8]) -> Seen {
        match self.last {
            Some(last) if self.unsure => {
                // What a resumption took on trust has no digest to compare.
                let same = last.digest == 0 || last.digest == xxh3_64(payload);
                if seq == last.seq && same {
                    self.unsure = false;
                    Seen::Stale
                } else {
                    Seen::Restart
                }
            }
            _ if seq == self.expected() => Seen::Next,
            _ if seq < self.expected() => Seen::Stale,
            _ => Seen::Gap { from: self.expected() },
        }
    }

    /// A message from the subscription.
    pub fn see(&mut self, seq: u64) -> Seen {
        let Some(last) = self.last else {
            return if seq == 0 { Seen::Next } else { Seen::Gap { from: 0 } };
        };
        if seq > last.seq {
            self.below = None;
            let is_next = seq == self.expected() && !self.unsure;
            return if is_next { Seen::Next } else { Seen::Gap { from: self.replay_from() } };
        }
        // A publisher sends nothing twice: on a new connection any number from before is of a new
        // process, as is 0 at any time.
        if seq == 0 || self.unsure {
            return Seen::Restart;
        }
        let run = match self.below {
            Some((before, run)) if seq == before.saturating_add(1) => run.saturating_add(1),
            _ => 1,
        };
        self.below = Some((seq, run));
        if run >= RESTART_RUN { Seen::Restart } else { Seen::Stale }
    }

    /// The message was taken.
    pub fn taken(&mut self, seq: u64, payload: &[u8]) {
        self.last = Some(Taken { seq, digest: xxh3_64(payload) });
        self.below = None;
        self.unsure = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sequence that has taken messages up to `last`, each of one byte.
    fn at(last: u64) -> Sequence {
        let mut sequence = Sequence::default();
        sequence.taken(last, &[last as u8]);
        sequence
    }

    #[test]
    fn messages_in_order_are_taken() {
        let mut sequence = Sequence::default();
        for seq in 0..200 {
            assert_eq!(sequence.see(seq), Seen::Next);
            sequence.taken(seq, &[]);
        }
    }

    #[test]
    fn a_gap_names_the_first_that_is_missing() {
        assert_eq!(Sequence::default().see(40), Seen::Gap { from: 0 });
        let mut sequence = at(56);
        assert_eq!(sequence.see(58), Seen::Gap { from: 57 });
        assert_eq!(sequence.replayed(57, b"x"), Seen::Next);
        sequence.taken(57, b"x");
        assert_eq!(sequence.see(58), Seen::Next);
        assert_eq!(at(56).replayed(59, b"x"), Seen::Gap { from: 57 }, "it reaches not far enough");
        assert_eq!(at(56).replayed(56, b"x"), Seen::Stale);
        let mut sequence = at(56);
        sequence.resume_at(90);
        assert_eq!(sequence.see(90), Seen::Next);
    }

    #[test]
    fn stragglers_are_dropped_and_a_new_process_is_told() {
        let mut sequence = at(100);
        for late in [100, 99, 57, 58, 60, 61, 12] {
            assert_eq!(sequence.see(late), Seen::Stale, "{late}");
        }
        assert_eq!(sequence.see(0), Seen::Restart);
        // Message 0 of the new process was missed.
        let mut sequence = at(100);
        assert_eq!(
            [7, 8, 9].map(|seq| sequence.see(seq)),
            [Seen::Stale, Seen::Stale, Seen::Restart]
        );
        sequence.restart();
        assert_eq!(sequence.see(9), Seen::Gap { from: 0 });
    }

    #[test]
    fn a_new_connection_has_to_prove_that_the_process_is_the_same() {
        let reconnected = |last: u64| {
            let mut sequence = at(last);
            sequence.reconnected();
            sequence
        };
        for seq in [0, 3, 10] {
            assert_eq!(reconnected(10).see(seq), Seen::Restart, "{seq}");
        }
        for seq in [11, 12, 99] {
            assert_eq!(reconnected(10).see(seq), Seen::Gap { from: 10 }, "{seq}");
        }
        let mut same = reconnected(10);
        assert_eq!(same.replay_from(), 10);
        assert_eq!(same.replayed(10, &[10]), Seen::Stale);
        assert_eq!(same.see(11), Seen::Next);
        assert_eq!(reconnected(10).replayed(10, &[11]), Seen::Restart);
        assert_eq!(reconnected(10).replayed(11, &[11]), Seen::Restart);
        let mut trusted = reconnected(10);
        trusted.confirm();
        assert_eq!(trusted.see(11), Seen::Next);
        let mut fresh = Sequence::default();
        fresh.reconnected();
        assert_eq!((fresh.is_unsure(), fresh.see(0)), (false, Seen::Next));
    }
}
