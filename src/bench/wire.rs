//! One keep-alive connection of the load generator: a request out, its response in.
//!
//! Owns the socket and the bytes that were received and not yet judged. Lives on the thread of its
//! runtime. Follows RFC 9112 as a client that never pipelines: bytes after a response are an error.

use std::cell::RefCell;
use std::io;
use std::ops::Range;

use super::answer::{Answer, Expected};
use super::failure::{Failure, Kind};
use super::tally::Tally;
use super::target::Target;
use crate::http1::parse_response;
use crate::http1::{ChunkTracker, HeadScanner, PieceKind, ResponseBody, ResponseHead};
use crate::net;
use crate::runtime::clock;

/// First size of a connection's buffer: some twenty events.
const BUFFER_BYTES: usize = 8 * 1024;
/// A connection that was idle for longer is not used again: vLLM closes its own after 5 s, and may
/// do so in the very moment in which a request is sent.
const IDLE_NS_MAX: u64 = 4_000_000_000;
/// A list of models or a refusal is shorter than this.
const BODY_BYTES_MAX: usize = 4 << 20;

/// A request and what has to come back.
pub(super) struct Request {
    pub(super) bytes: Vec<u8>,
    /// Where in them the new text is, as the inside of a JSON string.
    pub(super) text: Range<usize>,
    pub(super) expected: Expected,
    /// It is given up on purpose after this share of the time that an answer takes.
    pub(super) cancel_at: Option<f64>,
}

/// See the module.
pub(super) struct Wire {
    stream: net::Wire,
    buffer: Vec<u8>,
    from: usize,
    to: usize,
    /// When the bytes of the last receive came.
    now_ns: u64,
}

impl Wire {
    pub(super) async fn connect(target: &Target) -> io::Result<Wire> {
        let stream = net::Wire::connect(target.addr, target.peer.as_ref()).await?;
        Ok(Wire { stream, buffer: vec![0; BUFFER_BYTES], from: 0, to: 0, now_ns: 0 })
    }

    /// Whether it can be used again at `now_ns`: it was not idle for long, and nothing, no end
    /// either, came meanwhile. The socket is asked itself: what the runtime knows of it may be old.
    pub(super) fn is_idle(&mut self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.now_ns) < IDLE_NS_MAX
            && matches!(self.stream.try_recv(&mut [0]), Ok(None))
    }

    /// Sends a request and judges the response as it comes; gaps between its events go to `tally`.
    /// True: the connection may be used again.
    pub(super) async fn exchange(
        &mut self,
        request: &Request,
        answer: &mut Answer,
        tally: &RefCell<Tally>,
    ) -> Result<bool, Failure> {
        let head = self.ask(&request.bytes).await?;
        let content_type = head.content_type.map(|span| span.of(self.received()).to_vec());
        self.from += head.head_bytes as usize;
        if head.status != 200 {
            let body = self.collect(&head).await?;
            return Err(Failure::seen(Kind::Status(head.status), &body));
        }
        let wanted: &[u8] =
            if request.expected.stream { b"text/event-stream" } else { b"application/json" };
        if !content_type.as_ref().is_some_and(|value| value.starts_with(wanted)) {
            return Err(Failure::seen(Kind::ContentType, &content_type.unwrap_or_default()));
        }
        self.body(&head, |piece, now_ns| answer.take(piece, now_ns, tally)).await?;
        Ok(head.keep_alive)
    }

    /// Sends a request and reads the final head, which begins at `from`.
    async fn ask(&mut self, request: &[u8]) -> Result<ResponseHead, Failure> {
        let closed = |error: io::Error| Failure::new(Kind::ClosedBeforeHead, error);
        self.stream.send_all(request).await.map_err(closed)?;
        let mut scanner = HeadScanner::response();
        loop {
            let bad = |error| Failure::new(Kind::BadHead, error);
            if self.from < self.to
                && let Some(len) = scanner.advance(self.received()).map_err(bad)?
            {
                let bytes = self.received().get(..len).unwrap_or_default();
                let head = parse_response(bytes, false).map_err(bad)?;
                if head.status >= 200 {
                    return Ok(head);
                }
                self.from += head.head_bytes as usize;
                scanner.reset();
                continue;
            }
            if self.receive().await.map_err(closed)? == 0 {
                return Err(Failure::new(Kind::ClosedBeforeHead, "end of connection"));
            }
        }
    }

    /// Hands the body's data to `sink` with the time at which it came, until its end.
    async fn body(
        &mut self,
        head: &ResponseHead,
        mut sink: impl FnMut(&[u8], u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let cut = |what: &dyn std::fmt::Display| Failure::new(Kind::Cut, what);
        let mut chunks = ChunkTracker::response();
        let mut left = match head.body {
            ResponseBody::None => 0,
            ResponseBody::Length(length) => length,
            ResponseBody::Chunked | ResponseBody::UntilClose => u64::MAX,
        };
        while left > 0 {
            while self.from < self.to && left > 0 {
                let bytes = self.buffer.get(self.from..self.to).unwrap_or_default();
                let (len, data) = if head.body == ResponseBody::Chunked {
                    let piece = chunks.next(bytes).map_err(|e| Failure::new(Kind::BadChunk, e))?;
                    if piece.kind == PieceKind::End {
                        left = 0;
                    }
                    (piece.len, piece.kind == PieceKind::Data)
                } else {
                    let len = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    left -= len as u64;
                    (len, true)
                };
                if data {
                    sink(bytes.get(..len).unwrap_or_default(), self.now_ns)?;
                }
                self.from += len;
            }
            if left > 0 && self.receive().await.map_err(|e| cut(&e))? == 0 {
                match head.body {
                    ResponseBody::UntilClose => break,
                    _ => return Err(cut(&"end of connection within the body")),
                }
            }
        }
        match self.received() {
            [] => Ok(()),
            extra => Err(Failure::seen(Kind::ExtraBytes, extra)),
        }
    }

    async fn collect(&mut self, head: &ResponseHead) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        self.body(head, |piece, _| {
            if body.len() + piece.len() > BODY_BYTES_MAX {
                return Err(Failure::new(Kind::Malformed, "the body is longer than 4 MiB"));
            }
            body.extend_from_slice(piece);
            Ok(())
        })
        .await?;
        Ok(body)
    }

    fn received(&self) -> &[u8] {
        self.buffer.get(self.from..self.to).unwrap_or_default()
    }

    /// Receives behind what is there. 0: the server has ended.
    async fn receive(&mut self) -> io::Result<usize> {
        self.buffer.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        if self.to == self.buffer.len() {
            self.buffer.resize(self.to * 2, 0);
        }
        let space = &mut self.buffer[self.to..];
        let (room, n) = (space.len(), self.stream.recv(space).await?);
        if n == room {
            // A connection that is always full leaves the others a turn.
            self.stream.breathe();
        }
        self.now_ns = clock::now_ns();
        self.to += n;
        Ok(n)
    }
}

/// Fetches one path of a target: the body of a 200.
pub(super) async fn fetch(target: &Target, path: &str) -> Result<Vec<u8>, Failure> {
    let connected = Wire::connect(target).await;
    let mut wire = connected.map_err(|e| Failure::new(Kind::Connect, e))?;
    let mut request =
        format!("GET {}{path} HTTP/1.1\r\nhost: {}\r\n", target.base, target.authority);
    if let Some(key) = &target.key {
        request += &format!("authorization: Bearer {}\r\n", key.expose());
    }
    request += "\r\n";
    let head = wire.ask(request.as_bytes()).await?;
    wire.from += head.head_bytes as usize;
    let body = wire.collect(&head).await?;
    if head.status != 200 {
        return Err(Failure::seen(Kind::Status(head.status), &body));
    }
    Ok(body)
}
