//! A core's one connection to one server: what waits to be said, what waits for its answer, and
//! whether the server is of use.
//!
//! Answers come in the order of the questions. What the connection's end leaves unanswered is said
//! again on the next one: decisions while somebody waits for them, settlements always. Both are
//! safe to say twice, since the store knows them by their id.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Waker;

use super::client::Inner;
use super::op::{Op, What};
use super::resp::Reply;
use super::stats::Trouble;
use crate::runtime::clock;

/// A server that says nothing for so long, while asked, is given up.
const SILENT_MS: u64 = 1_000;
/// Between two probes of a server that has let us down.
const PROBE_MS: u64 = 100;
/// Settlements kept for a store that is away: a minute of 2,000 a second. More are lost, and what
/// they would have given back stays spent.
const KEPT_MAX: usize = 131_072;
/// A question that was passed on so often is given up.
const HOPS_MAX: u8 = 5;
/// Bytes that are packed before some are sent.
const OUT_BYTES: usize = 64 * 1024;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The one that serves, wherever it is.
    Main,
    /// A node of a cluster.
    Node(SocketAddr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No connection yet, or no longer: questions wait their time.
    Connecting,
    Up,
    /// It has let us down: nobody is to wait for it.
    Down,
}

/// See the module.
pub(super) struct Lane {
    pub target: Target,
    state: Cell<State>,
    /// Counts connections.
    pub epoch: Cell<u64>,
    connected: Cell<bool>,
    /// The connection is to end.
    pub cut: Cell<Option<Trouble>>,
    pub down_since_ns: Cell<u64>,
    pending: RefCell<VecDeque<Rc<Op>>>,
    /// `None`: an answer that nobody asked for by itself.
    sent: RefCell<VecDeque<Option<Rc<Op>>>>,
    /// To be said again at the next tick: keys that are on their way between two nodes.
    later: RefCell<Vec<Rc<Op>>>,
    probe: RefCell<Option<Rc<Op>>>,
    probed_ms: Cell<u64>,
    /// Hash tag of what was said last, for a probe.
    pub tag: RefCell<String>,
    pub waker: RefCell<Option<Waker>>,
}

impl Lane {
    pub(super) fn new(target: Target) -> Rc<Lane> {
        Rc::new(Lane {
            target,
            state: Cell::new(State::Connecting),
            epoch: Cell::new(0),
            connected: Cell::new(false),
            cut: Cell::new(None),
            down_since_ns: Cell::new(0),
            pending: RefCell::default(),
            sent: RefCell::default(),
            later: RefCell::default(),
            probe: RefCell::default(),
            probed_ms: Cell::new(0),
            tag: RefCell::default(),
            waker: RefCell::default(),
        })
    }

    /// Whether it is worth asking.
    pub(super) fn serves(&self) -> bool {
        self.state.get() != State::Down
    }

    /// Nothing is left to be said or heard.
    pub(super) fn quiet(&self) -> bool {
        self.pending.borrow().is_empty()
            && self.sent.borrow().is_empty()
            && self.later.borrow().is_empty()
    }

    pub(super) fn push(&self, inner: &Inner, op: Rc<Op>) {
        let mut pending = self.pending.borrow_mut();
        if pending.len() >= KEPT_MAX {
            drop(pending);
            inner.stats.lost.inc();
            return op.answer(Err(Trouble::Other));
        }
        pending.push_back(op);
        drop(pending);
        self.wake();
    }

    pub(super) fn push_front(&self, ops: impl DoubleEndedIterator<Item = Rc<Op>>) {
        let mut pending = self.pending.borrow_mut();
        ops.rev().for_each(|op| pending.push_front(op));
        drop(pending);
        self.wake();
    }

    /// Settlements that nobody can have heard yet: what they end must not expire before.
    pub(super) fn unsaid(&self) -> Vec<Rc<Op>> {
        let unsaid = |op: &&Rc<Op>| matches!(op.what, What::Settle { .. }) && !op.sent.get();
        self.pending.borrow().iter().filter(unsaid).map(Rc::clone).collect()
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Packs what may be said now.
    pub(super) fn pack(&self, inner: &Inner, out: &mut Vec<u8>) {
        let now_ms = clock::now_ms();
        let mut sent = self.sent.borrow_mut();
        let mut say = |op: Rc<Op>| {
            op.sent.set(true);
            op.sent_ms.set(now_ms);
            op.pack(&inner.scripts, out);
            if op.asking.replace(false) {
                sent.push_back(None);
            }
            sent.push_back(Some(op));
            out.len() < OUT_BYTES
        };
        if let Some(probe) = self.probe.borrow_mut().take()
            && !say(probe)
        {
            return;
        }
        if self.state.get() != State::Up {
            return;
        }
        while let Some(op) = self.pending.borrow_mut().pop_front() {
            if !op.gone.get() && !say(op) {
                return;
            }
        }
    }

    /// One answer has come.
    pub(super) fn heard(self: &Rc<Self>, inner: &Rc<Inner>, reply: Reply) -> Result<(), Trouble> {
        let op = self.sent.borrow_mut().pop_front().ok_or(Trouble::Garbage)?;
        let Some(op) = op else { return Ok(()) };
        let Reply::Error(text) = &reply else {
            if matches!(op.what, What::Probe { .. }) {
                let late = clock::now_ms().saturating_sub(op.sent_ms.get());
                if late <= inner.shared.timeout_ms {
                    self.up(inner);
                }
            }
            op.answer(Ok(reply));
            return Ok(());
        };
        let mut words = text.split(' ');
        match (words.next().unwrap_or_default(), words.next(), words.next()) {
            ("NOSCRIPT", ..) if !op.by_source.get() => {
                op.by_source.set(true);
                self.push_front([op].into_iter());
                return Ok(());
            }
            ("TRYAGAIN", ..) => {
                self.later.borrow_mut().push(op);
                return Ok(());
            }
            (moved @ ("MOVED" | "ASK"), Some(slot), Some(to)) if op.hops.get() < HOPS_MAX => {
                op.hops.set(op.hops.get().saturating_add(1));
                return inner.moved(op, moved == "ASK", slot, to);
            }
            _ => {}
        }
        let trouble = Trouble::of_error(text);
        inner.stats.errors(trouble).inc();
        if trouble.of_store() {
            *self.tag.borrow_mut() = op.tag();
            self.keep_or_fail(inner, op, trouble);
            self.down(inner, trouble);
            if trouble == Trouble::ReadOnly {
                inner.shared.moved.notify_one();
                return Err(trouble);
            }
        } else {
            op.answer(Err(trouble));
        }
        Ok(())
    }

    /// A settlement waits until it can be told; everything else fails.
    fn keep_or_fail(&self, inner: &Inner, op: Rc<Op>, trouble: Trouble) {
        match op.what {
            What::Settle { .. } => {
                op.resent.set(true);
                self.push(inner, op);
            }
            _ => op.answer(Err(trouble)),
        }
    }

    /// A connection stands and the server has answered on it.
    pub(super) fn connected(&self, inner: &Inner) {
        self.connected.set(true);
        self.epoch.set(self.epoch.get().saturating_add(1));
        self.up(inner);
    }

    /// The connection has ended.
    pub(super) fn disconnected(&self, inner: &Inner, why: Trouble, gives_up: bool) {
        self.connected.set(false);
        self.cut.set(None);
        *self.probe.borrow_mut() = None;
        let sent = std::mem::take(&mut *self.sent.borrow_mut());
        let mut again = VecDeque::new();
        for op in sent.into_iter().flatten() {
            match op.what {
                What::Settle { .. } | What::Reserve { .. } if !op.gone.get() => {
                    op.resent.set(true);
                    again.push_back(op);
                }
                _ => op.answer(Err(why)),
            }
        }
        self.push_front(again.into_iter());
        if gives_up {
            self.down(inner, why);
        } else if self.state.get() == State::Up {
            self.state.set(State::Connecting);
        }
    }

    fn up(&self, inner: &Inner) {
        let before = self.state.replace(State::Up);
        if before == State::Down {
            inner.shared.came();
            inner.show_up();
        }
        if before != State::Up {
            // Before all else: what the store is told of them must find them there.
            inner.renew_all(self);
            inner.tell_debts(self);
        }
        self.wake();
    }

    /// It has let us down: whoever waits goes on without it.
    pub(super) fn down(&self, inner: &Inner, why: Trouble) {
        if self.state.replace(State::Down) != State::Down {
            self.down_since_ns.set(clock::now_ns());
            inner.shared.went(why);
            inner.show_up();
        }
        let pending = std::mem::take(&mut *self.pending.borrow_mut());
        for op in pending {
            match op.what {
                What::Settle { .. } => self.pending.borrow_mut().push_back(op),
                _ => op.answer(Err(why)),
            }
        }
    }

    /// Looks after it, every tick.
    pub(super) fn tick(&self, now_ms: u64) {
        let later = std::mem::take(&mut *self.later.borrow_mut());
        if !later.is_empty() {
            self.push_front(later.into_iter());
        }
        let oldest = self.sent.borrow().iter().flatten().next().map(|op| op.sent_ms.get());
        if oldest.is_some_and(|at| now_ms.saturating_sub(at) > SILENT_MS) {
            self.cut.set(Some(Trouble::Timeout));
            return self.wake();
        }
        let rests = now_ms.saturating_sub(self.probed_ms.get()) < PROBE_MS;
        if self.state.get() == State::Down && self.connected.get() && !rests {
            self.probed_ms.set(now_ms);
            let tag = self.tag.borrow().clone();
            // One at a time: a server that hangs is not buried in probes.
            let asked =
                self.sent.borrow().iter().flatten().any(|op| matches!(op.what, What::Probe { .. }));
            if !asked {
                *self.probe.borrow_mut() = Some(Op::new(What::Probe { tag }));
                self.wake();
            }
        }
    }

    /// Everything that waits, to be said elsewhere.
    pub(super) fn drained(&self) -> Vec<Rc<Op>> {
        let later = std::mem::take(&mut *self.later.borrow_mut());
        self.push_front(later.into_iter());
        std::mem::take(&mut *self.pending.borrow_mut()).into()
    }

    /// It is not used any more.
    pub(super) fn retire(&self, inner: &Inner) {
        if self.state.replace(State::Connecting) == State::Down {
            inner.shared.came();
        }
        self.cut.set(Some(Trouble::Closed));
        self.wake();
    }
}
