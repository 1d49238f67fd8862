//! Receive buffers: taken when bytes are there, given back when they are gone, so that an idle
//! connection or a silent stream holds none.
//!
//! Owned by a core; never shared, never blocks.

use std::cell::RefCell;

/// Size of a pooled buffer in bytes: a typical request (8 KB) or some sixty events in one read.
const POOLED_BYTES: usize = 16 * 1024;
/// Most that a buffer grows at once: half a millisecond to clear and to receive into.
const GROWTH_BYTES_MAX: usize = 1 << 20;
/// Buffers that a core keeps (4 MiB): more than the streams that have bytes at the same moment.
const POOLED_MAX: usize = 256;

/// The free buffers of one core.
#[derive(Default)]
pub(super) struct BufferPool {
    free: RefCell<Vec<Vec<u8>>>,
}

impl BufferPool {
    fn take(&self) -> Vec<u8> {
        self.free.borrow_mut().pop().unwrap_or_else(|| vec![0; POOLED_BYTES])
    }

    fn give(&self, bytes: Vec<u8>) {
        let mut free = self.free.borrow_mut();
        if bytes.len() == POOLED_BYTES && free.len() < POOLED_MAX {
            free.push(bytes);
        }
    }
}

/// A growing window of received bytes: `start..end` is filled, the rest is space.
#[derive(Default)]
pub(super) struct Buffer {
    /// Always initialised to its whole length.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    touched: bool,
    reset: bool,
}

impl Buffer {
    /// The bytes that are there.
    pub(super) fn filled(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// No byte was ever received into it.
    pub(super) fn untouched(&self) -> bool {
        !self.touched
    }

    /// Its connection broke: what it has is not all.
    pub(super) fn broke(&mut self) {
        self.reset = true;
    }

    pub(super) fn was_reset(&self) -> bool {
        self.reset
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Room for at least one byte to receive into, from the pool when there is no buffer yet.
    /// A full buffer grows, up to `bytes_max` of content; then the space is empty.
    pub(super) fn space(&mut self, pool: &BufferPool, bytes_max: usize) -> &mut [u8] {
        if self.bytes.is_empty() {
            self.bytes = pool.take();
        }
        if self.end == self.bytes.len() && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.bytes.len() && self.end < bytes_max {
            let more = self.bytes.len().min(GROWTH_BYTES_MAX);
            self.bytes.reserve_exact(more);
            self.bytes.resize(self.bytes.len().saturating_add(more), 0);
        }
        let room_max = bytes_max.saturating_sub(self.len());
        let space = self.bytes.get_mut(self.end..).unwrap_or_default();
        let room = space.len().min(room_max);
        space.get_mut(..room).unwrap_or_default()
    }

    /// `n` bytes of the space were received.
    pub(super) fn received(&mut self, n: usize) {
        self.touched = true;
        self.end = self.end.saturating_add(n).min(self.bytes.len());
    }

    /// The first `n` bytes are done with.
    pub(super) fn consume(&mut self, n: usize) {
        self.start = self.start.saturating_add(n).min(self.end);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Takes `n` bytes out from offset `at` on; what follows moves up.
    pub(super) fn cut(&mut self, at: usize, n: usize) {
        let from = self.start.saturating_add(at).min(self.end);
        let to = from.saturating_add(n).min(self.end);
        self.bytes.copy_within(to..self.end, from);
        self.end -= to - from;
    }

    /// Hands over the memory of what is there, and keeps a copy of the first `n` bytes: a long body
    /// moves to another owner without being copied. `None` when these are many.
    pub(super) fn hand_over(&mut self, pool: &BufferPool, n: usize) -> Option<(Vec<u8>, usize)> {
        let kept = self.filled().get(..n).filter(|_| n <= POOLED_BYTES)?;
        let mut small = pool.take();
        small.get_mut(..n)?.copy_from_slice(kept);
        let start = self.start.saturating_add(n);
        let mut bytes = std::mem::replace(&mut self.bytes, small);
        bytes.truncate(self.end);
        self.start = 0;
        self.end = n;
        Some((bytes, start))
    }

    /// Keeps only the first `n` bytes.
    pub(super) fn truncate(&mut self, n: usize) {
        self.end = self.end.min(self.start.saturating_add(n));
        self.consume(0);
    }

    /// Gives the memory back when nothing is in it, and shrinks what has grown for one body.
    pub(super) fn release(&mut self, pool: &BufferPool) {
        if self.is_empty() {
            if !self.bytes.is_empty() {
                pool.give(std::mem::take(&mut self.bytes));
            }
        } else if self.bytes.len() > POOLED_BYTES && self.len() <= POOLED_BYTES {
            let mut small = pool.take();
            let n = self.len();
            if let Some(room) = small.get_mut(..n) {
                room.copy_from_slice(self.filled());
            }
            self.bytes = small;
            self.start = 0;
            self.end = n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(buffer: &mut Buffer, pool: &BufferPool, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let space = buffer.space(pool, 1 << 20);
            let n = space.len().min(bytes.len());
            space[..n].copy_from_slice(&bytes[..n]);
            buffer.received(n);
            bytes = &bytes[n..];
        }
    }

    #[test]
    fn bytes_survive_growth_consumption_and_release() {
        let pool = BufferPool::default();
        let mut buffer = Buffer::default();
        let long: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        put(&mut buffer, &pool, &long);
        assert_eq!(buffer.filled(), long);
        buffer.consume(99_000);
        buffer.release(&pool);
        assert_eq!(buffer.filled(), &long[99_000..]);
        assert_eq!(buffer.bytes.len(), POOLED_BYTES);
        put(&mut buffer, &pool, b"tail");
        assert!(buffer.filled().ends_with(b"tail"));
        buffer.consume(1_004);
        buffer.release(&pool);
        assert!(buffer.is_empty() && buffer.bytes.is_empty());
        assert_eq!(pool.free.borrow().len(), 1);
    }

    #[test]
    fn a_body_is_handed_over_and_its_head_stays() {
        let pool = BufferPool::default();
        let mut buffer = Buffer::default();
        let long: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        put(&mut buffer, &pool, &long);
        buffer.consume(7);
        assert!(buffer.hand_over(&pool, POOLED_BYTES + 1).is_none());
        let (bytes, start) = buffer.hand_over(&pool, 100).unwrap();
        assert_eq!(&bytes[start..], &long[107..]);
        assert_eq!(buffer.filled(), &long[7..107]);
        put(&mut buffer, &pool, b"tail");
        assert!(buffer.filled().ends_with(b"tail"));
    }

    #[test]
    fn the_cap_ends_the_space() {
        let pool = BufferPool::default();
        let mut buffer = Buffer::default();
        let mut total = 0;
        loop {
            let n = buffer.space(&pool, 40_000).len();
            if n == 0 {
                break;
            }
            buffer.received(n);
            total += n;
        }
        assert_eq!(total, 40_000);
    }
}
