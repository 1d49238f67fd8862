//! From a request to a replica that has begun to answer it: permit and pick, connect or reuse,
//! send, wait for the first event; elsewhere again while nothing of the answer has reached the
//! client.
//!
//! RFC 9110 (9.2.2) forbids proxies to repeat non-idempotent requests on their own. A gateway may
//! define its resources: a completion is repeatable until its first content event was passed on.
//! Each repetition is counted and only one is charged.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use super::adapters;
use super::buffer::Buffer;
use super::comments::Comments;
use super::connection::Client;
use super::core::Core;
use super::exchange::{self, Attempt, Begun, Exchange, FIRST_TOKEN};
use super::frames::Outgoing;
use super::permit;
use super::pick::{self, Chosen};
use super::plan::Plan;
use super::prefill::{self, Prefilled};
use super::relay;
use super::reply::Failure;
use super::ticket::Ticket;
use crate::admin::RETRY_REASONS;
use crate::net::Wire;

use crate::replicas::{Failure as ReplicaFailure, InFlight, Lane, Replica};
use crate::runtime::descriptors::Lack;

/// The limit on connecting.
const CONNECT: &str = "timeouts.connect_ms";
/// Between two looks at what a whole answer waits for.
const LOOK_MS: u64 = 1_000;
/// What a client hears when nobody takes our key.
pub(super) const DENIED: &str = "the replica does not take the gateway's key";

/// Would another replica be asked, should this attempt fail now?
pub(super) fn another(core: &Core, plan: &Plan<'_>, ticket: &Ticket<'_>) -> bool {
    let retry = plan.published.retry;
    let left = ticket.attempts < retry.attempts_max && !ticket.is_late();
    left && core.retries.can_spend(retry.budget_ratio) && pick::any_left(core, plan, ticket)
}

/// Sends the request to one replica after the other until one has begun to answer.
pub(super) async fn open(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &mut Ticket<'_>,
) -> Result<(Exchange, Begun), Failure> {
    if core.shared.poisons.bars(plan.body.bytes(client), core.sweep.now_ms()) {
        return Err(Failure::Poison);
    }
    core.retries.earn(plan.published.retry.budget_ratio);
    attempts(core, client, plan, ticket, None).await
}

/// As [`open`], after an attempt that failed when only a role had been passed on.
pub(super) async fn open_again(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &mut Ticket<'_>,
    why: Attempt,
) -> Result<(Exchange, Begun), Failure> {
    attempts(core, client, plan, ticket, Some(why)).await
}

async fn attempts(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &mut Ticket<'_>,
    mut failed: Option<Attempt>,
) -> Result<(Exchange, Begun), Failure> {
    loop {
        if let Some(why) = failed.take() {
            ticket.attempt_failed(&why);
            prefill::decode_failed(ticket, &why);
            let (replica, body) = (ticket.replica.clone(), plan.body.bytes(client));
            if ticket.fallen.saw(core, replica.as_ref(), &why, body).await {
                return Err(Failure::Poison);
            }
            let costly = !matches!(why, Attempt::Failed(Some(ReplicaFailure::Refused), _));
            let spent = ticket.attempts >= plan.published.retry.attempts_max || ticket.is_late();
            if spent
                || why.is_final()
                || (costly && !core.retries.spend(plan.published.retry.budget_ratio))
            {
                return Err(given_up(why));
            }
            failed = Some(why);
        }
        // Only a first attempt needs a permit: what is tried again has it.
        let (lane, routed) = if ticket.attempts == 0 {
            permit::pass(core, client, plan, ticket).await?
        } else {
            let Chosen::Lane(lane, routed) = pick::pick(core, plan, ticket, None) else {
                return Err(failed.take().map_or(Failure::NoHealthyReplica, given_up));
            };
            (lane, routed)
        };
        let replica = &lane.replica;
        if let Some(why) = failed.take() {
            count_retry(core, why.reason());
        }
        if ticket.attempts == 0 {
            prefill::count_direct(core, plan, &routed.leg);
        }
        ticket.attempt(lane, routed);
        comment(core, client, plan, ticket);
        let begun = attempt(core, client, plan, ticket, lane).await;
        if client.comments.as_ref().is_some_and(|comments| comments.begun()) {
            ticket.head_went();
        }
        match begun {
            Ok(begun) => {
                for replica in std::mem::take(&mut ticket.erred) {
                    let reason = "it failed what another replica served";
                    blame(core, &replica, ReplicaFailure::Erred, reason);
                }
                return Ok(begun);
            }
            Err(why) => {
                note(core, replica, &why, ticket);
                failed = Some(why);
            }
        }
    }
}

/// From here on a silence is commented, if that is asked for. Not while the request waits for
/// room: a refusal is worth more with its own status.
fn comment(core: &Core, client: &mut Client, plan: &Plan<'_>, ticket: &Ticket<'_>) {
    let every_ms = plan.published.timeouts.sse_keepalive_ms;
    if every_ms == 0 || !plan.stream {
        return;
    }
    let chunked = plan.outgoing == Outgoing::Chunked;
    let new = || Box::new(Comments::new(core.sweep.deadline(), every_ms, chunked));
    let comments = client.comments.get_or_insert_with(new);
    comments.may_come(ticket.head_sent, |out| relay::write_head(out, plan, ticket));
}

pub(super) fn count_retry(core: &Core, reason: &'static str) {
    let at = RETRY_REASONS.iter().position(|known| *known == reason);
    if let Some(cell) = at.and_then(|at| core.metrics.retries.get(at)) {
        cell.inc();
    }
}

/// Enters a failed attempt into the replica's health, or remembers it until another has served the
/// request.
pub(super) fn note(core: &Core, replica: &Arc<Replica>, why: &Attempt, ticket: &mut Ticket<'_>) {
    let (failure, reason) = match why {
        Attempt::Failed(Some(ReplicaFailure::Erred), _)
        | Attempt::Said(Some(ReplicaFailure::Erred), ..) => {
            ticket.erred.push(Arc::clone(replica));
            return;
        }
        Attempt::Failed(Some(failure), reason) => (*failure, reason.as_str()),
        Attempt::Said(Some(ReplicaFailure::Draining), ..) => {
            (ReplicaFailure::Draining, "its engine is shutting down")
        }
        Attempt::Said(Some(failure), ..) => (*failure, "its engine answered with an error"),
        Attempt::Full(_) => return replica.health.unwilling(core.sweep.now_ms()),
        Attempt::Denied(status) => return denied(core, replica, *status),
        // Silence is how a vLLM freezes that is shut down; a caller's own limit says nothing.
        Attempt::Late(limit) if *limit == FIRST_TOKEN => (ReplicaFailure::Broken, *limit),
        _ => return,
    };
    blame(core, replica, failure, reason);
}

fn blame(core: &Core, replica: &Replica, failure: ReplicaFailure, reason: &str) {
    if replica.health.failed(failure, core.sweep.now_ms()) {
        core.shared.log.warn(&format!("replica {} ejected: {reason}", replica.id));
    }
}

/// Who answers at once and has nothing to do would draw every request.
fn denied(core: &Core, replica: &Replica, status: u16) {
    let now_ms = core.sweep.now_ms();
    if replica.health.denied(now_ms) {
        core.shared.log.warn(&format!(
            "replica {} answers {status}: does it want another api_key than its pool has?",
            replica.id
        ));
    }
}

/// A stream broke off behind content that the client has.
pub(super) fn cut(core: &Core, replica: &Replica, reason: &str) {
    if replica.health.cut(core.sweep.now_ms()) {
        core.shared
            .log
            .warn(&format!("replica {} ejected: its streams break off: {reason}", replica.id));
    }
}

fn given_up(why: Attempt) -> Failure {
    match why {
        Attempt::ClientGone => Failure::ClientGone,
        Attempt::Stopped => Failure::Stopping,
        Attempt::Late(limit) => Failure::Deadline(limit),
        Attempt::Full(reason) => Failure::Full(reason),
        Attempt::Denied(_) => Failure::Upstream(DENIED.to_owned()),
        Attempt::Failed(Some(ReplicaFailure::Refused), _) => Failure::NoHealthyReplica,
        Attempt::Failed(_, reason) | Attempt::Said(.., reason) => Failure::Upstream(reason),
    }
}

async fn attempt(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &mut Ticket<'_>,
    lane: &Lane,
) -> Result<(Exchange, Begun), Attempt> {
    let replica = &lane.replica;
    replica.health.start(core.sweep.now_ms());
    let waited_ns = adapters::load(core, client, plan, ticket, lane).await?;
    ticket.waited_for_them(waited_ns);
    let now_ms = core.sweep.now_ms();
    let mut entry = lane.ledger.enter(core.index, &ticket.dispatch(plan), now_ms);
    if plan.prefill.is_some() {
        let prefilled = prefill::run(core, client, plan, ticket).await?;
        if prefilled == Prefilled::Not {
            entry = lane.ledger.enter(core.index, &ticket.dispatch(plan), core.sweep.now_ms());
        }
    }
    let now_ms = core.sweep.now_ms();
    let expected_ms = ticket.first_byte_expected_ms(plan);
    let _awaiting = replica.silence.sent(core.index, expected_ms, now_ms);
    let due_ms = ticket.first_token_due_ms();
    let mut reused = core.idle.take(replica.key, core.sweep.now_ms());
    loop {
        let was_reused = reused.is_some();
        let mut stream = match reused.take() {
            Some(stream) => stream,
            None => connect(core, client, plan, ticket, replica).await?,
        };
        ticket.sending();
        let mut inbox = Buffer::default();
        let begun = exchange::begin(core, client, plan, ticket, replica, (&mut stream, &mut inbox));
        let waited = (due_ms, &mut entry);
        match unseen_first_token(core, plan, replica, waited, begun).await {
            Ok((head, begun)) => {
                replica.silence.heard(core.index, core.sweep.now_ms());
                replica.health.succeeded(core.sweep.now_ms());
                let replica = Arc::clone(replica);
                let exchange = Exchange { stream, inbox, replica, head, entry };
                return Ok((exchange, begun));
            }
            // The replica closed an idle connection in the moment of its reuse: nothing ran, and
            // it says nothing of its health. Once more on a fresh one, free of charge.
            Err(Attempt::Failed(..)) if was_reused && inbox.untouched() => {
                core.metrics.reuse_races.inc();
            }
            Err(why) => return Err(why),
        }
    }
}

/// Waits for the beginning of an answer. One that is no stream does not show its first token, so
/// that the ledger moves it from prefill to decode when it was predicted, `due_ms` from now (0 =
/// never). Its own limit is the time of all its tokens: a replica that gives nobody a byte, nor a
/// token when it is asked for one, is not waited for so long.
async fn unseen_first_token<T>(
    core: &Core,
    plan: &Plan<'_>,
    replica: &Replica,
    (due_ms, entry): (u64, &mut InFlight),
    begun: impl Future<Output = Result<T, Attempt>>,
) -> Result<T, Attempt> {
    let mut begun = std::pin::pin!(begun);
    if plan.stream {
        return begun.await;
    }
    let (look, sent_ms) = (core.sweep.deadline(), core.sweep.now_ms());
    let next_ms = |due_ms: u64| if due_ms == 0 { LOOK_MS } else { due_ms.min(LOOK_MS) };
    look.set(next_ms(due_ms));
    poll_fn(|cx| {
        if let Poll::Ready(begun) = begun.as_mut().poll(cx) {
            return Poll::Ready(begun);
        }
        while look.poll(cx).is_ready() {
            let now_ms = core.sweep.now_ms();
            let left_ms = due_ms.saturating_sub(now_ms.saturating_sub(sent_ms));
            if due_ms > 0 && left_ms == 0 && entry.is_pending() {
                entry.first_token(now_ms);
            }
            if is_frozen(replica, plan.published.timeouts.first_token_ms, now_ms) {
                return Poll::Ready(Err(exchange::late(core, FIRST_TOKEN)));
            }
            look.set(next_ms(left_ms));
        }
        Poll::Pending
    })
    .await
}

/// What a failed connect says of its replica: nothing where it is for something that we are out
/// of, and then idle connections hold some of it.
fn not_connected(core: &Core, error: &std::io::Error) -> Attempt {
    if let Some(lack) = Lack::of(error) {
        core.idle.clear();
        return Attempt::Failed(None, format!("the gateway is out of {}", lack.name()));
    }
    let refused = error.kind() == std::io::ErrorKind::ConnectionRefused;
    let failure = if refused { ReplicaFailure::Refused } else { ReplicaFailure::Broken };
    let why = error.get_ref().map_or(error.kind().to_string(), ToString::to_string);
    Attempt::Failed(Some(failure), format!("cannot connect: {why}"))
}

/// Has it been suspect, without a byte or a token, for as long as a stream would be waited for?
fn is_frozen(replica: &Replica, first_token_ms: u64, now_ms: u64) -> bool {
    let since_ms = replica.health.suspect_ms();
    first_token_ms > 0 && since_ms > 0 && now_ms.saturating_sub(since_ms) >= first_token_ms
}

pub(super) async fn connect(
    core: &Core,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &Ticket<'_>,
    replica: &Replica,
) -> Result<Wire, Attempt> {
    let Some(addr) = replica.addr.load_full() else {
        return Err(Attempt::Failed(None, "its name is not resolved".to_owned()));
    };
    let peer = replica.peer().map_err(|why| exchange::broken(&format!("cannot connect: {why}")))?;
    let (limit_ms, limit) = ticket.sooner(plan.published.timeouts.connect_ms, CONNECT);
    client.deadline.set(limit_ms);
    let mut connecting = std::pin::pin!(Wire::connect(*addr, peer.as_deref()));
    let connected = poll_fn(|cx| {
        if let Poll::Ready(result) = connecting.as_mut().poll(cx) {
            return Poll::Ready(result.map_err(|error| not_connected(core, &error)));
        }
        if client.poll_gone(cx, core).is_ready() {
            return Poll::Ready(Err(Attempt::ClientGone));
        }
        client.deadline.poll(cx).map(|()| {
            Err(match exchange::late(core, limit) {
                Attempt::Late(CONNECT) => {
                    exchange::broken(&format!("no connection within {CONNECT}"))
                }
                why => why,
            })
        })
    });
    connected.await
}
