//! The faults that a replica can be given while it runs: `POST /fault` or the library handle.
//!
//! One fault at a time a replica; a new one replaces it, `none` clears it. Faults of the request
//! kind strike generation requests only (not `/health`, `/metrics`, `/v1/models`), unless `path`
//! names one path. Plain values, no I/O.

use serde::{Deserialize, Serialize};

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Nothing: clears.
    #[default]
    None,
    /// The port is closed: connects are refused. Cleared through another port or the handle.
    Refuse,
    /// Nothing is accepted and the accept queue is full: connects get no answer.
    Backlog,
    /// RST instead of a response.
    ResetBeforeHead,
    /// Half of the head, then RST.
    ResetInHead,
    /// The head, then RST.
    ResetBeforeEvent,
    /// `after_events` events and half of one more (or half of the body), then RST.
    ResetMidEvent,
    /// `after_events` whole events, then RST.
    ResetBetweenEvents,
    /// FIN instead of a response.
    FinBeforeHead,
    /// `after_events` whole events, then FIN without a last chunk.
    FinBetweenEvents,
    /// A clean end without `[DONE]`.
    NoDone,
    /// A `content-length` above what is sent, then FIN.
    ShortLength,
    /// After `after_events` events a chunk whose size is not hexadecimal.
    BadChunk,
    /// No byte of a response until the fault is cleared.
    StallBeforeHead,
    /// The head, then nothing until the fault is cleared.
    StallBeforeEvent,
    /// `after_events` events (or half of the body), then nothing until the fault is cleared.
    StallBetweenEvents,
    /// Every byte is a write of its own.
    Trickle,
    /// Writes are cut at random places, `delay_ms` (1) apart.
    Split,
    /// Bytes that are not HTTP, then FIN.
    Garbage,
    /// `content-type: text/html`.
    WrongContentType,
    /// The queue-full refusal as the first event of a 200 stream (non-stream: 503).
    #[serde(rename = "error_in_200")]
    ErrorIn200,
    /// After `after_events` events the engine dies: an error event, `[DONE]`, a clean end.
    ErrorMidStream,
    /// After `after_events` tokens `finish_reason: "abort"` and a clean end.
    AbortFinish,
    /// The answer is `status`, with vLLM's own text for it unless `body` is given.
    Status,
    /// No bytes on any connection, `/health` included; new connections are taken and ignored.
    Freeze,
    /// `/metrics` tells `value` for the load gauges.
    LyingGauges,
    /// `connection: close`, and it does.
    CloseAfterResponse,
    /// Closes after the response without a word.
    NoKeepalive,
    /// The body is gzip, though nobody asked.
    Gzip,
    /// Bytes that belong to no response follow the response.
    ExtraBytes,
    /// An event stream with `content-length` instead of chunks.
    ContentLengthOnSse,
    /// Up to four events a chunk; usage, `[DONE]` and the last chunk in one write.
    Coalesce,
    /// Blocks of another replica cannot be fetched, by a request that is to fetch some.
    KvUnreachable,
    /// `usage` takes the form of `shape`.
    UsageShape,
    /// The next `count` batches of KV events are not sent, though they can be replayed.
    KvDrop,
    /// Of `count` batches of KV events each is sent after the one behind it.
    KvReorder,
    /// `count` batches of KV events are no MessagePack; they can be replayed as they were.
    KvGarbage,
    /// The cache is empty and its events are numbered from 0, as after a restart.
    KvRestart,
}

/// Forms of `usage` that engines have been seen to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageShape {
    /// In the finishing event, which still has its choice.
    LastChoice,
    /// In every event.
    Continuous,
    /// Nowhere, though it was asked for.
    Missing,
    /// With negative numbers.
    Negative,
    /// `cached_tokens: 0` whatever the cache held.
    ZeroCached,
    /// `cached_tokens: null`.
    NullCached,
}

/// A fault and its parameters; the JSON of `POST /fault`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What goes wrong.
    pub kind: Kind,
    /// The replica's port; only in `POST /fault`, default the one that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// How many requests it strikes; until cleared if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Events (tokens for `abort_finish`) that pass first; default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_events: Option<u64>,
    /// Strikes requests of exactly this path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// For `status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// For `status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// For `lying_gauges`; default `NaN`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// For `usage_shape`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<UsageShape>,
    /// For `split` and `trickle`: pause between two writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
}

impl Fault {
    /// A fault of `kind` with default parameters.
    #[must_use]
    pub fn new(kind: Kind) -> Fault {
        Fault { kind, ..Fault::default() }
    }

    /// Strikes only the next `count` requests.
    #[must_use]
    pub fn times(self, count: u64) -> Fault {
        Fault { count: Some(count), ..self }
    }

    /// Lets so many events pass first.
    #[must_use]
    pub fn after(self, events: u64) -> Fault {
        Fault { after_events: Some(events), ..self }
    }

    /// An HTTP status with vLLM's own text.
    #[must_use]
    pub fn status(status: u16) -> Fault {
        Fault { status: Some(status), ..Fault::new(Kind::Status) }
    }

    /// A form of `usage`.
    #[must_use]
    pub fn usage(shape: UsageShape) -> Fault {
        Fault { shape: Some(shape), ..Fault::new(Kind::UsageShape) }
    }

    pub(super) fn events_first(&self) -> u64 {
        self.after_events.unwrap_or(1)
    }

    /// Whether it is a state of the replica rather than of a request.
    pub(super) fn is_state(&self) -> bool {
        use Kind::{Backlog, Freeze, LyingGauges, None, Refuse};
        matches!(self.kind, None | Refuse | Backlog | Freeze | LyingGauges) || self.is_of_events()
    }

    /// Whether it strikes KV events.
    pub(super) fn is_of_events(&self) -> bool {
        use Kind::{KvDrop, KvGarbage, KvReorder, KvRestart};
        matches!(self.kind, KvDrop | KvReorder | KvGarbage | KvRestart)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_of_a_fault_is_read_as_documented() {
        let json = r#"{"kind":"usage_shape","shape":"zero_cached","count":2,"port":9102}"#;
        let fault: Fault = serde_json::from_str(json).expect("valid");
        assert_eq!((fault.shape, fault.count), (Some(UsageShape::ZeroCached), Some(2)));
        assert!(serde_json::from_str::<Fault>(r#"{"kind":"stall_before_head"}"#).is_ok());
        assert!(serde_json::from_str::<Fault>(r#"{"kind":"unheard_of"}"#).is_err());
        assert!(serde_json::from_str::<Fault>(r#"{"kind":"split","typo":1}"#).is_err());
        let back = serde_json::to_string(&Fault::new(Kind::ErrorIn200)).expect("writes");
        assert_eq!(back, r#"{"kind":"error_in_200"}"#);
    }
}
