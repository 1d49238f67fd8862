//! Answers that are not streams: read whole, judged, sent with their length.
//!
//! An answer is held until it is whole, so that a replica that fails in the middle of one costs
//! its client nothing: it is asked of another. Only one longer than [`HOLD_BYTES_MAX`] is passed
//! on as it comes, and then a failure cuts the client's connection short of the promised length.
//! Where the API answers in JSON, an answer must be one whole JSON object: a page of HTML or half a
//! body that ended with its connection is a replica's failure.

use std::rc::Rc;

use super::buffer::Buffer;
use super::connection::{Client, Next};
use super::core::Core;
use super::exchange::{self, Attempt, Exchange, broken};
use super::frames::{Incoming, Outgoing};
use super::plan::Plan;
use super::relay;
use super::reply::Failure;
use super::ticket::Ticket;
use crate::admin::Stage;
use crate::http1::{PieceKind, ResponseHead, write};
use crate::net::Wire;
use crate::openai::{self, Endpoint, json, read_answer, text_bytes, usage_in_tail};
use crate::replicas::Failure as ReplicaFailure;
use crate::runtime::clock;
use crate::usage::Outcome;

/// Longest answer that is held: some sixty thousand tokens, or a batch of embeddings.
const HOLD_BYTES_MAX: usize = 1 << 20;

/// What is kept of the end of a longer one: its usage stands there.
const TAIL_BYTES: usize = 4096;

/// Nobody is ill for it: what was asked for may make it so long.
const TOO_LONG: &str = "its answer is longer than server.answer_bytes_max";

/// Why an answer is none.
const NO_OBJECT: &str = "its answer is not a JSON object";

/// An answer as far as it was read.
pub(super) struct Answer {
    payload: Vec<u8>,
    incoming: Incoming,
    whole: bool,
    /// What it says, of a JSON object that is all there.
    said: openai::Answer,
    /// The engine's refusal of the request, that came inside of a 200.
    refused: Option<u16>,
    /// The end of what was passed on.
    tail: Vec<u8>,
}

impl Answer {
    fn new(incoming: Incoming) -> Answer {
        let whole = matches!(incoming, Incoming::Length(0));
        let (payload, tail, said) = (Vec::new(), Vec::new(), openai::Answer::default());
        Answer { payload, incoming, whole, said, refused: None, tail }
    }

    /// The engine's error, which was an event of a stream that did not begin.
    pub(super) fn of(error: Vec<u8>) -> Answer {
        Answer { payload: error, ..Answer::new(Incoming::Length(0)) }
    }

    /// The status that it should have had, if it refuses the request inside of a 200.
    pub(super) fn refused(&self) -> Option<u16> {
        self.refused
    }

    /// Keeps the end of what is passed on.
    fn remember(&mut self, payload: &[u8]) {
        self.tail.extend_from_slice(payload);
        self.tail.drain(..self.tail.len().saturating_sub(TAIL_BYTES));
    }

    /// As far as it has come, might it be a JSON object?
    fn may_be_object(&self) -> bool {
        self.payload.trim_ascii_start().first().is_none_or(|byte| *byte == b'{')
    }

    /// What it says, if all of it is there.
    pub(super) fn payload(&self) -> Option<&[u8]> {
        self.whole.then_some(&*self.payload)
    }

    /// Did its framing say where it ends, so that its connection can be used again?
    pub(super) fn is_framed(&self) -> bool {
        !matches!(self.incoming, Incoming::UntilClose)
    }

    /// Moves what is in `inbox` out of its framing. False: the framing is broken.
    fn take(&mut self, inbox: &mut Buffer) -> bool {
        let mut used = 0;
        let bytes = inbox.filled();
        let mut sound = true;
        while let Some(rest) = bytes.get(used..).filter(|rest| !rest.is_empty() && !self.whole) {
            let n = match &mut self.incoming {
                Incoming::Chunked(tracker) => match tracker.next(rest) {
                    Ok(piece) if piece.len > 0 => {
                        if piece.kind == PieceKind::Data {
                            self.payload.extend_from_slice(rest.get(..piece.len).unwrap_or(&[]));
                        }
                        self.whole = piece.kind == PieceKind::End;
                        piece.len
                    }
                    _ => {
                        sound = false;
                        break;
                    }
                },
                Incoming::Length(left) => {
                    let n = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    self.payload.extend_from_slice(rest.get(..n).unwrap_or_default());
                    *left = left.saturating_sub(n as u64);
                    self.whole = *left == 0;
                    n
                }
                Incoming::UntilClose => {
                    self.payload.extend_from_slice(rest);
                    rest.len()
                }
            };
            used = used.saturating_add(n);
        }
        inbox.consume(used);
        sound
    }

    /// The connection ended: whole only if the framing says so, and it was no reset.
    fn closed(&mut self, reset: bool) {
        self.whole |= matches!(self.incoming, Incoming::UntilClose) && !reset;
    }
}

/// Are the answers of this endpoint JSON, where an engine answers with this type?
pub(super) fn is_json(endpoint: Endpoint, kind: &[u8]) -> bool {
    // Embeddings may be asked for as bytes.
    let octets = endpoint == Endpoint::Embeddings && kind.starts_with(b"application/octet-stream");
    endpoint.answers_json() && !octets
}

/// Reads an answer and judges it. `elsewhere`: would another replica be asked? `limit`: the name of
/// the time limit. `is_json`: it should be JSON.
pub(super) async fn read(
    core: &Core,
    client: &mut Client,
    head: &ResponseHead,
    (elsewhere, limit, is_json): (&dyn Fn() -> bool, &'static str, bool),
    (stream, inbox): (&mut Wire, &mut Buffer),
) -> Result<Answer, Attempt> {
    let object = is_json && head.status == 200;
    let mut answer = Answer::new(exchange::incoming(head));
    let most = core.published().answer_bytes_max;
    if matches!(answer.incoming, Incoming::Length(bytes) if bytes > most) {
        return Err(Attempt::Failed(None, TOO_LONG.to_owned()));
    }
    loop {
        if !answer.take(inbox) {
            return Err(broken("its chunk framing is broken"));
        }
        if object && !answer.may_be_object() {
            return Err(broken(NO_OBJECT));
        }
        if answer.whole || answer.payload.len() >= HOLD_BYTES_MAX {
            break;
        }
        if !exchange::more(core, client, (&mut *stream, &mut *inbox), limit).await? {
            answer.closed(inbox.was_reset());
            if !answer.whole {
                return Err(broken("its connection ended in the middle of its answer"));
            }
        }
    }
    if object {
        judge_object(&mut answer)?;
    } else {
        judge(head, &answer, elsewhere)?;
    }
    Ok(answer)
}

/// What an engine's error means, wherever it stood: as an answer, in one, or as a stream's event.
pub(super) fn failed(code: Option<u16>, message: String) -> Attempt {
    match (code, health_of(code, &message)) {
        (Some(429 | 503), None) => Attempt::Full(message),
        (_, health) => Attempt::Said(health, message),
    }
}

/// What it says of the replica's health.
fn health_of(code: Option<u16>, message: &str) -> Option<ReplicaFailure> {
    match code {
        // vLLM after SIGTERM: it drains, nothing ran, `/health` says 200 all the while.
        _ if message.contains("cannot schedule new futures after shutdown") => {
            Some(ReplicaFailure::Draining)
        }
        // Full is not ill.
        Some(429 | 503) => None,
        Some(400..=499) => None,
        // One without a code may be anything, a request's own fault too.
        None | Some(500) => Some(ReplicaFailure::Erred),
        _ => Some(ReplicaFailure::Broken),
    }
}

/// Does this status say that the request is at fault, and no replica?
pub(super) fn is_refusal(status: u16) -> bool {
    (400..=499).contains(&status) && status != 429
}

/// Is this 200 an answer for the client, or a replica's failure?
fn judge_object(answer: &mut Answer) -> Result<(), Attempt> {
    if !answer.whole {
        return match answer.incoming {
            // Its end would look the same wherever it came.
            Incoming::UntilClose => Err(broken("its answer is long and does not say its length")),
            _ => Ok(()),
        };
    }
    answer.said = read_answer(&answer.payload);
    let said = &answer.said;
    if !said.valid {
        return Err(broken(NO_OBJECT));
    }
    if let Some(error) = said.error {
        let code = error.status(&answer.payload);
        answer.refused = code.filter(|code| is_refusal(*code));
        let message = || json::text(error.message.of(&answer.payload));
        return answer.refused.map(drop).ok_or_else(|| failed(code, message()));
    }
    if said.abort {
        let reason = "the engine was shut down under the request".to_owned();
        return Err(Attempt::Failed(Some(ReplicaFailure::Draining), reason));
    }
    Ok(())
}

/// Is this an answer for the client, or a replica's failure?
fn judge(
    head: &ResponseHead,
    answer: &Answer,
    elsewhere: &dyn Fn() -> bool,
) -> Result<(), Attempt> {
    let said = || {
        let error = read_answer(&answer.payload).error;
        error.map(|e| json::text(e.message.of(&answer.payload))).unwrap_or_default()
    };
    match head.status {
        200..=299 => Ok(()),
        429 | 503 if !elsewhere() => Ok(()),
        // No caller's key goes there: somebody has set ours wrong, and to the caller 401 would say
        // that its own is.
        401 | 403 => Err(Attempt::Denied(head.status)),
        status if is_refusal(status) => Ok(()),
        300..=399 => Err(broken("it answered with a redirect")),
        _ => {
            let message = said();
            if message.is_empty() && head.status == 500 {
                return Err(broken("it answered 500")); // Not in an engine's words.
            }
            let reason = match message.is_empty() {
                true => format!("it answered {}", head.status),
                false => message,
            };
            Err(failed(Some(head.status), reason))
        }
    }
}

/// Sends an answer to the client.
pub(super) async fn send(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &mut Ticket<'_>,
    exchange: Exchange,
    mut answer: Answer,
) -> Result<Next, Failure> {
    if ticket.head_sent {
        // A stream was begun with a role or a comment; this replica answered something else.
        if !is_refusal_in_words(&exchange.head, &answer) {
            let failure = Failure::Upstream("a replica did not answer with a stream".to_owned());
            return relay::fail_in_band(core, client, plan, ticket, failure).await;
        }
        let told = (&*answer.payload, outcome_of(exchange.head.status));
        return relay::refuse_in_band(core, client, plan, ticket, told).await;
    }
    client.comments = None;
    let Exchange { stream, mut inbox, head, replica, entry } = exchange;
    if answer.whole {
        let came_ns = clock::now_ns();
        // The replica is done with it, however slowly the client reads.
        drop(entry);
        if head.status == 200 {
            ticket.engine_used(answer.said.usage);
            if plan.endpoint.generates() {
                if answer.said.usage.is_none() {
                    ticket.wrote(text_bytes(&answer.payload));
                }
                ticket.whole();
            }
        }
        ticket.settle(outcome_of(head.status));
        let mut out = Vec::with_capacity(answer.payload.len() + 512);
        ticket
            .head_of_answer(&mut out, head.status)
            .end_with_length(answer.payload.len() as u64, ticket.closes());
        out.extend_from_slice(&answer.payload);
        client.send(core, &out).await?;
        let spent_ns = clock::now_ns().saturating_sub(came_ns);
        core.metrics.stage(Stage::Relay).observe_ns(spent_ns);
        ticket.head_sent = true;
        ticket.ended(outcome_of(head.status));
        if inbox.is_empty() && head.keep_alive && answer.is_framed() {
            core.idle.give(replica.key, stream, None, core.sweep.now_ms());
        }
        inbox.release(&core.buffers);
        return Ok(if ticket.closes() { Next::Close } else { Next::KeepAlive });
    }
    pass_on(core, client, plan, ticket, head, &mut answer, (stream, inbox)).await
}

/// Is it an engine's refusal in its own words?
fn is_refusal_in_words(head: &ResponseHead, answer: &Answer) -> bool {
    head.status >= 400 && answer.whole && read_answer(&answer.payload).error.is_some()
}

fn outcome_of(status: u16) -> Outcome {
    match status {
        200..=299 => Outcome::Ok,
        429 | 503 => Outcome::RejectedOverload,
        400..=499 => Outcome::RejectedInvalid,
        _ => Outcome::UpstreamError,
    }
}

/// Passes a long answer on as it comes.
async fn pass_on(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &mut Ticket<'_>,
    head: ResponseHead,
    answer: &mut Answer,
    (mut stream, mut inbox): (Wire, Buffer),
) -> Result<Next, Failure> {
    let mut out = Vec::with_capacity(512);
    let written = ticket.head_of_answer(&mut out, head.status);
    let chunked = match (&answer.incoming, plan.outgoing) {
        (Incoming::Length(left), _) => {
            let length = left.saturating_add(answer.payload.len() as u64);
            written.end_with_length(length, ticket.closes());
            false
        }
        (_, Outgoing::Chunked) => {
            written.end_chunked(ticket.closes());
            true
        }
        _ => {
            written.end(true);
            false
        }
    };
    client.forget_request(core);
    ticket.head_sent = true;
    let (mut passed, most) = (0_u64, core.published().answer_bytes_max);
    loop {
        let payload = std::mem::take(&mut answer.payload);
        passed = passed.saturating_add(payload.len() as u64);
        if head.status == 200 && plan.endpoint.generates() {
            ticket.wrote(passed);
        }
        answer.remember(&payload);
        match chunked {
            true => write::chunk(&mut out, &payload),
            false => out.extend_from_slice(&payload),
        }
        if answer.whole && chunked {
            out.extend_from_slice(write::LAST_CHUNK);
        }
        client.send(core, &out).await?;
        out.clear();
        if answer.whole {
            if head.status == 200 && plan.endpoint.answers_json() {
                ticket.engine_used(usage_in_tail(&answer.tail));
            }
            ticket.ended(outcome_of(head.status));
            let keep = !matches!(answer.incoming, Incoming::UntilClose) || chunked;
            return Ok(if keep { Next::KeepAlive } else { Next::Close });
        }
        client.deadline.set(plan.published.timeouts.next_token_ms);
        let side = (&mut stream, &mut inbox);
        match exchange::more(core, client, side, "timeouts.next_token_ms").await {
            Ok(true) if answer.take(&mut inbox) && passed <= most => {}
            Err(Attempt::ClientGone) => return Err(Failure::ClientGone),
            Ok(false) if matches!(answer.incoming, Incoming::UntilClose) && !inbox.was_reset() => {
                answer.closed(false);
            }
            _ => {
                ticket.ended(Outcome::Truncated);
                // Where the end of the connection is that of the answer, a clean one would lie.
                let ends_alike = !chunked && !matches!(answer.incoming, Incoming::Length(_));
                return Ok(if ends_alike { Next::Reset } else { Next::Incomplete });
            }
        }
    }
}
