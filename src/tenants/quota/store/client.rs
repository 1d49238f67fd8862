//! A core's way to the store: decisions, settlements, and the leases that it keeps alive.
//!
//! A decision comes from what the gateway has taken ahead, else from the store, else, while that is
//! away, from the policy. Lives on its core; nothing of it is locked, and nobody waits longer than
//! the limit of a decision.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use super::advance::Advance;
use super::drive::drive;
use super::lane::{Lane, Target};
use super::op::{Op, What};
use super::script::{Decided, Scripts, Stands, decided};
use super::shared::{Shared, Topology};
use super::stats::{Stats, Trouble};
use super::who::Who;
use crate::config::OnStoreDown;
use crate::net;
use crate::runtime::clock;
use crate::runtime::snapshot::{Held as Current, Reader};
use crate::tenants::quota::{Ask, Refused};

/// Between two looks at what is due.
const TICK_MS: u64 = 50;
/// The same at the end.
const CLOSE_TICK_MS: u64 = 2;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Client(pub(super) Rc<Inner>);

/// What a request holds until [`Client::settle`].
#[derive(Debug)]
#[must_use = "it must be settled"]
pub struct Hold {
    pub(super) who: Arc<Who>,
    pub(super) ask: Ask,
    by: By,
}

impl Hold {
    /// Tokens that it holds.
    pub fn tokens(&self) -> u64 {
        self.ask.tokens
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The store, under the request's own lease.
    Store,
    /// What was taken ahead.
    Ahead,
    /// Nobody but us, while the store was away.
    Alone,
}

/// Why a request may not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The account of this number, in the order given to [`Who::new`], refused.
    Refused(usize, Refused),
    /// The store is away, and nobody is to pass without it.
    Away,
}

/// A request in flight that the store knows, or will be told of.
pub(super) struct Lease {
    pub who: Arc<Who>,
    pub ask: Ask,
    /// The connection on which it was made; `None`: not told yet.
    pub epoch: Cell<Option<u64>>,
    /// It was asked for twice.
    pub guard: bool,
}

pub(super) struct Inner {
    pub shared: Arc<Shared>,
    pub stats: Arc<Stats>,
    pub scripts: Scripts,
    topology: RefCell<Reader<Topology>>,
    known: RefCell<Option<Current<Topology>>>,
    pub lanes: RefCell<Vec<Rc<Lane>>>,
    /// Slots that are elsewhere than the topology says.
    pub moves: RefCell<HashMap<u16, Target>>,
    pub leases: RefCell<HashMap<u128, Lease>>,
    pub wheel: RefCell<super::keep::Wheel>,
    /// Whose advance this core has used, by its place in memory.
    pub used: RefCell<HashMap<*const Advance, Arc<Who>>>,
    /// Nothing is taken ahead any more.
    pub leaving: Cell<bool>,
    closing: Cell<bool>,
    /// Itself, for what outlives a call.
    pub this: Weak<Inner>,
}

impl Client {
    /// The client of core `core`; its tasks run on the calling core.
    pub fn start(shared: Arc<Shared>, core: usize) -> Client {
        let stats = shared.stats().get(core).map(Arc::clone).unwrap_or_default();
        stats.up.set(1);
        let inner = Rc::new_cyclic(|this| Inner {
            scripts: Scripts::new(shared.lease_ms),
            topology: RefCell::new(Reader::new(Arc::clone(&shared.topology))),
            known: RefCell::new(None),
            lanes: RefCell::default(),
            moves: RefCell::default(),
            leases: RefCell::default(),
            wheel: RefCell::default(),
            used: RefCell::default(),
            leaving: Cell::new(false),
            closing: Cell::new(false),
            this: Weak::clone(this),
            stats,
            shared,
        });
        let ticking = Rc::clone(&inner);
        net::spawn(async move {
            while !ticking.closing.get() {
                ticking.tick(clock::now_ms());
                net::sleep(Duration::from_millis(TICK_MS)).await;
            }
        });
        Client(inner)
    }

    /// Lets a request start, or not.
    ///
    /// # Errors
    /// [`Denied`]; nothing is held then.
    pub async fn reserve(&self, who: &Arc<Who>, ask: Ask) -> Result<Hold, Denied> {
        let reserved = self.decide(who, ask).await;
        match &reserved {
            Ok(_) => who.accounts.iter().for_each(|account| account.let_in(&ask)),
            Err(Denied::Refused(n, refused)) => {
                if let Some(account) = who.accounts.get(*n) {
                    account.turned_away(refused);
                }
            }
            Err(Denied::Away) => {}
        }
        reserved
    }

    async fn decide(&self, who: &Arc<Who>, ask: Ask) -> Result<Hold, Denied> {
        for (n, limits) in who.limits().enumerate() {
            possible(limits, &ask).map_err(|refused| Denied::Refused(n, refused))?;
        }
        let inner = &self.0;
        let now_ms = clock::now_ms();
        let tokens = if who.counts_tokens() { ask.tokens } else { 0 };
        who.advance.decided(now_ms, tokens);
        let lane = inner.lane(who.slot);
        let hold = |by| Hold { who: Arc::clone(who), ask, by };
        if lane.as_ref().is_none_or(|lane| !lane.serves()) {
            return inner.alone(lane.as_deref(), who, ask).map(hold);
        }
        let taken = who.advance.take(tokens, ask.sequences);
        inner.tell_soon(who, now_ms);
        if taken {
            inner.stats.ahead.inc();
            return Ok(hold(By::Ahead));
        }
        let asked = match inner.ask(who, ask).await {
            Ok((Decided::Tokens(..), _)) if who.advance.holds().0 > 0 => {
                // What we hold ourselves may be what is missing.
                inner.tell(who, true).await;
                inner.ask(who, ask).await
            }
            asked => asked,
        };
        match asked {
            Ok((Decided::Taken, _)) => Ok(hold(By::Store)),
            Ok((Decided::Tokens(n, retry_after_ms), _)) => {
                Err(Denied::Refused(n, Refused::Tokens { retry_after_ms }))
            }
            Ok((Decided::Sequences(n, wait_ms), _)) => {
                let retry_after_ms = wait_ms.max(who.until_free_ms(n, ask.sequences));
                Err(Denied::Refused(n, Refused::Concurrency { retry_after_ms }))
            }
            Ok((Decided::Settled, _)) | Err(_) => {
                inner.alone(inner.lane(who.slot).as_deref(), who, ask).map(hold)
            }
        }
    }

    /// The request has ended, having used so many tokens.
    pub fn settle(&self, hold: Hold, used: u64) {
        let (inner, Hold { who, ask, by }) = (&self.0, hold);
        who.accounts.iter().for_each(|account| account.let_out(&ask, used));
        let counts = who.counts_tokens();
        let [reserved, used] = [ask.tokens, used].map(|n| if counts { n } else { 0 });
        match by {
            By::Ahead => who.advance.settle(reserved, used, ask.sequences),
            By::Alone => {
                who.advance.refund(reserved, used);
                who.advance.closed(ask.sequences);
                inner.end_lease(ask.id, 0);
            }
            By::Store => {
                who.advance.closed(ask.sequences);
                inner.end_lease(ask.id, used);
            }
        }
    }

    /// Ends it: what was taken ahead goes back, what is to be told is told, within so long.
    pub async fn close(&self, patience_ms: u64) {
        let inner = &self.0;
        let until_ms = clock::now_ms().saturating_add(patience_ms);
        inner.leaving.set(true);
        let used: Vec<_> = inner.used.borrow().values().map(Arc::clone).collect();
        for who in &used {
            let (inner, who) = (Rc::clone(inner), Arc::clone(who));
            net::spawn(async move {
                while !who.advance.released() && !inner.ended() {
                    inner.tell(&who, true).await;
                    net::sleep(Duration::from_millis(CLOSE_TICK_MS)).await;
                }
            });
        }
        inner.bye();
        let serves = |who: &Arc<Who>| inner.lane(who.slot).is_some_and(|lane| lane.serves());
        let told = || used.iter().all(|who| who.advance.released() || !serves(who));
        let quiet = || inner.lanes.borrow().iter().all(|lane| lane.quiet() || !lane.serves());
        while !(told() && quiet()) && clock::now_ms() < until_ms {
            net::sleep(Duration::from_millis(CLOSE_TICK_MS)).await;
        }
        inner.closing.set(true);
        let lanes = inner.lanes.take();
        lanes.iter().for_each(|lane| lane.retire(inner));
    }
}

/// What no account of these limits can ever let pass.
fn possible(limits: &crate::tenants::quota::Limits, ask: &Ask) -> Result<(), Refused> {
    match (limits.bucket(), limits.in_flight_max) {
        (Some((_, burst_tokens)), _) if ask.tokens > burst_tokens => {
            Err(Refused::TooLarge { burst_tokens })
        }
        (_, Some(in_flight_max)) if ask.sequences > in_flight_max => {
            Err(Refused::TooWide { in_flight_max })
        }
        _ => Ok(()),
    }
}

/// Somebody waits for a decision.
struct Waiting<'w> {
    inner: &'w Inner,
    lane: &'w Lane,
    op: &'w Op,
    over: bool,
}

impl Drop for Waiting<'_> {
    /// Who does not wait until the end must not hold what is given then: it may still be taken, and
    /// is given back once somebody listens.
    fn drop(&mut self) {
        if self.over {
            return;
        }
        self.op.gone.set(true);
        if let (true, What::Reserve { who, ask }) = (self.op.sent.get(), &self.op.what) {
            let undo = What::Settle { who: Arc::clone(who), ask: *ask, used: 0, guard: true };
            self.lane.push(self.inner, Op::new(undo));
        }
    }
}

impl Inner {
    pub(super) fn ended(&self) -> bool {
        self.closing.get()
    }

    pub(super) fn retired(&self, lane: &Rc<Lane>) -> bool {
        !self.lanes.borrow().iter().any(|other| Rc::ptr_eq(other, lane))
    }

    /// Where the servers are; new ones end what was known of moves.
    pub(super) fn topology(&self) -> Current<Topology> {
        let now = self.topology.borrow_mut().get();
        let mut known = self.known.borrow_mut();
        if known.as_ref().is_none_or(|known| !Rc::ptr_eq(known, &now)) {
            *known = Some(Rc::clone(&now));
            self.moves.borrow_mut().clear();
        }
        now
    }

    /// The lane of a slot; `None`: nobody knows who serves it.
    pub(super) fn lane(self: &Rc<Self>, slot: u16) -> Option<Rc<Lane>> {
        let target = match &**self.topology() {
            Topology::Cluster(ranges) => {
                let moved = self.moves.borrow().get(&slot).copied();
                let found = ranges.iter().find(|(from, to, _)| (*from..=*to).contains(&slot));
                moved.or_else(|| found.map(|(.., node)| Target::Node(*node)))?
            }
            _ => Target::Main,
        };
        Some(self.lane_to(target))
    }

    pub(super) fn lane_to(self: &Rc<Self>, target: Target) -> Rc<Lane> {
        if let Some(lane) = self.lanes.borrow().iter().find(|lane| lane.target == target) {
            return Rc::clone(lane);
        }
        let lane = Lane::new(target);
        self.lanes.borrow_mut().push(Rc::clone(&lane));
        net::spawn(drive(Rc::clone(&lane), Rc::clone(self)));
        lane
    }

    /// One round trip, with what it leads to.
    async fn ask(self: &Rc<Self>, who: &Arc<Who>, ask: Ask) -> Result<(Decided, Stands), Trouble> {
        let lane = self.lane(who.slot).ok_or(Trouble::Connect)?;
        let op = Op::new(What::Reserve { who: Arc::clone(who), ask });
        lane.push(self, Rc::clone(&op));
        let mut waiting = Waiting { inner: self, lane: &lane, op: &op, over: false };
        let began_ns = clock::now_ns();
        let answer = op.within(self.shared.timeout_ms).await;
        self.stats.asked.inc();
        self.stats.seconds.observe_ns(clock::now_ns().saturating_sub(began_ns));
        let Some(answer) = answer else {
            self.stats.errors(Trouble::Timeout).inc();
            lane.down(self, Trouble::Timeout);
            return Err(Trouble::Timeout);
        };
        waiting.over = true;
        let (decided, stands) = decided(&answer?).ok_or(Trouble::Garbage)?;
        who.saw(&stands, clock::now_ms());
        if decided == Decided::Taken {
            who.advance.opened(ask.sequences);
            self.begin_lease(who, ask, Some(lane.epoch.get()), op.resent.get());
        }
        Ok((decided, stands))
    }

    /// While the store is away.
    fn alone(self: &Rc<Self>, lane: Option<&Lane>, who: &Arc<Who>, ask: Ask) -> Result<By, Denied> {
        self.stats.alone.inc();
        if self.shared.on_down == OnStoreDown::Refuse {
            // What was taken ahead is ours as long as the store must believe so.
            let tokens = if who.counts_tokens() { ask.tokens } else { 0 };
            let fresh = who.advance.fresh(clock::now_ms(), self.shared.lease_ms);
            let taken = fresh && who.advance.take(tokens, ask.sequences);
            return if taken { Ok(By::Ahead) } else { Err(Denied::Away) };
        }
        let since_ns = lane.map_or(0, |lane| lane.down_since_ns.get());
        self.use_of(who);
        let times = (clock::now_ns(), since_ns);
        let taken = who.advance.take_alone(times, self.shared.gateways(), who.limits(), &ask);
        match taken.map_err(|refused| Denied::Refused(0, refused))? {
            true => Ok(By::Ahead),
            false => {
                // Its tokens are ours to tell; its sequences get a lease when there is a store.
                self.begin_lease(who, Ask { tokens: 0, ..ask }, None, false);
                Ok(By::Alone)
            }
        }
    }

    fn begin_lease(&self, who: &Arc<Who>, ask: Ask, epoch: Option<u64>, guard: bool) {
        let who = Arc::clone(who);
        self.leases.borrow_mut().insert(ask.id, Lease { who, ask, epoch: Cell::new(epoch), guard });
        self.wheel.borrow_mut().enter(ask.id);
    }

    fn end_lease(self: &Rc<Self>, id: u128, used: u64) {
        let Some(lease) = self.leases.borrow_mut().remove(&id) else { return };
        // What the store has never heard of need not be ended.
        let Some(epoch) = lease.epoch.get() else { return };
        let Some(lane) = self.lane(lease.who.slot).or_else(|| self.any_lane()) else {
            return self.stats.lost.inc();
        };
        let guard = lease.guard || epoch != lane.epoch.get();
        let Lease { who, ask, .. } = lease;
        lane.push(self, Op::new(What::Settle { who, ask, used, guard }));
    }

    fn any_lane(&self) -> Option<Rc<Lane>> {
        self.lanes.borrow().first().map(Rc::clone)
    }

    pub(super) fn show_up(&self) {
        let up = self.lanes.borrow().iter().all(|lane| lane.serves());
        self.stats.up.set(i64::from(up));
    }
}
