//! This core's idle upstream connections.
//!
//! uvicorn closes a connection 5.000 s after its last response, without a hint before: ours are
//! dropped at 4 s. Each has a readiness wait armed while it idles, so that one which the replica
//! has closed (or on which it said something that nobody asked for) is never used again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::task::{Context, Waker};

use crate::http1::{ChunkTracker, PieceKind};
use crate::net::Wire;

/// Longest idle time, below uvicorn's 5 s.
const IDLE_MS_MAX: u64 = 4_000;
/// Idle connections that a core keeps to one replica.
const IDLE_MAX: usize = 512;

struct Idle {
    stream: Wire,
    since_ms: u64,
    /// A stream's last chunk may still be on its way when its `[DONE]` was passed on: it is read
    /// before the connection is used again.
    tail: Option<ChunkTracker>,
}

/// Idle connections by replica, the most recently used last.
#[derive(Default)]
pub(super) struct IdlePool {
    by_replica: RefCell<HashMap<usize, Vec<Idle>>>,
}

impl Idle {
    /// Nothing wrong and nothing left to read?
    fn is_clean(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        if self.stream.poll_readable(&mut cx).is_pending() {
            return self.tail.is_none();
        }
        let Some(mut tracker) = self.tail.take() else {
            return matches!(self.stream.try_recv(&mut [0; 1]), Ok(None));
        };
        let mut space = [0; 512];
        let Ok(Some(n)) = self.stream.try_recv(&mut space) else { return false };
        let mut rest = space.get(..n).unwrap_or_default();
        while let Ok(piece) = tracker.next(rest) {
            rest = rest.get(piece.len..).unwrap_or_default();
            match piece.kind {
                PieceKind::End => return rest.is_empty(),
                PieceKind::Framing if piece.len > 0 => {}
                _ => break,
            }
        }
        false
    }
}

impl IdlePool {
    /// A usable connection to the replica with this key, the most recently used first.
    pub(super) fn take(&self, replica: usize, now_ms: u64) -> Option<Wire> {
        let mut pools = self.by_replica.borrow_mut();
        let pool = pools.get_mut(&replica)?;
        while let Some(mut idle) = pool.pop() {
            if now_ms.saturating_sub(idle.since_ms) < IDLE_MS_MAX && idle.is_clean() {
                return Some(idle.stream);
            }
        }
        None
    }

    /// Keeps a connection whose last response is complete, or complete but for `tail`.
    pub(super) fn give(
        &self,
        replica: usize,
        mut stream: Wire,
        tail: Option<ChunkTracker>,
        now_ms: u64,
    ) {
        if tail.is_none() {
            // Arms the wait; bytes after the response mean that the two sides disagree.
            let mut cx = Context::from_waker(Waker::noop());
            stream.breathe();
            if stream.poll_readable(&mut cx).is_ready() {
                return;
            }
        }
        let mut pools = self.by_replica.borrow_mut();
        let pool = pools.entry(replica).or_default();
        if pool.len() < IDLE_MAX {
            pool.push(Idle { stream, since_ms: now_ms, tail });
        }
    }

    /// Drops what has idled too long or was closed by its replica.
    pub(super) fn sweep(&self, now_ms: u64) {
        let mut cx = Context::from_waker(Waker::noop());
        for pool in self.by_replica.borrow_mut().values_mut() {
            pool.retain_mut(|idle| {
                let young = now_ms.saturating_sub(idle.since_ms) < IDLE_MS_MAX;
                let quiet = idle.tail.is_some() || idle.stream.poll_readable(&mut cx).is_pending();
                young && quiet
            });
        }
    }

    /// Drops all of them.
    pub(super) fn clear(&self) {
        self.by_replica.borrow_mut().clear();
    }

    /// Number of idle connections.
    pub(super) fn len(&self) -> usize {
        self.by_replica.borrow().values().map(Vec::len).sum()
    }
}
