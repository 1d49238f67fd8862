//! One request's usage record, and its line of JSON (RFC 8259), fields in the documented order.
//!
//! Plain data without I/O or clock. A core builds it when a request ends: names are shared `Arc`s,
//! the request id is inline, so that nothing is allocated for it.

use std::sync::Arc;

use crate::config::KeyId;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Answered in full.
    Ok,
    /// The client went away first.
    ClientCancelled,
    /// The replica failed before the first content event.
    UpstreamError,
    /// The replica failed after the first content event.
    Truncated,
    /// A deadline or timeout passed before the first content event.
    Deadline,
    /// The tenant's tokens were spent.
    RejectedQuota,
    /// Too many requests of the tenant at once.
    RejectedConcurrency,
    /// The fleet was full.
    RejectedOverload,
    /// The request itself was wrong.
    RejectedInvalid,
    /// No replica was alive.
    NoReplica,
}

impl Outcome {
    /// All of them, in the order of the documentation.
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

    /// As records and metrics spell it.
    pub fn as_str(self) -> &'static str {
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
    /// The gateway's own count, where the engine's never came.
    Gateway,
}

impl TokensSource {
    /// As records spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            TokensSource::Engine => "engine",
            TokensSource::Gateway => "gateway",
        }
    }
}

/// A request id of at most 64 bytes, inline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SmallId {
    bytes: [u8; SmallId::BYTES_MAX],
    len: u8,
}

impl Default for SmallId {
    fn default() -> SmallId {
        SmallId { bytes: [0; SmallId::BYTES_MAX], len: 0 }
    }
}

impl SmallId {
    /// Longest id in bytes.
    pub const BYTES_MAX: usize = 64;

    /// `None` when the text is longer than [`SmallId::BYTES_MAX`].
    pub fn new(text: &str) -> Option<SmallId> {
        let mut bytes = [0; SmallId::BYTES_MAX];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(SmallId { bytes, len: text.len() as u8 })
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl std::fmt::Debug for SmallId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// What one request used. `None` is written as `null`: not known, or it never came to that.
#[derive(Clone, Debug)]
pub struct UsageRecord {
    /// End of the request, in milliseconds since 1970 (UTC).
    pub ts_unix_ms: u64,
    /// As in the `x-request-id` of the response.
    pub request_id: SmallId,
    /// The tenant's id.
    pub tenant: Arc<str>,
    /// Public name of the key.
    pub key_id: KeyId,
    /// The model asked for.
    pub model: Option<Arc<str>>,
    /// The pool it meant.
    pub pool: Option<Arc<str>>,
    /// The LoRA adapter it meant.
    pub adapter: Option<Arc<str>>,
    /// Id of the replica that served it, or was tried last.
    pub replica: Option<Arc<str>>,
    /// Path of the endpoint, `/v1/chat/completions`.
    pub endpoint: &'static str,
    /// A stream was asked for.
    pub stream: bool,
    /// How it ended.
    pub outcome: Outcome,
    /// Status sent, or the one that would have been.
    pub status: u16,
    /// Tokens of the prompt.
    pub input_tokens: Option<u64>,
    /// Those of them that came from the prefix cache; `None` when the engine did not say, which is
    /// not zero.
    pub cached_tokens: Option<u64>,
    /// Tokens produced, also when cut short.
    pub output_tokens: Option<u64>,
    /// Who counted; `None` when there was nothing to count.
    pub tokens_source: Option<TokensSource>,
    /// Tokens taken from the quota at the start.
    pub reserved_tokens: Option<u64>,
    /// Those of them given back at the end.
    pub refunded_tokens: Option<u64>,
    /// Money, by the pool's prices.
    pub cost: Option<f64>,
    /// Attempts upstream.
    pub attempts: u32,
    /// Wait in the queue, in milliseconds, as all below.
    pub queue_ms: Option<f64>,
    /// The gateway's own share of the time before the first byte went upstream.
    pub gateway_ms: Option<f64>,
    /// To the first content event.
    pub ttft_ms: Option<f64>,
    /// Per output token after the first; none where all came at once.
    pub tpot_ms: Option<f64>,
    /// From the head to the end.
    pub total_ms: Option<f64>,
    /// The router's prediction of `cached_tokens`.
    pub predicted_cached_tokens: Option<u64>,
    /// The router's prediction of `ttft_ms`.
    pub predicted_ttft_ms: Option<f64>,
}

/// What of a record is no text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    pub(super) ts_unix_ms: u64,
    pub(super) stream: bool,
    pub(super) outcome: Outcome,
    pub(super) status: u16,
    pub(super) tokens_source: Option<TokensSource>,
    pub(super) attempts: u32,
    /// Input, cached, output, reserved, refunded, predicted cached.
    pub(super) tokens: [Option<u64>; 6],
    /// Cost; queue, gateway, ttft, tpot, total, predicted ttft in ms.
    pub(super) reals: [Option<f64>; 7],
}

/// The texts of a record.
#[derive(Clone, Copy)]
pub(super) struct Texts<'a> {
    pub(super) request_id: &'a str,
    pub(super) tenant: &'a str,
    pub(super) key_id: &'a str,
    pub(super) endpoint: &'a str,
    /// Model, pool, adapter, replica.
    pub(super) names: [Option<&'a str>; 4],
}

impl UsageRecord {
    pub(super) fn figures(&self) -> Figures {
        Figures {
            ts_unix_ms: self.ts_unix_ms,
            stream: self.stream,
            outcome: self.outcome,
            status: self.status,
            tokens_source: self.tokens_source,
            attempts: self.attempts,
            tokens: [
                self.input_tokens,
                self.cached_tokens,
                self.output_tokens,
                self.reserved_tokens,
                self.refunded_tokens,
                self.predicted_cached_tokens,
            ],
            reals: [
                self.cost,
                self.queue_ms,
                self.gateway_ms,
                self.ttft_ms,
                self.tpot_ms,
                self.total_ms,
                self.predicted_ttft_ms,
            ],
        }
    }

    pub(super) fn texts(&self) -> Texts<'_> {
        Texts {
            request_id: self.request_id.as_str(),
            tenant: &self.tenant,
            key_id: self.key_id.as_str(),
            endpoint: self.endpoint,
            names: [
                self.model.as_deref(),
                self.pool.as_deref(),
                self.adapter.as_deref(),
                self.replica.as_deref(),
            ],
        }
    }

    /// Appends the record as one line of JSON, with its newline.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        write_line(out, &self.texts(), &self.figures());
    }
}

/// Appends a record as one line of JSON, with its newline.
pub(super) fn write_line(out: &mut Vec<u8>, texts: &Texts<'_>, figures: &Figures) {
    let [model, pool, adapter, replica] = texts.names;
    let [input, cached, output, reserved, refunded, predicted_cached] = figures.tokens;
    let [cost, queue, gateway, ttft, tpot, total, predicted_ttft] = figures.reals;
    out.extend_from_slice(b"{\"ts\":\"");
    write_rfc3339_ms(out, figures.ts_unix_ms);
    out.push(b'"');
    let mut line = Line { out };
    line.text("request_id", Some(texts.request_id));
    line.text("tenant", Some(texts.tenant));
    line.text("key_id", Some(texts.key_id));
    line.text("model", model);
    line.text("pool", pool);
    line.text("adapter", adapter);
    line.text("replica", replica);
    line.text("endpoint", Some(texts.endpoint));
    line.raw("stream", if figures.stream { b"true" } else { b"false" });
    line.text("outcome", Some(figures.outcome.as_str()));
    line.whole("status", Some(figures.status.into()));
    line.whole("input_tokens", input);
    line.whole("cached_tokens", cached);
    line.whole("output_tokens", output);
    line.text("tokens_source", figures.tokens_source.map(TokensSource::as_str));
    line.whole("reserved_tokens", reserved);
    line.whole("refunded_tokens", refunded);
    line.real("cost", cost);
    line.whole("attempts", Some(figures.attempts.into()));
    line.real("queue_ms", queue);
    line.real("gateway_ms", gateway);
    line.real("ttft_ms", ttft);
    line.real("tpot_ms", tpot);
    line.real("total_ms", total);
    line.whole("predicted_cached_tokens", predicted_cached);
    line.real("predicted_ttft_ms", predicted_ttft);
    out.extend_from_slice(b"}\n");
}

struct Line<'o> {
    out: &'o mut Vec<u8>,
}

impl Line<'_> {
    fn raw(&mut self, name: &str, value: &[u8]) {
        self.out.extend_from_slice(b",\"");
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out.extend_from_slice(value);
    }

    fn whole(&mut self, name: &str, value: Option<u64>) {
        match value {
            Some(value) => self.raw(name, itoa::Buffer::new().format(value).as_bytes()),
            None => self.raw(name, b"null"),
        }
    }

    /// JSON has no infinity and no NaN: both are `null`.
    fn real(&mut self, name: &str, value: Option<f64>) {
        match value.filter(|value| value.is_finite()) {
            Some(value) => self.raw(name, ryu::Buffer::new().format_finite(value).as_bytes()),
            None => self.raw(name, b"null"),
        }
    }

    fn text(&mut self, name: &str, value: Option<&str>) {
        let Some(value) = value else { return self.raw(name, b"null") };
        self.raw(name, b"\"");
        write_escaped(self.out, value);
        self.out.push(b'"');
    }
}

/// Escapes what RFC 8259 section 7 demands: quote, backslash, and controls below 0x20; also DEL,
/// and with it every byte that could end a line or move a terminal.
pub fn write_escaped(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for &byte in text.as_bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..=0x1f | 0x7f => {
                let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
            }
            _ => out.push(byte),
        }
    }
}

/// `2026-01-31T12:34:56.789Z`. Days to a civil date by Howard Hinnant's `civil_from_days`
/// (<https://howardhinnant.github.io/date_algorithms.html>): years of March to February, in eras of
/// 400 years.
pub fn write_rfc3339_ms(out: &mut Vec<u8>, unix_ms: u64) {
    let (days, ms_of_day) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let parts = [
        (year, 4, b'-'),
        (month, 2, b'-'),
        (day, 2, b'T'),
        (ms_of_day / 3_600_000, 2, b':'),
        (ms_of_day / 60_000 % 60, 2, b':'),
        (ms_of_day / 1000 % 60, 2, b'.'),
        (ms_of_day % 1000, 3, b'Z'),
    ];
    for (value, width, end) in parts {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(value).as_bytes();
        out.resize(out.len() + usize::saturating_sub(width, digits.len()), b'0');
        out.extend_from_slice(digits);
        out.push(end);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::KeyDigest;
    use serde_json::{Value, json};

    pub(in crate::usage) fn record(id: &str) -> UsageRecord {
        UsageRecord {
            ts_unix_ms: 1_767_225_599_123,
            request_id: SmallId::new(id).unwrap(),
            tenant: "acme".into(),
            key_id: KeyDigest::of(b"abc").key_id(),
            model: Some("gpt \"fast\"\\\n\u{7f}\u{1}é🦀".into()),
            pool: Some("llama-8b".into()),
            adapter: Some("sql".into()),
            replica: Some("r2".into()),
            endpoint: "/v1/chat/completions",
            stream: true,
            outcome: Outcome::Truncated,
            status: 200,
            input_tokens: Some(u64::MAX),
            cached_tokens: Some(0),
            output_tokens: Some(7),
            tokens_source: Some(TokensSource::Engine),
            reserved_tokens: Some(100),
            refunded_tokens: Some(80),
            cost: Some(0.000125),
            attempts: 2,
            queue_ms: Some(0.0),
            gateway_ms: Some(0.137),
            ttft_ms: Some(41.5),
            tpot_ms: Some(1e-7),
            total_ms: Some(1e17),
            predicted_cached_tokens: Some(16),
            predicted_ttft_ms: Some(40.25),
        }
    }

    fn line(record: &UsageRecord) -> String {
        let mut out = Vec::new();
        record.write_json(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_line_is_the_record_in_json_with_every_field() {
        let text = line(&record("req-1"));
        let parsed: Value = serde_json::from_str(&text).unwrap();
        let whole = json!({
            "ts": "2025-12-31T23:59:59.123Z", "request_id": "req-1", "tenant": "acme",
            "key_id": "ba7816bf", "model": "gpt \"fast\"\\\n\u{7f}\u{1}é🦀", "pool": "llama-8b",
            "adapter": "sql", "replica": "r2", "endpoint": "/v1/chat/completions", "stream": true,
            "outcome": "truncated", "status": 200, "input_tokens": u64::MAX, "cached_tokens": 0,
            "output_tokens": 7, "tokens_source": "engine", "reserved_tokens": 100,
            "refunded_tokens": 80, "cost": 0.000125, "attempts": 2, "queue_ms": 0.0,
            "gateway_ms": 0.137, "ttft_ms": 41.5, "tpot_ms": 1e-7, "total_ms": 1e17,
            "predicted_cached_tokens": 16, "predicted_ttft_ms": 40.25
        });
        assert_eq!(parsed, whole);
        assert_eq!(text.matches('\n').count(), 1, "one line: {text}");
        assert!(text.ends_with("}\n"));
    }

    #[test]
    fn fields_come_in_the_documented_order() {
        let text = line(&record("req-1"));
        let names = [
            "ts",
            "request_id",
            "tenant",
            "key_id",
            "model",
            "pool",
            "adapter",
            "replica",
            "endpoint",
            "stream",
            "outcome",
            "status",
            "input_tokens",
            "cached_tokens",
            "output_tokens",
            "tokens_source",
            "reserved_tokens",
            "refunded_tokens",
            "cost",
            "attempts",
            "queue_ms",
            "gateway_ms",
            "ttft_ms",
            "tpot_ms",
            "total_ms",
            "predicted_cached_tokens",
            "predicted_ttft_ms",
        ];
        let places: Vec<usize> =
            names.iter().map(|name| text.find(&format!("\"{name}\":")).unwrap()).collect();
        assert!(places.is_sorted());
    }

    #[test]
    fn what_is_not_known_is_null() {
        let unknown = UsageRecord {
            model: None,
            pool: None,
            adapter: None,
            replica: None,
            input_tokens: None,
            cached_tokens: None,
            output_tokens: None,
            tokens_source: None,
            reserved_tokens: None,
            refunded_tokens: None,
            cost: Some(f64::NAN),
            queue_ms: Some(f64::INFINITY),
            gateway_ms: None,
            ttft_ms: None,
            tpot_ms: None,
            total_ms: None,
            predicted_cached_tokens: None,
            predicted_ttft_ms: None,
            key_id: KeyId::OPEN,
            ..record("r")
        };
        let parsed: Value = serde_json::from_str(&line(&unknown)).unwrap();
        let nulls = parsed.as_object().unwrap().values().filter(|value| value.is_null()).count();
        assert_eq!((nulls, &parsed["key_id"]), (18, &json!("-")));
    }

    #[test]
    fn dates_over_leap_years_and_centuries() {
        // From `date -u -d @SECONDS +%FT%TZ`.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (951_868_799, "2000-02-29T23:59:59.007Z"),
            (1_709_164_800, "2024-02-29T00:00:00.007Z"),
            (1_735_689_599, "2024-12-31T23:59:59.007Z"),
            (4_107_542_399, "2100-02-28T23:59:59.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
        ] {
            let mut out = Vec::new();
            write_rfc3339_ms(&mut out, seconds * 1000 + 7);
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }

    #[test]
    fn ids_up_to_64_bytes() {
        let longest = "i".repeat(64);
        assert_eq!(SmallId::new(&longest).unwrap().as_str(), longest);
        assert!(SmallId::new(&"i".repeat(65)).is_none());
        assert_eq!(SmallId::new("").unwrap().as_str(), "");
    }

    #[test]
    fn outcomes_have_different_names() {
        let mut names: Vec<_> = Outcome::ALL.map(Outcome::as_str).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 10);
    }
}
