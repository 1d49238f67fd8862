//! Judges an answer: the events of a stream one by one, or a whole body.
//!
//! Owns the state of one answer; bytes and times come in as arguments. No I/O.

use std::cell::RefCell;

use super::failure::{Failure, Kind};
use super::tally::{Measured, Tally};
use super::{Api, Words};
use crate::openai::json::{self, Kind as Json, Scanner};
use crate::openai::{Endpoint, EventKind, EventReader, Span, Usage, read_answer};
use crate::sse::{self, EventScanner};

/// What the answer to one request has to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) api: Api,
    pub(super) stream: bool,
    /// A usage event was asked for.
    pub(super) usage: bool,
    pub(super) tag: u64,
    /// The words of a known server, of which `tokens` come.
    pub(super) words: Option<Words>,
    pub(super) tokens: u64,
    pub(super) prompt_tokens: u64,
    pub(super) due_ns: u64,
    /// Its text is wanted: the conversation goes on.
    pub(super) keep: bool,
    /// It is given up on purpose when so many content events have come.
    pub(super) cancel_after: Option<u64>,
}

/// An answer as far as it has come.
pub(super) struct Answer {
    expected: Expected,
    scanner: EventScanner,
    reader: EventReader,
    /// The beginning of an event whose end has not come; all of a whole body.
    open: Vec<u8>,
    scratch: Vec<u8>,
    /// Its text as far as it is kept: the inside of a JSON string.
    said: Vec<u8>,
    tokens: u64,
    events: u64,
    first_ns: u64,
    last_ns: u64,
    finished: bool,
    done: bool,
    usage: Option<Usage>,
}

impl Answer {
    pub(super) fn new(expected: Expected) -> Answer {
        let endpoint = match expected.api {
            Api::Chat => Endpoint::ChatCompletions,
            Api::Completions => Endpoint::Completions,
        };
        Answer {
            expected,
            scanner: EventScanner::default(),
            reader: EventReader::new(endpoint),
            open: Vec::new(),
            scratch: Vec::new(),
            said: Vec::new(),
            tokens: 0,
            events: 0,
            first_ns: 0,
            last_ns: 0,
            finished: false,
            done: false,
            usage: None,
        }
    }

    /// Takes a piece of the body that came at `now_ns`; gaps between events go to `tally`.
    pub(super) fn take(
        &mut self,
        mut piece: &[u8],
        now_ns: u64,
        tally: &RefCell<Tally>,
    ) -> Result<(), Failure> {
        if !self.expected.stream {
            self.open.extend_from_slice(piece);
            return Ok(());
        }
        let too_long = |error| Failure::new(Kind::Malformed, error);
        while let Some(end) = self.scanner.next(piece).map_err(too_long)? {
            let (event, rest) = piece.split_at(end);
            piece = rest;
            if self.open.is_empty() {
                self.event(event, now_ns, tally)?;
            } else {
                self.open.extend_from_slice(event);
                let whole = std::mem::take(&mut self.open);
                let judged = self.event(&whole, now_ns, tally);
                self.open = whole;
                self.open.clear();
                judged?;
            }
        }
        self.open.extend_from_slice(piece);
        Ok(())
    }

    fn event(&mut self, event: &[u8], now_ns: u64, tally: &RefCell<Tally>) -> Result<(), Failure> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let judged = match sse::data(event, &mut scratch) {
            None => Ok(()),
            Some(data) => self.data(data, now_ns, tally),
        };
        self.scratch = scratch;
        judged
    }

    fn data(&mut self, data: &[u8], now_ns: u64, tally: &RefCell<Tally>) -> Result<(), Failure> {
        if self.done {
            return Err(Failure::seen(Kind::AfterDone, data));
        }
        let facts = self.reader.read(data);
        self.usage = facts.usage.or(self.usage);
        match facts.kind {
            EventKind::Done => {
                self.done = true;
                return Ok(());
            }
            EventKind::Error(_) => return Err(Failure::seen(Kind::ErrorEvent, data)),
            EventKind::UsageOnly if !self.expected.usage && self.expected.words.is_some() => {
                return Err(Failure::seen(Kind::UnaskedUsage, data));
            }
            EventKind::UsageOnly | EventKind::Role(_) => return Ok(()),
            EventKind::Content => {}
        }
        self.finished |= facts.finish;
        let malformed = |_| Failure::seen(Kind::Malformed, data);
        let said = said(data).map_err(malformed)?;
        if said.present {
            let gap_ns = now_ns.saturating_sub(self.last_ns);
            if self.events == 0 {
                self.first_ns = now_ns;
            }
            tally.borrow_mut().event(now_ns, (self.events > 0).then_some(gap_ns));
            self.last_ns = now_ns;
            self.events += 1;
            self.text(said.text.of(data))?;
            if self.expected.cancel_after.is_some_and(|most| self.events >= most) {
                return Err(Failure::new(Kind::Cancelled, "on purpose"));
            }
        }
        Ok(())
    }

    /// Compares text with the words that are due.
    fn text(&mut self, text: &[u8]) -> Result<(), Failure> {
        if self.expected.keep {
            self.said.extend_from_slice(text);
        }
        let Some(words) = self.expected.words else {
            self.tokens += 1;
            return Ok(());
        };
        let tag = self.expected.tag;
        for word in text.chunks(words(0, 0).len()) {
            let due = self.tokens;
            if word != words(tag, due) || due >= self.expected.tokens {
                let ahead = (due + 1..self.expected.tokens).any(|i| word == words(tag, i));
                let kind = match (due.checked_sub(1), ahead) {
                    (Some(last), _) if word == words(tag, last) => Kind::DoubledToken,
                    (_, true) => Kind::LostToken,
                    _ => Kind::WrongToken,
                };
                let shown = String::from_utf8_lossy(word);
                let detail = format!("token {due} of tag {tag} is {shown:?}");
                return Err(Failure::new(kind, detail));
            }
            self.tokens += 1;
        }
        Ok(())
    }

    /// Its text, if it is kept: the inside of a JSON string. After [`Answer::finish`].
    pub(super) fn said(&self) -> &[u8] {
        &self.said
    }

    /// Judges the answer once its last byte has come.
    pub(super) fn finish(&mut self) -> Result<Measured, Failure> {
        if self.expected.stream {
            if !self.open.is_empty() {
                return Err(Failure::seen(Kind::Malformed, &self.open));
            }
            if !self.done {
                return Err(Failure::new(Kind::MissingDone, "the stream ended without [DONE]"));
            }
        } else {
            self.whole()?;
        }
        let Expected { tokens, words, stream, usage: asked, .. } = self.expected;
        if words.is_some() && self.tokens < tokens {
            let detail = format!("{} of {tokens} tokens came", self.tokens);
            return Err(Failure::new(Kind::LostToken, detail));
        }
        if !self.finished {
            return Err(Failure::new(Kind::MissingFinish, "no finish_reason"));
        }
        if words.is_some() && (asked || !stream) {
            let told = self.usage.map(|usage| usage.completion_tokens);
            if told != Some(tokens) {
                let detail = format!("completion_tokens {told:?}, not {tokens}");
                return Err(Failure::new(Kind::BadUsage, detail));
            }
        }
        Ok(self.measured())
    }

    fn whole(&mut self) -> Result<(), Failure> {
        let body = std::mem::take(&mut self.open);
        let facts = read_answer(&body);
        let malformed = || Failure::seen(Kind::Malformed, &body);
        if !facts.valid {
            return Err(malformed());
        }
        if facts.error.is_some() {
            return Err(Failure::seen(Kind::ErrorEvent, &body));
        }
        let said = said(&body).map_err(|_| malformed())?;
        self.usage = facts.usage;
        self.finished = said.finished;
        self.text(said.text.of(&body))
    }

    fn measured(&self) -> Measured {
        let usage = self.usage.unwrap_or(Usage {
            prompt_tokens: self.expected.prompt_tokens,
            completion_tokens: self.tokens,
            cached_tokens: None,
        });
        let tokens = usage.completion_tokens;
        let seen = self.expected.stream && self.events > 0;
        let spread = self.last_ns.saturating_sub(self.first_ns);
        Measured {
            ttft_ns: seen.then(|| self.first_ns.saturating_sub(self.expected.due_ns)),
            tpot_ns: (seen && tokens > 1).then(|| spread / (tokens - 1)),
            events: self.events,
            input_tokens: usage.prompt_tokens,
            output_tokens: tokens,
            cached_tokens: usage.cached_tokens.unwrap_or(0),
        }
    }
}

/// What the first choice of a chunk or body says.
#[derive(Debug, Default)]
struct Said {
    /// The inside of the JSON string of its text.
    text: Span,
    /// It says anything: text, reasoning or a piece of a tool call.
    present: bool,
    finished: bool,
}

fn said(data: &[u8]) -> Result<Said, json::Error> {
    let mut said = Said::default();
    let mut scanner = Scanner::new(data)?;
    scanner.object(|scanner, key| match key.name {
        b"choices" if scanner.peek() == Some(Json::Array) => {
            scanner.array(|scanner, _| choice(scanner, &mut said)).map(drop)
        }
        _ => scanner.value().map(drop),
    })?;
    scanner.finish()?;
    Ok(said)
}

fn choice(scanner: &mut Scanner<'_>, said: &mut Said) -> Result<(), json::Error> {
    if scanner.peek() != Some(Json::Object) {
        return scanner.value().map(drop);
    }
    let reading = scanner.object(|scanner, key| match key.name {
        b"delta" | b"message" if scanner.peek() == Some(Json::Object) => {
            scanner.object(|scanner, key| member(scanner, key.name, said)).map(drop)
        }
        b"finish_reason" => {
            said.finished |= scanner.value()?.kind != Json::Null;
            Ok(())
        }
        name => member(scanner, name, said),
    });
    reading.map(drop)
}

fn member(scanner: &mut Scanner<'_>, name: &[u8], said: &mut Said) -> Result<(), json::Error> {
    let value = scanner.value()?;
    let string = value.kind == Json::String && value.span.len > 2;
    match name {
        b"content" | b"text" if string => {
            said.text = Span::between(value.span.start() + 1, value.span.end() - 1);
            said.present = true;
        }
        b"reasoning" | b"reasoning_content" => said.present |= string,
        b"tool_calls" => said.present |= value.kind == Json::Array && value.span.len > 2,
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
