//! The response side of a connection: uvicorn's heads, chunks, and the faults that strike bytes.
//!
//! Owns the buffers that a connection writes from; one connection, one task. An event is built in
//! place behind room for its chunk size and leaves in one write, without an allocation. It does
//! not know what the bytes mean.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::connection::Input;
use super::fault::{Fault, Kind};
use super::gzip::Gzip;
use super::replica::Replica;
use crate::http1::write::LAST_CHUNK;
use crate::net::{self, Stream};

/// Room before an event for its chunk size (8 hexadecimal digits and CRLF).
const CHUNK_ROOM: usize = 10;

/// How often a stalled or frozen request looks whether that is over.
const STALL_LOOK: Duration = Duration::from_millis(5);

/// Bytes that a client may send ahead while it waits for an answer.
const AHEAD_BYTES_MAX: usize = 256 * 1024;

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The client left.
    Client,
    /// A fault closed it.
    Fault,
}

/// How a response is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Chunked,
    /// All events are held and leave with a `content-length`.
    Held,
    /// A `content-length` that is too large.
    Short,
}

/// See the module.
pub(super) struct Wire {
    pub(super) stream: Stream,
    pub(super) input: Input,
    pub(super) replica: Rc<Replica>,
    /// Body of a whole response, or the payload of the event in the making behind its room.
    pub(super) body: Vec<u8>,
    /// `x-request-id` of the answer, if such headers are on.
    pub(super) request_id: String,
    /// The request was HEAD: no body.
    pub(super) head_only: bool,
    /// The connection ends with this response, and the head says so.
    pub(super) close: bool,
    /// When the end of the client's connection was seen.
    pub(super) gone_us: Option<u64>,
    pub(super) fault: Option<Rc<Fault>>,
    out: Vec<u8>,
    held: Vec<u8>,
    held_events: u64,
    events: u64,
    framing: Framing,
    gzip: Option<Gzip>,
}

impl Wire {
    pub(super) fn new(stream: Stream, replica: Rc<Replica>) -> Wire {
        Wire {
            stream,
            input: Input::default(),
            replica,
            body: Vec::with_capacity(1024),
            request_id: String::new(),
            head_only: false,
            close: false,
            gone_us: None,
            fault: None,
            out: Vec::with_capacity(1024),
            held: Vec::new(),
            held_events: 0,
            events: 0,
            framing: Framing::Chunked,
            gzip: None,
        }
    }

    /// Makes ready for the response to another request.
    pub(super) fn begin(&mut self, fault: Option<Rc<Fault>>, close: bool, head_only: bool) {
        self.fault = fault;
        self.close = close || self.kind() == Kind::CloseAfterResponse;
        self.head_only = head_only;
        self.request_id.clear();
        self.body.clear();
        self.held.clear();
        self.held_events = 0;
        self.events = 0;
        self.gzip = (self.kind() == Kind::Gzip).then(Gzip::default);
        self.framing = match self.kind() {
            Kind::ContentLengthOnSse => Framing::Held,
            Kind::ShortLength => Framing::Short,
            _ => Framing::Chunked,
        };
    }

    /// The fault of this response.
    pub(super) fn kind(&self) -> Kind {
        self.fault.as_ref().map_or(Kind::None, |f| f.kind)
    }

    /// Sends a whole response: `self.body` with a head.
    pub(super) async fn whole(
        &mut self,
        status: u16,
        content_type: &str,
        allow: &str,
    ) -> Result<(), End> {
        self.before_head().await?;
        if let Some(mut gzip) = self.gzip.take() {
            let mut packed = Vec::new();
            gzip.block(&self.body, &mut packed);
            gzip.end(&mut packed);
            self.body = packed;
        }
        let kind = self.kind();
        let length = self.body.len() + if kind == Kind::ShortLength { 1000 } else { 0 };
        self.status_line(status);
        if !allow.is_empty() {
            self.field("allow", allow);
        }
        if kind == Kind::BadChunk {
            self.field("transfer-encoding", "chunked");
        } else {
            self.field("content-length", itoa::Buffer::new().format(length));
        }
        self.common_fields(content_type);
        self.out.extend_from_slice(b"\r\n");
        let head = self.out.len();
        if !self.head_only {
            let body = std::mem::take(&mut self.body);
            self.out.extend_from_slice(if kind == Kind::BadChunk { b"zz\r\n" } else { &body });
            self.body = body;
        }
        let (all, half) = (self.out.len(), head + (self.out.len() - head) / 2);
        match kind {
            Kind::ResetInHead => {
                self.put(0, head / 2).await?;
                return Err(self.reset());
            }
            Kind::ResetBeforeEvent => {
                self.put(0, head).await?;
                return Err(self.reset());
            }
            Kind::StallBeforeEvent => {
                self.put(0, head).await?;
                self.stall().await?;
                self.put(head, all).await?;
            }
            Kind::ResetMidEvent | Kind::ResetBetweenEvents => {
                self.put(0, half).await?;
                return Err(self.reset());
            }
            Kind::FinBetweenEvents => {
                self.put(0, half).await?;
                return Err(End::Fault);
            }
            Kind::StallBetweenEvents => {
                self.put(0, half).await?;
                self.stall().await?;
                self.put(half, all).await?;
            }
            _ => self.put(0, all).await?,
        }
        self.after_response().await
    }

    /// Sends the head of an event stream: a write of its own.
    pub(super) async fn open_stream(&mut self) -> Result<(), End> {
        self.before_head().await?;
        if self.framing == Framing::Held {
            return Ok(());
        }
        self.stream_head(None);
        let head = self.out.len();
        match self.kind() {
            Kind::ResetInHead => {
                self.put(0, head / 2).await?;
                return Err(self.reset());
            }
            _ => self.put(0, head).await?,
        }
        match self.kind() {
            Kind::ResetBeforeEvent => Err(self.reset()),
            Kind::StallBeforeEvent => self.stall().await,
            _ => Ok(()),
        }
    }

    /// Begins an event; the payload is to be added to what this returns.
    pub(super) fn event(&mut self) -> &mut Vec<u8> {
        self.body.clear();
        self.body.extend_from_slice(&[0; CHUNK_ROOM]);
        &mut self.body
    }

    /// Sends the event as one chunk in one write.
    pub(super) async fn send_event(&mut self) -> Result<(), End> {
        if self.replica.frozen() {
            self.thaw().await;
        }
        if self.fault.is_some() && self.strike_event().await? {
            return Ok(());
        }
        self.events += 1;
        self.frame();
        let (body, stream) = (&self.body, &mut self.stream);
        let size = chunk_size_at(body);
        if self.fault.is_none() {
            return stream.send_all(&body[size..]).await.map_err(|_| End::Client);
        }
        self.out.clear();
        self.out.extend_from_slice(&self.body[size..]);
        self.put(0, self.out.len()).await
    }

    /// Sends `data: [DONE]`, a chunk of its own.
    pub(super) async fn send_done(&mut self) -> Result<(), End> {
        if self.kind() == Kind::NoDone {
            return Ok(());
        }
        self.event().extend_from_slice(b"data: [DONE]\n\n");
        self.send_event().await
    }

    /// Ends the stream: the last chunk, a write of its own.
    pub(super) async fn end_stream(&mut self) -> Result<(), End> {
        if self.framing == Framing::Short {
            return Err(End::Fault);
        }
        self.out.clear();
        if let Some(mut gzip) = self.gzip.take() {
            self.event();
            gzip.end(&mut self.body);
            self.frame();
            self.out.extend_from_slice(&self.body[chunk_size_at(&self.body)..]);
        }
        if self.framing == Framing::Held {
            let held = std::mem::take(&mut self.held);
            self.stream_head(Some(held.len()));
            self.out.extend_from_slice(&held);
        } else if self.held.is_empty() {
            self.out.extend_from_slice(LAST_CHUNK);
        } else {
            self.event();
            self.body.append(&mut self.held);
            self.frame();
            self.out.extend_from_slice(&self.body[chunk_size_at(&self.body)..]);
            self.out.extend_from_slice(LAST_CHUNK);
        }
        self.put(0, self.out.len()).await?;
        self.after_response().await
    }

    /// Waits until `deadline_us`, or (`None`) until `more` is ready, unless the client leaves.
    pub(super) async fn wait(
        &mut self,
        deadline_us: Option<u64>,
        mut more: impl FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> Result<(), End> {
        let now_us = self.replica.clock.now_us();
        let pause = deadline_us.map_or(Duration::from_secs(3600), |due| {
            Duration::from_micros(due.saturating_sub(now_us))
        });
        let mut timer = pin!(net::sleep(pause));
        let (stream, input) = (&mut self.stream, &mut self.input);
        let left = poll_fn(|cx| {
            if input.watch(stream, cx) {
                return Poll::Ready(true);
            }
            if more(cx).is_ready() || timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(false);
            }
            Poll::Pending
        })
        .await;
        if left {
            self.gone_us = Some(self.replica.clock.now_us());
            return Err(End::Client);
        }
        if self.replica.frozen() {
            self.thaw().await;
        }
        Ok(())
    }

    /// Stays until the client leaves.
    pub(super) async fn park(&mut self) -> End {
        loop {
            if let Err(end) = self.wait(None, |_| Poll::Pending).await {
                return end;
            }
        }
    }

    /// Stays as long as the replica is frozen, blind to everything.
    pub(super) async fn thaw(&self) {
        while self.replica.frozen() {
            net::sleep(STALL_LOOK).await;
        }
    }

    /// Sends what is no response of ours to a request (a refusal by the parser, `100 Continue`).
    pub(super) async fn raw(&mut self, bytes: &[u8]) -> Result<(), End> {
        self.stream.send_all(bytes).await.map_err(|_| End::Client)
    }

    /// uvicorn's answer to what is not HTTP.
    pub(super) async fn not_http(&mut self) -> Result<(), End> {
        let text = b"Invalid HTTP request received.";
        self.status_line(400);
        self.field("content-type", "text/plain; charset=utf-8");
        self.field("content-length", itoa::Buffer::new().format(text.len()));
        self.out.extend_from_slice(b"connection: close\r\n\r\n");
        self.out.extend_from_slice(text);
        self.put(0, self.out.len()).await
    }

    fn status_line(&mut self, status: u16) {
        let reason = match status {
            200 => "OK",
            400 => "Bad Request",
            401 => "Unauthorized",
            404 => "Not Found",
            405 => "Method Not Allowed",
            429 => "Too Many Requests",
            500 => "Internal Server Error",
            503 => "Service Unavailable",
            _ => "Unknown",
        };
        self.out.clear();
        self.out.extend_from_slice(b"HTTP/1.1 ");
        self.out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
        self.out.push(b' ');
        self.out.extend_from_slice(reason.as_bytes());
        self.out.extend_from_slice(b"\r\n");
        super::date::append(&mut self.out);
        self.out.extend_from_slice(b"server: uvicorn\r\n");
    }

    fn field(&mut self, name: &str, value: &str) {
        for part in [name, ": ", value, "\r\n"] {
            self.out.extend_from_slice(part.as_bytes());
        }
    }

    /// The fields from `content-type` on, in uvicorn's order.
    fn common_fields(&mut self, content_type: &str) {
        if self.kind() == Kind::WrongContentType {
            self.field("content-type", "text/html; charset=utf-8");
        } else if !content_type.is_empty() {
            self.field("content-type", content_type);
        }
        if self.kind() == Kind::Gzip {
            self.field("content-encoding", "gzip");
        }
        self.out.extend_from_slice(b"vary: Origin\r\n");
        if !self.request_id.is_empty() {
            let id = std::mem::take(&mut self.request_id);
            self.field("x-request-id", &id);
            self.request_id = id;
        }
        if self.close {
            self.out.extend_from_slice(b"connection: close\r\n");
        }
    }

    fn stream_head(&mut self, length: Option<usize>) {
        self.status_line(200);
        self.common_fields("text/event-stream; charset=utf-8");
        match length.or((self.framing == Framing::Short).then_some(1 << 20)) {
            Some(n) => self.field("content-length", itoa::Buffer::new().format(n)),
            None => self.out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        }
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes the size of the chunk into its room and the CRLF behind it.
    fn frame(&mut self) {
        if let Some(gzip) = &mut self.gzip {
            let mut packed = vec![0; CHUNK_ROOM];
            gzip.block(self.body.get(CHUNK_ROOM..).unwrap_or_default(), &mut packed);
            self.body = packed;
        }
        let mut size = self.body.len() - CHUNK_ROOM;
        if self.framing == Framing::Short {
            return;
        }
        self.body.extend_from_slice(b"\r\n");
        self.body[CHUNK_ROOM - 2..CHUNK_ROOM].copy_from_slice(b"\r\n");
        let mut at = CHUNK_ROOM - 2;
        loop {
            at -= 1;
            self.body[at] = b"0123456789abcdef"[size & 15];
            size >>= 4;
            if size == 0 {
                break;
            }
        }
    }

    /// Faults on the way of an event; true = it needs no sending.
    async fn strike_event(&mut self) -> Result<bool, End> {
        let Some(fault) = self.fault.clone() else { return Ok(false) };
        if fault.kind == Kind::Coalesce || self.framing == Framing::Held {
            self.held.extend_from_slice(&self.body[CHUNK_ROOM..]);
            self.events += 1;
            self.held_events += 1;
            let finishing = memchr::memmem::find(&self.held, b"data: [DONE]").is_some()
                || memchr::memmem::find(&self.held, b"\"choices\":[],").is_some();
            if fault.kind == Kind::Coalesce && self.held_events >= 4 && !finishing {
                self.held_events = 0;
                self.event();
                self.body.append(&mut self.held);
                self.frame();
                self.out.clear();
                self.out.extend_from_slice(&self.body[chunk_size_at(&self.body)..]);
                self.put(0, self.out.len()).await?;
            }
            return Ok(true);
        }
        if self.events != fault.events_first() {
            return Ok(false);
        }
        match fault.kind {
            Kind::ResetBetweenEvents => Err(self.reset()),
            Kind::FinBetweenEvents => Err(End::Fault),
            Kind::StallBetweenEvents => self.stall().await.map(|()| false),
            Kind::BadChunk => {
                self.raw(b"zz\r\ndata: {}\n\n\r\n").await?;
                Err(End::Fault)
            }
            Kind::ResetMidEvent => {
                self.frame();
                let size = chunk_size_at(&self.body);
                let half = size + (self.body.len() - size) / 2;
                let half = self.body[size..half].to_vec();
                self.raw(&half).await?;
                Err(self.reset())
            }
            _ => Ok(false),
        }
    }

    async fn before_head(&mut self) -> Result<(), End> {
        if self.replica.frozen() {
            self.thaw().await;
        }
        match self.kind() {
            Kind::ResetBeforeHead => Err(self.reset()),
            Kind::FinBeforeHead => Err(End::Fault),
            Kind::StallBeforeHead => self.stall().await,
            Kind::Garbage => {
                self.raw(b"\x16\x03\x01 this is not HTTP\r\n\r\n").await?;
                Err(End::Fault)
            }
            _ => Ok(()),
        }
    }

    async fn after_response(&mut self) -> Result<(), End> {
        match self.kind() {
            Kind::ExtraBytes => {
                self.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nextra").await
            }
            Kind::ShortLength | Kind::NoKeepalive | Kind::BadChunk => Err(End::Fault),
            _ => Ok(()),
        }
    }

    /// Sends nothing until the fault is over.
    async fn stall(&mut self) -> Result<(), End> {
        let epoch = self.replica.fault_epoch.get();
        while self.replica.fault_epoch.get() == epoch {
            let look_us = self.replica.clock.now_us() + STALL_LOOK.as_micros() as u64;
            self.wait(Some(look_us), |_| Poll::Pending).await?;
        }
        Ok(())
    }

    fn reset(&mut self) -> End {
        self.stream.reset_on_close();
        End::Fault
    }

    /// Sends a part of `self.out`, cut as the fault will have it.
    async fn put(&mut self, from: usize, to: usize) -> Result<(), End> {
        let bytes = self.out.get(from..to).unwrap_or_default();
        let (stream, fault) = (&mut self.stream, self.fault.as_deref());
        let kind = fault.map_or(Kind::None, |f| f.kind);
        if !matches!(kind, Kind::Trickle | Kind::Split) {
            return stream.send_all(bytes).await.map_err(|_| End::Client);
        }
        let split = kind == Kind::Split;
        let delay_ms = fault.and_then(|f| f.delay_ms).unwrap_or(u64::from(split));
        let mut rest = bytes;
        while !rest.is_empty() {
            let cut = if split { fastrand::usize(1..=rest.len()) } else { 1 };
            let (piece, later) = rest.split_at(cut);
            stream.send_all(piece).await.map_err(|_| End::Client)?;
            rest = later;
            if delay_ms > 0 {
                net::sleep(Duration::from_millis(delay_ms)).await;
            }
        }
        Ok(())
    }

    /// Whether the client may have more to say before it was answered.
    pub(super) fn ahead_bytes_max() -> usize {
        AHEAD_BYTES_MAX
    }
}

/// Where the chunk begins within its room: the room is zero before the size.
fn chunk_size_at(framed: &[u8]) -> usize {
    framed.iter().take(CHUNK_ROOM).position(|&b| b != 0).unwrap_or(CHUNK_ROOM)
}
