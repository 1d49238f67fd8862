//! From an answering replica to the client: every event when it arrives, the received bytes as they
//! are, back-pressure, and the end that tells the truth.
//!
//! While the client takes nothing, nothing is read from the replica. The client is watched in
//! every wait; its going drops the exchange, which closes the replica's connection. After the
//! first byte of the answer a failure becomes one error event without `[DONE]` and without the
//! last chunk, so that no client takes the answer for complete.

use std::rc::Rc;

use super::answer;
use super::connection::{Client, Next};
use super::core::Core;
use super::exchange::{self, Attempt, Begun, Exchange, FIRST_TOKEN};
use super::frames::{End, Frames, Outgoing, Segment};
use super::plan::Plan;
use super::reply::{Failure, Head};
use super::ticket::Ticket;
use super::upstream;
use crate::http1::write;
use crate::openai::{self, Endpoint};
use crate::runtime::clock;
use crate::usage::Outcome;

/// Reads of one stream in one turn of the core.
const READS_A_TURN: u32 = 8;

/// Relays what was opened to its end, from another replica again while no content has been passed
/// on.
///
/// # Errors
/// Before the first byte has reached the client, or when the client has gone.
pub(super) async fn run(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    mut opened: Result<(Exchange, Begun), Failure>,
    ticket: &mut Ticket<'_>,
) -> Result<Next, Failure> {
    loop {
        let (exchange, begun) = match opened {
            Ok(opened) => opened,
            // Comments, or a role, have gone out.
            Err(failure) if ticket.head_sent => {
                return fail_in_band(core, client, plan, ticket, failure).await;
            }
            Err(failure) => return Err(failure),
        };
        let why = match begun {
            Begun::Answer(answer) => {
                return answer::send(core, client, plan, ticket, exchange, answer).await;
            }
            Begun::Stream(frames) => {
                match stream(core, client, plan, exchange, frames, ticket).await? {
                    Relayed::Done(next) => return Ok(next),
                    Relayed::Again(why) => why,
                }
            }
        };
        opened = upstream::open_again(core, client, plan, ticket, why).await;
    }
}

/// What became of a stream.
enum Relayed {
    /// It is over, whole or not; the books are closed.
    Done(Next),
    /// It failed when no content had been passed on.
    Again(Attempt),
}

async fn stream(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    mut exchange: Exchange,
    mut frames: Box<Frames>,
    ticket: &mut Ticket<'_>,
) -> Result<Relayed, Failure> {
    let mut head = Vec::new();
    if !ticket.head_sent {
        write_head(&mut head, plan, ticket);
    }
    let (mut reads, mut came_ns) = (0, clock::now_ns());
    loop {
        if frames.seen.content_events > 0 {
            exchange.entry.first_token(core.sweep.now_ms());
        }
        let complete = frames.end == Some(End::Complete);
        let last = complete && plan.outgoing == Outgoing::Chunked;
        let tail = if last { write::LAST_CHUNK } else { b"" };
        if let Err(gone) = send(core, client, &head, &frames, &exchange, tail).await {
            ticket.saw(&frames.seen, clock::now_ns());
            return Err(gone);
        }
        ticket.head_went();
        head.clear();
        if let Some(comments) = &mut client.comments {
            comments.spoke(frames.within_event());
        }
        ticket.relayed(&frames.seen, came_ns);
        frames.openings.take(&mut ticket.opened);
        if frames.seen.content_events > 0 && client.request_bytes > 0 {
            client.forget_request(core);
        }
        exchange.replica.silence.heard(core.index, core.sweep.now_ms());
        let done = frames.sent();
        exchange.inbox.consume(done);
        if frames.end.is_some() {
            return Ok(ended(core, client, plan, exchange, frames, ticket).await);
        }
        exchange.inbox.release(&core.buffers);
        reads += 1;
        if reads % READS_A_TURN == 0 {
            exchange.stream.breathe();
        }
        let came = (&mut exchange, &mut *frames, &mut came_ns);
        if let Some(why) = next_event(core, client, plan, came, ticket).await {
            return wait_failed(core, client, plan, &exchange, why, ticket).await;
        }
        if exchange::refused(&frames).is_some() {
            let told = (&*frames.error, Outcome::RejectedInvalid);
            return refuse_in_band(core, client, plan, ticket, told).await.map(Relayed::Done);
        }
        if let Some(why) = exchange::failed_before_content(&frames) {
            upstream::note(core, &exchange.replica, &why, ticket);
            return Ok(Relayed::Again(why));
        }
    }
}

/// Waits until there is something to send, and notes when it came, or the stream is over; `Some`
/// when it cannot go on.
async fn next_event(
    core: &Core,
    client: &mut Client,
    plan: &Plan<'_>,
    (exchange, frames, came_ns): (&mut Exchange, &mut Frames, &mut u64),
    ticket: &Ticket<'_>,
) -> Option<Attempt> {
    let (limit_ms, name) = match frames.seen.content_events {
        0 => ticket.sooner(ticket.left_ms(plan.first_ms()), FIRST_TOKEN),
        _ => (ticket.left_ms(plan.published.timeouts.next_token_ms), "timeouts.next_token_ms"),
    };
    client.deadline.set(limit_ms);
    loop {
        let side = (&mut exchange.stream, &mut exchange.inbox);
        match exchange::more(core, client, side, name).await {
            Ok(true) => {
                *came_ns = clock::now_ns();
                frames.scan(exchange.inbox.filled());
            }
            Ok(false) => frames.closed(exchange.inbox.was_reset()),
            Err(why) => return Some(why),
        }
        if !frames.segments.is_empty() || frames.end.is_some() {
            return None;
        }
    }
}

/// A wait in mid-stream came to nothing.
async fn wait_failed(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    exchange: &Exchange,
    why: Attempt,
    ticket: &mut Ticket<'_>,
) -> Result<Relayed, Failure> {
    let failure = match why {
        Attempt::ClientGone => return Err(Failure::ClientGone),
        why if !ticket.content_sent() => {
            upstream::note(core, &exchange.replica, &why, ticket);
            return Ok(Relayed::Again(why));
        }
        Attempt::Late(limit) => {
            // Silence after the first event is how a vLLM freezes when it is shut down.
            upstream::cut(core, &exchange.replica, limit);
            Failure::Upstream(format!("the replica went silent ({limit})"))
        }
        Attempt::Full(reason) => Failure::Full(reason),
        Attempt::Denied(_) => Failure::Upstream(upstream::DENIED.to_owned()),
        Attempt::Failed(_, reason) | Attempt::Said(.., reason) => Failure::Upstream(reason),
        Attempt::Stopped => Failure::Stopping,
    };
    fail_in_band(core, client, plan, ticket, failure).await.map(Relayed::Done)
}

/// After the head was sent: one error event, and an end that is visibly none.
pub(super) async fn fail_in_band(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &mut Ticket<'_>,
    failure: Failure,
) -> Result<Next, Failure> {
    if matches!(failure, Failure::ClientGone) {
        return Err(failure);
    }
    let outcome = match failure {
        Failure::Deadline(_) => Outcome::Deadline,
        _ if ticket.content_sent() => Outcome::Truncated,
        _ if ticket.passed_on => Outcome::UpstreamError,
        _ => failure.outcome(),
    };
    ticket.kept_waiting_by(&failure);
    let event = failure.event(plan.endpoint, ticket.events_sent());
    end_in_band(core, client, ticket, (&event, outcome)).await
}

/// The same, with an engine's refusal in its own words, which are JSON.
pub(super) async fn refuse_in_band(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &mut Ticket<'_>,
    (json, outcome): (&[u8], Outcome),
) -> Result<Next, Failure> {
    let mut event = Vec::with_capacity(json.len() + 32);
    openai::error::write_json_event(&mut event, plan.endpoint, ticket.events_sent(), json);
    end_in_band(core, client, ticket, (&event, outcome)).await
}

/// The same, with the event as it is to be sent, and the outcome for the books.
async fn end_in_band(
    core: &Rc<Core>,
    client: &mut Client,
    ticket: &mut Ticket<'_>,
    (event, outcome): (&[u8], Outcome),
) -> Result<Next, Failure> {
    let mut out = Vec::with_capacity(event.len() + 16);
    if ticket.chunked() {
        write::chunk(&mut out, event);
    } else {
        out.extend_from_slice(event);
    }
    ticket.ended(outcome);
    match client.send(core, &out).await {
        Ok(()) => Ok(Next::Incomplete),
        Err(_) => Ok(Next::Cut),
    }
}

/// The stream is over and everything before its end was sent.
async fn ended(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    mut exchange: Exchange,
    mut frames: Box<Frames>,
    ticket: &mut Ticket<'_>,
) -> Relayed {
    match frames.end.take() {
        Some(End::Complete) | None => {
            frames.scan_tail(exchange.inbox.filled());
            ticket.ended(Outcome::Ok);
            exchange.replica.health.finished();
            give_back(core, exchange, *frames);
            let keep = plan.outgoing == Outgoing::Chunked && plan.client_keeps;
            Relayed::Done(if keep { Next::KeepAlive } else { Next::Close })
        }
        // The engine's own error event was passed on as it came; what follows it (`[DONE]` and a
        // clean end) would make the answer look complete. A stream of responses fails by an event
        // of its own, which the error may not have been.
        Some(End::EngineError { told: false, .. }) if plan.endpoint == Endpoint::Responses => {
            let told = (&*frames.error, Outcome::UpstreamError);
            let next = refuse_in_band(core, client, plan, ticket, told).await;
            Relayed::Done(next.unwrap_or(Next::Cut))
        }
        Some(End::EngineError { .. }) => {
            ticket.ended(Outcome::UpstreamError);
            Relayed::Done(Next::Incomplete)
        }
        Some(end) => {
            let reason = match end {
                End::Truncated(reason) => reason,
                // What was asked for makes it so large.
                End::OverLimit => exchange::OVER_LIMIT,
                _ => "the engine was shut down under the request",
            };
            if end != End::OverLimit {
                upstream::cut(core, &exchange.replica, reason);
            }
            exchange.stream.shut();
            let failure = Failure::Upstream(reason.to_owned());
            let next = fail_in_band(core, client, plan, ticket, failure).await;
            Relayed::Done(next.unwrap_or(Next::Cut))
        }
    }
}

/// Keeps the replica's connection when it can be used again.
fn give_back(core: &Core, exchange: Exchange, frames: Frames) {
    let Exchange { stream, mut inbox, replica, head, .. } = exchange;
    let tail = match frames.framing_ended() {
        true => None,
        false => match frames.into_tail() {
            Some(tracker) => Some(tracker),
            None => return,
        },
    };
    inbox.truncate(0);
    inbox.release(&core.buffers);
    if head.keep_alive {
        core.idle.give(replica.key, stream, tail, core.sweep.now_ms());
    }
}

/// The head of a stream.
pub(super) fn write_head(out: &mut Vec<u8>, plan: &Plan<'_>, ticket: &Ticket<'_>) {
    out.reserve(512);
    let mut head = Head::new(out, 200, ticket);
    head.field("content-type", b"text/event-stream; charset=utf-8");
    head.field("cache-control", b"no-cache");
    head.field("x-accel-buffering", b"no");
    ticket.write_routing(&mut head);
    match plan.outgoing {
        Outgoing::Chunked => head.end_chunked(ticket.closes()),
        Outgoing::Plain => head.end(true),
    }
}

/// Sends head, segments and tail.
async fn send(
    core: &Core,
    client: &mut Client,
    head: &[u8],
    frames: &Frames,
    exchange: &Exchange,
    tail: &[u8],
) -> Result<(), Failure> {
    let received = exchange.inbox.filled();
    let segment = |segment: &Segment| match segment {
        Segment::Raw(range) => received.get(range.clone()).unwrap_or_default(),
        Segment::Own(range) => frames.own.get(range.clone()).unwrap_or_default(),
    };
    let pieces = || {
        let segments = frames.segments.iter().map(segment);
        std::iter::once(head).chain(segments).chain(std::iter::once(tail))
    };
    client.send_pieces(core, pieces).await
}
