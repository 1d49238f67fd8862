//! Reading a request's body whole: the model's name and everything that is priced is in it.
//!
//! A body with a length stays where it was received; a chunked one is taken out of its framing. The
//! length is bounded before a byte is stored, and a client must keep up 1 KiB/s after 5 s, within
//! 60 s in all. A heavy body, which would hold a core too long to be understood, is taken out of
//! the inbox so that threads beside the cores can share it.

use std::ops::Range;
use std::sync::Arc;

use super::bodies::{Bodies, Share};
use super::connection::Client;
use super::core::Core;
use super::reply::Failure;
use crate::http1::{BodyLength, ChunkTracker, PieceKind, RequestHead};
use crate::runtime::clock;

/// Time before the rate counts.
const GRACE_MS: u64 = 5_000;
/// Least rate: 1 KiB/s is a byte a millisecond.
const BYTES_A_MS: u64 = 1;
/// Longest time for a body.
const BODY_MS_MAX: u64 = 60_000;
/// Largest body of a request that needs none; a longer one closes the connection.
const SKIP_BYTES_MAX: u64 = 64 * 1024;

/// A longer body is heavy: a core reads and renders 1 MiB of text in half a millisecond each.
const LIGHT_BYTES_MAX: usize = 1 << 20;
/// Escapes and list items have their price whatever their length, some 10 ns each: a body with
/// more of them is heavy.
const LIGHT_ITEMS_MAX: usize = 32 * 1024;

/// A whole request body; clones share it.
#[derive(Clone)]
pub(super) enum Body {
    /// Where it lies in the client's inbox.
    InPlace(Range<usize>),
    /// Taken out of its chunks, or too heavy for a core.
    Apart(Apart),
}

/// A body with an owner of its own; clones share it.
#[derive(Clone)]
pub(super) struct Apart {
    memory: Arc<Vec<u8>>,
    start: usize,
    heavy: bool,
}

impl Apart {
    fn new(memory: Vec<u8>, start: usize) -> Apart {
        let heavy = memory.get(start..).is_some_and(is_heavy);
        Apart { memory: Arc::new(memory), start, heavy }
    }

    /// The bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        self.memory.get(self.start..).unwrap_or_default()
    }
}

/// Would this hold a core too long to be read as JSON?
fn is_heavy(body: &[u8]) -> bool {
    let many = || memchr::memchr2_iter(b'\\', b',', body).nth(LIGHT_ITEMS_MAX).is_some();
    body.len() > LIGHT_BYTES_MAX || (body.len() > LIGHT_ITEMS_MAX && many())
}

impl Body {
    /// The bytes.
    pub(super) fn bytes<'a>(&'a self, client: &'a Client) -> &'a [u8] {
        match self {
            Body::InPlace(range) => client.inbox.filled().get(range.clone()).unwrap_or_default(),
            Body::Apart(apart) => apart.bytes(),
        }
    }

    /// The body, when no core is to read it.
    pub(super) fn heavy(&self) -> Option<Apart> {
        match self {
            Body::Apart(apart) if apart.heavy => Some(apart.clone()),
            _ => None,
        }
    }

    /// The body for another thread.
    pub(super) fn share(&self, client: &Client) -> Apart {
        match self {
            Body::Apart(apart) => apart.clone(),
            Body::InPlace(_) => Apart::new(self.bytes(client).to_vec(), 0),
        }
    }
}

/// Reads the body that `head` announces, at most `bytes_max` bytes.
///
/// # Errors
/// Too large, broken framing, or not there in time; the client has gone, or the gateway ends.
pub(super) async fn read(
    core: &Core,
    client: &mut Client,
    head: &RequestHead,
    bytes_max: usize,
) -> Result<Body, Failure> {
    let head_bytes = head.head_bytes as usize;
    client.request_bytes = head_bytes;
    if let BodyLength::Length(length) = head.body
        && length > bytes_max as u64
    {
        return Err(Failure::BodyTooLarge(bytes_max));
    }
    if let BodyLength::Length(length) = head.body {
        has_room(core, client, |share, of, max| Share::cover(share, of, length, max))?;
    }
    if head.expect_continue && client.inbox.len() == head_bytes && head.body != BodyLength::None {
        client.send(core, b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    match head.body {
        BodyLength::None => Ok(Body::InPlace(head_bytes..head_bytes)),
        BodyLength::Length(length) => {
            let end = head_bytes.saturating_add(length as usize);
            let mut pace = Pace::start();
            while client.inbox.len() < end {
                pace.set(client, client.inbox.len().saturating_sub(head_bytes));
                if !pace.more(core, client, end).await {
                    return Err(missing(core, client));
                }
            }
            client.request_bytes = end;
            Ok(apart_if_heavy(core, client, head_bytes..end))
        }
        BodyLength::Chunked => read_chunked(core, client, head_bytes, bytes_max).await,
    }
}

/// Why there is no more of a body.
fn missing(core: &Core, client: &Client) -> Failure {
    match client.gone_ns() {
        Some(_) => Failure::BodyLeft,
        None if core.sweep.ended() => Failure::Stopping,
        None => Failure::BodyIncomplete,
    }
}

/// Is there room for the body in the memory that bodies may take?
fn has_room(
    core: &Core,
    client: &mut Client,
    take: impl FnOnce(&mut Option<Share>, &Arc<Bodies>, u64) -> bool,
) -> Result<(), Failure> {
    let bodies = &core.shared.bodies;
    let max = core.published().bodies_bytes_max.unwrap_or(bodies.usual_max);
    take(&mut client.share, bodies, max).then_some(()).ok_or(Failure::NoMemory)
}

/// Takes a heavy body that lies in the inbox out of it.
fn apart_if_heavy(core: &Core, client: &mut Client, place: Range<usize>) -> Body {
    let heavy = client.inbox.len() == place.end
        && client.inbox.filled().get(place.clone()).is_some_and(is_heavy);
    if heavy && let Some((memory, start)) = client.inbox.hand_over(&core.buffers, place.start) {
        client.request_bytes = place.start;
        client.body_taken = true;
        let memory = Arc::new(memory);
        return Body::Apart(Apart { memory, start, heavy });
    }
    Body::InPlace(place)
}

async fn read_chunked(
    core: &Core,
    client: &mut Client,
    head_bytes: usize,
    bytes_max: usize,
) -> Result<Body, Failure> {
    let mut tracker = ChunkTracker::request();
    let mut body = Vec::new();
    let mut pace = Pace::start();
    loop {
        let received = client.inbox.filled().get(head_bytes..).unwrap_or_default();
        let mut used = 0;
        while let Some(rest) = received.get(used..).filter(|rest| !rest.is_empty()) {
            let piece = tracker.next(rest).map_err(|e| Failure::BodyFraming(e.reason()))?;
            if tracker.data_left().saturating_add(body.len() as u64) > bytes_max as u64 {
                return Err(Failure::BodyTooLarge(bytes_max));
            }
            if piece.kind == PieceKind::Data {
                body.extend_from_slice(rest.get(..piece.len).unwrap_or_default());
            }
            used = used.saturating_add(piece.len.max(1));
            if piece.kind == PieceKind::End {
                client.request_bytes = head_bytes.saturating_add(used);
                return Ok(Body::Apart(Apart::new(body, 0)));
            }
        }
        let bytes = body.len() as u64;
        has_room(core, client, |share, of, max| Share::follow(share, of, bytes, max))?;
        // The head stays: its spans are still read. What was taken out goes.
        client.inbox.cut(head_bytes, used);
        pace.set(client, body.len());
        if !pace.more(core, client, head_bytes.saturating_add(READ_AHEAD_BYTES)).await {
            return Err(missing(core, client));
        }
    }
}

/// Chunked bytes received before they are taken out of their framing.
const READ_AHEAD_BYTES: usize = 64 * 1024;

/// Reads past the body of a request that needs none. False: too long, the connection must close.
pub(super) async fn skip(core: &Core, client: &mut Client, head: &RequestHead) -> bool {
    match head.body {
        BodyLength::None => {
            client.request_bytes = head.head_bytes as usize;
            true
        }
        BodyLength::Length(length) if length > SKIP_BYTES_MAX => false,
        _ => read(core, client, head, SKIP_BYTES_MAX as usize).await.is_ok(),
    }
}

/// The time limit of a body being read.
struct Pace {
    started_ms: u64,
}

impl Pace {
    fn start() -> Pace {
        Pace { started_ms: clock::now_ms() }
    }

    /// As [`Client::more`], counting the wait.
    async fn more(&self, core: &Core, client: &mut Client, bytes_max: usize) -> bool {
        let began_ns = clock::now_ns();
        let more = client.more(core, bytes_max).await;
        let waited_ns = clock::now_ns().saturating_sub(began_ns);
        client.waited_ns = client.waited_ns.saturating_add(waited_ns);
        more
    }

    /// Sets the limit by which more than `received` bytes must be there.
    fn set(&mut self, client: &Client, received: usize) {
        let due_ms = GRACE_MS.saturating_add(received as u64 / BYTES_A_MS).min(BODY_MS_MAX);
        let spent_ms = clock::now_ms().saturating_sub(self.started_ms);
        client.deadline.set(due_ms.saturating_sub(spent_ms).max(1));
    }
}
