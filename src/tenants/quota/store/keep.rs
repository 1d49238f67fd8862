//! What a core's client does on its own: renews leases, tells the store of what is taken ahead,
//! follows slots that move.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::client::{Inner, Lease};
use super::lane::{Lane, Target};
use super::op::{Op, What};
use super::script::granted;
use super::shared::Topology;
use super::stats::Trouble;
use super::who::Who;
use crate::net;
use crate::runtime::clock;
use crate::tenants::quota::Ask;

/// A lease is renewed every third of its time.
const RENEWALS: u64 = 3;
/// Leases in one script call.
const BATCH: usize = 100;
/// Parts in which the leases of a core are renewed, so that no moment has all of them.
const SPOKES: usize = 32;

/// Which leases are renewed together.
#[derive(Default)]
pub(super) struct Wheel {
    spokes: [Vec<u128>; SPOKES],
    next: usize,
    turned_ms: u64,
}

impl Wheel {
    /// A new lease goes where all others come first.
    pub(super) fn enter(&mut self, id: u128) {
        let last = self.next.checked_sub(1).unwrap_or(SPOKES - 1);
        if let Some(spoke) = self.spokes.get_mut(last) {
            spoke.push(id);
        }
    }

    /// The ids that are due; without those that `lives` does not know any more.
    fn due(&mut self, now_ms: u64, lease_ms: u64, lives: impl Fn(&u128) -> bool) -> Vec<u128> {
        let spoke_ms = (lease_ms / RENEWALS / SPOKES as u64).max(1);
        let mut due = Vec::new();
        for _ in 0..SPOKES {
            if now_ms.saturating_sub(self.turned_ms) < spoke_ms {
                break;
            }
            self.turned_ms = self.turned_ms.saturating_add(spoke_ms);
            if let Some(spoke) = self.spokes.get_mut(self.next) {
                spoke.retain(&lives);
                due.extend_from_slice(spoke);
            }
            self.next = (self.next + 1) % SPOKES;
        }
        if now_ms.saturating_sub(self.turned_ms) >= spoke_ms {
            self.turned_ms = now_ms;
        }
        due
    }
}

impl Inner {
    pub(super) fn tick(self: &Rc<Self>, now_ms: u64) {
        self.fit_lanes();
        self.lanes.borrow().iter().for_each(|lane| lane.tick(now_ms));
        let due = {
            let leases = self.leases.borrow();
            self.wheel.borrow_mut().due(now_ms, self.shared.lease_ms, |id| leases.contains_key(id))
        };
        self.renew(|lease| lease.epoch.get().is_some(), due.into_iter(), None);
        let used: Vec<_> = self.used.borrow().values().map(Arc::clone).collect();
        used.iter().for_each(|who| self.tell_soon(who, now_ms));
        self.used.borrow_mut().retain(|_, who| !who.advance.at_rest(now_ms));
        self.beat(now_ms);
    }

    /// Renews these of the leases, on their own lanes; or all that belong to one lane, before
    /// everything else that waits there.
    fn renew(
        self: &Rc<Self>,
        which: impl Fn(&Lease) -> bool,
        ids: impl Iterator<Item = u128>,
        only: Option<&Lane>,
    ) {
        let mut by_who: HashMap<*const Who, (Arc<Who>, Vec<Ask>)> = HashMap::new();
        let leases = self.leases.borrow();
        for lease in ids.filter_map(|id| leases.get(&id)).filter(|lease| which(lease)) {
            let (_, asks) = by_who
                .entry(Arc::as_ptr(&lease.who))
                .or_insert_with(|| (Arc::clone(&lease.who), Vec::new()));
            asks.push(lease.ask);
            if let Some(lane) = only {
                let first = lease.epoch.get().unwrap_or(lane.epoch.get());
                lease.epoch.set(Some(first));
            }
        }
        drop(leases);
        for (who, asks) in by_who.into_values() {
            let Some(lane) = self.lane(who.slot).filter(|lane| lane.serves()) else { continue };
            let batch =
                |asks: &[Ask]| Op::new(What::Renew { who: Arc::clone(&who), asks: asks.to_vec() });
            let ops: Vec<_> = asks.chunks(BATCH).map(batch).collect();
            match only {
                Some(_) => lane.push_front(ops.into_iter()),
                None => ops.into_iter().for_each(|op| lane.push(self, op)),
            }
        }
    }

    /// A server is there again: it may have lost our leases, or let them expire.
    pub(super) fn renew_all(&self, lane: &Lane) {
        let Some(this) = self.this.upgrade() else { return };
        // Those that have ended meanwhile too, if nobody has heard so: what they give back must
        // find them.
        let ended = lane.unsaid().into_iter().filter_map(|op| match &op.what {
            What::Settle { who, ask, guard: false, .. } => {
                Some(Op::new(What::Renew { who: Arc::clone(who), asks: vec![*ask] }))
            }
            _ => None,
        });
        lane.push_front(ended.collect::<Vec<_>>().into_iter());
        let ids: Vec<_> = self.leases.borrow().keys().copied().collect();
        let here = |lease: &Lease| {
            this.lane(lease.who.slot).is_some_and(|other| std::ptr::eq(&*other, lane))
        };
        this.renew(here, ids.into_iter(), Some(lane));
    }

    /// From now on it is looked after.
    pub(super) fn use_of(&self, who: &Arc<Who>) {
        let place = Arc::as_ptr(&who.advance);
        self.used.borrow_mut().entry(place).or_insert_with(|| Arc::clone(who));
    }

    /// Tells the store about an advance if that is due.
    pub(super) fn tell_soon(self: &Rc<Self>, who: &Arc<Who>, now_ms: u64) {
        let advance = &who.advance;
        if self.leaving.get() || !advance.due(now_ms, self.shared.lease_ms / RENEWALS) {
            return;
        }
        self.use_of(who);
        if self.lane(who.slot).is_none_or(|lane| !lane.serves()) {
            return;
        }
        let (inner, who) = (Rc::clone(self), Arc::clone(who));
        net::spawn(async move { inner.tell(&who, false).await });
    }

    /// A server is there again: what we have taken meanwhile is to be known soon.
    pub(super) fn tell_debts(&self, lane: &Lane) {
        let Some(this) = self.this.upgrade() else { return };
        let used: Vec<_> = self.used.borrow().values().map(Arc::clone).collect();
        for who in used.into_iter().filter(|who| who.advance.owes()) {
            if this.lane(who.slot).is_some_and(|other| std::ptr::eq(&*other, lane)) {
                let this = Rc::clone(&this);
                net::spawn(async move { this.tell(&who, false).await });
            }
        }
    }

    /// Tells the store what we give back and want; `close`: all goes back.
    pub(super) async fn tell(self: &Rc<Self>, who: &Arc<Who>, close: bool) {
        let Some(lane) = self.lane(who.slot) else { return };
        let Some(message) = who.advance.message(clock::now_ms(), close) else { return };
        let name = who.advance_name(self.shared.gateway);
        let op = Op::new(What::Advance { who: Arc::clone(who), name, message });
        lane.push(self, Rc::clone(&op));
        let answer = op.answered().await;
        let now_ms = clock::now_ms();
        match answer.ok().as_ref().and_then(granted) {
            Some((grant, stands)) => {
                who.saw(&stands, now_ms);
                who.advance.told(now_ms, &message, grant);
            }
            None => who.advance.unheard(now_ms),
        }
    }

    /// The list of gateways: one core at a time says that we live.
    fn beat(self: &Rc<Self>, now_ms: u64) {
        let due = self.shared.beat_due_ms.load(Relaxed);
        let next = now_ms.saturating_add(self.shared.lease_ms / RENEWALS);
        if now_ms < due {
            return;
        }
        let Some(lane) = self.lane(super::script::gateways_slot()) else { return };
        let swapped = self.shared.beat_due_ms.compare_exchange(due, next, Relaxed, Relaxed);
        if !lane.serves() || swapped.is_err() {
            return;
        }
        let op = Op::new(What::Beat { gateway: self.shared.gateway, bye: false });
        lane.push(self, Rc::clone(&op));
        let inner = Rc::clone(self);
        net::spawn(async move {
            let count = op.answered().await.ok().and_then(|reply| reply.int());
            if let Some(count) = count.and_then(|count| u64::try_from(count).ok()) {
                inner.shared.gateways.store(count.max(1), Relaxed);
            }
        });
    }

    /// This gateway takes its leave, with its last core or before: it only counts too few then.
    pub(super) fn bye(self: &Rc<Self>) {
        let Some(lane) = self.lane(super::script::gateways_slot()) else { return };
        self.shared.beat_due_ms.store(u64::MAX, Relaxed);
        if lane.serves() {
            lane.push(self, Op::new(What::Beat { gateway: self.shared.gateway, bye: true }));
        }
    }

    /// A node says that a slot is elsewhere.
    pub(super) fn moved(
        self: &Rc<Self>,
        op: Rc<Op>,
        asking: bool,
        slot: &str,
        to: &str,
    ) -> Result<(), Trouble> {
        // Names are not looked up on a core: then it has to wait for the topology.
        let Ok(node) = to.parse::<SocketAddr>() else {
            self.shared.moved.notify_one();
            op.answer(Err(Trouble::Cluster));
            return Ok(());
        };
        let target = Target::Node(node);
        if !asking && let Ok(slot) = slot.parse() {
            self.moves.borrow_mut().insert(slot, target);
            self.shared.moved.notify_one();
        }
        op.asking.set(asking);
        self.lane_to(target).push(self, op);
        Ok(())
    }

    /// Nodes that no longer are in the topology are left; what waits there goes elsewhere.
    fn fit_lanes(self: &Rc<Self>) {
        let topology = self.topology();
        let Topology::Cluster(ranges) = &**topology else { return };
        let moves = self.moves.borrow();
        let known = |lane: &Rc<Lane>| {
            let in_use = |target: &Target| *target == lane.target;
            ranges.iter().any(|(.., node)| in_use(&Target::Node(*node)))
                || moves.values().any(in_use)
        };
        let left: Vec<_> =
            self.lanes.borrow().iter().filter(|lane| !known(lane)).map(Rc::clone).collect();
        drop(moves);
        for lane in left {
            self.lanes.borrow_mut().retain(|other| !Rc::ptr_eq(other, &lane));
            for op in lane.drained() {
                match self.lane(op.slot()) {
                    Some(other) => other.push(self, op),
                    None => op.answer(Err(Trouble::Cluster)),
                }
            }
            lane.retire(self);
            self.show_up();
        }
    }
}
