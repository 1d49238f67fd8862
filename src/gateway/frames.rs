//! From the engine's bytes to what the client gets, without I/O: events judged, chunk framing
//! passed through, the usage event that we asked for taken out.
//!
//! A stretch of whole chunks that holds whole events goes out exactly as it was received, framing
//! included: that is how vLLM writes (one event, one chunk). Only where chunk ends and event ends
//! do not meet, or an event must be taken out of a shared chunk, is the payload framed anew.
//!
//! An event goes out when it is complete, so a torn one never reaches a client; an event larger
//! than [`HOLD_BYTES_MAX`] goes out in parts, because memory is bounded: it is judged by its name
//! and its last bytes. (The last event of `/v1/responses` repeats the whole answer.)

use std::ops::Range;

use super::exchange::ENDED_EARLY;
use super::openings::{Opened, Openings};
use crate::http1::{ChunkTracker, PieceKind, write};
use crate::openai::{
    Endpoint, EngineError, EventFacts, EventKind, EventReader, Opener, Usage, json,
};
use crate::sse::{self, EventScanner};

/// Bytes of an incomplete event that are held back. A delta has some 250; with the buffer that it
/// was received into and our own framing, a stream stays below 128 KiB.
const HOLD_BYTES_MAX: usize = 32 * 1024;
/// What is kept of the end of a larger one: behind the usage come some settings of the request.
const TAIL_BYTES: usize = 8 * 1024;
/// The name of an event stands within so much of its beginning.
const NAME_BYTES_MAX: usize = 128;

/// How the engine frames the body.
pub(super) enum Incoming {
    /// `Transfer-Encoding: chunked`.
    Chunked(ChunkTracker),
    /// `Content-Length`, bytes left. (Wrong on an event stream, but seen.)
    Length(u64),
    /// Until the connection ends.
    UntilClose,
}

/// Whether the client's side is chunked (HTTP/1.1) or ends with the connection (HTTP/1.0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outgoing {
    Chunked,
    Plain,
}

/// A stretch of bytes to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// Of the received buffer.
    Raw(Range<usize>),
    /// Of [`Frames::own`].
    Own(Range<usize>),
}

/// Why a stream is over.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// Complete: the terminal event was seen, or the body of an endpoint without one has ended.
    Complete,
    /// The engine reported an error in an event; its code and message if it gave any. `told`: by
    /// the event with which such a stream ends, so that its client knows.
    EngineError { code: Option<u16>, message: String, told: bool },
    /// `finish_reason: "abort"`: the engine was shut down under the request.
    Aborted,
    /// The body ended without the terminal event.
    Truncated(&'static str),
    /// An event or line is over its limit, which no other replica would help.
    OverLimit,
    /// It does not go on from what an earlier attempt's stream has opened.
    Unlike,
}

/// What was seen of a stream so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Events with content that were passed on.
    pub content_events: u64,
    /// Data events passed on, content or not.
    pub events: u64,
    /// The last complete usage that the engine gave.
    pub usage: Option<Usage>,
    /// The prompt's tokens as an opening event gave them: such an event knows of no answer yet.
    pub prompt_tokens: Option<u64>,
}

/// A payload piece: a range of the received buffer.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: usize,
    end: usize,
    pass: bool,
}

/// What is kept of an event that goes out in parts.
struct Large {
    name: Vec<u8>,
    /// Its last bytes.
    tail: Vec<u8>,
}

impl Large {
    /// Of the event that begins with these.
    fn beginning(parts: &[Part], buf: &[u8]) -> Large {
        let bytes = parts.iter().flat_map(|part| buf.get(part.start..part.end).unwrap_or(&[]));
        let line: Vec<u8> = bytes.take(NAME_BYTES_MAX).copied().collect();
        Large { name: sse::name(&line).unwrap_or_default().to_vec(), tail: Vec::new() }
    }

    fn remember(&mut self, parts: &[Part], buf: &[u8]) {
        for part in parts {
            let bytes = buf.get(part.start..part.end).unwrap_or_default();
            let last = bytes.get(bytes.len().saturating_sub(TAIL_BYTES)..).unwrap_or_default();
            self.tail.extend_from_slice(last);
            self.tail.drain(..self.tail.len().saturating_sub(TAIL_BYTES));
        }
    }
}

/// The state of one stream.
pub(super) struct Frames {
    incoming: Incoming,
    outgoing: Outgoing,
    scanner: EventScanner,
    reader: EventReader,
    take_usage_out: bool,
    /// Bytes of the buffer that were looked at.
    looked: usize,
    /// First byte of the buffer that is not yet in a segment.
    held: usize,
    /// Payload of complete events from `held` on.
    parts: Vec<Part>,
    /// Payload of the open event.
    open: Vec<Part>,
    /// `held` lies inside a chunk of the engine, or there are no chunks: no raw stretch possible.
    inside: bool,
    /// The open event, when it was already sent in part.
    large: Option<Box<Large>>,
    framing_ended: bool,
    /// The endpoint's streams end with an event of their own.
    has_terminal: bool,
    /// What opens the stream, here and in earlier attempts.
    pub openings: Openings,
    /// The data of the event that is the engine's error.
    pub error: Vec<u8>,
    /// Bytes framed by us since the last [`Frames::sent`].
    pub own: Vec<u8>,
    /// What to send, in order.
    pub segments: Vec<Segment>,
    pub seen: Seen,
    pub end: Option<End>,
    scratch: Vec<u8>,
    joined: Vec<u8>,
}

impl Frames {
    pub(super) fn new(
        incoming: Incoming,
        outgoing: Outgoing,
        endpoint: Endpoint,
        take_usage_out: bool,
    ) -> Frames {
        let inside = outgoing == Outgoing::Plain || !matches!(incoming, Incoming::Chunked(_));
        let framing_ended = matches!(incoming, Incoming::Length(0));
        Frames {
            incoming,
            outgoing,
            scanner: EventScanner::default(),
            reader: EventReader::new(endpoint),
            take_usage_out,
            looked: 0,
            held: 0,
            parts: Vec::with_capacity(8),
            open: Vec::with_capacity(4),
            inside,
            large: None,
            framing_ended,
            has_terminal: endpoint.ends_with_event(),
            openings: Openings::default(),
            error: Vec::new(),
            own: Vec::new(),
            segments: Vec::with_capacity(8),
            seen: Seen::default(),
            end: None,
            scratch: Vec::new(),
            joined: Vec::new(),
        }
    }

    /// Passes none of these on: the client has them from an earlier attempt.
    pub(super) fn skip(&mut self, opened: &[Opener]) {
        self.openings = Openings::behind(opened);
    }

    /// What was sent so far ends inside of an event.
    pub(super) fn within_event(&self) -> bool {
        self.large.is_some()
    }

    /// The engine's framing has ended cleanly: its connection can be used again.
    pub(super) fn framing_ended(&self) -> bool {
        self.framing_ended
    }

    /// The state of the chunk framing after a complete answer whose last bytes are still to come.
    pub(super) fn into_tail(self) -> Option<ChunkTracker> {
        match self.incoming {
            Incoming::Chunked(tracker) => Some(tracker),
            _ => None,
        }
    }

    /// Looks at what is new in `buf` and appends what may be sent to [`segments`](Self::segments).
    pub(super) fn scan(&mut self, buf: &[u8]) {
        while self.end.is_none() && !self.framing_ended {
            let rest = buf.get(self.looked..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            self.step(buf, rest);
        }
        self.flush(buf);
        if self.framing_ended {
            self.end_of_body();
        }
    }

    /// After the terminal event: reads on to the end of the engine's framing, sends nothing.
    pub(super) fn scan_tail(&mut self, buf: &[u8]) {
        while !self.framing_ended {
            let rest = buf.get(self.looked..).unwrap_or_default();
            let Incoming::Chunked(tracker) = &mut self.incoming else { break };
            // Payload after the terminal event: the first one wins, and the connection is spent.
            match tracker.next(rest) {
                Ok(piece) if piece.len > 0 && piece.kind != PieceKind::Data => {
                    self.looked += piece.len;
                    self.framing_ended = piece.kind == PieceKind::End;
                }
                _ => break,
            }
        }
        // Bytes behind the end belong to no request: the connection is spent too.
        if self.looked < buf.len() {
            self.framing_ended = false;
        }
    }

    /// The connection ended, or was reset.
    pub(super) fn closed(&mut self, reset: bool) {
        let may_end = matches!(self.incoming, Incoming::UntilClose) && !reset;
        if may_end && self.scanner.open_bytes() == 0 {
            self.end_of_body();
        }
        self.end.get_or_insert(End::Truncated(ENDED_EARLY));
    }

    /// Everything in the segments was sent: the first `n` bytes of the buffer are done with, where
    /// `n` is returned.
    pub(super) fn sent(&mut self) -> usize {
        self.segments.clear();
        self.own.clear();
        let done = std::mem::take(&mut self.held);
        self.looked = self.looked.saturating_sub(done);
        for part in self.parts.iter_mut().chain(self.open.iter_mut()) {
            part.start = part.start.saturating_sub(done);
            part.end = part.end.saturating_sub(done);
        }
        done
    }

    fn step(&mut self, buf: &[u8], rest: &[u8]) {
        let at = self.looked;
        match &mut self.incoming {
            Incoming::Chunked(tracker) => match tracker.next(rest) {
                Ok(piece) if piece.len > 0 => {
                    let boundary = tracker.at_chunk_boundary();
                    self.looked = at.saturating_add(piece.len);
                    match piece.kind {
                        PieceKind::Data => self.payload(buf, at, self.looked),
                        PieceKind::Framing => {}
                        PieceKind::End => self.framing_ended = true,
                    }
                    if boundary && self.scanner.open_bytes() == 0 {
                        self.close_group(buf);
                    }
                }
                _ => self.end = Some(End::Truncated("the engine's chunk framing is broken")),
            },
            Incoming::Length(left) => {
                let n = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left = left.saturating_sub(n as u64);
                self.framing_ended = *left == 0;
                self.looked = at.saturating_add(n);
                self.payload(buf, at, self.looked);
            }
            Incoming::UntilClose => {
                self.looked = buf.len();
                self.payload(buf, at, self.looked);
            }
        }
    }

    /// Payload `buf[at..to]`: finds the events in it.
    fn payload(&mut self, buf: &[u8], mut at: usize, to: usize) {
        while at < to && self.end.is_none() {
            let piece = buf.get(at..to).unwrap_or_default();
            match self.scanner.next(piece) {
                Ok(Some(n)) => {
                    let event_end = at.saturating_add(n);
                    extend(&mut self.open, at, event_end);
                    self.event(buf);
                    at = event_end;
                }
                Ok(None) => {
                    extend(&mut self.open, at, to);
                    at = to;
                }
                Err(_) => self.end = Some(End::OverLimit),
            }
        }
    }

    /// The open event is complete: judges it.
    fn event(&mut self, buf: &[u8]) {
        let mut pass = true;
        if let Some(mut large) = self.large.take() {
            large.remember(&self.open, buf);
            let facts = self.reader.read_large(&large.name, &large.tail);
            self.seen.usage = facts.usage.or(self.seen.usage);
            self.seen.events += 1;
            self.end = match &facts.kind {
                EventKind::Error(error) => Some(engine_error(error, b"", facts.ends_stream)),
                _ => facts.ends_stream.then_some(End::Complete),
            };
        } else {
            let whole: &[u8] = match self.open.as_slice() {
                [one] => buf.get(one.start..one.end).unwrap_or_default(),
                many => {
                    self.joined.clear();
                    for part in many {
                        self.joined.extend_from_slice(buf.get(part.start..part.end).unwrap_or(&[]));
                    }
                    &self.joined
                }
            };
            if let Some(data) = sse::data(whole, &mut self.scratch) {
                let facts = self.reader.read(data);
                let end;
                (pass, end) = self.seen.saw(&facts, &mut self.openings, self.take_usage_out);
                self.end = end;
                if let EventKind::Error(error) = &facts.kind {
                    self.end = Some(engine_error(error, data, facts.ends_stream));
                    self.error = data.to_vec();
                }
                self.seen.events += u64::from(pass);
            }
        }
        for part in self.open.drain(..) {
            self.parts.push(Part { pass, ..part });
        }
    }

    /// At a chunk boundary with no event open: what is held goes out as it is, if it can.
    fn close_group(&mut self, buf: &[u8]) {
        let plain = self.outgoing == Outgoing::Plain;
        if plain || self.inside || self.parts.iter().any(|p| !p.pass) {
            self.frame_anew(buf);
        } else if self.held < self.looked && !self.parts.is_empty() {
            match self.segments.last_mut() {
                Some(Segment::Raw(range)) if range.end == self.held => range.end = self.looked,
                _ => self.segments.push(Segment::Raw(self.held..self.looked)),
            }
        }
        self.parts.clear();
        self.held = self.looked;
        self.inside = plain || !matches!(self.incoming, Incoming::Chunked(_));
    }

    /// After a scan: complete events inside an unfinished chunk do not wait for its rest, and an
    /// event over the bound goes out in parts.
    fn flush(&mut self, buf: &[u8]) {
        let oversize = self.looked.saturating_sub(self.held) > HOLD_BYTES_MAX
            && self.end.is_none()
            && !self.open.is_empty();
        if oversize {
            // Counted with its first part: nothing can be asked elsewhere after that.
            self.seen.content_events += u64::from(self.large.is_none());
            let begun = || Box::new(Large::beginning(&self.open, buf));
            self.large.get_or_insert_with(begun).remember(&self.open, buf);
            self.parts.append(&mut self.open);
        }
        if self.parts.is_empty() {
            return;
        }
        self.frame_anew(buf);
        self.parts.clear();
        self.inside = true;
        self.held = self.open.first().map_or(self.looked, |part| part.start);
    }

    /// Copies the payload of the parts that pass into a chunk of our own.
    fn frame_anew(&mut self, buf: &[u8]) {
        let passing = || self.parts.iter().filter(|p| p.pass);
        let len: usize = passing().map(|p| p.end.saturating_sub(p.start)).sum();
        if len == 0 {
            return;
        }
        let from = self.own.len();
        if self.outgoing == Outgoing::Chunked {
            write::chunk_header(&mut self.own, len);
        }
        for part in passing() {
            self.own.extend_from_slice(buf.get(part.start..part.end).unwrap_or_default());
        }
        if self.outgoing == Outgoing::Chunked {
            self.own.extend_from_slice(write::CRLF);
        }
        self.segments.push(Segment::Own(from..self.own.len()));
    }

    fn end_of_body(&mut self) {
        if self.end.is_some() {
            return;
        }
        let complete = !self.has_terminal && self.scanner.open_bytes() == 0;
        self.end = Some(if complete {
            End::Complete
        } else {
            End::Truncated("the engine's stream ended without its last event")
        });
    }
}

impl Seen {
    /// Enters an event: is it passed on, and does the stream end with it?
    fn saw(
        &mut self,
        facts: &EventFacts,
        openings: &mut Openings,
        take_usage_out: bool,
    ) -> (bool, Option<End>) {
        match facts.kind {
            EventKind::Role(_) => {
                self.prompt_tokens = facts.usage.map(|u| u.prompt_tokens).or(self.prompt_tokens);
            }
            _ => self.usage = facts.usage.or(self.usage),
        }
        let first = self.content_events == 0;
        let mut pass = true;
        match facts.kind {
            // Before any content another replica may do better; afterwards the client reads what
            // the engine said.
            EventKind::Error(_) => return (!first, None),
            _ if facts.abort => return (false, Some(End::Aborted)),
            EventKind::UsageOnly => pass = !take_usage_out,
            EventKind::Role(opening) if first => match openings.judge(opening) {
                Opened::New => {}
                Opened::Again => pass = false,
                Opened::OverLimit => self.content_events += 1,
                Opened::Unlike => return (false, Some(End::Unlike)),
            },
            EventKind::Content if first && !openings.is_even() => {
                return (false, Some(End::Unlike));
            }
            EventKind::Content => self.content_events += 1,
            EventKind::Role(_) | EventKind::Done => {}
        }
        (pass, facts.ends_stream.then_some(End::Complete))
    }
}

fn engine_error(error: &EngineError, data: &[u8], told: bool) -> End {
    let message = json::text(error.message.of(data));
    End::EngineError { code: error.status(data), message, told }
}

/// Appends a piece, joining it to the last one where they touch.
fn extend(parts: &mut Vec<Part>, start: usize, end: usize) {
    match parts.last_mut() {
        Some(last) if last.end == start => last.end = end,
        _ => parts.push(Part { start, end, pass: true }),
    }
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
