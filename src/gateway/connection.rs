//! One client connection: read a head, serve it, use the connection again or close it.
//!
//! Runs as one task on its core, under the panic fence of `core.rs`. Time limits: the head must be
//! there `client_head_ms` after its first byte, and an idle connection is closed after
//! `client_idle_ms`.

use std::future::poll_fn;
use std::io::IoSlice;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::bodies::Share;
use super::buffer::Buffer;
use super::comments::Comments;
use super::core::Core;
use super::reply::Failure;
use super::request;
use super::sweep::Deadline;
use crate::admin::Stage;
use crate::http1::{HeadError, HeadScanner, RequestHead, parse_request};
use crate::net::{HandshakeError, Identity, SEND_SLICES_MAX, Stream, Wire, fill_slices};
use crate::runtime::clock;

/// Bytes of later requests that are kept while one is served; beyond it the client is no longer
/// read from until its answer is out.
const PIPELINED_BYTES_MAX: usize = 16 * 1024;
/// Bytes that are read and thrown away after a last answer, so that it is not lost in a reset.
const LINGER_BYTES_MAX: usize = 64 * 1024;
/// Time for that.
const LINGER_MS: u64 = 1_000;
/// How often an idle connection looks whether it should close.
const IDLE_LOOK_MS: u64 = 1_000;
/// A client that takes no byte of its answer for this long has gone.
pub(super) const WRITE_STALL_MS: u64 = 30_000;
/// Most that is received before a head is complete; the scanner refuses a head long before.
const REQUEST_HEAD_READ_MAX: usize = 64 * 1024;

/// What happens to the connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The next request may follow.
    KeepAlive,
    /// An answer was sent; nothing follows it.
    Close,
    /// A part of an answer was sent, and nothing may say that it was all.
    Incomplete,
    /// The same where the connection's end is the answer's: it must be none in order.
    Reset,
    /// The client is gone, or must see a cut: end at once.
    Cut,
}

/// A client: its socket, what it has sent, and the time limit of the phase that it is in.
pub(super) struct Client {
    pub stream: Wire,
    pub inbox: Buffer,
    pub deadline: Deadline,
    /// Bytes of the request under way at the start of the inbox; kept until its commit point,
    /// since an attempt elsewhere sends them again.
    pub request_bytes: usize,
    /// The body of that request was taken out of the inbox.
    pub body_taken: bool,
    /// What that body takes of the memory for bodies.
    pub share: Option<Share>,
    /// How long its body was waited for.
    pub waited_ns: u64,
    /// What it hears while its stream is silent, if it is to hear anything.
    pub comments: Option<Box<Comments>>,
    /// Bytes that its socket has taken, over all answers.
    pub sent_bytes: u64,
    /// The client's direction has ended and that counts as leaving.
    gone: bool,
    /// When that was noticed.
    gone_ns: Option<u64>,
    /// The client has ended its direction but still reads (`half_close = "allow"`).
    half_closed: bool,
}

impl Client {
    pub(super) fn new(core: &Core, stream: Wire) -> Client {
        Client {
            stream,
            inbox: Buffer::default(),
            deadline: core.sweep.deadline(),
            request_bytes: 0,
            body_taken: false,
            share: None,
            waited_ns: 0,
            comments: None,
            sent_bytes: 0,
            gone: false,
            gone_ns: None,
            half_closed: false,
        }
    }

    /// Ready when the client has gone. Until then keeps what else it sends, within bounds, and
    /// tells it that its stream is only silent.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>, core: &Core) -> Poll<()> {
        if self.poll_left(cx, core).is_ready() {
            return Poll::Ready(());
        }
        let Some(comments) = &mut self.comments else { return Poll::Pending };
        let (stream, sent_bytes) = (&mut self.stream, &mut self.sent_bytes);
        if core.sweep.ended() || comments.poll(cx, stream, sent_bytes).is_ok() {
            return Poll::Pending;
        }
        self.left();
        Poll::Ready(())
    }

    /// As [`poll_gone`](Self::poll_gone), without a word to the client.
    fn poll_left(&mut self, cx: &mut Context<'_>, core: &Core) -> Poll<()> {
        while !self.gone {
            let bytes_max = self.request_bytes.saturating_add(PIPELINED_BYTES_MAX);
            if self.half_closed || self.inbox.len() >= bytes_max {
                return Poll::Pending;
            }
            if self.stream.poll_readable(cx).is_pending() {
                return Poll::Pending;
            }
            self.receive(core, bytes_max);
        }
        Poll::Ready(())
    }

    /// Has it gone, by what its socket says at this moment?
    pub(super) fn has_gone(&mut self, core: &Core) -> bool {
        let bytes_max = self.request_bytes.saturating_add(PIPELINED_BYTES_MAX);
        if !self.gone && !self.half_closed && self.inbox.len() < bytes_max {
            self.receive(core, bytes_max);
        }
        self.gone
    }

    /// Receives what is there, up to `bytes_max` in the inbox, and notes an end.
    fn receive(&mut self, core: &Core, bytes_max: usize) {
        let space = self.inbox.space(&core.buffers, bytes_max);
        if space.is_empty() {
            return; // To receive nothing would look like an end.
        }
        match self.stream.try_recv(space) {
            Ok(None) => {}
            Ok(Some(0)) if core.published().half_close_allowed => self.half_closed = true,
            Ok(Some(0)) | Err(_) => self.left(),
            Ok(Some(n)) => self.inbox.received(n),
        }
    }

    /// The client has gone: notes it, and when.
    pub(super) fn left(&mut self) {
        self.gone = true;
        self.gone_ns.get_or_insert_with(clock::now_ns);
    }

    /// When the client's going was noticed, on the clock of [`clock::now_ns`].
    pub(super) fn gone_ns(&self) -> Option<u64> {
        self.gone_ns
    }

    /// Waits for more bytes of a head or body, up to `bytes_max` in the inbox. False: there is no
    /// room, the client's direction has ended ([`ended`](Self::ended)), or the time limit has
    /// passed.
    pub(super) async fn more(&mut self, core: &Core, bytes_max: usize) -> bool {
        poll_fn(|cx| {
            if self.gone || self.half_closed || self.inbox.len() >= bytes_max {
                return Poll::Ready(false);
            }
            let before = self.inbox.len();
            while self.stream.poll_readable(cx).is_ready() {
                self.receive(core, bytes_max);
                if self.gone || self.half_closed || self.inbox.len() > before {
                    return Poll::Ready(self.inbox.len() > before);
                }
            }
            if self.deadline.poll(cx).is_ready() { Poll::Ready(false) } else { Poll::Pending }
        })
        .await
    }

    /// Has the client ended its direction?
    pub(super) fn ended(&self) -> bool {
        self.gone || self.half_closed
    }

    /// The request's bytes are no longer needed.
    pub(super) fn forget_request(&mut self, core: &Core) {
        self.inbox.consume(std::mem::take(&mut self.request_bytes));
        self.body_taken = false;
        self.share = None;
        self.inbox.release(&core.buffers);
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// As [`send_pieces`](Self::send_pieces).
    pub(super) async fn send(&mut self, core: &Core, bytes: &[u8]) -> Result<(), Failure> {
        self.send_pieces(core, || std::iter::once(bytes)).await
    }

    /// Sends all pieces from where they lie, as much at once as the socket takes.
    ///
    /// # Errors
    /// The client goes, or reads nothing for [`WRITE_STALL_MS`].
    pub(super) async fn send_pieces<'p, P>(
        &mut self,
        core: &Core,
        pieces: impl Fn() -> P,
    ) -> Result<(), Failure>
    where
        P: Iterator<Item = &'p [u8]>,
    {
        let total: usize = pieces().map(<[u8]>::len).sum();
        let (mut sent, mut blocked) = (0, false);
        let all_sent = poll_fn(|cx| {
            loop {
                let stream = &mut self.stream;
                let taken = match self.comments.as_deref_mut().filter(|it| it.owes()) {
                    Some(comments) => {
                        comments.poll_send(cx, stream, &mut self.sent_bytes).map_ok(|()| 0)
                    }
                    None if sent >= total => return Poll::Ready(true),
                    None => {
                        let mut slices = [IoSlice::new(&[]); SEND_SLICES_MAX];
                        let slices = fill_slices(&mut slices, pieces(), sent);
                        stream.poll_send_vectored(cx, slices)
                    }
                };
                match taken {
                    Poll::Ready(Ok(n)) => {
                        sent = sent.saturating_add(n);
                        self.sent_bytes = self.sent_bytes.saturating_add(n as u64);
                        blocked = false;
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(false),
                    Poll::Pending => {
                        if !blocked {
                            blocked = true;
                            self.deadline.set(WRITE_STALL_MS);
                        }
                        let over = self.poll_left(cx, core).is_ready()
                            || self.deadline.poll(cx).is_ready();
                        return if over { Poll::Ready(false) } else { Poll::Pending };
                    }
                }
            }
        })
        .await;
        if all_sent {
            return Ok(());
        }
        self.left();
        Err(Failure::ClientGone)
    }
}

enum HeadRead {
    Complete(RequestHead),
    Refused(HeadError),
    /// The head did not arrive in time.
    Late,
    /// Nothing of a request was there: idle, gone or draining.
    Closed,
}

/// Serves a connection to its end.
pub(super) async fn serve(core: Rc<Core>, stream: Stream) {
    let stream = match core.identity() {
        None => Wire::Plain(stream),
        // In a box: what only TLS needs takes no room in a plain connection's task.
        Some(identity) => match Box::pin(greet(&core, &identity, stream)).await {
            Some(wire) => wire,
            None => return,
        },
    };
    let mut client = Client::new(&core, stream);
    loop {
        let next = match read_head(&core, &mut client).await {
            HeadRead::Complete(head) => request::serve_request(&core, &mut client, &head).await,
            HeadRead::Refused(error) => {
                request::refuse(&core, &mut client, Failure::Head(error)).await
            }
            HeadRead::Late => request::refuse(&core, &mut client, Failure::HeadIncomplete).await,
            HeadRead::Closed => {
                client.stream.close_notify();
                Next::Cut
            }
        };
        match next {
            Next::KeepAlive => {}
            Next::Close => {
                client.stream.close_notify();
                return linger(&core, &mut client).await;
            }
            Next::Incomplete => return linger(&core, &mut client).await,
            Next::Reset => return client.stream.reset_on_close(),
            Next::Cut => return,
        }
    }
}

/// Begins TLS within the time that a head has. `None`: the client was left, after an answer in
/// plain HTTP if that is what it spoke.
async fn greet(core: &Rc<Core>, identity: &Identity, stream: Stream) -> Option<Wire> {
    let mut wire = Wire::Tls(Box::new(identity.accept(stream).ok()?));
    let limit_ms = core.published().timeouts.client_head_ms;
    let (deadline, mut waited_ms) = (core.sweep.deadline(), 0);
    let plain_http = loop {
        // Looked at once a second, so that a drain does not wait for it.
        let left_ms = limit_ms.saturating_sub(waited_ms);
        let step_ms = if limit_ms == 0 { IDLE_LOOK_MS } else { IDLE_LOOK_MS.min(left_ms) };
        deadline.set(step_ms);
        let shaken = poll_fn(|cx| match wire.poll_handshake(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => deadline.poll(cx).map(|()| None),
        });
        match shaken.await {
            Some(Ok(())) => return Some(wire),
            Some(Err(error)) => break matches!(error, HandshakeError::PlainHttp),
            None => waited_ms = waited_ms.saturating_add(step_ms),
        }
        if core.draining() || (limit_ms != 0 && waited_ms >= limit_ms) {
            break false;
        }
    };
    core.metrics.refused_handshakes.inc();
    if plain_http {
        let mut client = Client::new(core, wire.into_plain());
        request::refuse(core, &mut client, Failure::PlainHttp).await;
        linger(core, &mut client).await;
    }
    None
}

async fn read_head(core: &Core, client: &mut Client) -> HeadRead {
    let mut scanner = HeadScanner::request();
    let timeouts = core.published().timeouts;
    let (mut idle_ms, mut spent_ns): (u64, u64) = (0, 0);
    loop {
        if !client.inbox.is_empty() {
            let begun_ns = clock::now_ns();
            let scanned = scanner.advance(client.inbox.filled());
            let spent = || clock::now_ns().saturating_sub(begun_ns);
            match scanned {
                Ok(Some(n)) => {
                    let head = client.inbox.filled().get(..n).unwrap_or_default();
                    let parsed = parse_request(head);
                    core.metrics.stage(Stage::Head).observe_ns(spent_ns.saturating_add(spent()));
                    return match parsed {
                        Ok(head) => HeadRead::Complete(head),
                        Err(error) => HeadRead::Refused(error),
                    };
                }
                Ok(None) => spent_ns = spent_ns.saturating_add(spent()),
                Err(error) => return HeadRead::Refused(error),
            }
            if idle_ms != u64::MAX {
                idle_ms = u64::MAX;
                client.deadline.set(timeouts.client_head_ms);
            }
        } else {
            // Looked at once a second, so that a drain does not wait for idle connections.
            client.inbox.release(&core.buffers);
            client.deadline.set(IDLE_LOOK_MS);
        }
        if client.more(core, REQUEST_HEAD_READ_MAX).await {
            continue;
        }
        if !client.inbox.is_empty() {
            return if client.ended() { HeadRead::Closed } else { HeadRead::Late };
        }
        idle_ms = idle_ms.saturating_add(IDLE_LOOK_MS);
        let limit = timeouts.client_idle_ms;
        if client.ended() || core.closes_idle() || (limit != 0 && idle_ms >= limit) {
            return HeadRead::Closed;
        }
    }
}

/// After a last answer: ends our direction and reads on for a moment, because a close with unread
/// bytes would turn into a reset that may overtake the answer.
async fn linger(core: &Core, client: &mut Client) {
    client.stream.shut_write();
    client.deadline.set(LINGER_MS);
    let mut left = LINGER_BYTES_MAX;
    while left > 0 && !client.ended() {
        client.inbox.truncate(0);
        if !client.more(core, REQUEST_HEAD_READ_MAX).await {
            return;
        }
        left = left.saturating_sub(client.inbox.len());
    }
}
