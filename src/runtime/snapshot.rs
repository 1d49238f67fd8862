//! A value that one thread publishes and every core reads without a lock or a shared write.
//!
//! The publisher swaps an `Arc` and moves a generation counter; a core keeps its own handle and
//! takes the new one when it sees that the counter has moved. Reading costs one relaxed load.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

/// The publishing side, shared by all threads.
pub struct Snapshot<T> {
    value: ArcSwap<T>,
    generation: AtomicU64,
}

impl<T> Snapshot<T> {
    /// A snapshot that begins with `value`.
    pub fn new(value: T) -> Snapshot<T> {
        Snapshot { value: ArcSwap::from_pointee(value), generation: AtomicU64::new(1) }
    }

    /// Publishes `value`; requests under way keep what they hold.
    pub fn publish(&self, value: T) {
        self.value.store(Arc::new(value));
        // After the value: a reader that sees the new number finds at least the new value.
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The current value, for threads that ask rarely.
    pub fn load(&self) -> Arc<T> {
        self.value.load_full()
    }
}

/// A value held by a core. The outer count is the core's own, so that holding one more costs no
/// write to a line that all cores share.
pub type Held<T> = Rc<Arc<T>>;

/// The reading side of one core.
pub struct Reader<T> {
    source: Arc<Snapshot<T>>,
    generation: u64,
    value: Held<T>,
}

impl<T> Reader<T> {
    /// A reader of `source` on this core.
    pub fn new(source: Arc<Snapshot<T>>) -> Reader<T> {
        let generation = source.generation.load(Ordering::Acquire);
        let value = Rc::new(source.load());
        Reader { source, generation, value }
    }

    /// The newest value. The handle stays valid while a request holds it.
    pub fn get(&mut self) -> Held<T> {
        let generation = self.source.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.generation = generation;
            self.value = Rc::new(self.source.load());
        }
        Rc::clone(&self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_what_was_published_and_keeps_what_it_holds() {
        let source = Arc::new(Snapshot::new(1));
        let mut reader = Reader::new(Arc::clone(&source));
        let held = reader.get();
        source.publish(2);
        assert_eq!((**held, **reader.get()), (1, 2));
    }
}
