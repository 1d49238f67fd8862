//! What would fill the log if it were said each time is said once a minute. Any thread; relaxed:
//! two at once may both say it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// So long nothing more is said, in ms.
const AGAIN_MS: u64 = 60_000;

/// Remembers when something was last said.
#[derive(Debug, Default)]
pub struct Seldom(AtomicU64);

impl Seldom {
    /// Is it to be said now? Time in ms since the process start.
    pub fn due(&self, now_ms: u64) -> bool {
        let said_ms = self.0.load(Relaxed);
        let due = said_ms == 0 || now_ms.saturating_sub(said_ms) >= AGAIN_MS;
        if due {
            self.0.store(now_ms.max(1), Relaxed);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_a_minute() {
        let seldom = Seldom::default();
        assert!(seldom.due(0) && !seldom.due(59_999));
        assert!(seldom.due(60_001) && !seldom.due(60_002));
    }
}
