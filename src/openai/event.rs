//! What one event of an engine's stream says.
//!
//! Nearly every event is a plain delta, so [`EventReader`] first looks for the few keys that make
//! one more than that. Such a key cannot be faked by generated text: inside a JSON string a quote
//! is written `\"`, so `"error"` with bare quotes is a whole string, a key or a value. Only when
//! one is there is the event parsed in full, and that parse decides. Events that are not JSON are
//! content: passed on, like all that we do not know.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::answer::{EngineError, Facts, Usage, last_usage};
use super::{Endpoint, json};

/// What an event is to the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// `[DONE]`.
    Done,
    /// The engine gave up, inside a 200.
    Error(EngineError),
    /// No choices, only the usage: the event that `include_usage` asks for.
    UsageOnly,
    /// Opens the stream and carries no content yet: a chat delta with nothing but the role,
    /// `response.created`, `message_start` and the like. Its usage is not the answer's.
    Role(Opener),
    /// Anything else; what the client waits for.
    Content,
}

/// Which of a stream's opening events one is: two replicas' streams open alike, but for ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opener {
    /// Its type; `role` in a chat.
    pub what: &'static str,
    /// The type of the item, block or part that it opens, if it opens one.
    pub of: &'static str,
    /// The indices of the choice, item or block, and of the part in it.
    pub place: [u32; 2],
}

impl Opener {
    /// It opens what later events go on with, so that these need just this one before them.
    #[must_use]
    pub fn is_structure(&self) -> bool {
        !self.of.is_empty()
    }
}

/// What one event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventFacts {
    /// What it is.
    pub kind: EventKind,
    /// The usage that it carries, when sound: last events, and each one of continuous usage.
    pub usage: Option<Usage>,
    /// It carries a usage that is not sound.
    pub usage_odd: bool,
    /// Some choice, or the message, ends with it.
    pub finish: bool,
    /// One ends by `abort`: the engine was stopped.
    pub abort: bool,
    /// Nothing may follow it: `[DONE]`, `message_stop`, `response.completed`, `.failed`,
    /// `.incomplete`.
    pub ends_stream: bool,
}

impl EventFacts {
    const PLAIN: EventFacts = EventFacts {
        kind: EventKind::Content,
        usage: None,
        usage_odd: false,
        finish: false,
        abort: false,
        ends_stream: false,
    };
}

/// Reads the events of one endpoint's streams.
#[derive(Debug, Clone, Copy)]
pub struct EventReader {
    endpoint: Endpoint,
    needles: &'static Needles,
}

#[derive(Debug)]
struct Needles {
    usage: Finder<'static>,
    error: Finder<'static>,
    choices: Finder<'static>,
    finish_reason: Finder<'static>,
    role: Finder<'static>,
    response_type: Finder<'static>,
}

static NEEDLES: LazyLock<Needles> = LazyLock::new(|| Needles {
    usage: Finder::new("\"usage\""),
    error: Finder::new("\"error\""),
    choices: Finder::new("\"choices\""),
    finish_reason: Finder::new("\"finish_reason\""),
    role: Finder::new("\"role\""),
    response_type: Finder::new("\"type\":\"response."),
});

impl EventReader {
    /// A reader for the streams of `endpoint`.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        EventReader { endpoint, needles: &NEEDLES }
    }

    /// Reads one event's data (see [`crate::sse::data`]). Spans are places in `data`.
    #[must_use]
    pub fn read(&self, data: &[u8]) -> EventFacts {
        if data.trim_ascii() == b"[DONE]" {
            return EventFacts { kind: EventKind::Done, ends_stream: true, ..EventFacts::PLAIN };
        }
        let plain = match self.endpoint {
            Endpoint::Responses => self.plain_response_delta(data),
            Endpoint::Messages => data.starts_with(b"{\"type\":\"content_block_delta\""),
            _ => self.plain_chunk(data),
        };
        if plain {
            return EventFacts::PLAIN;
        }
        let Ok(facts) = Facts::read(data) else { return EventFacts::PLAIN };
        match self.endpoint {
            Endpoint::Responses => response_event(facts, data),
            Endpoint::Messages => message_event(facts, data),
            _ => chunk(facts),
        }
    }

    /// What can be told of an event that is too large to be read, by its name and its last bytes:
    /// whether it ends a stream of responses, and the usage that stands near its end.
    #[must_use]
    pub fn read_large(&self, name: &[u8], tail: &[u8]) -> EventFacts {
        if self.endpoint != Endpoint::Responses || !ends_response(name) {
            return EventFacts::PLAIN;
        }
        let kind = match name {
            b"response.failed" => EventKind::Error(EngineError::default()),
            _ => EventKind::Content,
        };
        let usage = last_usage(tail);
        EventFacts { kind, usage, finish: true, ends_stream: true, ..EventFacts::PLAIN }
    }

    /// A chunk of chat, completions or transcription without anything but content.
    fn plain_chunk(&self, data: &[u8]) -> bool {
        let Needles { usage, error, choices, finish_reason, role, .. } = self.needles;
        let null = |value: &[u8]| value.starts_with(b"null");
        let no_choices = |value: &[u8]| {
            value.strip_prefix(b"[").is_some_and(|rest| rest.trim_ascii_start().starts_with(b"]"))
        };
        values(choices, data).all(|value| !no_choices(value))
            && values(finish_reason, data).all(null)
            && values(usage, data).all(null)
            && role.find(data).is_none()
            // Also as a value: {"object":"error"}.
            && error
                .find_iter(data)
                .all(|at| key_value(data, at, error).is_some_and(null))
    }

    /// `response.*.delta`: no string within the event can hold the needle's bare quotes. But an
    /// object within it can: the engine repeats the client's `metadata` and `tools` in front of its
    /// own type, so that each type must be one of a delta.
    fn plain_response_delta(&self, data: &[u8]) -> bool {
        let needle = &self.needles.response_type;
        let mut types = needle.find_iter(data).map(|at| {
            let kind = data.get(at + needle.needle().len()..).unwrap_or_default();
            let end = memchr::memchr(b'"', kind).unwrap_or_default();
            kind.get(..end).unwrap_or_default()
        });
        let delta = |kind: &[u8]| kind.ends_with(b".delta");
        types.next().is_some_and(delta) && types.all(delta)
    }
}

/// What stands behind `key` and its colon, wherever it is a key.
fn values<'a>(key: &'a Finder<'_>, data: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    key.find_iter(data).filter_map(move |at| key_value(data, at, key))
}

fn key_value<'a>(data: &'a [u8], at: usize, key: &Finder<'_>) -> Option<&'a [u8]> {
    let rest = data.get(at + key.needle().len()..)?;
    Some(rest.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start())
}

fn chunk(facts: Facts) -> EventFacts {
    let kind = match facts.error {
        Some(error) => EventKind::Error(error),
        None if facts.choices == Some(0) && (facts.usage.is_some() || facts.usage_odd) => {
            EventKind::UsageOnly
        }
        None if facts.role_only => {
            EventKind::Role(Opener { what: "role", of: "", place: facts.place })
        }
        None => EventKind::Content,
    };
    event(facts, kind)
}

fn ends_response(kind: &[u8]) -> bool {
    matches!(kind, b"response.completed" | b"response.failed" | b"response.incomplete")
}

fn response_event(facts: Facts, data: &[u8]) -> EventFacts {
    let kind = json::inner(facts.kind.of(data));
    let ends = ends_response(kind);
    let opens = OPENINGS.iter().find(|what| what.as_bytes() == kind);
    let facts = Facts { finish: ends, ..facts };
    EventFacts { ends_stream: ends, ..typed(facts, opens, data) }
}

fn message_event(facts: Facts, data: &[u8]) -> EventFacts {
    let kind = json::inner(facts.kind.of(data));
    let opens = OPENINGS.iter().find(|what| what.as_bytes() == kind);
    EventFacts { ends_stream: kind == b"message_stop", ..typed(facts, opens, data) }
}

/// Events that open a stream of responses or messages.
const OPENINGS: [&str; 8] = [
    "response.created",
    "response.queued",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "message_start",
    "content_block_start",
    "ping",
];

/// What of an answer may be opened anew by another replica: it carries nothing yet. (A call of a
/// tool has a name and an id from its first event on.)
const OPENED: [&str; 6] =
    ["message", "output_text", "text", "reasoning", "reasoning_text", "thinking"];

fn typed(facts: Facts, opens: Option<&&'static str>, data: &[u8]) -> EventFacts {
    let opened = json::inner(facts.opened.of(data));
    let of = match opened {
        b"" => Some(""),
        opened => OPENED.into_iter().find(|of| of.as_bytes() == opened),
    };
    let kind = match (facts.error, opens, of) {
        (Some(error), ..) => EventKind::Error(error),
        (None, Some(what), Some(of)) => EventKind::Role(Opener { what, of, place: facts.place }),
        _ => EventKind::Content,
    };
    event(facts, kind)
}

fn event(facts: Facts, kind: EventKind) -> EventFacts {
    let Facts { usage, usage_odd, finish, abort, .. } = facts;
    EventFacts { kind, usage, usage_odd, finish, abort, ends_stream: false }
}

#[cfg(test)]
#[path = "event_tests.rs"]
mod tests;
