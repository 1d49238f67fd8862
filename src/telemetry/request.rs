//! What is told of a request that has ended: plain data, and its line in the access log.
//!
//! Every text in it is our own, of the configuration, or a caller's id that was checked: never a
//! path, a query or a body as a caller sent it.

use std::sync::Arc;

use crate::config::{AccessFormat, KeyId};
use crate::usage::{Outcome, SmallId, write_escaped, write_rfc3339_ms};

/// See the module. `None`: it never came to that.
#[derive(Clone, Debug)]
pub struct Request {
    /// `POST`.
    pub method: &'static str,
    /// The path of the endpoint that it met; an unknown path is not told.
    pub route: Option<&'static str>,
    /// What GenAI conventions call it: `chat`.
    pub operation: Option<&'static str>,
    /// Status of the answer, or the one that it would have had; 0 = none was sent.
    pub status: u16,
    /// The tenant's id.
    pub tenant: Option<Arc<str>>,
    /// Public name of its key.
    pub key_id: KeyId,
    /// As in the `x-request-id` of the answer.
    pub request_id: SmallId,
    /// The model asked for, if there is one of that name.
    pub model: Option<Arc<str>>,
    /// The pool that serves it.
    pub pool: Option<Arc<str>>,
    /// The LoRA adapter that was meant.
    pub adapter: Option<Arc<str>>,
    /// Id of the replica that served it, or was tried last.
    pub replica: Option<Arc<str>>,
    /// A stream was asked for.
    pub stream: bool,
    /// How it ended, if there is a usage record.
    pub outcome: Option<Outcome>,
    /// Attempts upstream.
    pub attempts: u32,
    /// Its end by the wall clock, in ns since 1970.
    pub ended_unix_ns: u64,
    /// Its end by the clock of the process, in ns.
    pub ended_ns: u64,
    /// From its head to its end.
    pub total_ns: u64,
    /// From its head to its first content.
    pub ttft_ns: Option<u64>,
    /// In the queue.
    pub queue_ns: u64,
    /// Bytes of head and body.
    pub bytes_in: u64,
    /// Bytes of the answer that the client's socket took.
    pub bytes_out: u64,
    /// Tokens of the prompt, those of them from the cache, and of the answer.
    pub tokens: [Option<u64>; 3],
    /// The trace that it is part of.
    pub trace_id: Option<u128>,
}

impl Request {
    /// Appends its line of the access log, with its newline.
    pub fn write_line(&self, format: AccessFormat, out: &mut Vec<u8>) {
        let mut line = Line { out, format, first: true };
        line.begin();
        line.time("ts", self.ended_unix_ns / 1_000_000);
        line.text("method", Some(self.method));
        line.text("path", self.route);
        line.whole("status", Some(self.status.into()));
        line.text("tenant", self.tenant.as_deref());
        line.text("key_id", Some(self.key_id.as_str()));
        line.text("request_id", Some(self.request_id.as_str()));
        line.text("model", self.model.as_deref());
        line.text("pool", self.pool.as_deref());
        line.text("replica", self.replica.as_deref());
        line.text("outcome", self.outcome.map(Outcome::as_str));
        line.whole("attempts", Some(self.attempts.into()));
        line.ms("queue_ms", Some(self.queue_ns));
        line.ms("ttft_ms", self.ttft_ns);
        line.ms("total_ms", Some(self.total_ns));
        line.whole("bytes_in", Some(self.bytes_in));
        line.whole("bytes_out", Some(self.bytes_out));
        let trace_id = self.trace_id.map(|id| format!("{id:032x}"));
        line.text("trace_id", trace_id.as_deref());
        line.end();
    }
}

/// A line being written: an object of JSON, or `name=value` with spaces between.
struct Line<'o> {
    out: &'o mut Vec<u8>,
    format: AccessFormat,
    first: bool,
}

impl Line<'_> {
    fn is_json(&self) -> bool {
        self.format == AccessFormat::Json
    }

    fn begin(&mut self) {
        if self.is_json() {
            self.out.push(b'{');
        }
    }

    fn end(&mut self) {
        if self.is_json() {
            self.out.push(b'}');
        }
        self.out.push(b'\n');
    }

    fn name(&mut self, name: &str) {
        let (between, quote, after): (&[u8], &[u8], u8) =
            if self.is_json() { (b",", b"\"", b':') } else { (b" ", b"", b'=') };
        if !std::mem::take(&mut self.first) {
            self.out.extend_from_slice(between);
        }
        for part in [quote, name.as_bytes(), quote] {
            self.out.extend_from_slice(part);
        }
        self.out.push(after);
    }

    fn absent(&mut self) {
        self.out.extend_from_slice(if self.is_json() { b"null" } else { b"-" });
    }

    fn text(&mut self, name: &str, value: Option<&str>) {
        self.name(name);
        let Some(value) = value else { return self.absent() };
        let is_bare = |byte: &u8| byte.is_ascii_graphic() && !b"\"\\=".contains(byte);
        if !self.is_json() && !value.is_empty() && value.as_bytes().iter().all(is_bare) {
            return self.out.extend_from_slice(value.as_bytes());
        }
        self.out.push(b'"');
        write_escaped(self.out, value);
        self.out.push(b'"');
    }

    fn whole(&mut self, name: &str, value: Option<u64>) {
        self.name(name);
        match value {
            Some(value) => {
                self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
            }
            None => self.absent(),
        }
    }

    fn ms(&mut self, name: &str, ns: Option<u64>) {
        self.name(name);
        let Some(ns) = ns else { return self.absent() };
        let ms = ns as f64 / 1e6;
        self.out.extend_from_slice(ryu::Buffer::new().format_finite(ms).as_bytes());
    }

    fn time(&mut self, name: &str, unix_ms: u64) {
        self.name(name);
        let quote: &[u8] = if self.is_json() { b"\"" } else { b"" };
        self.out.extend_from_slice(quote);
        write_rfc3339_ms(self.out, unix_ms);
        self.out.extend_from_slice(quote);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::telemetry) fn request() -> Request {
        Request {
            method: "POST",
            route: Some("/v1/chat/completions"),
            operation: Some("chat"),
            status: 200,
            tenant: Some("acme".into()),
            key_id: KeyId::OPEN,
            request_id: SmallId::new("r-1").unwrap(),
            model: Some("gpt \"fast\"\n".into()),
            pool: Some("p".into()),
            adapter: None,
            replica: Some("r2".into()),
            stream: true,
            outcome: Some(Outcome::Ok),
            attempts: 2,
            ended_unix_ns: 1_767_225_599_123_456_789,
            ended_ns: 5_000_000,
            total_ns: 4_500_000,
            ttft_ns: Some(1_250_000),
            queue_ns: 0,
            bytes_in: 300,
            bytes_out: 4_096,
            tokens: [Some(5), Some(0), Some(2)],
            trace_id: Some(0xab),
        }
    }

    fn line(request: &Request, format: AccessFormat) -> String {
        let mut out = Vec::new();
        request.write_line(format, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_line_is_json_that_a_reader_takes() {
        let text = line(&request(), AccessFormat::Json);
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["ts"], "2025-12-31T23:59:59.123Z");
        assert_eq!(read["model"], "gpt \"fast\"\n");
        assert_eq!((&read["status"], &read["bytes_out"]), (&200.into(), &4096.into()));
        assert_eq!((&read["ttft_ms"], &read["total_ms"]), (&1.25.into(), &4.5.into()));
        assert_eq!(read["trace_id"], "000000000000000000000000000000ab");
        let bare = Request { tenant: None, route: None, trace_id: None, ..request() };
        let read: serde_json::Value =
            serde_json::from_str(&line(&bare, AccessFormat::Json)).unwrap();
        assert!(read["tenant"].is_null() && read["path"].is_null() && read["trace_id"].is_null());
    }

    #[test]
    fn a_line_is_text_that_a_person_reads() {
        let text = line(&Request { trace_id: None, ..request() }, AccessFormat::Text);
        let want = "ts=2025-12-31T23:59:59.123Z method=POST path=/v1/chat/completions status=200 \
                    tenant=acme key_id=- request_id=r-1 model=\"gpt \\\"fast\\\"\\u000a\" pool=p \
                    replica=r2 outcome=ok attempts=2 queue_ms=0.0 ttft_ms=1.25 total_ms=4.5 \
                    bytes_in=300 bytes_out=4096 trace_id=-\n";
        assert_eq!(text, want);
    }
}
