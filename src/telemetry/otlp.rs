//! Traces and usage records as OTLP's JSON (opentelemetry-proto 1.x, "JSON Protobuf Encoding": ids
//! in hex, 64-bit numbers as strings, enums as numbers). Names are those of OpenTelemetry's
//! conventions for HTTP and GenAI where there are such; ours begin with `expedite.`.

use serde_json::Value;

use super::queue::Ended;
use super::request::Request;
use super::trace::{Span, Trace};
use crate::usage::{Outcome, write_escaped};

/// Kinds of spans.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
const CLIENT: u8 = 3;
/// Status of a span that failed.
const FAILED: &str = ",\"status\":{\"code\":2}";
/// Severity of a log record that only informs.
const INFO: &str = "9,\"severityText\":\"INFO\"";

/// Whose telemetry it is: the value of `resource`.
pub(super) fn resource(service: &str, instance: &str) -> String {
    let mut out = String::from("{\"attributes\":");
    let mut attributes = Attributes::begin(&mut out);
    attributes.text("service.name", service);
    attributes.text("service.version", env!("CARGO_PKG_VERSION"));
    attributes.text("service.instance.id", instance);
    attributes.end();
    out.push('}');
    out
}

/// An `ExportTraceServiceRequest`.
pub(super) fn traces(resource: &str, batch: &[Ended]) -> String {
    let mut out = String::with_capacity(512 + batch.len() * 4096);
    open(&mut out, "resourceSpans", resource, "scopeSpans", "spans");
    for (n, ended) in batch.iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        let (trace, request) = &**ended;
        server(&mut out, trace, request);
        for span in &trace.spans {
            out.push(',');
            part(&mut out, trace, request, span);
        }
    }
    out.push_str("]}]}]}");
    out
}

/// An `ExportLogsServiceRequest` of lines of the usage log.
pub(super) fn records(resource: &str, batch: &[Box<[u8]>]) -> String {
    let mut out = String::with_capacity(512 + batch.len() * 2048);
    open(&mut out, "resourceLogs", resource, "scopeLogs", "logRecords");
    let mut first = true;
    for record in batch.iter().filter_map(|line| serde_json::from_slice::<Value>(line).ok()) {
        if !std::mem::take(&mut first) {
            out.push(',');
        }
        let time = record.get("ts").and_then(Value::as_str).and_then(unix_ns).unwrap_or(0);
        let head = format!(
            "{{\"timeUnixNano\":\"{time}\",\"severityNumber\":{INFO},\
             \"eventName\":\"expedite.usage\",\"body\":"
        );
        out.push_str(&head);
        any(&mut out, &record);
        out.push('}');
    }
    out.push_str("]}]}]}");
    out
}

fn open(out: &mut String, whole: &str, resource: &str, scopes: &str, items: &str) {
    let version = env!("CARGO_PKG_VERSION");
    out.push_str(&format!(
        "{{\"{whole}\":[{{\"resource\":{resource},\"{scopes}\":[{{\"scope\":{{\
         \"name\":\"expedite\",\"version\":\"{version}\"}},\"{items}\":["
    ));
}

/// The span of the request itself.
fn server(out: &mut String, trace: &Trace, request: &Request) {
    let route = request.route.map(|route| format!(" {route}")).unwrap_or_default();
    let name = format!("{}{route}", request.method);
    let times = (trace.started_ns, request.ended_ns);
    begin(out, (trace, request), (trace.root, trace.parent), (&name, SERVER), times);
    let failed = matches!(
        request.outcome,
        Some(Outcome::UpstreamError | Outcome::Truncated | Outcome::Deadline | Outcome::NoReplica)
    ) || request.status >= 500;
    let mut attributes = Attributes::begin(out);
    attributes.text("http.request.method", request.method);
    attributes.maybe("http.route", request.route);
    attributes.text("url.scheme", "http");
    attributes.whole("http.response.status_code", request.status.into());
    if failed {
        let outcome = request.outcome.map_or("_OTHER", Outcome::as_str);
        attributes.text("error.type", outcome);
    }
    model(&mut attributes, request);
    let [input, cached, output] = request.tokens;
    for (name, tokens) in [
        ("gen_ai.usage.input_tokens", input),
        ("gen_ai.usage.cache_read.input_tokens", cached),
        ("gen_ai.usage.output_tokens", output),
    ] {
        if let Some(tokens) = tokens.filter(|_| request.operation.is_some()) {
            attributes.whole(name, tokens);
        }
    }
    attributes.text("expedite.request_id", request.request_id.as_str());
    attributes.maybe("expedite.tenant", request.tenant.as_deref());
    attributes.text("expedite.key_id", request.key_id.as_str());
    attributes.maybe("expedite.pool", request.pool.as_deref());
    attributes.maybe("expedite.adapter", request.adapter.as_deref());
    attributes.maybe("expedite.replica", request.replica.as_deref());
    attributes.maybe("expedite.outcome", request.outcome.map(Outcome::as_str));
    attributes.whole("expedite.attempts", request.attempts.into());
    attributes.real("expedite.queue_ms", request.queue_ns as f64 / 1e6);
    if let Some(ttft_ns) = request.ttft_ns {
        attributes.real("expedite.ttft_ms", ttft_ns as f64 / 1e6);
    }
    attributes.end();
    out.push_str(if failed { FAILED } else { "" });
    out.push('}');
}

/// A stage, or an attempt.
fn part(out: &mut String, trace: &Trace, request: &Request, span: &Span) {
    let ids = (span.id, Some(span.parent));
    let times = (span.started_ns, span.ended_ns);
    let Some(to) = &span.to else {
        begin(out, (trace, request), ids, (span.name, INTERNAL), times);
        Attributes::begin(out).end();
        return out.push('}');
    };
    let name = match (request.operation, request.model.as_deref()) {
        (Some(operation), Some(model)) => format!("{operation} {model}"),
        _ => format!("POST{}", request.route.map(|r| format!(" {r}")).unwrap_or_default()),
    };
    begin(out, (trace, request), ids, (&name, CLIENT), times);
    let mut attributes = Attributes::begin(out);
    attributes.text("http.request.method", "POST");
    let (host, port) = to.authority.rsplit_once(':').unwrap_or((&to.authority, ""));
    attributes.text("server.address", host);
    if let Ok(port) = port.parse() {
        attributes.whole("server.port", port);
    }
    model(&mut attributes, request);
    attributes.text("expedite.replica", &to.replica);
    attributes.maybe("error.type", span.error);
    attributes.end();
    if let Some(at) = to.first_token_ns {
        let time = unix(request, at);
        out.push_str(&format!(
            ",\"events\":[{{\"timeUnixNano\":\"{time}\",\"name\":\"first_token\"}}]"
        ));
    }
    out.push_str(if span.error.is_some() { FAILED } else { "" });
    out.push('}');
}

fn model(attributes: &mut Attributes<'_>, request: &Request) {
    if let Some(operation) = request.operation {
        attributes.text("gen_ai.operation.name", operation);
        attributes.text("gen_ai.provider.name", "vllm");
    }
    attributes.maybe("gen_ai.request.model", request.model.as_deref());
}

/// Everything of a span up to its attributes.
fn begin(
    out: &mut String,
    (trace, request): (&Trace, &Request),
    (id, parent): (u64, Option<u64>),
    (name, kind): (&str, u8),
    (started_ns, ended_ns): (u64, u64),
) {
    let Trace { trace_id, flags, .. } = trace;
    out.push_str(&format!("{{\"traceId\":\"{trace_id:032x}\",\"spanId\":\"{id:016x}\""));
    if let Some(parent) = parent {
        out.push_str(&format!(",\"parentSpanId\":\"{parent:016x}\""));
    }
    out.push_str(&format!(",\"flags\":{flags},\"kind\":{kind},\"name\":"));
    string(out, name);
    let (start, end) = (unix(request, started_ns), unix(request, ended_ns.max(started_ns)));
    let times = format!(",\"startTimeUnixNano\":\"{start}\",\"endTimeUnixNano\":\"{end}\"");
    out.push_str(&times);
    out.push_str(",\"attributes\":");
}

/// A moment of the process's clock by the wall clock that the request ended by.
fn unix(request: &Request, ns: u64) -> u64 {
    request.ended_unix_ns.saturating_sub(request.ended_ns.saturating_sub(ns))
}

/// A list of `KeyValue`s being written.
struct Attributes<'o> {
    out: &'o mut String,
    first: bool,
}

impl Attributes<'_> {
    fn begin(out: &mut String) -> Attributes<'_> {
        out.push('[');
        Attributes { out, first: true }
    }

    fn end(self) {
        self.out.push(']');
    }

    fn key(&mut self, key: &str) {
        self.out.push_str(if std::mem::take(&mut self.first) { "{\"key\":" } else { ",{\"key\":" });
        string(self.out, key);
        self.out.push_str(",\"value\":");
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        self.out.push_str("{\"stringValue\":");
        string(self.out, value);
        self.out.push_str("}}");
    }

    fn maybe(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(key, value);
        }
    }

    fn whole(&mut self, key: &str, value: u64) {
        self.key(key);
        self.out.push_str(&format!("{{\"intValue\":\"{value}\"}}}}"));
    }

    fn real(&mut self, key: &str, value: f64) {
        self.key(key);
        self.out.push_str(&format!("{{\"doubleValue\":{value}}}}}"));
    }
}

fn string(out: &mut String, text: &str) {
    let mut bytes = Vec::with_capacity(text.len() + 2);
    bytes.push(b'"');
    write_escaped(&mut bytes, text);
    bytes.push(b'"');
    // Only ASCII was put before ASCII of it.
    out.push_str(&String::from_utf8_lossy(&bytes));
}

/// An `AnyValue`. A usage record has no lists; null is an empty one.
fn any(out: &mut String, value: &Value) {
    match value {
        Value::Object(members) => {
            out.push_str("{\"kvlistValue\":{\"values\":[");
            for (n, (key, value)) in members.iter().enumerate() {
                out.push_str(if n > 0 { ",{\"key\":" } else { "{\"key\":" });
                string(out, key);
                out.push_str(",\"value\":");
                any(out, value);
                out.push('}');
            }
            out.push_str("]}}");
        }
        Value::String(text) => {
            out.push_str("{\"stringValue\":");
            string(out, text);
            out.push('}');
        }
        Value::Bool(yes) => out.push_str(&format!("{{\"boolValue\":{yes}}}")),
        Value::Number(n) if n.is_f64() => out.push_str(&format!("{{\"doubleValue\":{n}}}")),
        Value::Number(n) => out.push_str(&format!("{{\"intValue\":\"{n}\"}}")),
        Value::Null | Value::Array(_) => out.push_str("{}"),
    }
}

/// `2026-01-31T12:34:56.789Z`, as records have it, in ns since 1970. Days by Hinnant's
/// `days_from_civil`.
fn unix_ns(ts: &str) -> Option<u64> {
    let number = |from: usize, to: usize| ts.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let ms = number(20, 23)?;
    let year = year.checked_sub(u64::from(month <= 2))?;
    let shifted = if month > 2 { month.checked_sub(3)? } else { month.checked_add(9)? };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * shifted + 2) / 5 + day.checked_sub(1)?;
    let days = (era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year)
        .checked_sub(719_468)?;
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second;
    Some((seconds * 1_000 + ms) * 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::super::request::tests::request;
    use super::*;

    fn attribute<'v>(of: &'v Value, key: &str) -> &'v Value {
        let all = of["attributes"].as_array().unwrap();
        all.iter().find(|one| one["key"] == key).map_or(&Value::Null, |one| &one["value"])
    }

    fn ended() -> Ended {
        let mut trace = Trace::new(0xab, Some(0xcd), 0xef, 1, 500_000);
        trace.stage("auth", 500_000, 600_000);
        trace.attempt(700_000, "r1".into(), "[::1]:8000");
        trace.attempt_ended(800_000, Some("refused"));
        trace.attempt(800_000, "r2".into(), "10.0.0.2:8000");
        trace.first_token(1_750_000);
        trace.attempt_ended(4_000_000, None);
        Box::new((trace, request()))
    }

    #[test]
    fn a_trace_is_json_by_the_protocol() {
        let resource = resource("ex\"pedite", "i-1");
        let text = traces(&resource, &[ended(), ended()]);
        let read: Value = serde_json::from_str(&text).unwrap();
        let whole = &read["resourceSpans"][0];
        assert_eq!(attribute(&whole["resource"], "service.name")["stringValue"], "ex\"pedite");
        let spans = whole["scopeSpans"][0]["spans"].as_array().unwrap();
        assert_eq!(spans.len(), 8);
        let [server, auth, first, second] = &spans[..4] else { panic!("{text}") };
        assert_eq!(server["traceId"], "000000000000000000000000000000ab");
        assert_eq!((&server["spanId"], &server["kind"]), (&"00000000000000ef".into(), &2.into()));
        assert_eq!(server["parentSpanId"], "00000000000000cd");
        assert_eq!(server["name"], "POST /v1/chat/completions");
        assert_eq!(server["endTimeUnixNano"], "1767225599123456789");
        assert_eq!(server["startTimeUnixNano"], "1767225599118956789");
        assert_eq!(attribute(server, "gen_ai.operation.name")["stringValue"], "chat");
        assert_eq!(attribute(server, "gen_ai.usage.input_tokens")["intValue"], "5");
        assert_eq!(attribute(server, "gen_ai.request.model")["stringValue"], "gpt \"fast\"\n");
        assert_eq!(attribute(server, "expedite.ttft_ms")["doubleValue"], 1.25);
        assert!(server["status"].is_null());
        assert_eq!((&auth["kind"], &auth["parentSpanId"]), (&1.into(), &server["spanId"]));
        assert_eq!(attribute(first, "server.address")["stringValue"], "[::1]");
        assert_eq!(attribute(first, "server.port")["intValue"], "8000");
        assert_eq!(attribute(first, "error.type")["stringValue"], "refused");
        assert_eq!((&first["status"]["code"], &first["kind"]), (&2.into(), &3.into()));
        assert_eq!(second["events"][0]["name"], "first_token");
        assert_eq!(second["events"][0]["timeUnixNano"], "1767225599120206789");
        assert_eq!(second["name"], "chat gpt \"fast\"\n");
    }

    #[test]
    fn a_failure_of_ours_or_a_replicas_is_an_error_and_a_callers_mistake_is_none() {
        let status = |outcome: Option<Outcome>, status: u16| {
            let trace = Trace::new(1, None, 2, 1, 0);
            let ended: Ended = Box::new((trace, Request { outcome, status, ..request() }));
            let read: Value = serde_json::from_str(&traces("{}", &[ended])).unwrap();
            let span = &read["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
            assert!(span["parentSpanId"].is_null());
            (span["status"]["code"].as_u64(), attribute(span, "error.type").clone())
        };
        assert_eq!(status(Some(Outcome::Truncated), 200).0, Some(2));
        assert_eq!(status(None, 503).1["stringValue"], "_OTHER");
        assert_eq!(status(Some(Outcome::NoReplica), 503).1["stringValue"], "no_replica");
        assert_eq!(status(Some(Outcome::RejectedQuota), 429), (None, Value::Null));
        assert_eq!(status(None, 401), (None, Value::Null));
    }

    #[test]
    fn a_record_becomes_a_log_record_with_each_of_its_fields() {
        let line = b"{\"ts\":\"2026-01-31T12:34:56.789Z\",\"tenant\":\"a\",\"stream\":true,\
                     \"status\":200,\"cost\":0.5,\"adapter\":null}\n";
        let batch: [Box<[u8]>; 3] = [line[..].into(), b"torn{"[..].into(), line[..].into()];
        let read: Value = serde_json::from_str(&records("{}", &batch)).unwrap();
        let records = read["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array().unwrap();
        assert_eq!(records.len(), 2);
        assert_eq!(records[0]["timeUnixNano"], "1769862896789000000");
        let values = records[0]["body"]["kvlistValue"]["values"].as_array().unwrap();
        let told: Vec<_> =
            values.iter().map(|v| (v["key"].as_str().unwrap(), &v["value"])).collect();
        assert_eq!(told[1], ("tenant", &serde_json::json!({"stringValue": "a"})));
        assert_eq!(told[2], ("stream", &serde_json::json!({"boolValue": true})));
        assert_eq!(told[3], ("status", &serde_json::json!({"intValue": "200"})));
        assert_eq!(told[4], ("cost", &serde_json::json!({"doubleValue": 0.5})));
        assert_eq!(told[5], ("adapter", &serde_json::json!({})));
    }

    #[test]
    fn times_are_read_as_records_write_them() {
        assert_eq!(unix_ns("1970-01-01T00:00:00.001Z"), Some(1_000_000));
        assert_eq!(unix_ns("2000-02-29T23:59:59.999Z"), Some(951_868_799_999_000_000));
        for bad in ["", "2026", "2026-xx-31T12:34:56.789Z", "1969-01-01T00:00:00.000Z"] {
            assert_eq!(unix_ns(bad), None, "{bad}");
        }
    }
}
