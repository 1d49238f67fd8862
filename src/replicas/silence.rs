//! Evidence of a freeze: requests wait at a replica, and not a byte comes from it to anyone.
//!
//! A frozen vLLM (shut down under its requests, or hung in its GPU) keeps its port open and its
//! connections too, so that neither a refused connect nor an end tells of it. What tells is the
//! silence, compared with what was predicted. One padded line a core, written by that core alone;
//! the control thread reads. Time (ms since process start) is an argument.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A silence is none before so long, whatever was predicted.
const PATIENCE_MS_MIN: f64 = 3_000.0;
/// No prediction buys more than this.
const PATIENCE_MS_MAX: f64 = 120_000.0;
/// A prediction may be wrong by so much before silence says anything.
const FACTOR: f64 = 4.0;

/// Two cache lines apart, since the prefetcher of x86 fetches pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line {
    waiting: AtomicU64,
    /// When the first of those that wait was sent, or the last byte came after that.
    since_ms: AtomicU64,
    /// The longest wait that was predicted for one of them, in ms.
    expected_ms: AtomicU64,
    heard_ms: AtomicU64,
}

/// What is waited for at one replica.
#[derive(Debug)]
pub struct Silence {
    lines: Box<[Line]>,
}

/// A freeze as far as it can be seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Requests that wait.
    pub requests: u64,
    /// How long nothing has come, in ms.
    pub silent_ms: u64,
}

impl Silence {
    /// For `cores` writers.
    #[must_use]
    pub fn new(cores: usize) -> Silence {
        Silence { lines: (0..cores.max(1)).map(|_| Line::default()).collect() }
    }

    /// A request was sent from `core`, whose first byte is predicted within `expected_ms` (0 = no
    /// prediction). It waits until the guard is dropped.
    #[must_use]
    pub fn sent(self: &Arc<Self>, core: usize, expected_ms: f64, now_ms: u64) -> Awaiting {
        if let Some(line) = self.lines.get(core) {
            // Single writer: no other core touches this line.
            let waiting = line.waiting.load(Relaxed);
            let expected = expected_ms.clamp(0.0, PATIENCE_MS_MAX) as u64;
            let longest = if waiting == 0 { 0 } else { line.expected_ms.load(Relaxed) };
            if waiting == 0 {
                line.since_ms.store(now_ms, Relaxed);
            }
            line.expected_ms.store(longest.max(expected), Relaxed);
            line.waiting.store(waiting.wrapping_add(1), Relaxed);
        }
        Awaiting { silence: Arc::clone(self), core }
    }

    /// A byte of any answer came to `core`.
    pub fn heard(&self, core: usize, now_ms: u64) {
        if let Some(line) = self.lines.get(core)
            && line.heard_ms.load(Relaxed) < now_ms
        {
            line.heard_ms.store(now_ms, Relaxed);
        }
    }

    /// When any core heard of it last, in ms; 0 = never.
    #[must_use]
    pub fn heard_ms(&self) -> u64 {
        self.lines.iter().map(|line| line.heard_ms.load(Relaxed)).max().unwrap_or(0)
    }

    /// Has it been silent for too long: several times what was predicted, or twice as long when
    /// only one request waits?
    #[must_use]
    pub fn stall(&self, now_ms: u64) -> Option<Stall> {
        let (mut requests, mut since_ms, mut expected_ms) = (0u64, u64::MAX, 0u64);
        for line in &self.lines {
            let waiting = line.waiting.load(Relaxed);
            if waiting > 0 {
                requests = requests.saturating_add(waiting);
                since_ms = since_ms.min(line.since_ms.load(Relaxed));
                expected_ms = expected_ms.max(line.expected_ms.load(Relaxed));
            }
        }
        if requests == 0 {
            return None;
        }
        let silent_ms = now_ms.saturating_sub(since_ms.max(self.heard_ms()));
        let patience = (expected_ms as f64 * FACTOR).clamp(PATIENCE_MS_MIN, PATIENCE_MS_MAX);
        let factor = if requests == 1 { 2.0 } else { 1.0 };
        (silent_ms as f64 >= patience * factor).then_some(Stall { requests, silent_ms })
    }
}

/// A request that waits for its first byte; its drop ends the wait.
#[derive(Debug)]
pub struct Awaiting {
    silence: Arc<Silence>,
    core: usize,
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        if let Some(line) = self.silence.lines.get(self.core) {
            line.waiting.store(line.waiting.load(Relaxed).saturating_sub(1), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence() -> Arc<Silence> {
        Arc::new(Silence::new(2))
    }

    #[test]
    fn several_silent_requests_are_a_stall_and_a_byte_ends_it() {
        let s = silence();
        assert_eq!(s.stall(99_999), None, "nobody waits");
        let _a = s.sent(0, 100.0, 1_000);
        let _b = s.sent(1, 100.0, 2_000);
        assert_eq!(s.stall(3_999), None);
        assert_eq!(s.stall(4_000), Some(Stall { requests: 2, silent_ms: 3_000 }));
        s.heard(1, 4_500);
        assert_eq!(s.stall(7_499), None);
        assert!(s.stall(7_500).is_some());
    }

    #[test]
    fn a_long_prefill_gets_its_time_and_one_request_twice_the_time() {
        let s = silence();
        let long = s.sent(0, 10_000.0, 0);
        let short = s.sent(0, 100.0, 0);
        assert_eq!(s.stall(39_999), None);
        assert!(s.stall(40_000).is_some());
        drop(short);
        assert_eq!(s.stall(79_999), None);
        assert!(s.stall(80_000).is_some());
        drop(long);
        assert_eq!(s.stall(u64::MAX), None);
        // The next one does not inherit what was predicted for the last.
        let (_a, _b) = (s.sent(0, 0.0, 100_000), s.sent(0, 0.0, 100_000));
        assert!(s.stall(103_000).is_some());
    }

    #[test]
    fn a_wild_prediction_is_bounded() {
        let s = silence();
        let _both = [s.sent(0, f64::NAN, 0), s.sent(0, 1e300, 0)];
        assert_eq!(s.stall(119_999), None);
        assert!(s.stall(120_000).is_some());
    }
}
