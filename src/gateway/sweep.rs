//! Time limits of a core: one field a connection and one sweep, instead of a timer a wait.
//!
//! A limit is rounded up to the next sweep, which every limit of the contract can bear; in return
//! setting one costs a store, and no read is ever dropped for a timer. Owned by the core.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Between two sweeps.
pub(super) const SWEEP_MS: u64 = 50;

#[derive(Default)]
struct Entry {
    /// When the owner is woken, in ms since process start; 0 = never.
    due_ms: u64,
    waker: Option<Waker>,
}

/// All limits of a core.
#[derive(Default)]
pub(super) struct Sweep {
    entries: RefCell<Vec<Entry>>,
    free: RefCell<Vec<usize>>,
    now_ms: Cell<u64>,
    ended: Cell<bool>,
    /// Scratch of [`Sweep::run`].
    due: RefCell<Vec<Waker>>,
}

impl Sweep {
    /// The time of the last sweep: at most [`SWEEP_MS`] old while the core keeps up.
    pub(super) fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    /// Wakes whoever is due. `now_ms` never goes back.
    pub(super) fn run(&self, now_ms: u64) {
        self.now_ms.set(now_ms.max(self.now_ms.get()));
        // Taken out and put back: a waker may well come back to this sweep.
        let mut due = self.due.take();
        for entry in self.entries.borrow_mut().iter_mut() {
            if self.ended.get() || (entry.due_ms != 0 && entry.due_ms <= now_ms) {
                due.extend(entry.waker.take());
            }
        }
        due.drain(..).for_each(Waker::wake);
        self.due.replace(due);
    }

    /// From the next sweep on every limit has passed, so that every wait comes to its end.
    pub(super) fn end(&self) {
        self.ended.set(true);
    }

    /// Did [`end`](Self::end) end a wait, and not its own limit?
    pub(super) fn ended(&self) -> bool {
        self.ended.get()
    }

    /// A limit for one connection, not set.
    pub(super) fn deadline(self: &Rc<Self>) -> Deadline {
        let index = self.free.borrow_mut().pop();
        let mut entries = self.entries.borrow_mut();
        let index = index.unwrap_or_else(|| {
            entries.push(Entry::default());
            entries.len() - 1
        });
        if let Some(entry) = entries.get_mut(index) {
            *entry = Entry::default();
        }
        Deadline { sweep: Rc::clone(self), index }
    }
}

/// One limit; its place is given back on drop.
pub(super) struct Deadline {
    sweep: Rc<Sweep>,
    index: usize,
}

impl Deadline {
    fn with<R>(&self, f: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        self.sweep.entries.borrow_mut().get_mut(self.index).map(f)
    }

    /// Due in `ms` from now; 0 = never.
    pub(super) fn set(&self, ms: u64) {
        let due = if ms == 0 { 0 } else { self.sweep.now_ms().saturating_add(ms).max(1) };
        self.with(|entry| entry.due_ms = due);
    }

    /// Ready once the limit has passed.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.sweep.ended() {
            return Poll::Ready(());
        }
        let now = self.sweep.now_ms();
        let due = self.with(|entry| {
            if entry.due_ms != 0 && entry.due_ms <= now {
                return true;
            }
            match &mut entry.waker {
                Some(waker) if waker.will_wake(cx.waker()) => {}
                waker => *waker = Some(cx.waker().clone()),
            }
            false
        });
        if due.unwrap_or(true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.with(|entry| *entry = Entry::default());
        self.sweep.free.borrow_mut().push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_due(deadline: &Deadline) -> bool {
        deadline.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn due_at_the_first_sweep_past_the_limit() {
        let sweep = Rc::new(Sweep::default());
        sweep.run(1_000);
        let deadline = sweep.deadline();
        assert!(!is_due(&deadline));
        deadline.set(100);
        sweep.run(1_099);
        assert!(!is_due(&deadline));
        sweep.run(1_100);
        assert!(is_due(&deadline));
        deadline.set(0);
        assert!(!is_due(&deadline));
    }

    #[test]
    fn at_the_end_every_limit_has_passed() {
        let sweep = Rc::new(Sweep::default());
        let (far, unset) = (sweep.deadline(), sweep.deadline());
        far.set(60_000);
        assert!(!is_due(&far) && !is_due(&unset));
        sweep.end();
        assert!(is_due(&far) && is_due(&unset));
    }

    #[test]
    fn places_are_used_again() {
        let sweep = Rc::new(Sweep::default());
        for _ in 0..100 {
            let _held = (sweep.deadline(), sweep.deadline());
        }
        assert_eq!(sweep.entries.borrow().len(), 2);
    }
}
