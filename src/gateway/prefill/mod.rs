//! Prompts that another pool prefills: whether one is worth it, and the leg of the request there.
//!
//! A decode pool serves clients; what is left to compute of a long prompt its pair computes. The
//! replica of the pair gets the same body for one token and answers with what the replica that
//! decodes needs to fetch the blocks (`kv_transfer_params`), an object of theirs that we pass on as
//! it is. Whatever goes wrong here costs the client nothing but time: the replica that decodes can
//! always compute the prompt itself. State of one request, on its core.

mod ask;
mod legs;

use std::rc::Rc;
use std::sync::Arc;

use self::ask::{Answered, ask};
pub(super) use self::legs::{Legs, decode_failed};
use super::connection::Client;
use super::core::Core;
use super::exchange::Attempt;
use super::pick::{self, Chosen, Look, Routed};
use super::plan::Plan;
use super::ticket::Ticket;
use super::upstream;
use crate::admin::PrefillResult;
use crate::openai::{Call, Edits, Endpoint, member};
use crate::replicas::{Dispatch, Failure as ReplicaFailure};
use crate::routing::Candidate;
use crate::runtime::clock;

/// The member by which engines hand blocks over.
const PARAMS: &str = "kv_transfer_params";
/// Its value for an engine that is to keep the blocks for another.
const KEEP: &str = "{\"do_remote_decode\":true,\"do_remote_prefill\":false}";
/// Members of a body that need the prompt computed where the answer is made: nobody hands over what
/// the prompt's own tokens were worth, or the beams of a search.
const AT_ONE_PLACE: [&str; 2] = ["prompt_logprobs", "use_beam_search"];

/// One in so many prompts goes to who is taken to be too busy, since nobody would see otherwise
/// that it is not any more.
const TRIAL: u64 = 16;

/// How the prompt of a request may be prefilled elsewhere.
pub(super) struct Far<'p> {
    /// The request as the other pool gets it.
    pub plan: Plan<'p>,
    /// So many tokens must be left to compute.
    tokens_min: u64,
}

impl Far<'_> {
    /// As [`ttft_scale`](super::learned::PoolModel::ttft_scale), of the other pool.
    pub(super) fn ttft_scale(&self) -> Option<f64> {
        self.plan.published.learned.get(self.plan.served.pool)?.pool.ttft_scale()
    }
}

/// Where a prompt is prefilled that is decoded elsewhere.
pub(super) enum Leg {
    /// Its pool prefills for itself.
    No,
    /// Too little is left to compute, or it cannot be handed over.
    Direct,
    /// Nobody who prefills may be sent it.
    Nobody,
    /// They have so much to do that it would miss its limit.
    Busy,
    /// It was to be prefilled elsewhere, and was not.
    FellBack,
    /// It is prefilled already.
    Done,
    /// It is to be prefilled there.
    To(Box<Routed>),
}

/// The same before the choice is entered anywhere.
pub(super) enum First {
    Leg(Leg),
    To(Look, f64),
}

/// What came of a leg, if there was one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefilled {
    /// Whoever decodes it has to do what it was picked for.
    AsPicked,
    /// It has to compute the prompt too.
    Not,
}

/// Makes a plan for the other pool when the request is one that it may prefill.
pub(super) fn prepare(
    client: &Client,
    plan: &mut Plan<'_>,
    call: &Call,
    salt: Option<&str>,
    ticket: &mut Ticket<'_>,
) {
    let Some(index) = plan.pool.prefills_at else { return };
    let settings = plan.published.config.pools.get(plan.served.pool);
    let tokens_min = settings.and_then(|pool| pool.prefill_tokens_min);
    let tokens_min = tokens_min.unwrap_or(crate::config::PREFILL_TOKENS_MIN).max(1);
    let long = ticket.prompt().is_some_and(|prompt| prompt.tokens >= tokens_min);
    let body = plan.body.bytes(client);
    if !long || !may_be_handed_over(plan, call, body) {
        return;
    }
    let fleet = &plan.published.fleet;
    let served = fleet.prefill_of(index, &plan.served);
    let Some((served, pool)) = served.zip(fleet.pools.get(index)) else { return };
    let mut edits = Edits::new(call);
    edits.set_model(call, &served.upstream);
    edits.remove(call, body, |field| field.name != "cache_salt");
    if let Some(salt) = salt {
        edits.set_policy_field(call, "cache_salt", &format!("\"{salt}\""));
    }
    edits.prefill_only(call, plan.endpoint.limit_field());
    edits.add_member(PARAMS, KEEP);
    let far = plan.for_prefill(edits, served.clone(), pool);
    plan.prefill = Some(Box::new(Far { plan: far, tokens_min }));
    ticket.legs = Some(Box::default());
}

/// One prompt, one answer to it, and nothing that is made of the prompt's tokens.
fn may_be_handed_over(plan: &Plan<'_>, call: &Call, body: &[u8]) -> bool {
    let one = plan.sequences == 1 && call.prompts() == 1 && !call.embeds && !call.echo;
    let known = matches!(plan.endpoint, Endpoint::ChatCompletions | Endpoint::Completions);
    // The word may be one of the text's.
    let named = |name: &&str| {
        memchr::memmem::find(body, name.as_bytes()).is_some() && member(body, name).is_some()
    };
    one && known && !AT_ONE_PLACE.iter().any(named)
}

/// Where the prompt of a request is best prefilled whose pool looks like this.
pub(super) fn first(
    core: &Core,
    plan: &Plan<'_>,
    ticket: &Ticket<'_>,
    candidates: &[Candidate],
) -> First {
    if plan.pool.prefills_at.is_none() {
        return First::Leg(Leg::No);
    }
    let (Some(far), Some(legs)) = (&plan.prefill, &ticket.legs) else {
        return First::Leg(Leg::Direct);
    };
    if legs.handed.is_some() {
        return First::Leg(Leg::Done);
    }
    // The least that anybody would have to compute.
    let cached = candidates.iter().filter(|it| it.eligible).map(|it| it.cached_tokens).max();
    let tokens = ticket.prompt().map_or(0, |prompt| prompt.tokens);
    if legs.off || tokens.saturating_sub(cached.unwrap_or(0)) < far.tokens_min {
        return First::Leg(Leg::Direct);
    }
    let Some(look) = pick::look(core, &far.plan, ticket) else {
        return First::Leg(Leg::Nobody);
    };
    let ms = far.ttft_scale().unwrap_or(0.0) * look.pick.ttft_ms;
    let learned = plan.published.learned.get(plan.served.pool);
    let limit_ms = learned.map_or(f64::INFINITY, |it| it.pool.ttft_limit_ms(tokens));
    if ms > limit_ms && !core.random().is_multiple_of(TRIAL) {
        return First::Leg(Leg::Busy);
    }
    First::To(look, ms)
}

impl First {
    pub(super) fn is_handed_over(&self) -> bool {
        matches!(self, First::To(..) | First::Leg(Leg::Done))
    }

    /// Time until it is prefilled, in ms; 0 where that is not known, or is no time apart.
    pub(super) fn expected_ms(&self) -> f64 {
        if let First::To(_, ms) = self { *ms } else { 0.0 }
    }

    /// Enters the choice.
    pub(super) fn entered(self, core: &Core, plan: &Plan<'_>, ticket: &Ticket<'_>) -> Leg {
        match (self, &plan.prefill) {
            (First::Leg(leg), _) => leg,
            (First::To(look, _), Some(far)) => {
                let routed = pick::enter(core, &far.plan, ticket, look);
                routed.map_or(Leg::Nobody, |routed| Leg::To(Box::new(routed)))
            }
            (First::To(..), None) => Leg::Nobody,
        }
    }
}

impl Leg {
    /// Does whoever decodes it get its blocks from elsewhere?
    pub(super) fn is_handed_over(&self) -> bool {
        matches!(self, Leg::Done | Leg::To(_))
    }

    /// Was the time to the first token predicted for a prefill there?
    pub(super) fn is_here(&self) -> bool {
        matches!(self, Leg::No | Leg::Direct | Leg::Nobody | Leg::Busy)
    }
}

/// Has the prompt of a request prefilled if that was chosen, and says so to the ticket.
///
/// # Errors
/// The request is over: its client or its time has gone, or the gateway ends.
pub(super) async fn run(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &mut Ticket<'_>,
) -> Result<Prefilled, Attempt> {
    let Some(far) = &plan.prefill else { return Ok(Prefilled::AsPicked) };
    let Some(mut routed) = ticket.take_leg() else { return Ok(Prefilled::AsPicked) };
    let began_ns = clock::now_ns();
    ticket.leg_begins();
    let handed = loop {
        let why = match attempt(core, client, &far.plan, ticket, &routed).await {
            Ok(Answered::Handed(params)) => {
                count(core, plan, PrefillResult::Done);
                let mut edits = Box::new(plan.edits.clone());
                edits.add_member(PARAMS, &params);
                break Some(edits);
            }
            Ok(Answered::Not(why)) => {
                count(core, plan, PrefillResult::Failed);
                fell_back(core, plan, &why);
                break None;
            }
            Err(why) => why,
        };
        if why.is_final() {
            count(core, plan, PrefillResult::Gone);
            ticket.leg_cut(began_ns);
            return Err(why);
        }
        count(core, plan, PrefillResult::Failed);
        match again(core, far, ticket, &routed, &why) {
            Some(next) => routed = next,
            None => {
                fell_back(core, plan, why.reason());
                break None;
            }
        }
    };
    ticket.leg_ended(began_ns, handed);
    Ok(if ticket.handed_edits().is_some() { Prefilled::AsPicked } else { Prefilled::Not })
}

/// Who else of the pool is asked after a failure; `None`: nobody.
fn again(
    core: &Core,
    far: &Far<'_>,
    ticket: &mut Ticket<'_>,
    routed: &Routed,
    why: &Attempt,
) -> Option<Routed> {
    let failed = far.plan.pool.lanes.get(routed.pick.replica)?;
    upstream::note(core, &failed.replica, why, ticket);
    let legs = ticket.legs.as_mut()?;
    legs.tried.push(routed.pick.replica);
    let retry = far.plan.published.retry;
    let spent = legs.tried.len() as u64 >= u64::from(retry.attempts_max);
    let costly = !matches!(why, Attempt::Failed(Some(ReplicaFailure::Refused), _));
    let may = || !costly || core.retries.spend(retry.budget_ratio);
    if spent || !pick::any_left(core, &far.plan, ticket) || !may() {
        return None;
    }
    match pick::pick(core, &far.plan, ticket, None) {
        Chosen::Lane(_, next) => {
            upstream::count_retry(core, why.reason());
            Some(next)
        }
        _ => None,
    }
}

async fn attempt(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &mut Ticket<'_>,
    routed: &Routed,
) -> Result<Answered, Attempt> {
    let Some(lane) = plan.pool.lanes.get(routed.pick.replica) else {
        return Ok(Answered::Not("it is no more in its pool".to_owned()));
    };
    if let Some(legs) = &mut ticket.legs {
        (legs.replica, legs.rank) = (Some(Arc::clone(&lane.replica)), lane.rank);
    }
    let dispatch = Dispatch {
        prompt_tokens: ticket.prompt().map_or(0, |prompt| prompt.tokens),
        cached_tokens: routed.pick.cached_tokens,
        output_tokens: 1,
        sequences: 1,
        prefill_ms: routed.pick.prefill_ms,
        adapter: plan.adapter,
    };
    ask(core, client, plan, ticket, (lane, routed, &dispatch)).await
}

/// Counts what became of a leg, or why there was none.
pub(super) fn count(core: &Core, plan: &Plan<'_>, result: PrefillResult) {
    core.pools.pool(&core.metrics, &plan.pool.name).prefill(result).inc();
}

/// Counts a request whose prompt is computed where it is decoded, if that is for the first time.
pub(super) fn count_direct(core: &Core, plan: &Plan<'_>, leg: &Leg) {
    match leg {
        Leg::Direct => count(core, plan, PrefillResult::Direct),
        Leg::Nobody => count(core, plan, PrefillResult::Unavailable),
        Leg::Busy => count(core, plan, PrefillResult::Busy),
        Leg::No | Leg::FellBack | Leg::Done | Leg::To(_) => {}
    }
}

fn fell_back(core: &Core, plan: &Plan<'_>, why: &str) {
    count(core, plan, PrefillResult::FellBack);
    let pool = &plan.pool.name;
    // The metric has each.
    if !plan.pool.state.unpaired_said.due(core.sweep.now_ms()) {
        return;
    }
    core.shared.log.warn(&format!("pool {pool}: a prompt was not prefilled by its pair: {why}"));
}
