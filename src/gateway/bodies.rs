//! Bytes of request bodies that the gateway holds, over all cores. Each body has a limit of its
//! own; a thousand long ones at once have this one, so that memory does not run out.
//!
//! A body is held until its answer has begun, for an attempt elsewhere. Short ones are not counted:
//! what they take is bounded by connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A body up to so many bytes is short.
const SHORT_BYTES_MAX: u64 = 64 * 1024;
/// What is held of a chunked body is counted in such steps.
const STEP_BYTES: u64 = 1 << 20;

/// See the module.
pub(super) struct Bodies {
    held: AtomicU64,
    /// Most bytes, where the configuration names none.
    pub usual_max: u64,
}

/// A body's part of them, given back when it is dropped.
pub(super) struct Share {
    of: Arc<Bodies>,
    bytes: u64,
}

impl Bodies {
    /// Of a process that may have so much memory: bodies may take a quarter of it.
    pub(super) fn within(memory_bytes: Option<u64>) -> Bodies {
        Bodies { held: AtomicU64::new(0), usual_max: memory_bytes.map_or(u64::MAX, |all| all / 4) }
    }

    /// Bytes that are held now.
    pub(super) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Takes `bytes` where `max` may be held in all. False: there is no room.
    fn take(&self, bytes: u64, max: u64) -> bool {
        let before = self.held.fetch_add(bytes, Relaxed);
        let fits = before.saturating_add(bytes) <= max;
        if !fits {
            self.held.fetch_sub(bytes, Relaxed);
        }
        fits
    }
}

impl Share {
    /// Makes `share` one of `bytes`, where `max` bytes may be held in all. False: there is no room.
    pub(super) fn cover(share: &mut Option<Share>, of: &Arc<Bodies>, bytes: u64, max: u64) -> bool {
        let has = share.as_ref().map_or(0, |share| share.bytes);
        if bytes <= has.max(SHORT_BYTES_MAX) {
            return true;
        }
        let more = bytes.saturating_sub(has);
        if !of.take(more, max) {
            return false;
        }
        share.get_or_insert_with(|| Share { of: Arc::clone(of), bytes: 0 }).bytes = bytes;
        true
    }

    /// The same for a body that grows, of which `bytes` are there: some room is taken ahead.
    pub(super) fn follow(
        share: &mut Option<Share>,
        of: &Arc<Bodies>,
        bytes: u64,
        max: u64,
    ) -> bool {
        let has = share.as_ref().map_or(0, |share| share.bytes);
        bytes <= has || bytes <= SHORT_BYTES_MAX || {
            let step = bytes.saturating_add(STEP_BYTES).next_multiple_of(STEP_BYTES);
            Share::cover(share, of, step, max)
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.held.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_given_back_and_no_more_is_held_than_may_be() {
        let bodies = Arc::new(Bodies::within(Some(40 << 20)));
        let max = bodies.usual_max;
        assert_eq!(max, 10 << 20);
        let (mut short, mut one, mut two) = (None, None, None);
        assert!(Share::cover(&mut short, &bodies, SHORT_BYTES_MAX, max) && short.is_none());
        assert!(Share::cover(&mut one, &bodies, 6 << 20, max));
        assert!(!Share::cover(&mut two, &bodies, 5 << 20, max) && two.is_none());
        assert_eq!(bodies.held(), 6 << 20);
        assert!(Share::follow(&mut two, &bodies, 100_000, max));
        assert!(Share::follow(&mut two, &bodies, 2 << 20, max));
        assert_eq!(bodies.held(), 8 << 20);
        assert!(Share::follow(&mut two, &bodies, 3 << 20, max));
        assert!(!Share::follow(&mut two, &bodies, 5 << 20, max), "and what it has stays");
        assert_eq!(bodies.held(), 10 << 20);
        drop((one, two));
        assert_eq!(bodies.held(), 0);
    }
}
