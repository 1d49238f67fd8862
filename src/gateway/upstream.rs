//! From a request to a replica that has begun to answer it: pick, connect or reuse, send, wait for
//! the first event; elsewhere again while nothing of the answer has reached the client.
//!
//! RFC 9110 (9.2.2) forbids proxies to repeat non-idempotent requests on their own. A gateway may
//! define its resources: a completion is repeatable until its first content event was passed on.
//! Each repetition is counted and only one is charged.

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
use super::frames::{End, Frames, Incoming, Outgoing};
use super::reply::Failure;
use super::shared::Published;
use super::ticket::Ticket;
use crate::http1::{
    ChunkTracker, HeadScanner, Method, RequestHead, ResponseBody, ResponseHead, Version,
    parse_response, write,
};
use crate::net::{self, Stream};
use crate::openai::{Call, Edits, Endpoint};
use crate::replicas::{Failure as ReplicaFailure, InFlight, Pool, Replica, Served};
use crate::routing::{self, FleetView};

/// Interim responses (1xx) that are skipped.
const INTERIM_MAX: u32 = 8;
/// Bytes received at once from a replica; more waits in the kernel, which slows the replica.
const READ_BYTES_MAX: usize = 64 * 1024;
/// Tokens that a request without a limit may take, for its time limit only.
const OUTPUT_TOKENS_DEFAULT: u64 = 1_000;
/// Slices of one send: the head, the pieces of an edited body.
const SLICES_MAX: usize = 16;

/// Everything about a request that an attempt needs, the same for each attempt.
pub(super) struct Plan<'p> {
    pub endpoint: Endpoint,
    pub stream: bool,
    pub outgoing: Outgoing,
    pub client_keeps: bool,
    /// Output tokens of one sequence that the request may take.
    output_tokens: u64,
    take_usage_out: bool,
    edits: Edits,
    pub body: Body,
    content_type: Option<Vec<u8>>,
    pub served: Served,
    pub pool: Arc<Pool>,
    pub published: &'p Published,
}

impl<'p> Plan<'p> {
    pub(super) fn new(
        client: &Client,
        head: &RequestHead,
        (endpoint, call): (Endpoint, &Call),
        edits: Edits,
        body: Body,
        served: Served,
        published: &'p Published,
    ) -> Result<Plan<'p>, Failure> {
        let pool = published.fleet.pools.get(served.pool).ok_or(Failure::NoHealthyReplica)?;
        let own_type = head.content_type.filter(|_| endpoint.multipart());
        Ok(Plan {
            endpoint,
            stream: call.stream && endpoint.streams(),
            outgoing: match head.version {
                Version::Http11 => Outgoing::Chunked,
                Version::Http10 => Outgoing::Plain,
            },
            client_keeps: head.keep_alive,
            output_tokens: call.output_tokens_max().unwrap_or(OUTPUT_TOKENS_DEFAULT),
            take_usage_out: !call.client_asked_for_usage(),
            edits,
            body,
            content_type: own_type.map(|s| s.of(client.inbox.filled()).to_vec()),
            pool: Arc::clone(pool),
            served,
            published,
        })
    }

    /// Time until the first content must be there, in ms; 0 = any. An answer that is no stream is
    /// all there at once, so it gets the time of its tokens besides.
    pub(super) fn first_ms(&self) -> u64 {
        let timeouts = &self.published.timeouts;
        match (timeouts.first_token_ms, timeouts.next_token_ms) {
            (first, _) if self.stream || !self.endpoint.generates() => first,
            (0, _) | (_, 0) => 0,
            (first, next) => first.saturating_add(next.saturating_mul(self.output_tokens)),
        }
    }

    /// The request's head for `replica`, written anew from the fields that we allow.
    fn write_head(&self, replica: &Replica, ticket: &Ticket<'_>, length: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(384);
        // Every value below was checked by whoever parsed it; one that is unfit is left out.
        let _ = write::request_line(&mut out, Method::Post, self.endpoint.path());
        let _ = write::field(&mut out, "host", replica.authority.as_bytes());
        if let Some(key) = &self.pool.api_key {
            out.extend_from_slice(b"authorization: Bearer ");
            out.extend_from_slice(key.expose().as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        let kind = self.content_type.as_deref().unwrap_or(b"application/json");
        let _ = write::field(&mut out, "content-type", kind);
        write::number_field(&mut out, "content-length", length as u64);
        let _ = write::field(&mut out, "accept-encoding", b"identity");
        let _ = write::field(&mut out, "x-request-id", ticket.request_id());
        ticket.write_trace_context(&mut out);
        out.extend_from_slice(b"\r\n");
        out
    }
}

/// A replica that is answering.
pub(super) struct Exchange {
    pub stream: Stream,
    pub inbox: Buffer,
    pub replica: Arc<Replica>,
    pub head: ResponseHead,
    _entry: InFlight,
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
    /// The replica failed; what that says of its health, and of the reason.
    Failed(Option<ReplicaFailure>, String),
}

/// The replicas of a pool as one request sees them.
struct View<'v> {
    pool: &'v Pool,
    served: &'v Served,
    tried: &'v [usize],
    now_ms: u64,
}

impl FleetView for View<'_> {
    fn len(&self) -> usize {
        self.pool.replicas.len()
    }

    fn eligible(&self, index: usize) -> bool {
        let Some(replica) = self.pool.replicas.get(index) else { return false };
        !self.tried.contains(&index)
            && self.served.holds(index)
            && replica.addr.load().is_some()
            && replica.health.eligible(self.now_ms)
    }

    fn load_tokens(&self, index: usize) -> u64 {
        let weighed = |r: &Arc<Replica>| (r.ledger.tokens() as f64 / r.weight) as u64;
        self.pool.replicas.get(index).map_or(u64::MAX, weighed)
    }

    fn requests(&self, index: usize) -> u64 {
        self.pool.replicas.get(index).map_or(u64::MAX, |r| r.ledger.requests())
    }
}

/// Sends the request to one replica after the other until one has begun to answer.
pub(super) async fn open(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &mut Ticket<'_>,
) -> Result<(Exchange, Begun), Failure> {
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
            let costly = !matches!(why, Attempt::Failed(Some(ReplicaFailure::Refused), _));
            let spent = ticket.attempts >= plan.published.retry.attempts_max || ticket.is_late();
            if matches!(why, Attempt::ClientGone) || spent || (costly && !core.retries.spend()) {
                return Err(given_up(why));
            }
            failed = Some(why);
        }
        let view = View {
            pool: &plan.pool,
            served: &plan.served,
            tried: &ticket.tried,
            now_ms: core.sweep.now_ms(),
        };
        core.turn.set(core.turn.get().wrapping_add(1));
        let pick = routing::pick(plan.published.policy, &view, core.random(), core.turn.get());
        let Some(pick) = pick else {
            return Err(failed.take().map_or(Failure::NoHealthyReplica, given_up));
        };
        let Some(replica) = plan.pool.replicas.get(pick.replica) else {
            return Err(Failure::NoHealthyReplica);
        };
        if failed.take().is_some() {
            core.metrics.retries.inc();
        }
        ticket.attempt(pick.replica, replica);
        match attempt(core, client, plan, ticket, replica).await {
            Ok(begun) => return Ok(begun),
            Err(why) => {
                note(core, replica, &why);
                failed = Some(why);
            }
        }
    }
}

/// Would another attempt be made at another replica?
fn may_go_elsewhere(core: &Core, plan: &Plan<'_>, ticket: &Ticket<'_>) -> bool {
    let left = ticket.attempts < plan.published.retry.attempts_max && !ticket.is_late();
    let now_ms = core.sweep.now_ms();
    let view = View { pool: &plan.pool, served: &plan.served, tried: &ticket.tried, now_ms };
    left && core.retries.can_spend() && (0..view.len()).any(|i| view.eligible(i))
}

/// Enters a failed attempt into the replica's health.
pub(super) fn note(core: &Core, replica: &Replica, why: &Attempt) {
    if let Attempt::Failed(Some(failure), reason) = why
        && replica.health.failed(*failure, core.sweep.now_ms())
    {
        core.shared.log.warn(&format!("replica {} ejected: {reason}", replica.id));
    }
}

fn given_up(why: Attempt) -> Failure {
    match why {
        Attempt::ClientGone => Failure::ClientGone,
        Attempt::Late(limit) => Failure::Deadline(limit),
        Attempt::Failed(_, reason) => Failure::Upstream(reason),
    }
}

async fn attempt(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &mut Ticket<'_>,
    replica: &Arc<Replica>,
) -> Result<(Exchange, Begun), Attempt> {
    replica.health.start(core.sweep.now_ms());
    let entry = replica.ledger.enter(core.index, ticket.tokens_estimated);
    let mut reused = core.idle.take(replica.key, core.sweep.now_ms());
    loop {
        let was_reused = reused.is_some();
        let mut stream = match reused.take() {
            Some(stream) => stream,
            None => connect(core, client, plan, replica).await?,
        };
        ticket.sending();
        let mut inbox = Buffer::default();
        let begun = begin(core, client, plan, ticket, replica, (&mut stream, &mut inbox)).await;
        match begun {
            Ok((head, begun)) => {
                replica.health.succeeded(core.sweep.now_ms());
                let replica = Arc::clone(replica);
                let exchange = Exchange { stream, inbox, replica, head, _entry: entry };
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

async fn connect(
    core: &Core,
    client: &mut Client,
    plan: &Plan<'_>,
    replica: &Replica,
) -> Result<Stream, Attempt> {
    let Some(addr) = replica.addr.load_full() else {
        return Err(Attempt::Failed(None, "its name is not resolved".to_owned()));
    };
    client.deadline.set(plan.published.timeouts.connect_ms);
    let mut connecting = std::pin::pin!(net::connect(*addr));
    let connected = poll_fn(|cx| {
        if let Poll::Ready(result) = connecting.as_mut().poll(cx) {
            return Poll::Ready(result.map_err(|error| {
                let refused = error.kind() == std::io::ErrorKind::ConnectionRefused;
                let failure =
                    if refused { ReplicaFailure::Refused } else { ReplicaFailure::Broken };
                Attempt::Failed(Some(failure), format!("cannot connect: {}", error.kind()))
            }));
        }
        if client.poll_gone(cx, core).is_ready() {
            return Poll::Ready(Err(Attempt::ClientGone));
        }
        client.deadline.poll(cx).map(|()| {
            let reason = "no connection within timeouts.connect_ms".to_owned();
            Err(Attempt::Failed(Some(ReplicaFailure::Broken), reason))
        })
    });
    connected.await
}

/// A replica's side of an attempt: its socket and what it has sent.
type Side<'s> = (&'s mut Stream, &'s mut Buffer);

/// Sends the request and waits until the answer has begun.
async fn begin(
    core: &Rc<Core>,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &mut Ticket<'_>,
    replica: &Replica,
    (stream, inbox): Side<'_>,
) -> Result<(ResponseHead, Begun), Attempt> {
    client.deadline.set(ticket.first_token_ms(plan.first_ms()));
    let whole = send(core, client, plan, ticket, replica, (stream, inbox)).await?;
    let mut head = read_head(core, client, ticket, (stream, inbox)).await?;
    let filled = inbox.filled();
    if head.content_encoding.is_some_and(|c| !c.of(filled).eq_ignore_ascii_case(b"identity")) {
        return Err(broken("it compressed its answer unasked"));
    }
    let kind = head.content_type.map(|s| s.of(filled)).unwrap_or_default();
    let events = is_event_stream(kind);
    // An answer that came before the whole request: the rest would be read as the next one.
    head.keep_alive &= whole;
    ticket.answered(&head, filled);
    inbox.consume(head.head_bytes as usize);
    if head.status == 200 && events && plan.stream {
        let frames = first_event(core, client, plan, ticket, &head, (stream, inbox)).await?;
        return Ok((head, Begun::Stream(frames)));
    }
    let elsewhere = || may_go_elsewhere(core, plan, ticket);
    let answer = answer::read(core, client, plan, &head, &elsewhere, (stream, inbox)).await?;
    Ok((head, Begun::Answer(answer)))
}

fn broken(reason: &str) -> Attempt {
    Attempt::Failed(Some(ReplicaFailure::Broken), reason.to_owned())
}

fn is_event_stream(kind: &[u8]) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    kind.get(..EVENTS.len()).is_some_and(|k| k.eq_ignore_ascii_case(EVENTS))
}

/// Sends head and edited body as slices of where they lie; ends early when the replica answers
/// before it has read everything (it may refuse a long body and close): then the value is false.
async fn send(
    core: &Core,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &Ticket<'_>,
    replica: &Replica,
    (stream, inbox): Side<'_>,
) -> Result<bool, Attempt> {
    let length = plan.edits.len(plan.body.bytes(client));
    let head = plan.write_head(replica, ticket, length);
    let total = head.len().saturating_add(length);
    let mut sent = 0;
    poll_fn(|cx| {
        while sent < total {
            let body = plan.body.bytes(client);
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let pieces = std::iter::once(head.as_slice()).chain(plan.edits.pieces(body));
            let n = fill_slices(&mut slices, pieces, sent);
            match stream.poll_send_vectored(cx, slices.get(..n).unwrap_or_default()) {
                Poll::Ready(Ok(n)) => sent = sent.saturating_add(n),
                Poll::Ready(Err(_)) => {
                    // It may have answered before it stopped reading: that answer counts.
                    return Poll::Ready(if receive(core, stream, inbox) == Received::Bytes {
                        Ok(false)
                    } else {
                        Err(broken("the connection ended while the request was sent"))
                    });
                }
                Poll::Pending => return poll_blocked_send(cx, core, client, stream, inbox),
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
    stream: &mut Stream,
    inbox: &mut Buffer,
) -> Poll<Result<bool, Attempt>> {
    if stream.poll_readable(cx).is_ready() && receive(core, stream, inbox) == Received::Bytes {
        return Poll::Ready(Ok(false));
    }
    if client.poll_gone(cx, core).is_ready() {
        return Poll::Ready(Err(Attempt::ClientGone));
    }
    client.deadline.poll(cx).map(|()| Err(Attempt::Late("timeouts.first_token_ms")))
}

/// Puts `pieces` but for their first `skip` bytes into `slices`; the number of slices filled.
pub(super) fn fill_slices<'a>(
    slices: &mut [IoSlice<'a>],
    pieces: impl Iterator<Item = &'a [u8]>,
    mut skip: usize,
) -> usize {
    let mut n = 0;
    for piece in pieces {
        let rest = piece.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(piece.len());
        if rest.is_empty() {
            continue;
        }
        let Some(slot) = slices.get_mut(n) else { break };
        *slot = IoSlice::new(rest);
        n += 1;
    }
    n
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
pub(super) fn receive(core: &Core, stream: &mut Stream, inbox: &mut Buffer) -> Received {
    let space = inbox.space(&core.buffers, READ_BYTES_MAX);
    if space.is_empty() {
        return Received::Full;
    }
    match stream.try_recv(space) {
        Ok(Some(0)) | Err(_) => Received::End,
        Ok(Some(n)) => {
            inbox.received(n);
            Received::Bytes
        }
        Ok(None) => Received::Nothing,
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
        client.deadline.poll(cx).map(|()| Err(Attempt::Late(limit)))
    })
    .await
}

async fn read_head(
    core: &Core,
    client: &mut Client,
    ticket: &Ticket<'_>,
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
        if !more(core, client, (stream, inbox), ticket.limit_name()).await? {
            return Err(broken("its connection ended before an answer"));
        }
    }
}

/// Reads until the first event is there or the stream has failed before it.
async fn first_event(
    core: &Core,
    client: &mut Client,
    plan: &Plan<'_>,
    ticket: &Ticket<'_>,
    head: &ResponseHead,
    (stream, inbox): Side<'_>,
) -> Result<Box<Frames>, Attempt> {
    let frames = Frames::new(incoming(head), plan.outgoing, plan.endpoint, plan.take_usage_out);
    let mut frames = Box::new(frames);
    if ticket.head_sent {
        frames.skip_roles();
    }
    loop {
        frames.scan(inbox.filled());
        if let Some(why) = failed_before_content(&frames) {
            return Err(why);
        }
        if frames.seen.events > 0 || frames.end.is_some() {
            return Ok(frames);
        }
        if !more(core, client, (stream, inbox), ticket.limit_name()).await? {
            frames.closed();
        }
    }
}

/// Has a stream failed before any content was seen?
pub(super) fn failed_before_content(frames: &Frames) -> Option<Attempt> {
    if frames.seen.content_events > 0 {
        return None;
    }
    match frames.end.as_ref()? {
        End::Complete => None,
        End::EngineError { code, message } => {
            Some(Attempt::Failed(answer::health_of(*code, message), message.clone()))
        }
        End::Aborted => {
            let reason = "the engine was shut down under the request";
            Some(Attempt::Failed(Some(ReplicaFailure::Draining), reason.to_owned()))
        }
        End::Truncated(reason) => Some(broken(reason)),
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
