//! The stage that chooses a lane for an attempt: looks the prompt's blocks up in the pool's index,
//! reads each lane, lets the policy decide, and enters the choice into the index at once, so that
//! the next request with the same beginning finds it.
//!
//! Each core has its own pickers and scratch by pool; nothing is allocated once a pool was seen.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use super::core::Core;
use super::decisions::Entry;
use super::learned::{Learned, Pupil};
use super::permit::Door;
use super::plan::Plan;
use super::prefill::{self, Leg};
use super::reply::Failure;
use super::ticket::Ticket;
use super::view::{self, Asks, Scratch, Seen};
use crate::prompt::blocks::BlockHash;
use crate::replicas::events::check::Verdict;
use crate::replicas::events::state::{Mode, State};
use crate::replicas::{Lane, PoolState};
use crate::routing::{Decision, Pick, Picker, Policy, Request, Residency};
use crate::runtime::clock;

/// A core's pickers.
#[derive(Default)]
pub(super) struct Pickers {
    pools: RefCell<Vec<Rc<PerPool>>>,
}

/// What a core keeps for picks in one pool.
struct PerPool {
    /// Its address is the pool's name here; it is not used again while this is held.
    state: Weak<PoolState>,
    pickers: RefCell<Vec<Picker>>,
    scratch: RefCell<Scratch>,
}

impl Pickers {
    fn of(&self, state: &Arc<PoolState>) -> Rc<PerPool> {
        let mut pools = self.pools.borrow_mut();
        let same = |pool: &&Rc<PerPool>| std::ptr::eq(pool.state.as_ptr(), Arc::as_ptr(state));
        if let Some(pool) = pools.iter().find(same) {
            return Rc::clone(pool);
        }
        pools.retain(|pool| pool.state.strong_count() > 0);
        let pool = Rc::new(PerPool {
            state: Arc::downgrade(state),
            pickers: RefCell::default(),
            scratch: RefCell::default(),
        });
        pools.push(Rc::clone(&pool));
        pool
    }
}

impl PerPool {
    /// Lets the picker of `policy` work; each keeps its state from one pick to the next.
    fn with_picker<R>(&self, policy: Policy, work: impl FnOnce(&mut Picker) -> R) -> R {
        let mut pickers = self.pickers.borrow_mut();
        if let Some(picker) = pickers.iter_mut().find(|picker| picker.policy() == policy) {
            return work(picker);
        }
        let mut picker = Picker::new(policy);
        let result = work(&mut picker);
        pickers.push(picker);
        result
    }
}

/// What came of looking for a lane.
pub(super) enum Chosen<'p> {
    /// It goes there.
    Lane(&'p Lane, Routed),
    /// It may wait, for so many ms at most.
    Wait(u64),
    /// It may not start.
    Refused(Failure),
    /// No lane may take it.
    Nobody,
}

/// The choice for one attempt, and what was predicted of it.
pub(super) struct Routed {
    pub pick: Pick,
    /// Hash of the last leading block of the prompt that the lane is believed to hold.
    pub prefix_hash: Option<BlockHash>,
    /// How much slower than the model the lane was taken to be.
    slowness: f64,
    /// Most tokens that a sequence of the answer may have, and whose answer it is.
    output_tokens_max: Option<u64>,
    tenant: u64,
    sequences: u64,
    /// Its number among the core's decisions.
    decision: Option<u64>,
    /// How the lane's blocks are known.
    known: Arc<State>,
    /// They are known by the engine's own events.
    exact: bool,
    pupil: Pupil,
    /// Where the prompt is prefilled, when not there.
    pub leg: Leg,
}

impl Routed {
    /// The first content is there, so long after the request was sent.
    pub(super) fn first_token(&self, core: &Core, actual_ms: f64, now_ms: u64) {
        let decisions = core.shared.decisions.get(core.index);
        if let Some((decisions, number)) = decisions.zip(self.decision) {
            decisions.first_token(number, actual_ms);
        }
        // A hand-over is no prefill: what it takes says nothing of how long one does.
        if self.leg.is_here() {
            self.pupil.first_token(self.pick.ttft_ms / self.slowness, actual_ms, now_ms);
        }
    }

    /// The answer's tokens took so long each.
    pub(super) fn later_tokens(&self, tokens: u64, actual_ms: f64, now_ms: u64) {
        let predicted_ms = self.pick.tpot_ms / self.slowness;
        self.pupil.later_tokens(tokens, predicted_ms, actual_ms, now_ms);
    }

    /// An answer that came whole, its tokens over all its sequences, took so long: as much longer
    /// than predicted in its first token as in its later ones.
    pub(super) fn whole_answer(&self, tokens: u64, actual_ms: f64, now_ms: u64) {
        let [ttft_ms, tpot_ms] =
            [self.pick.ttft_ms, self.pick.tpot_ms].map(|ms| ms / self.slowness);
        let later = (tokens / self.sequences.max(1)).saturating_sub(1);
        let ratio = actual_ms / (ttft_ms + later as f64 * tpot_ms);
        if self.leg.is_here() {
            self.pupil.first_token(ttft_ms, ttft_ms * ratio, now_ms);
        }
        self.pupil.later_tokens(later, tpot_ms, tpot_ms * ratio, now_ms);
    }

    /// The engine found `cached` tokens of the prompt in its cache. What is new about how that
    /// agrees with what was predicted, as often as not nothing.
    pub(super) fn cached(&self, cached: u64) -> Option<Verdict> {
        self.known.check.observe(self.exact, self.pick.cached_tokens, cached)
    }

    /// The answer is complete, and has so many tokens over all its sequences.
    pub(super) fn answer(&self, tokens: u64) {
        let tokens = tokens / self.sequences.max(1);
        self.pupil.answer(self.output_tokens_max, self.tenant, tokens);
    }
}

/// What a request looks like to a lane.
pub(super) fn asks<'a>(
    core: &Core,
    plan: &'a Plan<'_>,
    learned: &'a Learned,
    ticket: &'a Ticket<'_>,
) -> Asks<'a> {
    Asks {
        pool: &plan.pool,
        served: &plan.served,
        learned,
        prompt: ticket.prompt(),
        adapter: plan.adapter,
        tried: if plan.prefills { ticket.legs_tried() } else { &ticket.tried },
        stale_ms: plan.published.config.admission.stale_ms,
        now_ms: core.sweep.now_ms(),
    }
}

/// A choice that is entered nowhere yet.
#[derive(Clone, Copy)]
pub(super) struct Look {
    request: Request,
    pub pick: Pick,
    /// It goes there if it has to, and nobody has room.
    full: bool,
    began_ns: u64,
}

/// Chooses a lane, lets `door` judge the choice if there is one, and enters it into the index.
pub(super) fn pick<'p>(
    core: &Core,
    plan: &'p Plan<'_>,
    ticket: &Ticket<'_>,
    door: Option<&Door<'_>>,
) -> Chosen<'p> {
    let Some(learned) = plan.published.learned.get(plan.served.pool) else {
        return Chosen::Nobody;
    };
    let asks = asks(core, plan, learned, ticket);
    let began_ns = clock::now_ns();
    let per_pool = core.pickers.of(&plan.pool.state);
    let mut scratch = per_pool.scratch.borrow_mut();
    scratch.look(&asks);
    scratch.start_slowly(|| core.random() as f64 / u64::MAX as f64);
    let first = prefill::first(core, plan, ticket, scratch.candidates());
    if first.is_handed_over() {
        scratch.handed_over(ticket.prompt().map_or(0, |prompt| prompt.tokens));
    }
    let decided = decide((core, plan, ticket), (learned, &per_pool, &scratch), door, began_ns);
    let Some(look) = decided else { return Chosen::Nobody };
    if let Some(door) = door {
        let seen = (scratch.candidates(), view::block_tokens(&plan.pool));
        match door.judge(&look.pick, (look.full, first.expected_ms()), seen) {
            Ok(None) => {}
            Ok(Some(most_ms)) => return Chosen::Wait(most_ms),
            Err(failure) => return Chosen::Refused(failure),
        }
    }
    let Some((lane, mut routed)) = entered((core, plan, ticket), (learned, &asks), &scratch, look)
    else {
        return Chosen::Nobody;
    };
    routed.leg = first.entered(core, plan, ticket);
    Chosen::Lane(lane, routed)
}

/// Chooses a lane and enters it nowhere.
pub(super) fn look(core: &Core, plan: &Plan<'_>, ticket: &Ticket<'_>) -> Option<Look> {
    let learned = plan.published.learned.get(plan.served.pool)?;
    let asks = asks(core, plan, learned, ticket);
    let began_ns = clock::now_ns();
    let per_pool = core.pickers.of(&plan.pool.state);
    let mut scratch = per_pool.scratch.borrow_mut();
    scratch.look(&asks);
    scratch.start_slowly(|| core.random() as f64 / u64::MAX as f64);
    decide((core, plan, ticket), (learned, &per_pool, &scratch), None, began_ns)
}

/// Enters what [`look`] chose; nobody else may have looked at the pool meanwhile.
pub(super) fn enter(
    core: &Core,
    plan: &Plan<'_>,
    ticket: &Ticket<'_>,
    look: Look,
) -> Option<Routed> {
    let learned = plan.published.learned.get(plan.served.pool)?;
    let asks = asks(core, plan, learned, ticket);
    let per_pool = core.pickers.of(&plan.pool.state);
    let scratch = per_pool.scratch.borrow();
    entered((core, plan, ticket), (learned, &asks), &scratch, look).map(|(_, routed)| routed)
}

/// Lets the policy decide.
fn decide(
    (core, plan, ticket): (&Core, &Plan<'_>, &Ticket<'_>),
    (learned, per_pool, scratch): (&Learned, &PerPool, &Scratch),
    door: Option<&Door<'_>>,
    began_ns: u64,
) -> Option<Look> {
    let seen = Seen::of(scratch.candidates());
    let mut request = ticket.request(plan, learned);
    request.may_hold = door.is_some();
    request.headroom = door.map_or(0.0, |door| door.headroom);
    let decision = per_pool.with_picker(plan.policy, |picker| {
        let (model, now_us) = (learned.pool.model(), began_ns / 1_000);
        picker.pick(&request, &seen, &model, now_us, &mut core.rng.borrow_mut())
    });
    match decision {
        Decision::Pick(pick) => Some(Look { request, pick, full: false, began_ns }),
        Decision::Hold(pick) => Some(Look { request, pick, full: true, began_ns }),
        Decision::Nobody => None,
    }
}

/// Enters a choice into the index and what people see of it.
fn entered<'p>(
    (core, plan, ticket): (&Core, &'p Plan<'_>, &Ticket<'_>),
    (learned, asks): (&Learned, &Asks<'_>),
    scratch: &Scratch,
    Look { request, pick, began_ns, .. }: Look,
) -> Option<(&'p Lane, Routed)> {
    let lane = plan.pool.lanes.get(pick.replica)?;
    let first = ticket.attempts == 0 && !plan.prefills;
    if let Some(adapter) = plan.served.adapter.as_ref().filter(|_| first) {
        let chosen = scratch.candidates().get(pick.replica);
        let hit = chosen.is_some_and(|it| it.adapter == Residency::Resident);
        core.pools.count_adapter(&core.metrics, adapter, hit);
    }
    let (hashes, depth) = (asks.hashes(), scratch.depth(lane) as usize);
    if plan.endpoint.generates() {
        dispatched(plan, lane, asks);
    }
    let pick = Pick { cached_tokens: ticket.cached_tokens(depth as u32), ..pick };
    let route_ns = clock::now_ns().saturating_sub(began_ns);
    let decision = decided((core, plan, ticket), request, pick, (route_ns, scratch));
    let routed = Routed {
        prefix_hash: depth.checked_sub(1).and_then(|last| hashes.get(last)).copied(),
        slowness: learned.slowness(pick.replica, asks.now_ms),
        output_tokens_max: plan.output_tokens_max,
        tenant: plan.tenant,
        sequences: plan.sequences,
        known: Arc::clone(&lane.known),
        exact: plan.pool.prefix_mode(lane) == Mode::Exact,
        pupil: learned.pupil(pick.replica),
        pick,
        decision,
        leg: Leg::No,
    };
    Some((lane, routed))
}

/// Enters a choice into the index, here and at the other gateways.
fn dispatched(plan: &Plan<'_>, lane: &Lane, asks: &Asks<'_>) {
    let (state, hashes) = (&plan.pool.state, asks.hashes());
    state.outbox.dispatched(lane.slot, plan.adapter, hashes);
    if !hashes.is_empty() {
        state.index.dispatched(lane.slot, hashes, asks.now_ms);
    }
}

/// Keeps a choice for people; its number.
fn decided(
    (core, plan, ticket): (&Core, &Plan<'_>, &Ticket<'_>),
    request: Request,
    pick: Pick,
    (route_ns, scratch): (u64, &Scratch),
) -> Option<u64> {
    let decisions = core.shared.decisions.get(core.index)?;
    let entry = Entry {
        id: ticket.id(),
        at_unix_ms: clock::unix_ms(),
        pool: Arc::clone(&plan.pool),
        policy: plan.policy,
        attempt: ticket.attempts + 1,
        request,
        pick,
        route_ns,
        ttft_ms: None,
        candidates: Vec::new(),
    };
    decisions.enter(entry, scratch.candidates())
}

/// May a lane that has not failed it be sent the request?
pub(super) fn any_left(core: &Core, plan: &Plan<'_>, ticket: &Ticket<'_>) -> bool {
    let Some(learned) = plan.published.learned.get(plan.served.pool) else { return false };
    let asks = asks(core, plan, learned, ticket);
    plan.pool.lanes.iter().enumerate().any(|(index, lane)| asks.eligible(index, lane))
}

impl Ticket<'_> {
    /// The request as policies see it.
    fn request(&self, plan: &Plan<'_>, learned: &Learned) -> Request {
        let prompt = self.prompt();
        let mut request = Request {
            prompt_tokens: prompt.map_or(0, |prompt| prompt.tokens),
            output_tokens: plan.output_tokens as f64,
            output_tokens_max: plan.output_tokens_max.unwrap_or(0),
            block_tokens: prompt.map_or(0, |prompt| prompt.block_tokens),
            adapter: plan.adapter.is_some(),
            // What has no beginning worth keeping together goes anywhere.
            owner_key: prompt.and_then(view::owner_key).unwrap_or_else(|| self.core.random()),
            ..Request::default()
        };
        learned.pool.limit(&mut request);
        request
    }

    fn cached_tokens(&self, depth: u32) -> u64 {
        self.prompt().map_or(0, |prompt| view::cached_tokens(prompt, depth))
    }
}
