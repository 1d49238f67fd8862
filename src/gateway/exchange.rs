//! One attempt's exchange with a replica: send the request, wait for the head and the first event.
//!
//! Every wait watches the client and the time limit of its phase, and what the replica says while
//! the request is still being sent counts.

use std::future::poll_fn;
use std::io::IoSlice;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::answer::{self, Answer};
use super::body::Body;
use super::buffer::Buffer;
use super::connection::Client;
use super::core::Core;
use super::frames::{End, Frames, Incoming};
use super::plan::Plan;
use super::ticket::Ticket;
use super::upstream::another;
use crate::http1::{ChunkTracker, HeadScanner, ResponseBody, ResponseHead, parse_response};
use crate::net::{SEND_SLICES_MAX, Wire, fill_slices};
use crate::openai::{Edits, Opener};
use crate::replicas::{Failure as ReplicaFailure, InFlight, Replica};

/// Interim responses (1xx) that are skipped.
const INTERIM_MAX: u32 = 8;
/// Bytes received at once from a replica; more waits in the kernel, which slows the replica.
const READ_BYTES_MAX: usize = 64 * 1024;
/// The limit on the wait for the first content.
pub(super) const FIRST_TOKEN: &str = "timeouts.first_token_ms";

/// Why an attempt without an answer comes to nothing.
const UNANSWERED: &str = "its connection ended before an answer";
/// Why a stream is over that was not complete.
pub(super) const ENDED_EARLY: &str = "the engine's connection ended before its answer";
/// Why an answer ends that would be as long from any replica.
pub(super) const OVER_LIMIT: &str = "an event or line of the answer is over its limit";
/// Why an attempt behind one that had opened the answer comes to nothing.
const UNLIKE: &str = "the answer began in another way than that of the replica before";

/// A replica that is answering.
pub(super) struct Exchange {
    pub stream: Wire,
    pub inbox: Buffer,
    pub replica: Arc<Replica>,
    pub head: ResponseHead,
    /// Its entry in the ledger.
    pub entry: InFlight,
}

/// What it answers with.
pub(super) enum Begun {
    /// An event stream whose first event is there.
    Stream(Box<Frames>),
    /// Anything else: whole, or longer than what is held.
    Answer(Answer),
}

/// Why an attempt came to nothing.
pub(super) enum Attempt {
    /// The client has gone.
    ClientGone,
    /// A time limit of this name has passed.
    Late(&'static str),
    /// The replica has no room: nothing ran, and it is not ill. Its message.
    Full(String),
    /// The replica does not take our key, with this status: nothing ran, and its engine is not ill.
    Denied(u16),
    /// The gateway ends.
    Stopped,
    /// The replica failed; what that says of its health, and of the reason, in our words.
    Failed(Option<ReplicaFailure>, String),
    /// Its engine says that it failed. Its words may quote the prompt: they are for the caller, and
    /// for nobody else.
    Said(Option<ReplicaFailure>, String),
}

impl Attempt {
    /// The connection ended under the request, without an answer.
    pub(super) fn broke_off(&self) -> bool {
        let Attempt::Failed(Some(ReplicaFailure::Broken), reason) = self else { return false };
        [UNANSWERED, ENDED_EARLY].contains(&reason.as_str())
    }

    /// Nobody else needs to be asked: nobody waits, or nobody could be in time.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Attempt::ClientGone | Attempt::Stopped => true,
            Attempt::Late(limit) => Ticket::owns(limit),
            _ => false,
        }
    }

    /// In a word: one of [`RETRY_REASONS`](crate::admin::RETRY_REASONS) where another may follow.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Attempt::ClientGone => "client_gone",
            Attempt::Stopped => "stopped",
            Attempt::Late(_) => "late",
            Attempt::Full(_) => "full",
            Attempt::Denied(_) => "denied",
            Attempt::Failed(failure, _) | Attempt::Said(failure, ..) => match failure {
                Some(ReplicaFailure::Refused) => "refused",
                Some(ReplicaFailure::Broken) => "broken",
                Some(ReplicaFailure::Draining) => "draining",
                Some(ReplicaFailure::Erred) => "erred",
                None => "other",
            },
        }
    }
}

/// A replica's side of an attempt: its socket and what it has sent.
pub(super) type Side<'s> = (&'s mut Wire, &'s mut Buffer);

/// Sends the request and waits until the answer has begun.
pub(super) async fn begin(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &mut Ticket<'_>,
    replica: &Replica,
    (stream, inbox): Side<'_>,
) -> Result<(ResponseHead, Begun), Attempt> {
    let (limit_ms, limit) = ticket.sooner(plan.first_ms(), FIRST_TOKEN);
    client.deadline.set(limit_ms);
    let edits = ticket.handed_edits().unwrap_or(&plan.edits);
    let request = plan.write_head(replica, ticket, edits.len(plan.body.bytes(client)));
    let whole = send(core, client, (&request, edits, &plan.body), limit, (stream, inbox)).await?;
    let mut head = read_head(core, client, limit, (stream, inbox)).await?;
    let filled = inbox.filled();
    plainly_coded(&head, filled)?;
    let id = head.request_id.map(|s| s.of(filled));
    if !replica.may_answer(ticket.request_id(), id) {
        core.metrics.foreign_answers.inc();
        core.shared.log.warn(&format!("replica {}: {FOREIGN}", replica.id));
        return Err(broken(FOREIGN));
    }
    let kind = head.content_type.map(|s| s.of(filled)).unwrap_or_default();
    let (events, json) = (is_event_stream(kind), answer::is_json(plan.endpoint, kind));
    // An answer that came before the whole request: the rest would be read as the next one.
    head.keep_alive &= whole;
    ticket.answered(&head, filled);
    inbox.consume(head.head_bytes as usize);
    if head.status == 200 && events && plan.stream {
        let told = (&head, &*ticket.opened, limit);
        let frames = first_event(core, client, plan, told, (stream, inbox)).await?;
        return match refused(&frames) {
            Some(status) => {
                // The rest of its stream is not waited for.
                (head.status, head.keep_alive) = (status, false);
                ticket.answered_as(status, b"application/json");
                Ok((head, Begun::Answer(Answer::of(frames.error))))
            }
            None => Ok((head, Begun::Stream(frames))),
        };
    }
    if let Some(comments) = &mut client.comments {
        comments.hush();
    }
    let elsewhere = || another(core, plan, ticket);
    let how = (&elsewhere as &dyn Fn() -> bool, limit, json);
    let answer = answer::read(core, client, &head, how, (stream, inbox)).await?;
    if let Some(status) = answer.refused() {
        head.status = status;
        ticket.answered_as(status, b"application/json");
    }
    Ok((head, Begun::Answer(answer)))
}

/// Whose answer it is nobody knows; it may be another tenant's.
const FOREIGN: &str = "its answer has another x-request-id than the request";

/// What is compressed cannot be read, and nobody asked for it.
pub(super) fn plainly_coded(head: &ResponseHead, bytes: &[u8]) -> Result<(), Attempt> {
    match head.content_encoding {
        Some(coding) if !coding.of(bytes).eq_ignore_ascii_case(b"identity") => {
            Err(broken("it compressed its answer unasked"))
        }
        _ => Ok(()),
    }
}

pub(super) fn broken(reason: &str) -> Attempt {
    Attempt::Failed(Some(ReplicaFailure::Broken), reason.to_owned())
}

fn is_event_stream(kind: &[u8]) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    kind.get(..EVENTS.len()).is_some_and(|k| k.eq_ignore_ascii_case(EVENTS))
}

/// Sends head and edited body as slices of where they lie; ends early when the replica answers
/// before it has read everything (it may refuse a long body and close): then the value is false.
pub(super) async fn send(
    core: &Core,
    client: &mut Client,
    (head, edits, body): (&[u8], &Edits, &Body),
    limit: &'static str,
    (stream, inbox): Side<'_>,
) -> Result<bool, Attempt> {
    let total = head.len().saturating_add(edits.len(body.bytes(client)));
    let mut sent = 0;
    poll_fn(|cx| {
        while sent < total {
            let body = body.bytes(client);
            let mut slices = [IoSlice::new(&[]); SEND_SLICES_MAX];
            let pieces = std::iter::once(head).chain(edits.pieces(body));
            match stream.poll_send_vectored(cx, fill_slices(&mut slices, pieces, sent)) {
                Poll::Ready(Ok(n)) => sent = sent.saturating_add(n),
                Poll::Ready(Err(_)) => {
                    // It may have answered before it stopped reading: that answer counts.
                    return Poll::Ready(if receive(core, stream, inbox) == Received::Bytes {
                        Ok(false)
                    } else {
                        Err(broken("the connection ended while the request was sent"))
                    });
                }
                Poll::Pending => {
                    return poll_blocked_send(cx, core, client, limit, (stream, inbox));
                }
            }
        }
        Poll::Ready(Ok(true))
    })
    .await
}

fn poll_blocked_send(
    cx: &mut Context<'_>,
    core: &Core,
    client: &mut Client,
    limit: &'static str,
    (stream, inbox): Side<'_>,
) -> Poll<Result<bool, Attempt>> {
    if stream.poll_readable(cx).is_ready() && receive(core, stream, inbox) == Received::Bytes {
        return Poll::Ready(Ok(false));
    }
    if client.poll_gone(cx, core).is_ready() {
        return Poll::Ready(Err(Attempt::ClientGone));
    }
    client.deadline.poll(cx).map(|()| Err(late(core, limit)))
}

/// A wait is over: its limit has passed, or the gateway ends.
pub(super) fn late(core: &Core, limit: &'static str) -> Attempt {
    if core.sweep.ended() { Attempt::Stopped } else { Attempt::Late(limit) }
}

/// What a receive brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    Bytes,
    Nothing,
    End,
    /// The inbox is at its bound.
    Full,
}

/// Receives once into `inbox` without waiting.
pub(super) fn receive(core: &Core, stream: &mut Wire, inbox: &mut Buffer) -> Received {
    let space = inbox.space(&core.buffers, READ_BYTES_MAX);
    if space.is_empty() {
        return Received::Full;
    }
    match stream.try_recv(space) {
        Ok(Some(0)) => Received::End,
        Ok(Some(n)) => {
            inbox.received(n);
            Received::Bytes
        }
        Ok(None) => Received::Nothing,
        Err(_) => {
            inbox.broke();
            Received::End
        }
    }
}

/// Waits for more from the replica, watching the client and its time limit. `Ok(false)`: the
/// replica's connection has ended.
pub(super) async fn more(
    core: &Core,
    client: &mut Client,
    (stream, inbox): Side<'_>,
    limit: &'static str,
) -> Result<bool, Attempt> {
    poll_fn(|cx| {
        while stream.poll_readable(cx).is_ready() {
            match receive(core, stream, inbox) {
                Received::Bytes => return Poll::Ready(Ok(true)),
                Received::End => return Poll::Ready(Ok(false)),
                Received::Full => {
                    return Poll::Ready(Err(broken("its head or event is over the limit")));
                }
                Received::Nothing => {}
            }
        }
        if client.poll_gone(cx, core).is_ready() {
            return Poll::Ready(Err(Attempt::ClientGone));
        }
        client.deadline.poll(cx).map(|()| Err(late(core, limit)))
    })
    .await
}

pub(super) async fn read_head(
    core: &Core,
    client: &mut Client,
    limit: &'static str,
    (stream, inbox): Side<'_>,
) -> Result<ResponseHead, Attempt> {
    let mut scanner = HeadScanner::response();
    let mut interim = 0;
    loop {
        let complete = match inbox.is_empty() {
            true => None,
            false => scanner.advance(inbox.filled()).map_err(|e| broken(e.reason()))?,
        };
        if let Some(n) = complete {
            let bytes = inbox.filled().get(..n).unwrap_or_default();
            let head = parse_response(bytes, false).map_err(|e| broken(e.reason()))?;
            match head.status {
                101 => return Err(broken("it switched protocols unasked")),
                100..=199 if interim < INTERIM_MAX => {
                    interim += 1;
                    inbox.consume(n);
                    scanner.reset();
                    continue;
                }
                100..=199 => return Err(broken("too many interim responses")),
                _ => return Ok(head),
            }
        }
        if !more(core, client, (stream, inbox), limit).await? {
            return Err(broken(UNANSWERED));
        }
    }
}

/// Reads until the first event is there or the stream has failed before it.
async fn first_event(
    core: &Core,
    client: &mut Client,
    plan: &Plan<'_>,
    (head, opened, limit): (&ResponseHead, &[Opener], &'static str),
    (stream, inbox): Side<'_>,
) -> Result<Box<Frames>, Attempt> {
    let frames = Frames::new(incoming(head), plan.outgoing, plan.endpoint, plan.take_usage_out);
    let mut frames = Box::new(frames);
    frames.skip(opened);
    loop {
        frames.scan(inbox.filled());
        if refused(&frames).is_some() {
            return Ok(frames);
        }
        if let Some(why) = failed_before_content(&frames) {
            return Err(why);
        }
        // One that is too large to be held has content from its first part on.
        if frames.seen.events > 0 || frames.seen.content_events > 0 || frames.end.is_some() {
            return Ok(frames);
        }
        if !more(core, client, (&mut *stream, &mut *inbox), limit).await? {
            frames.closed(inbox.was_reset());
        }
    }
}

/// The status of an engine's refusal as a stream's first word: it is the request that is at fault.
pub(super) fn refused(frames: &Frames) -> Option<u16> {
    match &frames.end {
        Some(End::EngineError { code, .. }) if frames.seen.content_events == 0 => {
            code.filter(|code| answer::is_refusal(*code))
        }
        _ => None,
    }
}

/// Has a stream failed before any content was seen?
pub(super) fn failed_before_content(frames: &Frames) -> Option<Attempt> {
    if frames.seen.content_events > 0 {
        return None;
    }
    match frames.end.as_ref()? {
        End::Complete => None,
        End::EngineError { code, message, .. } => Some(answer::failed(*code, message.clone())),
        End::Aborted => {
            let reason = "the engine was shut down under the request";
            Some(Attempt::Failed(Some(ReplicaFailure::Draining), reason.to_owned()))
        }
        End::Truncated(reason) => Some(broken(reason)),
        End::OverLimit => Some(Attempt::Failed(None, OVER_LIMIT.to_owned())),
        // Neither is ill: each answers in its own way.
        End::Unlike => Some(Attempt::Failed(None, UNLIKE.to_owned())),
    }
}

/// How the response is framed.
pub(super) fn incoming(head: &ResponseHead) -> Incoming {
    match head.body {
        ResponseBody::Chunked => Incoming::Chunked(ChunkTracker::response()),
        ResponseBody::Length(n) => Incoming::Length(n),
        ResponseBody::None => Incoming::Length(0),
        ResponseBody::UntilClose => Incoming::UntilClose,
    }
}
