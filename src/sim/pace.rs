//! When the tokens of a request are due: by its own schedule, or by the replica's engine.
//!
//! Owns the engine of a modelled replica. On the replica's thread; reads the clock that it is
//! given; no sockets.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::HashMap;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::engine::{Engine, EngineParams, Progress, Work};
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

/// A request's part in an engine, as its task sees it.
#[derive(Default)]
struct Slot {
    generated: Cell<u64>,
    cached_tokens: Cell<u64>,
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

    /// What the engine says of itself.
    pub(super) fn engine(&self) -> RefMut<'_, Engine> {
        self.engine.borrow_mut()
    }

    /// Ends each step at its time, and says when one is over; never returns.
    pub(super) async fn drive(self: Rc<Self>, stepped: impl Fn(&mut Engine)) {
        let mut brought: Vec<Progress> = Vec::new();
        loop {
            let next_us = self.engine.borrow().next_us();
            let now_us = self.clock.now_us();
            match next_us {
                None => std::future::poll_fn(|cx| self.work.poll(cx)).await,
                Some(next_us) if next_us > now_us => {
                    // Work may come that can begin sooner than an adapter is loaded.
                    let mut slept = pin!(net::sleep(Duration::from_micros(next_us - now_us)));
                    std::future::poll_fn(|cx| match slept.as_mut().poll(cx) {
                        Poll::Ready(()) => Poll::Ready(()),
                        Poll::Pending => self.work.poll(cx),
                    })
                    .await;
                }
                Some(_) => {}
            }
            let mut engine = self.engine.borrow_mut();
            let steps = engine.steps();
            engine.advance(self.clock.now_us(), &mut brought);
            if engine.steps() > steps {
                self.tell(&engine, &mut brought);
                stepped(&mut engine);
            }
        }
    }

    fn tell(&self, engine: &Engine, brought: &mut Vec<Progress>) {
        let slots = self.slots.borrow();
        for progress in brought.drain(..) {
            match progress {
                Progress::First { id, cached_tokens, .. } => {
                    if let Some(slot) = slots.get(&id) {
                        slot.cached_tokens.set(cached_tokens);
                    }
                }
                Progress::Finished { id, .. } => {
                    if let Some(slot) = slots.get(&id) {
                        slot.generated.set(u64::MAX);
                        slot.signal.ring();
                    }
                }
            }
        }
        for (id, slot) in slots.iter() {
            if let Some(generated) = engine.generated(*id)
                && slot.generated.replace(generated) != generated
            {
                slot.signal.ring();
            }
        }
    }
}

/// The pace of one request; dropping it takes the request out of the engine.
pub(super) enum Pace {
    /// The first token at `first_us`, then one every `itl_us`.
    Fixed { first_us: u64, itl_us: u64 },
    /// As the engine goes, with each of its prompts.
    Engine(Vec<Booking>),
}

/// A prompt in an engine.
pub(super) struct Booking {
    id: u64,
    slot: Rc<Slot>,
    host: Rc<EngineHost>,
}

impl Drop for Booking {
    fn drop(&mut self) {
        self.host.slots.borrow_mut().remove(&self.id);
        self.host.engine.borrow_mut().abort(self.id);
        self.host.work.ring();
    }
}

impl Booking {
    /// Puts a prompt into the engine.
    pub(super) fn new(host: &Rc<EngineHost>, work: Work) -> Booking {
        let (id, slot) = (work.id, Rc::new(Slot::default()));
        host.slots.borrow_mut().insert(id, Rc::clone(&slot));
        host.engine.borrow_mut().submit(host.clock.now_us(), work);
        host.work.ring();
        Booking { id, slot, host: Rc::clone(host) }
    }
}

impl Pace {
    /// Tokens (of each choice) that are ready at `now_us`.
    pub(super) fn ready(&self, now_us: u64) -> u64 {
        match self {
            Pace::Fixed { first_us, .. } if now_us < *first_us => 0,
            Pace::Fixed { itl_us: 0, .. } => u64::MAX,
            Pace::Fixed { first_us, itl_us } => 1 + (now_us - first_us) / itl_us,
            Pace::Engine(bookings) => {
                bookings.iter().map(|b| b.slot.generated.get()).min().unwrap_or(u64::MAX)
            }
        }
    }

    /// Tokens of the prompts that came from the engine's cache; known with the first token.
    pub(super) fn cached_tokens(&self) -> u64 {
        match self {
            Pace::Fixed { .. } => 0,
            Pace::Engine(bookings) => bookings.iter().map(|b| b.slot.cached_tokens.get()).sum(),
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
        let Pace::Engine(bookings) = self else { return Poll::Pending };
        let rung = bookings.iter().filter(|b| b.slot.signal.poll(cx).is_ready()).count();
        if rung > 0 { Poll::Ready(()) } else { Poll::Pending }
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
