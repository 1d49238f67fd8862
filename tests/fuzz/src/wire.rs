//! Drives `http1` as a connection does, without a socket: bytes in the given reads, a transcript
//! out. Used by the fuzz targets and by the tests of the wire.

use expedite::http1::{
    BodyLength, ChunkTracker, HeadError, HeadScanner, PieceKind, RequestHead, ResponseBody,
    ResponseHead, parse_request, parse_response,
};

/// Larger bodies are refused, as the gateway does.
const BODY_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// One thing that a connection learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A request with its whole body; `raw` is all of its bytes, the head first.
    Request { head: RequestHead, raw: Vec<u8>, body: Vec<u8> },
    /// A response with its whole body, or with what came of a body that only a close ends.
    Response { head: ResponseHead, body: Vec<u8> },
    /// The head or chunk framing was refused; nothing is read after it.
    Refused { status: u16, reason: &'static str },
    /// The body is larger than accepted; nothing is read after it.
    TooLarge,
    /// The message says that the connection closes: bytes after it are not read.
    Closed,
    /// The bytes ended within a head or, if true, within a body.
    Incomplete { in_body: bool },
}

impl Event {
    /// The status that the event earns, 200 for a message, 0 for none.
    pub(crate) fn status(&self) -> u16 {
        match self {
            Event::Request { .. } | Event::Response { .. } => 200,
            Event::Refused { status, .. } => *status,
            Event::TooLarge => 413,
            Event::Closed | Event::Incomplete { .. } => 0,
        }
    }
}

/// The status of a refused head.
pub(crate) fn status_of(error: HeadError) -> u16 {
    match error {
        HeadError::BadRequest(_) => 400,
        HeadError::TargetTooLong => 414,
        HeadError::ExpectationFailed => 417,
        HeadError::Misdirected => 421,
        HeadError::HeadTooLarge => 431,
        HeadError::MethodUnknown | HeadError::CodingUnsupported => 501,
        HeadError::VersionUnsupported => 505,
    }
}

/// Which side sends the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// Bytes are requests.
    Client,
    /// Bytes are responses, to a request whose method is HEAD if true.
    Upstream { to_head: bool },
}

enum Head {
    Request(RequestHead),
    Response(ResponseHead),
}

enum Body {
    Length(u64),
    Chunked(ChunkTracker),
    UntilClose,
}

/// A message of which the head is read.
struct Message {
    head: Head,
    body: Body,
    raw: Vec<u8>,
    data: Vec<u8>,
}

/// A connection in the middle of things.
struct Connection {
    sender: Sender,
    buf: Vec<u8>,
    scanner: HeadScanner,
    message: Option<Message>,
    events: Vec<Event>,
    ended: bool,
}

/// What comes of `bytes`, read up to each of `cuts` (ascending) in turn and then to the end.
pub(crate) fn transcript(sender: Sender, bytes: &[u8], cuts: &[usize]) -> Vec<Event> {
    let scanner = match sender {
        Sender::Client => HeadScanner::request(),
        Sender::Upstream { .. } => HeadScanner::response(),
    };
    let (buf, events) = (Vec::new(), Vec::new());
    let mut connection = Connection { sender, buf, scanner, message: None, events, ended: false };
    let mut start = 0;
    for &cut in cuts.iter().chain([&bytes.len()]) {
        connection.buf.extend_from_slice(&bytes[start..cut]);
        start = cut;
        while !connection.ended && connection.progress() {}
    }
    connection.finish()
}

impl Connection {
    /// One step; false if more bytes are needed.
    fn progress(&mut self) -> bool {
        match self.message.take() {
            None => self.read_head(),
            Some(message) => self.read_body(message),
        }
    }

    fn refuse(&mut self, status: u16, reason: &'static str) -> bool {
        self.events.push(Event::Refused { status, reason });
        self.ended = true;
        false
    }

    fn read_head(&mut self) -> bool {
        if self.buf.is_empty() {
            return false;
        }
        let len = match self.scanner.advance(&self.buf) {
            Ok(Some(len)) => len,
            Ok(None) => return false,
            Err(error) => {
                assert_eq!(self.scanner.advance(&self.buf), Err(error), "an error stays");
                return self.refuse(status_of(error), error.reason());
            }
        };
        assert_eq!(self.scanner.advance(&self.buf), Ok(Some(len)), "an end stays");
        self.scanner.reset();
        let raw: Vec<u8> = self.buf.drain(..len).collect();
        let parsed = match self.sender {
            Sender::Client => parse_request(&raw).map(|head| {
                let body = match head.body {
                    BodyLength::None => Body::Length(0),
                    BodyLength::Length(length) => Body::Length(length),
                    BodyLength::Chunked => Body::Chunked(ChunkTracker::request()),
                };
                (Head::Request(head), body)
            }),
            Sender::Upstream { to_head } => parse_response(&raw, to_head).map(|head| {
                let body = match head.body {
                    ResponseBody::None => Body::Length(0),
                    ResponseBody::Length(length) => Body::Length(length),
                    ResponseBody::Chunked => Body::Chunked(ChunkTracker::response()),
                    ResponseBody::UntilClose => Body::UntilClose,
                };
                (Head::Response(head), body)
            }),
        };
        match parsed {
            Err(error) => self.refuse(status_of(error), error.reason()),
            Ok((_, Body::Length(length))) if length > BODY_BYTES_MAX => self.too_large(),
            Ok((head, body)) => {
                self.message = Some(Message { head, body, raw, data: Vec::new() });
                true
            }
        }
    }

    fn too_large(&mut self) -> bool {
        self.events.push(Event::TooLarge);
        self.ended = true;
        false
    }

    fn read_body(&mut self, mut message: Message) -> bool {
        let Message { body, raw, data, .. } = &mut message;
        let done = match body {
            Body::Length(left) => {
                let len = self.buf.len().min(*left as usize);
                data.extend_from_slice(&self.buf[..len]);
                raw.extend(self.buf.drain(..len));
                *left -= len as u64;
                *left == 0
            }
            Body::UntilClose => {
                data.append(&mut self.buf);
                false
            }
            Body::Chunked(tracker) => {
                while !self.buf.is_empty() && !tracker.is_done() {
                    let piece = match tracker.next(&self.buf) {
                        Ok(piece) => piece,
                        Err(error) => return self.refuse(400, error.reason()),
                    };
                    assert!(piece.len > 0 && piece.len <= self.buf.len(), "progress");
                    assert_eq!(piece.kind == PieceKind::End, tracker.is_done());
                    if piece.kind == PieceKind::Data {
                        data.extend_from_slice(&self.buf[..piece.len]);
                    }
                    raw.extend(self.buf.drain(..piece.len));
                    if data.len() as u64 + tracker.data_left() > BODY_BYTES_MAX {
                        return self.too_large();
                    }
                }
                tracker.is_done()
            }
        };
        match done {
            true => self.deliver(message),
            false => self.message = Some(message),
        }
        done
    }

    fn deliver(&mut self, message: Message) {
        let Message { head, raw, data: body, .. } = message;
        let (event, keep_alive) = match head {
            Head::Request(head) => {
                let keep_alive = head.keep_alive;
                (Event::Request { head, raw, body }, keep_alive)
            }
            Head::Response(head) => {
                let keep_alive = head.keep_alive;
                (Event::Response { head, body }, keep_alive)
            }
        };
        self.events.push(event);
        if !keep_alive {
            self.events.push(Event::Closed);
            self.ended = true;
        }
    }

    /// The sender closes.
    fn finish(mut self) -> Vec<Event> {
        match self.message.take() {
            _ if self.ended => {}
            Some(message) if matches!(message.body, Body::UntilClose) => self.deliver(message),
            Some(_) => self.events.push(Event::Incomplete { in_body: true }),
            None if !self.buf.is_empty() => self.events.push(Event::Incomplete { in_body: false }),
            None => {}
        }
        self.events
    }
}

/// Places to cut `len` bytes at, one at a time: all, or 64 spread ones over 4 KiB.
pub(crate) fn places(len: usize) -> Vec<usize> {
    match len {
        0..=4096 => (1..len).collect(),
        _ => (1..=64).map(|n| n * len / 65).collect(),
    }
}

/// Reads a complete chunked body as plainly as can be: the payload, and what follows the body.
/// `None` if it cannot. Extensions and trailers are skipped unread.
pub(crate) fn decode_chunked(mut bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    fn line<'b>(bytes: &mut &'b [u8]) -> Option<&'b [u8]> {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
        let line = &bytes[..end];
        *bytes = &bytes[end + 2..];
        Some(line)
    }
    let mut data = Vec::new();
    loop {
        let size = line(&mut bytes)?.split(|&byte| byte == b';').next()?;
        let size = u64::from_str_radix(std::str::from_utf8(size).ok()?, 16).ok()?;
        if size == 0 {
            while !line(&mut bytes)?.is_empty() {}
            return Some((data, bytes));
        }
        data.extend_from_slice(bytes.get(..usize::try_from(size).ok()?)?);
        bytes = bytes[size as usize..].strip_prefix(b"\r\n")?;
    }
}
