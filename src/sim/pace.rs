//! When the tokens of a request are due: by its own schedule, or by the replica's engine.
//!
//! Owns the engine of a modelled replica. On the replica's thread; reads the clock that it is
//! given; no sockets.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::engine::{Engine, EngineParams, Progress, Work};
use crate::net;

/// Microseconds since the start of a thread.
#[derive(Clone, Copy)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn new() -> Clock {
        Clock(Instant::now())
    }

    pub(super) fn now_us(self) -> u64 {
        self.0.elapsed().as_micros() as u64
    }
}

/// Wakes one waiting task of the same thread.
#[derive(Default)]
pub(super) struct Signal {
    waker: RefCell<Option<Waker>>,
    rung: Cell<bool>,
}

impl Signal {
    pub(super) fn ring(&self) {
        self.rung.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Ready once per ring.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.rung.take() {
            return Poll::Ready(());
        }
        *self.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[derive(Default)]
struct Slot {
    generated: Cell<u64>,
    signal: Signal,
}

/// The engine of a replica, driven in real time by [`drive`](EngineHost::drive).
pub(super) struct EngineHost {
    engine: RefCell<Engine>,
    slots: RefCell<HashMap<u64, Rc<Slot>>>,
    work: Signal,
    clock: Clock,
}

impl EngineHost {
    pub(super) fn new(params: EngineParams, clock: Clock) -> EngineHost {
        EngineHost {
            engine: RefCell::new(Engine::new(params)),
            slots: RefCell::default(),
            work: Signal::default(),
            clock,
        }
    }

    /// Running, waiting, share of the blocks in use.
    pub(super) fn load(&self) -> (u64, u64, f64) {
        let engine = self.engine.borrow();
        (engine.running(), engine.waiting(), engine.kv_usage())
    }

    /// Ends each step at its time; never returns.
    pub(super) async fn drive(self: Rc<Self>) {
        let mut brought: Vec<Progress> = Vec::new();
        loop {
            let next_us = self.engine.borrow().next_us();
            let Some(next_us) = next_us else {
                std::future::poll_fn(|cx| self.work.poll(cx)).await;
                continue;
            };
            let now_us = self.clock.now_us();
            if next_us > now_us {
                net::sleep(Duration::from_micros(next_us - now_us)).await;
            }
            self.engine.borrow_mut().advance(self.clock.now_us(), &mut brought);
            let slots = self.slots.borrow();
            for progress in brought.drain(..) {
                if let Some(slot) = slots.get(&progress.id) {
                    slot.generated.set(progress.generated);
                    slot.signal.ring();
                }
            }
        }
    }
}

/// The pace of one request; dropping it takes the request out of the engine.
pub(super) enum Pace {
    /// The first token at `first_us`, then one every `itl_us`.
    Fixed { first_us: u64, itl_us: u64 },
    /// As the engine goes.
    Engine(Booking),
}

/// A request in an engine.
pub(super) struct Booking {
    id: u64,
    slot: Rc<Slot>,
    host: Rc<EngineHost>,
}

impl Drop for Booking {
    fn drop(&mut self) {
        self.host.slots.borrow_mut().remove(&self.id);
        self.host.engine.borrow_mut().abort(self.id);
    }
}

impl Pace {
    /// Puts a request into the engine.
    pub(super) fn book(host: &Rc<EngineHost>, work: Work) -> Pace {
        let slot = Rc::new(Slot::default());
        host.slots.borrow_mut().insert(work.id, Rc::clone(&slot));
        host.engine.borrow_mut().submit(host.clock.now_us(), work);
        host.work.ring();
        Pace::Engine(Booking { id: work.id, slot, host: Rc::clone(host) })
    }

    /// Tokens (of each choice) that are ready at `now_us`.
    pub(super) fn ready(&self, now_us: u64) -> u64 {
        match self {
            Pace::Fixed { first_us, .. } if now_us < *first_us => 0,
            Pace::Fixed { itl_us: 0, .. } => u64::MAX,
            Pace::Fixed { first_us, itl_us } => 1 + (now_us - first_us) / itl_us,
            Pace::Engine(booking) => booking.slot.generated.get(),
        }
    }

    /// When token number `n` (from 1) is due, where that is known.
    pub(super) fn due_us(&self, n: u64) -> Option<u64> {
        match self {
            Pace::Fixed { first_us, itl_us } => {
                Some(first_us.saturating_add(itl_us.saturating_mul(n.saturating_sub(1))))
            }
            Pace::Engine(_) => None,
        }
    }

    /// Ready when the engine brought something since the last time.
    pub(super) fn poll_engine(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Pace::Fixed { .. } => Poll::Pending,
            Pace::Engine(booking) => booking.slot.signal.poll(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_pace_does_not_drift() {
        let pace = Pace::Fixed { first_us: 20_000, itl_us: 10_000 };
        assert_eq!(pace.ready(19_999), 0);
        assert_eq!(pace.ready(20_000), 1);
        assert_eq!(pace.ready(29_999), 1);
        assert_eq!(pace.ready(1_019_999), 100);
        assert_eq!(pace.due_us(1), Some(20_000));
        assert_eq!(pace.due_us(101), Some(1_020_000));
        assert_eq!(Pace::Fixed { first_us: 0, itl_us: 0 }.ready(0), u64::MAX);
    }
}
