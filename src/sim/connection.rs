//! One client connection of a replica: read a request, answer it, keep or close.
//!
//! Behaves as uvicorn: requests may be pipelined, an idle connection is closed with FIN
//! `keep_alive` after a response, one that never sent a request is kept, `Expect: 100-continue`
//! is answered. The head is read by the crate's strict parser (RFC 9112), which refuses more than
//! uvicorn does. One task a connection, on the replica's thread.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::replica::Replica;
use super::routes;
use super::stats::add;
use super::wire::{End, Wire};
use crate::http1::{
    BodyLength, ChunkTracker, HeadScanner, Method, PieceKind, RequestHead, Version, parse_request,
};
use crate::net::{self, Stream};

/// Bytes asked for in one receive.
const RECV_BYTES: usize = 16 * 1024;

/// Largest body that is read.
const BODY_BYTES_MAX: u64 = 256 << 20;

/// Bytes received and not yet used.
#[derive(Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    filled: usize,
    /// The client sent too much ahead: not looked at until the answer is out.
    full: bool,
    received: u64,
}

impl Input {
    fn filled(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    /// Receives what is there; `Ok(false)`: nothing, `Ok(true)`: some.
    fn receive(&mut self, stream: &mut Stream) -> io::Result<bool> {
        if self.bytes.len() - self.filled < RECV_BYTES {
            let room = (self.filled + RECV_BYTES).next_power_of_two().max(2 * RECV_BYTES);
            self.bytes.resize(room, 0);
        }
        match stream.try_recv(&mut self.bytes[self.filled..])? {
            None => Ok(false),
            Some(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Some(n) => {
                self.filled += n;
                self.received += n as u64;
                Ok(true)
            }
        }
    }

    /// Waits for more; an end is an error.
    fn poll_more(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if stream.poll_readable(cx).is_pending() {
                return Poll::Pending;
            }
            match self.receive(stream) {
                Ok(true) => return Poll::Ready(Ok(())),
                Ok(false) => {}
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
    }

    /// Looks after the client while it waits for an answer; true = it left.
    pub(super) fn watch(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> bool {
        while !self.full {
            match self.poll_more(stream, cx) {
                Poll::Pending => return false,
                Poll::Ready(Ok(())) => self.full = self.filled > Wire::ahead_bytes_max(),
                Poll::Ready(Err(_)) => return true,
            }
        }
        false
    }
}

/// A request as it was read.
pub(super) struct Request {
    /// Head and, unless it was chunked, body.
    bytes: Vec<u8>,
    head_bytes: usize,
    pub(super) head: RequestHead,
    body: Body,
}

enum Body {
    Inline(usize),
    Decoded(Vec<u8>),
}

impl Request {
    pub(super) fn head_bytes(&self) -> &[u8] {
        &self.bytes[..self.head_bytes]
    }

    pub(super) fn body(&self) -> &[u8] {
        match &self.body {
            Body::Inline(len) => &self.bytes[self.head_bytes..self.head_bytes + len],
            Body::Decoded(bytes) => bytes,
        }
    }
}

/// What reading came to.
enum Next {
    Request(Box<Request>),
    NotHttp,
    Over,
}

/// Serves a connection to its end.
pub(super) async fn serve(replica: Rc<Replica>, stream: Stream) {
    add(&replica.counters.connections_accepted, 1);
    add(&replica.counters.connections_open, 1);
    let mut wire = Wire::new(stream, Rc::clone(&replica));
    let mut scanner = HeadScanner::request();
    let mut served = false;
    loop {
        let next = read_request(&mut wire, &mut scanner, served).await;
        add(&replica.counters.bytes_in, std::mem::take(&mut wire.input.received));
        let request = match next {
            Next::Request(request) => request,
            Next::Over => break,
            Next::NotHttp => {
                // Nothing can be done for a client that left meanwhile.
                let _ = wire.not_http().await;
                break;
            }
        };
        let ended = routes::answer(&mut wire, &request).await;
        if ended.is_err() || wire.close {
            break;
        }
        served = true;
        wire.input.full = false;
        take_back(&mut wire.input, request.bytes);
    }
    let open = &replica.counters.connections_open;
    open.set(open.get().saturating_sub(1));
}

/// Uses the request's buffer again if nothing was received ahead.
fn take_back(input: &mut Input, spare: Vec<u8>) {
    if input.filled == 0 && spare.len() > input.bytes.len() && spare.len() <= 8 * RECV_BYTES {
        input.bytes = spare;
    }
}

async fn read_request(wire: &mut Wire, scanner: &mut HeadScanner, served: bool) -> Next {
    scanner.reset();
    let mut idle = served;
    let head_bytes = loop {
        if wire.replica.frozen() {
            wire.thaw().await;
        }
        match scanner.advance(wire.input.filled()) {
            Ok(Some(n)) => break n,
            Ok(None) => {}
            Err(_) => return Next::NotHttp,
        }
        idle &= wire.input.filled == 0;
        if more(wire, idle).await.is_err() {
            return Next::Over;
        }
    };
    let head = match parse_request(&wire.input.filled()[..head_bytes]) {
        Ok(head) => head,
        Err(_) => return Next::NotHttp,
    };
    if head.expect_continue && wire.raw(b"HTTP/1.1 100 Continue\r\n\r\n").await.is_err() {
        return Next::Over;
    }
    let (body, used) = match head.body {
        BodyLength::None => (Body::Inline(0), head_bytes),
        BodyLength::Length(n) if n > BODY_BYTES_MAX => return Next::NotHttp,
        BodyLength::Length(n) => {
            let all = head_bytes + n as usize;
            while wire.input.filled < all {
                if more(wire, false).await.is_err() {
                    return Next::Over;
                }
            }
            (Body::Inline(n as usize), all)
        }
        BodyLength::Chunked => match read_chunks(wire, head_bytes).await {
            Ok(read) => read,
            Err(next) => return next,
        },
    };
    let bytes = std::mem::take(&mut wire.input.bytes);
    let ahead = &bytes[used..wire.input.filled];
    wire.input.bytes.extend_from_slice(ahead);
    wire.input.filled = ahead.len();
    Next::Request(Box::new(Request { bytes, head_bytes, head, body }))
}

/// Decodes a chunked body; its payload and where it ends in the input.
async fn read_chunks(wire: &mut Wire, from: usize) -> Result<(Body, usize), Next> {
    let mut tracker = ChunkTracker::request();
    let (mut at, mut payload) = (from, Vec::new());
    loop {
        while at < wire.input.filled {
            let rest = &wire.input.filled()[at..];
            let Ok(piece) = tracker.next(rest) else { return Err(Next::NotHttp) };
            if piece.kind == PieceKind::Data {
                payload.extend_from_slice(&rest[..piece.len]);
            }
            at += piece.len;
            if piece.kind == PieceKind::End {
                return Ok((Body::Decoded(payload), at));
            }
        }
        if payload.len() as u64 > BODY_BYTES_MAX {
            return Err(Next::NotHttp);
        }
        if more(wire, false).await.is_err() {
            return Err(Next::Over);
        }
    }
}

/// Receives more; an idle connection only waits `keep_alive`.
async fn more(wire: &mut Wire, idle: bool) -> io::Result<()> {
    let keep_alive = wire.replica.config.keep_alive;
    let (stream, input) = (&mut wire.stream, &mut wire.input);
    if !idle {
        return poll_fn(|cx| input.poll_more(stream, cx)).await;
    }
    let mut timer = pin!(net::sleep(keep_alive));
    poll_fn(|cx| match input.poll_more(stream, cx) {
        Poll::Pending if timer.as_mut().poll(cx).is_ready() => {
            Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
        }
        polled => polled,
    })
    .await
}

/// Whether the response ends the connection.
pub(super) fn closes(head: &RequestHead) -> bool {
    // Asked to stay open or not, uvicorn closes after a request of HTTP/1.0.
    !head.keep_alive || head.version == Version::Http10
}

/// The path without its query.
pub(super) fn path(request: &Request) -> &[u8] {
    request.head.target.of(request.head_bytes())
}

/// The request has no body in its answer.
pub(super) fn is_head(request: &Request) -> bool {
    request.head.method == Method::Head
}

/// A client or fault end is told apart in the counters.
pub(super) fn count_end(replica: &Replica, end: End) {
    match end {
        End::Client => add(&replica.counters.aborted, 1),
        End::Fault => add(&replica.counters.faulted, 1),
    }
}
