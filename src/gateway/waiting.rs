//! The requests of a core that wait for room: a queue for each pool, and how they are called.
//!
//! Something has ended: the first in the queue's order is called and looks for a place anew. If it
//! finds one the next is called; if not, nobody else is called who waits for the same. So one
//! looks at a time, and no queue is searched whose first has no room. What ends at other cores
//! shows at the sweep. All of it on the core's own thread; only the bounds are shared.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::core::Core;
use super::gate::Gate;
use crate::admin::PoolCells;
use crate::admission::queue::Place;
use crate::admission::{Queue, Waiting};
use crate::runtime::clock;

/// The bounds of a queue, over all cores.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub requests_max: u64,
    /// 0 = none.
    pub tokens_max: u64,
    /// A wait that is long, in ms.
    pub long_ms: u64,
}

/// A core's queues.
#[derive(Default)]
pub(super) struct Queues {
    pools: RefCell<Vec<Rc<PoolQueue>>>,
}

struct PoolQueue {
    gate: Arc<Gate>,
    queue: RefCell<Queue>,
    seats: RefCell<HashMap<Place, Rc<Seat>>>,
    round: RefCell<Round>,
}

/// Who has been called since something ended.
#[derive(Default)]
struct Round {
    called: Option<Place>,
    /// What had no room in this round.
    full: Vec<u64>,
    /// Something has ended since it began.
    again: bool,
    long_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Called,
    /// It has made room for another.
    PushedOut,
}

struct Seat {
    state: Cell<State>,
    waker: RefCell<Option<Waker>>,
    tokens: u64,
}

impl Seat {
    fn turn(&self, state: State) {
        self.state.set(state);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// What became of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// Look for a place now.
    Look,
    /// The queue is full, and it was the one to go.
    PushedOut,
}

impl Queues {
    fn of(&self, gate: &Arc<Gate>) -> Rc<PoolQueue> {
        let mut pools = self.pools.borrow_mut();
        if let Some(pool) = pools.iter().find(|pool| Arc::ptr_eq(&pool.gate, gate)) {
            return Rc::clone(pool);
        }
        // A gate that is published no more goes with the last that waits at it.
        pools.retain(|pool| Arc::strong_count(&pool.gate) > 1 || !pool.queue.borrow().is_empty());
        let pool = Rc::new(PoolQueue {
            gate: Arc::clone(gate),
            queue: RefCell::default(),
            seats: RefCell::default(),
            round: RefCell::default(),
        });
        pools.push(Rc::clone(&pool));
        pool
    }

    /// Something has ended, here or elsewhere: whoever is first looks again.
    pub(super) fn released(&self, now_ms: u64) {
        for pool in self.pools.borrow().iter().filter(|pool| !pool.queue.borrow().is_empty()) {
            pool.released(now_ms);
        }
    }

    /// Does anybody wait for the same, and how many tokens come before one more of `tenant`?
    pub(super) fn before(&self, gate: &Arc<Gate>, class: u64, tenant: usize) -> (bool, u64) {
        let pools = self.pools.borrow();
        let Some(pool) = pools.iter().find(|pool| Arc::ptr_eq(&pool.gate, gate)) else {
            return (false, 0);
        };
        let queue = pool.queue.borrow();
        if queue.is_empty() {
            return (false, 0);
        }
        (queue.has_class(class), queue.tokens_before(tenant, &gate.counters))
    }
}

impl PoolQueue {
    fn released(&self, now_ms: u64) {
        {
            let mut round = self.round.borrow_mut();
            if round.called.is_some() {
                round.again = true;
                return;
            }
            round.full.clear();
        }
        self.call_next(now_ms);
    }

    fn call_next(&self, now_ms: u64) {
        let mut round = self.round.borrow_mut();
        round.called = None;
        loop {
            let queue = self.queue.borrow();
            let skip = |class: u64| round.full.contains(&class);
            let next = queue.next(now_ms, round.long_ms, &self.gate.counters, skip);
            let seat = next.and_then(|place| self.seats.borrow().get(&place).map(Rc::clone));
            if let Some(seat) = seat {
                round.called = next;
                seat.turn(State::Called);
                return;
            }
            if !std::mem::take(&mut round.again) {
                return;
            }
            round.full.clear();
        }
    }

    /// Makes room for one more of `tenant`, if somebody else is the one to go.
    fn push_out(&self, tenant: usize) -> bool {
        let victim = self.queue.borrow().pushed_out_by(tenant, &self.gate.counters);
        let Some(place) = victim else { return false };
        let Some(seat) = self.seats.borrow_mut().remove(&place) else { return false };
        self.queue.borrow_mut().remove(&place);
        self.gate.total.leave(seat.tokens);
        seat.turn(State::PushedOut);
        true
    }
}

/// A request that waits; leaves the queue when it is dropped.
pub(super) struct Wait<'c> {
    core: &'c Core,
    pool: Rc<PoolQueue>,
    cells: Arc<PoolCells>,
    place: Place,
    seat: Rc<Seat>,
    class: u64,
    since_ns: u64,
    long_ms: u64,
}

impl<'c> Wait<'c> {
    /// Enters the queue; `None` when it is full, and nobody has to go for this one.
    pub(super) fn enter(
        core: &'c Core,
        gate: &Arc<Gate>,
        cells: Arc<PoolCells>,
        waiting: Waiting,
        bounds: Bounds,
    ) -> Option<Wait<'c>> {
        let pool = core.queues.of(gate);
        let Waiting { tenant, tokens, class, .. } = waiting;
        let enter = || gate.total.enter(tokens, bounds.requests_max, bounds.tokens_max);
        let room = enter() || (pool.push_out(tenant) && enter());
        if !room {
            return None;
        }
        let state = Cell::new(State::Waiting);
        let seat = Rc::new(Seat { state, waker: RefCell::default(), tokens });
        let place = pool.queue.borrow_mut().push(waiting, &gate.counters);
        pool.seats.borrow_mut().insert(place, Rc::clone(&seat));
        pool.round.borrow_mut().long_ms = bounds.long_ms;
        cells.queue_requests.add(1);
        cells.queue_tokens.add(i64::try_from(tokens).unwrap_or(i64::MAX));
        let (since_ns, long_ms) = (clock::now_ns(), bounds.long_ms);
        Some(Wait { core, pool, cells, place, seat, class, since_ns, long_ms })
    }

    /// Ready when it is called.
    pub(super) fn poll_called(&self, cx: &mut Context<'_>) -> Poll<Call> {
        match self.seat.state.get() {
            State::Called => Poll::Ready(Call::Look),
            State::PushedOut => Poll::Ready(Call::PushedOut),
            State::Waiting => {
                self.seat.waker.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }

    /// It has looked, and there was no room.
    pub(super) fn again(&self) {
        self.seat.state.set(State::Waiting);
        self.pool.round.borrow_mut().full.push(self.class);
        self.pool.call_next(self.core.sweep.now_ms());
    }

    /// It has a place. How long it waited, in ns.
    pub(super) fn served(self) -> u64 {
        let now_ms = self.core.sweep.now_ms();
        let counters = &self.pool.gate.counters;
        self.pool.queue.borrow_mut().serve(&self.place, now_ms, self.long_ms, counters);
        self.waited_ns()
    }

    /// It goes without one. How long it waited, in ns.
    pub(super) fn in_vain(self) -> u64 {
        self.waited_ns()
    }

    fn waited_ns(&self) -> u64 {
        clock::now_ns().saturating_sub(self.since_ns)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.cells.queue_requests.add(-1);
        self.cells.queue_tokens.add(-i64::try_from(self.seat.tokens).unwrap_or(i64::MAX));
        self.cells.queue_wait.observe_ns(self.waited_ns());
        if self.pool.seats.borrow_mut().remove(&self.place).is_some() {
            self.pool.queue.borrow_mut().remove(&self.place);
            self.pool.gate.total.leave(self.seat.tokens);
        }
        if self.pool.round.borrow().called == Some(self.place) {
            self.pool.call_next(self.core.sweep.now_ms());
        }
    }
}
