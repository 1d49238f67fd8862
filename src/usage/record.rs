//! One request's record and its JSON line (the contract, section 4). No I/O, no clock.

use std::sync::Arc;

use crate::config::KeyId;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Served whole.
    Ok,
    /// The client left before the end.
    ClientCancelled,
    /// Replicas failed before any content.
    UpstreamError,
    /// Cut after content was passed on.
    Truncated,
    /// A time limit passed before any content.
    Deadline,
    /// Not enough quota.
    RejectedQuota,
    /// Too many at once.
    RejectedConcurrency,
    /// The fleet, the engine's queue or the usage log had no room.
    RejectedOverload,
    /// The request itself was at fault.
    RejectedInvalid,
    /// No replica alive.
    NoReplica,
}

impl Outcome {
    /// Every outcome, in the contract's order.
    pub const ALL: [Outcome; 10] = [
        Outcome::Ok,
        Outcome::ClientCancelled,
        Outcome::UpstreamError,
        Outcome::Truncated,
        Outcome::Deadline,
        Outcome::RejectedQuota,
        Outcome::RejectedConcurrency,
        Outcome::RejectedOverload,
        Outcome::RejectedInvalid,
        Outcome::NoReplica,
    ];

    /// Its name in records and labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::ClientCancelled => "client_cancelled",
            Outcome::UpstreamError => "upstream_error",
            Outcome::Truncated => "truncated",
            Outcome::Deadline => "deadline",
            Outcome::RejectedQuota => "rejected_quota",
            Outcome::RejectedConcurrency => "rejected_concurrency",
            Outcome::RejectedOverload => "rejected_overload",
            Outcome::RejectedInvalid => "rejected_invalid",
            Outcome::NoReplica => "no_replica",
        }
    }
}

/// Who counted the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokensSource {
    /// The engine's usage.
    Engine,
    /// The gateway's own count or estimate: the engine gave none.
    Gateway,
}

/// A short text without an allocation: a request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallId {
    bytes: [u8; SmallId::BYTES_MAX],
    len: u8,
}

impl SmallId {
    /// Longest text.
    pub const BYTES_MAX: usize = 64;

    /// The first 64 bytes of `text`.
    #[must_use]
    pub fn new(text: &[u8]) -> SmallId {
        let len = text.len().min(SmallId::BYTES_MAX);
        let mut bytes = [0; SmallId::BYTES_MAX];
        bytes[..len].copy_from_slice(&text[..len]);
        SmallId { bytes, len: len as u8 }
    }

    /// The text.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// One line of the usage log. Times in milliseconds; money in the currency of the pool's prices.
#[derive(Clone, Debug)]
pub struct UsageRecord {
    /// When the request ended, ms since 1970.
    pub ts_unix_ms: u64,
    /// Its id.
    pub request_id: SmallId,
    /// Who asked.
    pub tenant: Arc<str>,
    /// With which key.
    pub key_id: KeyId,
    /// The model as asked for; empty when none was named.
    pub model: Box<str>,
    /// The pool that serves it.
    pub pool: Option<Arc<str>>,
    /// The adapter, if the model is one.
    pub adapter: Option<Arc<str>>,
    /// The replica of the last attempt.
    pub replica: Option<Arc<str>>,
    /// The endpoint's name.
    pub endpoint: &'static str,
    /// Was a stream asked for?
    pub stream: bool,
    /// How it ended.
    pub outcome: Outcome,
    /// Status sent, or that would have been.
    pub status: u16,
    /// Tokens in.
    pub input_tokens: u64,
    /// Of these, found in the replica's cache; `None` when the engine did not say.
    pub cached_tokens: Option<u64>,
    /// Tokens out.
    pub output_tokens: u64,
    /// Who counted.
    pub tokens_source: TokensSource,
    /// Tokens reserved before the start.
    pub reserved_tokens: u64,
    /// Of these, given back at the end.
    pub refunded_tokens: u64,
    /// What it costs, when the pool has prices.
    pub cost: Option<f64>,
    /// Replicas tried.
    pub attempts: u32,
    /// Wait in the queue.
    pub queue_ms: f64,
    /// Time within the gateway, without the engine's and the client's.
    pub gateway_ms: f64,
    /// From the request's head to the first content event.
    pub ttft_ms: Option<f64>,
    /// Mean time per output token after the first.
    pub tpot_ms: Option<f64>,
    /// From the request's head to the end of the answer.
    pub total_ms: f64,
    /// Cached tokens that the router expected.
    pub predicted_cached_tokens: Option<u64>,
    /// Time to first token that the router expected.
    pub predicted_ttft_ms: Option<f64>,
}

impl UsageRecord {
    /// Appends the record as one JSON line.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        let mut line = Line { out, first: true };
        line.key("ts");
        write_time(line.out, self.ts_unix_ms);
        line.text("request_id", self.request_id.as_bytes());
        line.text("tenant", self.tenant.as_bytes());
        line.text("key_id", self.key_id.as_str().as_bytes());
        line.text("model", self.model.as_bytes());
        line.optional("pool", self.pool.as_deref());
        line.optional("adapter", self.adapter.as_deref());
        line.optional("replica", self.replica.as_deref());
        line.text("endpoint", self.endpoint.as_bytes());
        line.raw("stream", if self.stream { b"true" } else { b"false" });
        line.text("outcome", self.outcome.name().as_bytes());
        line.number("status", self.status.into());
        line.number("input_tokens", self.input_tokens);
        line.maybe("cached_tokens", self.cached_tokens);
        line.number("output_tokens", self.output_tokens);
        line.text(
            "tokens_source",
            match self.tokens_source {
                TokensSource::Engine => b"engine",
                TokensSource::Gateway => b"gateway",
            },
        );
        line.number("reserved_tokens", self.reserved_tokens);
        line.number("refunded_tokens", self.refunded_tokens);
        line.float("cost", self.cost, 9);
        line.number("attempts", self.attempts.into());
        line.float("queue_ms", Some(self.queue_ms), 3);
        line.float("gateway_ms", Some(self.gateway_ms), 3);
        line.float("ttft_ms", self.ttft_ms, 3);
        line.float("tpot_ms", self.tpot_ms, 3);
        line.float("total_ms", Some(self.total_ms), 3);
        line.maybe("predicted_cached_tokens", self.predicted_cached_tokens);
        line.float("predicted_ttft_ms", self.predicted_ttft_ms, 3);
        out.extend_from_slice(b"}\n");
    }
}

struct Line<'o> {
    out: &'o mut Vec<u8>,
    first: bool,
}

impl Line<'_> {
    fn key(&mut self, name: &str) {
        self.out.push(if self.first { b'{' } else { b',' });
        self.first = false;
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn raw(&mut self, name: &str, value: &[u8]) {
        self.key(name);
        self.out.extend_from_slice(value);
    }

    fn text(&mut self, name: &str, value: &[u8]) {
        self.key(name);
        write_string(self.out, value);
    }

    fn optional(&mut self, name: &str, value: Option<&str>) {
        match value {
            Some(value) => self.text(name, value.as_bytes()),
            None => self.raw(name, b"null"),
        }
    }

    fn number(&mut self, name: &str, value: u64) {
        self.raw(name, itoa::Buffer::new().format(value).as_bytes());
    }

    fn maybe(&mut self, name: &str, value: Option<u64>) {
        match value {
            Some(value) => self.number(name, value),
            None => self.raw(name, b"null"),
        }
    }

    /// Rounded to `digits` behind the point; null when there is none or it is not finite.
    fn float(&mut self, name: &str, value: Option<f64>, digits: i32) {
        let scale = 10f64.powi(digits);
        match value.filter(|v| v.is_finite()) {
            Some(value) => {
                let rounded = (value * scale).round() / scale;
                self.raw(name, ryu::Buffer::new().format_finite(rounded).as_bytes());
            }
            None => self.raw(name, b"null"),
        }
    }
}

/// Appends a JSON string; control characters are escaped and what is not UTF-8 becomes U+FFFD, so
/// that a record is always one line of valid JSON.
fn write_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    let plain = |b: &u8| (0x20..0x7f).contains(b) && *b != b'"' && *b != b'\\';
    if bytes.iter().all(plain) {
        out.extend_from_slice(bytes);
    } else {
        for c in String::from_utf8_lossy(bytes).chars() {
            match c {
                '"' | '\\' => out.extend_from_slice(&[b'\\', c as u8]),
                '\0'..=' ' | '\x7f' if c != ' ' => {
                    out.extend_from_slice(format!("\\u{:04x}", c as u32).as_bytes());
                }
                c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }
    out.push(b'"');
}

/// RFC 3339 in UTC with milliseconds, quoted.
fn write_time(out: &mut Vec<u8>, unix_ms: u64) {
    let (s, ms) = (unix_ms / 1000, unix_ms % 1000);
    let (year, month, day) = crate::runtime::clock::civil(s / 86_400);
    let parts: [(u64, usize, u8); 7] = [
        (year, 4, b'-'),
        (month, 2, b'-'),
        (day, 2, b'T'),
        (s / 3600 % 24, 2, b':'),
        (s / 60 % 60, 2, b':'),
        (s % 60, 2, b'.'),
        (ms, 3, b'Z'),
    ];
    out.push(b'"');
    for (value, digits, end) in parts {
        let mut place = 10u64.pow(digits as u32 - 1);
        while place > 0 {
            out.push(b'0' + (value / place % 10) as u8);
            place /= 10;
        }
        out.push(end);
    }
    out.push(b'"');
}

/// A record with a value in most fields.
#[cfg(test)]
pub(super) fn sample() -> UsageRecord {
    UsageRecord {
        ts_unix_ms: 1_796_004_405_007,
        request_id: SmallId::new(b"r-1"),
        tenant: "acme".into(),
        key_id: KeyId::OPEN,
        model: "a\"b\\c\n\u{7f}\u{2028}".into(),
        pool: Some("p".into()),
        adapter: None,
        replica: Some("r1".into()),
        endpoint: "chat_completions",
        stream: true,
        outcome: Outcome::Ok,
        status: 200,
        input_tokens: 31,
        cached_tokens: Some(0),
        output_tokens: 8,
        tokens_source: TokensSource::Engine,
        reserved_tokens: 0,
        refunded_tokens: 0,
        cost: Some(0.000_009_5),
        attempts: 1,
        queue_ms: 0.0,
        gateway_ms: 0.123_456,
        ttft_ms: Some(12.5),
        tpot_ms: None,
        total_ms: f64::NAN,
        predicted_cached_tokens: None,
        predicted_ttft_ms: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line_of_json_with_every_field_in_order() {
        let mut out = Vec::new();
        sample().write_json(&mut out);
        assert_eq!(out.iter().filter(|b| **b == b'\n').count(), 1);
        let text = String::from_utf8(out).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let fields = "ts request_id tenant key_id model pool adapter replica endpoint stream \
                      outcome status input_tokens cached_tokens output_tokens tokens_source \
                      reserved_tokens refunded_tokens cost attempts queue_ms gateway_ms ttft_ms \
                      tpot_ms total_ms predicted_cached_tokens predicted_ttft_ms";
        let mut at = 0;
        for field in fields.split_whitespace() {
            assert!(value.get(field).is_some(), "{field} is missing");
            let found = text.find(&format!("\"{field}\":")).unwrap();
            assert!(found >= at, "{field} is out of order");
            at = found;
        }
        assert_eq!(value.as_object().unwrap().len(), 27);
        assert_eq!(value["ts"], "2026-11-30T02:06:45.007Z");
        assert_eq!(value["model"], "a\"b\\c\n\u{7f}\u{2028}");
        assert_eq!(value["gateway_ms"], 0.123);
        assert_eq!(value["cached_tokens"], 0);
        assert!(value["total_ms"].is_null() && value["adapter"].is_null());
    }
}
