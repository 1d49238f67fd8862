//! What this gateway has in flight at a replica: requests and tokens, added at dispatch and taken
//! off exactly once, by a guard.
//!
//! One padded line a core, written by that core alone (relaxed load and store, no locked
//! instruction), summed by whoever reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Two cache lines apart, since the prefetcher of x86 fetches pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line {
    requests: AtomicU64,
    tokens: AtomicU64,
}

/// The ledger of one replica.
#[derive(Debug)]
pub struct Ledger {
    lines: Box<[Line]>,
}

impl Ledger {
    /// A ledger for `cores` writers.
    #[must_use]
    pub fn new(cores: usize) -> Ledger {
        Ledger { lines: (0..cores.max(1)).map(|_| Line::default()).collect() }
    }

    /// Requests in flight over all cores.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.lines.iter().fold(0, |sum, l| sum.wrapping_add(l.requests.load(Relaxed)))
    }

    /// Tokens in flight over all cores.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.lines.iter().fold(0, |sum, l| sum.wrapping_add(l.tokens.load(Relaxed)))
    }

    /// Enters a request of `tokens` on `core`'s line until the guard is dropped on that core.
    #[must_use]
    pub fn enter(self: &Arc<Self>, core: usize, tokens: u64) -> InFlight {
        let entry = InFlight { ledger: Arc::clone(self), core, tokens };
        entry.add(1, tokens);
        entry
    }
}

/// A request's entry; its drop takes it off.
#[derive(Debug)]
pub struct InFlight {
    ledger: Arc<Ledger>,
    core: usize,
    tokens: u64,
}

impl InFlight {
    fn add(&self, requests: u64, tokens: u64) {
        if let Some(line) = self.ledger.lines.get(self.core) {
            // Single writer: no other core touches this line.
            line.requests.store(line.requests.load(Relaxed).wrapping_add(requests), Relaxed);
            line.tokens.store(line.tokens.load(Relaxed).wrapping_add(tokens), Relaxed);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.add(1u64.wrapping_neg(), self.tokens.wrapping_neg());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_leave_exactly_once() {
        let ledger = Arc::new(Ledger::new(2));
        let a = ledger.enter(0, 100);
        let b = ledger.enter(1, 30);
        assert_eq!((ledger.requests(), ledger.tokens()), (2, 130));
        drop(a);
        assert_eq!((ledger.requests(), ledger.tokens()), (1, 30));
        drop(b);
        assert_eq!((ledger.requests(), ledger.tokens()), (0, 0));
    }
}
