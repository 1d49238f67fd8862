//! How many sequences an engine runs at once (`max_num_seqs`), which no metric tells: learned from
//! when requests wait for nothing but a seat.
//!
//! The evidence: the engine has blocks to spare, requests wait all the same, and as many run as
//! ever did, at several readings in a row. One reading alone is a batch that grows. It is believed
//! for a while after it was last seen, and no longer once more run than it allows. Relaxed atomics:
//! the control thread writes, the cores read. No clock: time (ms since process start) is an
//! argument.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::signals::Load;

/// Readings in a row that must agree.
const READINGS: u64 = 3;
/// Share of the most that ever ran which counts as all: those that have just ended are off the
/// batch already.
const NEAR: f64 = 0.97;
/// Below so many a batch that stands still says little.
const SEATS_MIN: u64 = 8;
/// From this share of its blocks on an engine may make requests wait for room.
const ROOM: f64 = 0.9;
/// Requests that must wait.
const WAITING_MIN: u64 = 2;
/// A queue of this share of the batch is no luck of arrivals: it says as much as two readings.
const QUEUE: u64 = 16;
/// A batch of exactly 32, 64, ... 1,024 for which a queue waits is no luck either, however it grew:
/// such are the numbers that people and engines choose.
const ROUND_MIN: u64 = 32;
/// It is believed for so long after the evidence, in ms; after one reading of a round number only
/// until the next ones can have said the same, since a batch that is held there cannot disprove it.
const BELIEVED_MS: u64 = 60_000;
const HINT_MS: u64 = 3_000;

/// What is known of an engine's seats.
#[derive(Debug, Default)]
pub(super) struct Seats {
    /// The most that ever ran.
    peak: AtomicU64,
    /// What ran at the last reading.
    last: AtomicU64,
    /// Readings in a row that agree.
    agreed: AtomicU64,
    /// Until when that is believed; 0 = it never was.
    until_ms: AtomicU64,
}

impl Seats {
    /// Enters a reading. Only the control thread does.
    pub(super) fn enter(&self, load: &Load, now_ms: u64) {
        let peak = self.peak.load(Relaxed);
        if load.running > peak {
            self.peak.store(load.running, Relaxed);
        }
        let near = |running: u64| running as f64 >= NEAR * peak.max(load.running) as f64;
        let stands = near(self.last.load(Relaxed));
        let waiting = load.waiting.saturating_sub(load.deferred);
        let queue = waiting.saturating_mul(QUEUE) >= load.running;
        let round = queue && load.running >= peak.max(ROUND_MIN) && load.running.is_power_of_two();
        let short_of_seats = load.running >= SEATS_MIN
            && waiting >= WAITING_MIN
            && load.kv_usage < ROOM
            && near(load.running)
            && (stands || round);
        let says = if queue { READINGS - 1 } else { 1 };
        let agreed = if short_of_seats { self.agreed.load(Relaxed) + says } else { 0 };
        self.agreed.store(agreed, Relaxed);
        self.last.store(load.running, Relaxed);
        // The first of a row has nothing before it to agree with.
        if agreed + 1 >= READINGS {
            let believed_ms = if stands { BELIEVED_MS } else { HINT_MS };
            let until_ms = now_ms.saturating_add(believed_ms);
            self.until_ms.store(until_ms.max(self.until_ms.load(Relaxed)), Relaxed);
        }
    }

    /// Sequences that it runs at once; 0 = not known.
    pub(super) fn get(&self, now_ms: u64) -> u64 {
        let believed = now_ms < self.until_ms.load(Relaxed);
        if believed { self.peak.load(Relaxed) } else { 0 }
    }

    /// The engine has begun anew, maybe with other options.
    pub(super) fn forget(&self) {
        for cell in [&self.peak, &self.last, &self.agreed, &self.until_ms] {
            cell.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(running: u64, waiting: u64, kv_usage: f64) -> Load {
        Load { running, waiting, deferred: 0, kv_usage }
    }

    fn after(readings: &[Load]) -> u64 {
        let seats = Seats::default();
        readings.iter().zip(1..).for_each(|(load, i)| seats.enter(load, i * 1_000));
        seats.get(readings.len() as u64 * 1_000)
    }

    #[test]
    fn an_engine_that_stands_still_while_requests_wait_is_full() {
        assert_eq!(after(&[load(254, 4, 0.5), load(256, 5, 0.5), load(253, 3, 0.5)]), 256);
        assert_eq!(after(&[load(254, 4, 0.5), load(256, 5, 0.5)]), 0);
        // A long queue says it sooner, but not of a batch that has just grown.
        assert_eq!(after(&[load(252, 0, 0.5), load(256, 31, 0.5)]), 256);
        assert_eq!(after(&[load(128, 0, 0.5), load(255, 31, 0.5)]), 0);
        // Unless to a number that somebody chose.
        assert_eq!(after(&[load(128, 0, 0.5), load(256, 31, 0.5)]), 256);
        assert_eq!(after(&[load(300, 0, 0.5), load(256, 31, 0.5)]), 0);
        // A batch that grows, one that is out of blocks, one for which nobody waits.
        assert_eq!(after(&[load(100, 9, 0.5), load(150, 9, 0.5), load(200, 9, 0.5)]), 0);
        assert_eq!(after(&[load(256, 99, 0.95); 5]), 0);
        assert_eq!(after(&[load(256, 1, 0.5); 5]), 0);
        // Nor is a batch whose prompts take its time: it comes and goes.
        let readings = [70, 62, 78, 66, 71, 80, 61, 74].map(|running| load(running, 5, 0.5));
        assert_eq!(after(&readings), 0);
        // Those that wait for an adapter wait for no seat.
        assert_eq!(after(&[Load { deferred: 9, ..load(256, 9, 0.5) }; 5]), 0);
    }

    #[test]
    fn it_is_forgotten_with_time_and_disproved_by_more() {
        let seats = Seats::default();
        (1..=3).for_each(|i| seats.enter(&load(64, 3, 0.2), i * 1_000));
        assert_eq!((seats.get(3_000), seats.get(62_999), seats.get(63_000)), (64, 64, 0));
        // One round number that nothing confirms is believed for a moment.
        let hinted = Seats::default();
        hinted.enter(&load(64, 20, 0.2), 1_000);
        assert_eq!((hinted.get(3_999), hinted.get(4_000)), (64, 0));
        seats.enter(&load(100, 0, 0.3), 4_000);
        assert_eq!(seats.get(4_000), 100);
        seats.forget();
        assert_eq!(seats.get(4_000), 0);
    }
}
