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

/// Idle connections to one replica, the most recently used last.
#[derive(Default)]
struct Place {
    idle: Vec<Idle>,
    /// When one was last put here: the place of a replica that has left goes some time after.
    given_ms: u64,
}

/// Idle connections by replica.
#[derive(Default)]
pub(super) struct IdlePool {
    by_replica: RefCell<HashMap<usize, Place>>,
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
        let place = pools.get_mut(&replica)?;
        while let Some(mut idle) = place.idle.pop() {
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
        let place = pools.entry(replica).or_default();
        place.given_ms = now_ms;
        if place.idle.len() < IDLE_MAX {
            place.idle.push(Idle { stream, since_ms: now_ms, tail });
        }
    }

    /// Drops what has idled too long or was closed by its replica.
    pub(super) fn sweep(&self, now_ms: u64) {
        let mut cx = Context::from_waker(Waker::noop());
        let is_young = |since_ms: u64| now_ms.saturating_sub(since_ms) < IDLE_MS_MAX;
        self.by_replica.borrow_mut().retain(|_, place| {
            place.idle.retain_mut(|idle| {
                let quiet = idle.tail.is_some() || idle.stream.poll_readable(&mut cx).is_pending();
                is_young(idle.since_ms) && quiet
            });
            // Not at once when it is empty: each request would make it anew.
            !place.idle.is_empty() || is_young(place.given_ms)
        });
    }

    /// Drops all of them.
    pub(super) fn clear(&self) {
        self.by_replica.borrow_mut().clear();
    }

    /// Number of idle connections.
    pub(super) fn len(&self) -> usize {
        self.by_replica.borrow().values().map(|place| place.idle.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{self, DriverChoice, Stream};

    /// Replicas come and go under new keys: what is kept of them does not grow.
    #[test]
    fn nothing_is_left_of_replicas_that_have_gone() {
        let (driver, _) = DriverChoice::Epoll.resolve().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        net::run(driver, async move {
            let (pool, mut far) = (IdlePool::default(), Vec::new());
            for key in 0..10 {
                let near = std::net::TcpStream::connect(addr).unwrap();
                far.push(listener.accept().unwrap());
                let wire = Wire::Plain(Stream::from_std(near).unwrap());
                pool.give(key, wire, None, 1_000);
            }
            let places = |pool: &IdlePool| pool.by_replica.borrow().len();
            assert!(pool.take(3, 2_000).is_some());
            pool.sweep(2_000);
            assert_eq!((pool.len(), places(&pool)), (9, 10), "the place of one in use stays");
            pool.sweep(1_000 + IDLE_MS_MAX);
            assert_eq!((pool.len(), places(&pool)), (0, 0));
        })
        .unwrap();
    }
}
