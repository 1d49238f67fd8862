//! Reading a request's body whole: the model's name and everything that is priced is in it.
//!
//! A body with a length stays where it was received; a chunked one is taken out of its framing. The
//! length is bounded before a byte is stored, and a client must keep up 1 KiB/s after 5 s, within
//! 60 s in all.

use std::ops::Range;

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

/// A whole request body.
pub(super) enum Body {
    /// Where it lies in the client's inbox.
    InPlace(Range<usize>),
    /// Taken out of its chunks.
    Joined(Vec<u8>),
}

impl Body {
    /// The bytes.
    pub(super) fn bytes<'a>(&'a self, client: &'a Client) -> &'a [u8] {
        match self {
            Body::InPlace(range) => client.inbox.filled().get(range.clone()).unwrap_or_default(),
            Body::Joined(bytes) => bytes,
        }
    }
}

/// Reads the body that `head` announces, at most `bytes_max` bytes.
///
/// # Errors
/// Too large, broken framing, or not there in time.
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
                if !client.more(core, end).await {
                    return Err(Failure::BodyIncomplete);
                }
            }
            client.request_bytes = end;
            Ok(Body::InPlace(head_bytes..end))
        }
        BodyLength::Chunked => read_chunked(core, client, head_bytes, bytes_max).await,
    }
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
                return Ok(Body::Joined(body));
            }
        }
        // The head stays: its spans are still read. What was taken out goes.
        client.inbox.cut(head_bytes, used);
        pace.set(client, body.len());
        if !client.more(core, head_bytes.saturating_add(READ_AHEAD_BYTES)).await {
            return Err(Failure::BodyIncomplete);
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

    /// Sets the limit by which more than `received` bytes must be there.
    fn set(&mut self, client: &Client, received: usize) {
        let due_ms = GRACE_MS.saturating_add(received as u64 / BYTES_A_MS).min(BODY_MS_MAX);
        let spent_ms = clock::now_ms().saturating_sub(self.started_ms);
        client.deadline.set(due_ms.saturating_sub(spent_ms).max(1));
    }
}
