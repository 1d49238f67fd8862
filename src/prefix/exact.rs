//! What one slot holds by its engine's events.
//!
//! A block that an event has stored is live until an event removes it, as often as it was stored:
//! requests that run side by side each store a copy of the same block (vLLM 0.32). A block is held
//! from its dispatch on, before any event; such a speculative block ages out when none comes.
//! Which blocks are held the table knows; here are only those that are not plainly stored once.
//! Pure, one slot's, under the writer's lock.

use std::collections::VecDeque;

use super::table::{Put, Table};
use super::tree::KeyMap;

/// An entry of either map, in bytes, without its load.
const ENTRY_BYTES: usize = 17;

/// One slot's.
#[derive(Default)]
pub(super) struct Exact {
    /// Different blocks that events have stored.
    confirmed: usize,
    /// Blocks that wait for their event, and since when, in ms.
    waiting: KeyMap<u64>,
    /// The same in the order of their dispatch; also some that wait no more.
    queue: VecDeque<(u64, u64)>,
    /// Copies beyond the first.
    copies: KeyMap<u32>,
    /// Their sum.
    copies_sum: usize,
}

/// What an event did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// It is counted.
    Taken,
    /// There is no room for it, or it was not known.
    Ignored,
}

impl Exact {
    /// Different blocks held.
    pub(super) fn blocks(&self) -> usize {
        self.confirmed + self.waiting.len()
    }

    /// Memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        let entries = self.waiting.capacity() + self.copies.capacity();
        entries * 8 / 7 * ENTRY_BYTES + self.queue.capacity() * size_of::<(u64, u64)>()
    }

    /// A block is dispatched: held from now on unless it is already.
    pub(super) fn dispatched(&mut self, table: &mut Table, id: u16, key: u64, now_ms: u64) -> Put {
        let put = table.put(key, id);
        if put == Put::Added {
            self.wait(key, now_ms);
        }
        put
    }

    /// A block that the table has under this slot waits for its event from now on.
    pub(super) fn wait(&mut self, key: u64, now_ms: u64) {
        self.waiting.insert(key, now_ms);
        self.queue.push_back((key, now_ms));
    }

    /// An event stores a copy, of `capacity` blocks in all.
    pub(super) fn stored(&mut self, table: &mut Table, id: u16, key: u64, capacity: u64) -> Event {
        if (self.confirmed + self.copies_sum) as u64 >= capacity {
            return Event::Ignored;
        }
        let waited = self.waiting.remove(&key).is_some();
        match table.put(key, id) {
            Put::Full => return Event::Ignored,
            Put::Present if !waited => {
                *self.copies.entry(key).or_default() += 1;
                self.copies_sum += 1;
            }
            Put::Added | Put::Present => self.confirmed += 1,
        }
        Event::Taken
    }

    /// An event removes a copy.
    pub(super) fn removed(&mut self, table: &mut Table, id: u16, key: u64) -> Event {
        if let Some(copies) = self.copies.get_mut(&key) {
            *copies -= 1;
            self.copies_sum -= 1;
            if *copies == 0 {
                self.copies.remove(&key);
            }
            return Event::Taken;
        }
        // What only a dispatch has entered, no engine can have had.
        if self.waiting.contains_key(&key) || !table.remove(key, id) {
            return Event::Ignored;
        }
        self.confirmed = self.confirmed.saturating_sub(1);
        Event::Taken
    }

    /// Lets go of what was dispatched before `before_ms`, and of the longest waiting beyond
    /// `waiting_max`: at most `budget` blocks. How many went.
    pub(super) fn expire(
        &mut self,
        table: &mut Table,
        id: u16,
        before_ms: u64,
        waiting_max: usize,
        budget: usize,
    ) -> usize {
        let mut expired = 0;
        while let Some(&(key, since)) = self.queue.front() {
            let waits = self.waiting.get(&key) == Some(&since);
            let due = since < before_ms || self.waiting.len() > waiting_max;
            if expired == budget || (waits && !due) {
                break;
            }
            self.queue.pop_front();
            if waits {
                self.waiting.remove(&key);
                table.remove(key, id);
                expired += 1;
            }
        }
        expired
    }
}
