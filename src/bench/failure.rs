//! What can be wrong with an answer, by kind. Plain values.

use std::fmt;

/// Kinds of failed requests, as the report names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// No connection.
    Connect,
    /// The connection ended before the head of the response did.
    ClosedBeforeHead,
    /// What came is no HTTP/1.1 response.
    BadHead,
    /// Not 200.
    Status(u16),
    /// Not the content type that was asked for.
    ContentType,
    /// The chunked framing is broken.
    BadChunk,
    /// The connection ended within the body.
    Cut,
    /// Bytes after the response.
    ExtraBytes,
    /// An event that is not JSON, a body that is not JSON, or too long.
    Malformed,
    /// An error event within a stream.
    ErrorEvent,
    /// Tokens are missing.
    LostToken,
    /// A token came again.
    DoubledToken,
    /// A token that is not of this answer.
    WrongToken,
    /// No `finish_reason`.
    MissingFinish,
    /// A stream without `[DONE]`.
    MissingDone,
    /// An event after `[DONE]`.
    AfterDone,
    /// A usage event that nobody asked for.
    UnaskedUsage,
    /// The usage that was asked for did not come, or contradicts the answer.
    BadUsage,
    /// It took too long.
    Timeout,
    /// We gave it up on purpose; counted apart, as no failure.
    Cancelled,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Kind::Connect => "connect",
            Kind::ClosedBeforeHead => "closed_before_head",
            Kind::BadHead => "bad_head",
            Kind::Status(status) => return write!(f, "status_{status}"),
            Kind::ContentType => "content_type",
            Kind::BadChunk => "bad_chunk",
            Kind::Cut => "cut",
            Kind::ExtraBytes => "extra_bytes",
            Kind::Malformed => "malformed",
            Kind::ErrorEvent => "error_event",
            Kind::LostToken => "lost_token",
            Kind::DoubledToken => "doubled_token",
            Kind::WrongToken => "wrong_token",
            Kind::MissingFinish => "missing_finish",
            Kind::MissingDone => "missing_done",
            Kind::AfterDone => "after_done",
            Kind::UnaskedUsage => "unasked_usage",
            Kind::BadUsage => "bad_usage",
            Kind::Timeout => "timeout",
            Kind::Cancelled => "cancelled",
        };
        f.write_str(name)
    }
}

/// A failed request: its kind, and what a person needs to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    pub(super) detail: String,
}

impl Failure {
    pub(super) fn new(kind: Kind, detail: impl fmt::Display) -> Failure {
        Failure { kind, detail: detail.to_string() }
    }

    /// With the beginning of what came as the detail.
    pub(super) fn seen(kind: Kind, bytes: &[u8]) -> Failure {
        let shown = bytes.get(..SHOWN_BYTES).unwrap_or(bytes);
        Failure::new(kind, String::from_utf8_lossy(shown))
    }
}

/// Of a body or an event, this much is enough to recognise it.
const SHOWN_BYTES: usize = 200;
