//! ZMTP 3, the wire of ZeroMQ, without I/O: bytes in, messages out, for what the engines' KV events
//! need (RFC 23 and 37, mechanism NULL, sockets PUB, SUB, ROUTER and DEALER).
//!
//! Owns one connection's unread bytes. Ours rather than a library's for its limits: `zeromq` 0.7
//! reserves whatever length a frame's head claims, so that nine bytes of a confused peer end the
//! process. Here a message has a largest size and a largest number of frames, and no byte of it is
//! copied: frames are slices of the buffer. Pure; whatever a peer sends ends in a message or an
//! error.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::ops::Range;

/// Largest message with all its frames: a step that fills a million tokens' blocks makes 6 MiB.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Most frames of a message: a replayed event has four, a router's peer one more.
pub const FRAMES_MAX: usize = 8;
/// Largest command: READY with an identity and a few properties.
const COMMAND_BYTES_MAX: usize = 4096;
/// A buffer that has held a large message is given back down to this.
const BUFFER_BYTES_KEPT: usize = 256 << 10;
const GREETING_BYTES: usize = 64;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What kind of socket a side is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Receives what it has subscribed to.
    Sub,
    /// Publishes.
    Pub,
    /// Asks and is answered by any number of messages.
    Dealer,
    /// Answers dealers.
    Router,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Sub => "SUB",
            Role::Pub => "PUB",
            Role::Dealer => "DEALER",
            Role::Router => "ROUTER",
        }
    }

    /// May the two talk (RFC 23, "The Socket-Type Property")?
    fn talks_to(self, peer: &[u8]) -> bool {
        let peers: &[&str] = match self {
            Role::Sub => &["PUB", "XPUB"],
            Role::Pub => &["SUB", "XSUB"],
            Role::Dealer => &["ROUTER", "DEALER", "REP"],
            Role::Router => &["DEALER", "ROUTER", "REQ"],
        };
        peers.iter().any(|name| name.as_bytes() == peer)
    }
}

/// Why a connection is of no further use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// The peer does not greet as ZMTP 3.
    NotZmtp,
    /// It wants a mechanism other than NULL.
    Mechanism,
    /// Its socket is of a kind that does not talk to ours: the wrong port.
    WrongPeer,
    /// It said ERROR.
    Refused,
    /// A frame or command is malformed.
    Malformed,
    /// A message is larger, or of more frames, than we take.
    TooLarge,
}

impl Error {
    /// For logs.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Error::NotZmtp => "the peer does not speak ZMTP 3",
            Error::Mechanism => "the peer wants a security mechanism",
            Error::WrongPeer => "the peer's socket is of another kind: is it the right port?",
            Error::Refused => "the peer refused the connection",
            Error::Malformed => "a malformed frame",
            Error::TooLarge => "a message larger than accepted",
        }
    }
}

/// What a peer sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Incoming<'b> {
    /// The handshake is over: messages may be sent.
    Ready,
    /// A message.
    Message(Message<'b>),
    /// A heartbeat, to be answered with [`pong`] of these bytes.
    Ping(&'b [u8]),
}

/// One message: its frames, as slices of the connection's buffer.
#[derive(Debug, PartialEq, Eq)]
pub struct Message<'b> {
    bytes: &'b [u8],
    frames: [Range<usize>; FRAMES_MAX],
    count: usize,
}

impl<'b> Message<'b> {
    /// Its frames in order; at least one.
    pub fn frames(&self) -> impl Iterator<Item = &'b [u8]> {
        let bytes = self.bytes;
        let all = self.frames.iter().take(self.count);
        all.map(move |range| bytes.get(range.clone()).unwrap_or_default())
    }

    /// Its frames when there are exactly `N`.
    #[must_use]
    pub fn exactly<const N: usize>(&self) -> Option<[&'b [u8]; N]> {
        let mut all = self.frames();
        let found = std::array::from_fn(|_| all.next().unwrap_or_default());
        (self.count == N).then_some(found)
    }
}

/// One side of a connection. Feed it by [`Connection::buffer`], then ask
/// [`Connection::incoming`] until it has nothing more.
pub struct Connection {
    role: Role,
    state: State,
    buffer: Vec<u8>,
    /// Bytes of the buffer that are done with.
    taken: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Greeting,
    Handshake,
    Open,
}

impl Connection {
    /// A connection before its first byte; the peer is to be sent [`opening`].
    #[must_use]
    pub fn new(role: Role) -> Connection {
        Connection { role, state: State::Greeting, buffer: Vec::new(), taken: 0 }
    }

    /// Where bytes that were read are to be appended. What has been taken is gone from it.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.buffer.drain(..self.taken.min(self.buffer.len()));
        self.taken = 0;
        if self.buffer.is_empty() && self.buffer.capacity() > BUFFER_BYTES_KEPT {
            self.buffer.shrink_to(BUFFER_BYTES_KEPT);
        }
        &mut self.buffer
    }

    /// What comes next, if all of it is there.
    ///
    /// # Errors
    /// The connection is of no further use.
    pub fn incoming(&mut self) -> Result<Option<Incoming<'_>>, Error> {
        loop {
            let rest = self.buffer.get(self.taken..).unwrap_or_default();
            if self.state == State::Greeting {
                let Some(greeting) = rest.get(..GREETING_BYTES) else {
                    // The first byte tells a stranger at once.
                    return if rest.first().is_none_or(|b| *b == 0xff) {
                        Ok(None)
                    } else {
                        Err(Error::NotZmtp)
                    };
                };
                check_greeting(greeting)?;
                self.taken += GREETING_BYTES;
                self.state = State::Handshake;
                continue;
            }
            let Some(found) = scan(rest)? else { return Ok(None) };
            let start = self.taken;
            self.taken += found.bytes;
            let bytes = self.buffer.get(start..).unwrap_or_default();
            if !found.command {
                if self.state != State::Open {
                    return Err(Error::Malformed);
                }
                let Found { frames, count, .. } = found;
                return Ok(Some(Incoming::Message(Message { bytes, frames, count })));
            }
            let body = found.frames.first().and_then(|range| bytes.get(range.clone()));
            let (name, data) = command_parts(body.unwrap_or_default()).ok_or(Error::Malformed)?;
            match (name, self.state) {
                (b"READY", State::Handshake) => {
                    check_ready(self.role, data)?;
                    self.state = State::Open;
                    return Ok(Some(Incoming::Ready));
                }
                (b"ERROR", _) => return Err(Error::Refused),
                (b"PING", State::Open) => {
                    // Two bytes of time to live, then what the answer repeats.
                    return Ok(Some(Incoming::Ping(data.get(2..).unwrap_or_default())));
                }
                (_, State::Open) => {}
                _ => return Err(Error::Malformed),
            }
        }
    }
}

/// A whole message or command at the start of the bytes.
struct Found {
    bytes: usize,
    command: bool,
    frames: [Range<usize>; FRAMES_MAX],
    count: usize,
}

fn scan(bytes: &[u8]) -> Result<Option<Found>, Error> {
    let mut found =
        Found { bytes: 0, command: false, frames: std::array::from_fn(|_| 0..0), count: 0 };
    loop {
        let rest = bytes.get(found.bytes..).unwrap_or_default();
        let Some(&flags) = rest.first() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 {
            return Err(Error::Malformed);
        }
        let (head, length) = if flags & LONG != 0 {
            let Some(length) = rest.get(1..9).and_then(|b| b.try_into().ok()) else {
                return Ok(None);
            };
            (9, usize::try_from(u64::from_be_bytes(length)).map_err(|_| Error::TooLarge)?)
        } else {
            let Some(&length) = rest.get(1) else { return Ok(None) };
            (2, usize::from(length))
        };
        let command = flags & COMMAND != 0;
        let most = if command { COMMAND_BYTES_MAX } else { MESSAGE_BYTES_MAX };
        // Told before the body is there: a length that is only claimed reserves nothing.
        if length > most || found.bytes.saturating_add(length) > MESSAGE_BYTES_MAX {
            return Err(Error::TooLarge);
        }
        if command && (found.count > 0 || flags & MORE != 0) {
            return Err(Error::Malformed);
        }
        let start = found.bytes + head;
        let end = start + length;
        *found.frames.get_mut(found.count).ok_or(Error::TooLarge)? = start..end;
        if end > bytes.len() {
            return Ok(None);
        }
        found.count += 1;
        found.bytes = end;
        if flags & MORE == 0 {
            found.command = command;
            return Ok(Some(found));
        }
    }
}

/// Signature, version 3 or later, mechanism NULL (RFC 23, "The Greeting").
fn check_greeting(greeting: &[u8]) -> Result<(), Error> {
    let signed = greeting.first() == Some(&0xff) && greeting.get(9) == Some(&0x7f);
    if !signed || greeting.get(10).is_none_or(|major| *major < 3) {
        return Err(Error::NotZmtp);
    }
    let mechanism = greeting.get(12..32).unwrap_or_default();
    let padded = mechanism.strip_prefix(b"NULL").is_some_and(|rest| rest.iter().all(|b| *b == 0));
    if padded { Ok(()) } else { Err(Error::Mechanism) }
}

fn command_parts(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = body.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

/// Properties of READY: name (a byte of length), value (four).
fn check_ready(role: Role, mut data: &[u8]) -> Result<(), Error> {
    while !data.is_empty() {
        let (name, rest) = command_parts(data).ok_or(Error::Malformed)?;
        let (length, rest) = rest.split_first_chunk::<4>().ok_or(Error::Malformed)?;
        let length = u32::from_be_bytes(*length) as usize;
        let (value, rest) = rest.split_at_checked(length).ok_or(Error::Malformed)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") && !role.talks_to(value) {
            return Err(Error::WrongPeer);
        }
        data = rest;
    }
    Ok(())
}

/// What each side sends first: greeting and READY, which need not wait for the peer's.
#[must_use]
pub fn opening(role: Role) -> Vec<u8> {
    let mut out = vec![0; GREETING_BYTES];
    for (place, byte) in out.iter_mut().zip(*b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL") {
        *place = byte;
    }
    let mut ready = Vec::with_capacity(48);
    property(&mut ready, "Socket-Type", role.name().as_bytes());
    if role == Role::Dealer {
        property(&mut ready, "Identity", b"");
    }
    command(&mut out, "READY", &ready);
    out
}

fn property(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(&(value.len() as u32).to_be_bytes());
    out.extend_from_slice(value);
}

fn command(out: &mut Vec<u8>, name: &str, data: &[u8]) {
    let mut body = Vec::with_capacity(1 + name.len() + data.len());
    body.push(name.len() as u8);
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(data);
    head(out, COMMAND, body.len());
    out.extend_from_slice(&body);
}

fn head(out: &mut Vec<u8>, flags: u8, length: usize) {
    match u8::try_from(length) {
        Ok(length) => out.extend_from_slice(&[flags, length]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
}

/// Appends a message of `frames`.
pub fn message(out: &mut Vec<u8>, frames: &[&[u8]]) {
    for (i, frame) in frames.iter().enumerate() {
        head(out, if i + 1 < frames.len() { MORE } else { 0 }, frame.len());
        out.extend_from_slice(frame);
    }
}

/// Appends a subscription to topics that begin with `topic` (the form of ZMTP 3.0, which later ones
/// take too).
pub fn subscribe(out: &mut Vec<u8>, topic: &[u8]) {
    let mut body = Vec::with_capacity(1 + topic.len());
    body.push(1);
    body.extend_from_slice(topic);
    message(out, &[&body]);
}

/// Appends the answer to a heartbeat.
pub fn pong(out: &mut Vec<u8>, context: &[u8]) {
    command(out, "PONG", context.get(..16).unwrap_or(context));
}

#[cfg(test)]
#[path = "zmtp_tests.rs"]
mod tests;
