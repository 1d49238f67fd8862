//! Whole lines on their way into the log, and whose they are. The writer thread's alone; no I/O.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

use xxhash_rust::xxh3::xxh3_64;

use super::ring::{Ended, Shared};
use super::table::Place;

/// A batch is written once it has this many bytes; the last record may pass it.
const BATCH_BYTES: usize = 256 << 10;

/// Lines, of which the first `done` bytes are written.
pub(super) struct Batch {
    bytes: Vec<u8>,
    done: usize,
    lines: VecDeque<Line>,
}

/// A line that is not written in full.
struct Line {
    start: usize,
    end: usize,
    place: Option<Place>,
}

impl Batch {
    pub(super) fn new() -> Batch {
        let bytes = Vec::with_capacity(BATCH_BYTES + 4096);
        Batch { bytes, done: 0, lines: VecDeque::new() }
    }

    /// Takes records out of the ring. True when there is something to write.
    pub(super) fn fill(&mut self, shared: &Shared) -> bool {
        while self.bytes.len() < BATCH_BYTES {
            let Some(ended) = shared.ring.pop() else { break };
            self.push(shared, &ended);
        }
        !self.bytes.is_empty()
    }

    fn push(&mut self, shared: &Shared, Ended { record, place }: &Ended) {
        let start = self.bytes.len();
        record.write_json(&mut self.bytes);
        let line = self.bytes.get(start..).unwrap_or_default();
        if let (Some(place), Some(table)) = (place, shared.table.get()) {
            table.pending(*place, xxh3_64(line));
        }
        self.lines.push_back(Line { start, end: self.bytes.len(), place: *place });
    }

    /// Nothing of it is written yet: it may go into any file.
    pub(super) fn is_whole(&self) -> bool {
        self.done == 0
    }

    /// What is left to write.
    pub(super) fn rest(&self) -> &[u8] {
        self.bytes.get(self.done..).unwrap_or_default()
    }

    /// `n` more bytes are written: frees the places of the lines that ended in them, and hands each
    /// line to `copy`.
    pub(super) fn wrote(&mut self, n: usize, shared: &Shared, mut copy: impl FnMut(&[u8])) {
        self.done = self.done.saturating_add(n);
        while self.lines.front().is_some_and(|line| line.end <= self.done) {
            let Some(line) = self.lines.pop_front() else { break };
            // Before its claim is gone: who sees none open sees all copies made.
            copy(self.bytes.get(line.start..line.end).unwrap_or_default());
            shared.release(line.place, false);
            shared.written.fetch_add(1, Relaxed);
        }
        if self.lines.is_empty() {
            self.bytes.clear();
            self.done = 0;
        }
    }

    /// Drops the lines of which nothing is written; a begun one is kept to be ended. With `keep`
    /// their places stay, for the next start to record.
    pub(super) fn drop_unwritten(&mut self, shared: &Shared, keep: bool) {
        let begun = match self.lines.front() {
            Some(line) if line.start < self.done => self.lines.pop_front(),
            _ => None,
        };
        for line in self.lines.drain(..) {
            shared.release(line.place, keep);
            shared.dropped.fetch_add(1, Relaxed);
        }
        match begun {
            None => {
                self.bytes.clear();
                self.done = 0;
            }
            Some(Line { start, end, place }) => {
                self.bytes.truncate(end);
                self.bytes.drain(..start);
                self.done -= start;
                self.lines.push_back(Line { start: 0, end: end - start, place });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;
    use crate::config::OnFull;

    #[test]
    fn a_begun_line_is_kept_when_the_rest_is_dropped() {
        let mut line = Vec::new();
        record("a").write_json(&mut line);
        let n = line.len();
        // How much is written of three lines: what is left, what is done of it, what was lost.
        for (done, left, of_it, lost) in [
            (0, 0, 0, 3),
            (n, 0, 0, 2),
            (n + 2, n, 2, 1),
            (2 * n - 1, n, n - 1, 1),
            (2 * n, 0, 0, 1),
            (3 * n, 0, 0, 0),
        ] {
            let shared = Shared::new(4, OnFull::Drop, false);
            let mut batch = Batch::new();
            (0..3).for_each(|_| {
                batch.push(&shared, &Ended { record: record("a"), place: None });
            });
            // As if three slots had been claimed.
            let before = shared.outstanding();
            batch.wrote(done, &shared, |copy| assert_eq!(copy, line));
            batch.drop_unwritten(&shared, false);
            assert_eq!((batch.bytes.len(), batch.done), (left, of_it), "done {done}");
            assert_eq!(shared.dropped.load(Relaxed), lost, "done {done}");
            let back = before.wrapping_sub(shared.outstanding());
            assert_eq!(back, if left > 0 { 2 } else { 3 }, "claims of done {done}");
        }
    }
}
