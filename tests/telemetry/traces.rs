//! Traces: the context in and out, sampling, a span for each stage and attempt, and a collector
//! that is away.

use std::collections::HashSet;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde_json::Value;

use crate::common::engine::{After, Engine, json};
use crate::common::faults::{failing, hello};
use crate::common::gateway::{AUTH, Bed, Settings};
use crate::common::{Response, ask, eventually, post_with};
use crate::python;
use crate::{attribute, collector, engine, received, spans, tracing_to};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
/// Only what says so is traced: a bed asks a few things of its own.
const QUIET: &str = "sample_ratio = 0.0";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A stream of `acme`'s with further field lines.
fn stream(bed: &Bed, fields: &str) -> Response {
    let json = "{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\
                \"content\":\"hi\"}]}";
    ask(bed.addr, &post_with("/v1/chat/completions", &format!("{AUTH}{fields}"), json))
}

/// One that its caller records.
fn traced(bed: &Bed) -> Response {
    stream(bed, &format!("traceparent: {PARENT}\r\n"))
}

fn named<'s>(spans: &'s [Value], name: &str) -> Vec<&'s Value> {
    spans.iter().filter(|span| span["name"] == name).collect()
}

fn nanos(span: &Value, key: &str) -> u64 {
    span[key].as_str().and_then(|ns| ns.parse().ok()).expect("a time")
}

#[test]
fn a_request_is_a_span_with_its_stages_and_attempts_below() {
    let collector = collector();
    // The first answer of all is a reset.
    let engines = failing(2, 1, (b"", After::Reset), &hello());
    let addrs: Vec<_> = engines.iter().map(|engine| engine.addr).collect();
    let settings = tracing_to(&collector, &format!("{QUIET}\nservice_name = \"gw\""));
    let tenant = "tokens_per_second = 1000000".to_owned();
    let bed = Bed::start(&addrs, Settings { tenant, ..settings });
    let answer = stream(&bed, &format!("traceparent: {PARENT}\r\ntracestate: a=1,b=2\r\n"));
    assert_eq!(answer.words(), "hello");
    eventually("the collector has the trace", || !spans(&collector).is_empty());
    let spans = spans(&collector);
    assert!(spans.iter().all(|span| span["traceId"] == TRACE), "{spans:#?}");
    let [server] = named(&spans, "POST /v1/chat/completions")[..] else { panic!("{spans:#?}") };
    assert_eq!((&server["kind"], &server["parentSpanId"]), (&2.into(), &"b7ad6b7169203331".into()));
    let words = [
        ("http.request.method", "POST"),
        ("http.route", "/v1/chat/completions"),
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "vllm"),
        ("gen_ai.request.model", "m"),
        ("expedite.tenant", "acme"),
        ("expedite.pool", "p"),
        ("expedite.outcome", "ok"),
    ];
    for (key, value) in words {
        assert_eq!(attribute(server, key), value, "{key}");
    }
    assert_eq!(attribute(server, "http.response.status_code"), "200");
    assert_eq!(attribute(server, "expedite.attempts"), "2");
    let output = bed.records(1)[0]["output_tokens"].to_string();
    assert_eq!(attribute(server, "gen_ai.usage.output_tokens"), output.as_str());
    assert!(server["status"].is_null(), "a retry that went well is no error");
    for stage in ["auth", "tokenize", "quota", "admission"] {
        let [span] = named(&spans, stage)[..] else { panic!("{stage}: {spans:#?}") };
        assert_eq!((&span["kind"], &span["parentSpanId"]), (&1.into(), &server["spanId"]));
    }
    assert_eq!(named(&spans, "route").len(), 2);
    let [first, second] = named(&spans, "chat m")[..] else { panic!("{spans:#?}") };
    assert_eq!(
        (attribute(first, "error.type"), &first["status"]["code"]),
        (&"broken".into(), &2.into())
    );
    assert!(second["status"].is_null() && second["events"][0]["name"] == "first_token");
    // A replica gets the span of its own attempt.
    let mut asked = engines.iter().flat_map(Engine::requests).map(|request| {
        assert_eq!(request.fields("tracestate"), ["a=1,b=2"]);
        request.fields("traceparent").concat()
    });
    let attempts = [first, second].map(|span| {
        let id = span["spanId"].as_str().expect("an id");
        assert_eq!((&span["kind"], &span["parentSpanId"]), (&3.into(), &server["spanId"]));
        assert_eq!(attribute(span, "server.address"), "127.0.0.1");
        format!("00-{TRACE}-{id}-01")
    });
    assert!(asked.all(|parent| attempts.contains(&parent)), "{attempts:?}");
    let (start, end) = (nanos(server, "startTimeUnixNano"), nanos(server, "endTimeUnixNano"));
    for span in &spans {
        let times = (nanos(span, "startTimeUnixNano"), nanos(span, "endTimeUnixNano"));
        assert!(start <= times.0 && times.0 <= times.1 && times.1 <= end, "{span:#}");
    }
    let bodies = collector.requests();
    let body: Value = serde_json::from_slice(&bodies[0].body).expect("JSON");
    assert_eq!(attribute(&body["resourceSpans"][0]["resource"], "service.name"), "gw");
}

#[test]
fn without_a_collector_a_context_is_passed_on_as_it_came_or_not_at_all() {
    let engine = engine();
    let bed = Bed::of(&[engine.addr]);
    let long = format!("cc{}-more", &PARENT[2..]);
    let upper = PARENT.to_uppercase();
    let cases: [(&str, &str, &[&str], &[&str]); 6] = [
        (PARENT, "a=1, b=2", &[PARENT], &["a=1, b=2"]),
        (&long, "a=1", &[&long], &["a=1"]),
        (PARENT, "a=1,a=2", &[PARENT], &[]),
        (PARENT, "A=1", &[PARENT], &[]),
        (&upper, "a=1", &[], &[]),
        ("00-0-0-01", "a=1", &[], &[]),
    ];
    for (n, (parent, state, parents, states)) in cases.into_iter().enumerate() {
        let fields = format!("traceparent: {parent}\r\ntracestate: {state}\r\n");
        assert_eq!(stream(&bed, &fields).status(), 200, "a broken context is no error");
        let asked = engine.requests();
        let got = &asked[n];
        assert_eq!(got.fields("traceparent"), parents, "{parent} {state}");
        assert_eq!(got.fields("tracestate"), states, "{parent} {state}");
    }
    stream(&bed, "");
    assert_eq!(engine.requests()[6].fields("traceparent"), Vec::<&str>::new());
}

#[test]
fn a_callers_decision_goes_before_the_ratio() {
    let (collector, engine) = (collector(), engine());
    let bed = Bed::start(&[engine.addr], tracing_to(&collector, QUIET));
    stream(&bed, "");
    let unsampled = PARENT.replace("-01", "-00").replace("0af7", "0000");
    stream(&bed, &format!("traceparent: {unsampled}\r\n"));
    // Nor does a stranger's or a balancer's, whatever it says.
    let other = PARENT.replace("0af7", "0001");
    for auth in ["", "Authorization: Bearer no\r\n"] {
        let fields = format!("{auth}traceparent: {other}\r\n");
        let answer = ask(bed.addr, &post_with("/v1/chat/completions", &fields, "{}"));
        assert_eq!(answer.status(), 401);
    }
    let health = format!("GET /health HTTP/1.1\r\nHost: g\r\ntraceparent: {other}\r\n\r\n");
    assert_eq!(ask(bed.addr, health.as_bytes()).status(), 200);
    stream(&bed, &format!("traceparent: {PARENT}\r\n"));
    // What is traced comes in order: the last is there, and nothing before it.
    eventually("the sampled trace is there", || !spans(&collector).is_empty());
    assert!(spans(&collector).iter().all(|span| span["traceId"] == TRACE));
    // Replicas hear that others do not record.
    let asked: Vec<_> =
        engine.requests().iter().map(|r| r.fields("traceparent").concat()).collect();
    assert!(asked[0].len() == 55 && asked[0].ends_with("-00"), "{asked:?}");
    assert!(asked[1].starts_with(&unsampled[..36]) && asked[1].ends_with("-00"), "{asked:?}");
    assert_ne!(asked[1], unsampled, "as part of a span of ours");
    assert!(asked[2].starts_with(&PARENT[..36]) && asked[2].ends_with("-01"), "{asked:?}");
}

#[test]
fn a_collector_that_is_busy_costs_nothing_and_gets_what_waited() {
    let (engine, is_busy) = (engine(), Arc::new(AtomicBool::new(true)));
    let busy = Arc::clone(&is_busy);
    let collector = Engine::start(move |_, wire| {
        let status = if busy.load(SeqCst) { 503 } else { 200 };
        wire.write_all(&json(status, "{}")).map(|()| After::Keep)
    });
    let bed = Bed::start(&[engine.addr], tracing_to(&collector, QUIET));
    for _ in 0..5 {
        assert_eq!(traced(&bed).words(), "ab");
    }
    eventually("it was asked", || collector.count() > 0);
    let sent = || bed.metric("expedite_otel_exported_total", "result=\"exported\"");
    assert_eq!((sent(), bed.metric("expedite_otel_up", "")), (0.0, 0.0));
    is_busy.store(false, SeqCst);
    eventually("it counts as up", || bed.metric("expedite_otel_up", "") == 1.0);
    eventually("all that waited is there, and counted once", || {
        let all = spans(&collector);
        let of = |kind: Option<u64>| -> usize {
            let wanted = all.iter().filter(|span| kind.is_none() || span["kind"].as_u64() == kind);
            wanted.map(|span| span["spanId"].to_string()).collect::<HashSet<_>>().len()
        };
        of(Some(2)) == 5 && sent() == of(None) as f64
    });
    let refused = bed.metric("expedite_otel_exported_total", "result=\"refused\"");
    assert_eq!(refused, 0.0);
}

#[test]
fn a_collector_that_is_not_there_costs_nothing() {
    let engine = engine();
    let more = "[otel]\nendpoint = \"http://127.0.0.1:1\"\n".to_owned();
    let bed = Bed::start(&[engine.addr], Settings { more, ..Settings::default() });
    for _ in 0..5 {
        assert_eq!(stream(&bed, "").words(), "ab");
    }
    assert_eq!(bed.metric("expedite_otel_up", ""), 0.0);
    assert_eq!(bed.metric("expedite_otel_exported_total", "result=\"exported\""), 0.0);
}

#[test]
fn what_a_collector_refuses_is_counted_and_not_sent_again() {
    let (engine, refusing) = (engine(), Engine::always(json(400, "{}")));
    let bed = Bed::start(&[engine.addr], tracing_to(&refusing, QUIET));
    traced(&bed);
    let refused = || bed.metric("expedite_otel_exported_total", "result=\"refused\"");
    eventually("it is counted", || refused() > 0.0);
    let once = refused();
    assert_eq!(once, spans(&refusing).len() as f64);
    traced(&bed);
    eventually("the next is counted", || refused() > once);
    assert_eq!((refusing.count(), refused()), (2, spans(&refusing).len() as f64));
}

#[test]
fn usage_records_go_to_the_collector_too_the_last_one_also() {
    let (collector, engine) = (collector(), engine());
    let folder = tempfile::tempdir().expect("folder");
    let log = folder.path().join("usage.jsonl");
    let usage = Some(format!("path = \"{}\"\notlp = true", log.display()));
    let settings = Settings { usage, ..tracing_to(&collector, QUIET) };
    let bed = Bed::start(&[engine.addr], settings);
    (0..20).for_each(|_| assert_eq!(traced(&bed).words(), "ab"));
    let Bed { gateway, .. } = bed;
    gateway.stop();
    let keys = ["resourceLogs", "scopeLogs", "logRecords"];
    let records = received(&collector, "/v1/logs", keys);
    assert_eq!(records.len(), 20);
    let lines = std::fs::read_to_string(&log).expect("the log");
    let ids: Vec<String> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("record"))
        .map(|record| record["request_id"].as_str().expect("an id").to_owned())
        .collect();
    for (record, id) in records.iter().zip(ids) {
        let values = record["body"]["kvlistValue"]["values"].as_array().expect("values");
        let value = |key: &str| {
            let found = values.iter().find(|value| value["key"] == key).expect("a value");
            found["value"].clone()
        };
        assert_eq!(value("request_id")["stringValue"], id);
        assert_eq!(value("tenant")["stringValue"], "acme");
        assert_eq!(value("input_tokens")["intValue"], "5");
        assert_eq!(value("stream")["boolValue"], true);
    }
    let roots = spans(&collector).iter().filter(|span| span["kind"] == 2).count();
    assert_eq!(roots, 20, "every trace, too");
}

#[test]
fn what_a_collector_gets_is_right_by_opentelemetrys_own_definitions() {
    let Some(python) = python::interpreter() else { return };
    let collector = collector();
    let engines = failing(2, 1, (b"", After::Reset), &hello());
    let addrs: Vec<_> = engines.iter().map(|engine| engine.addr).collect();
    let folder = tempfile::tempdir().expect("folder");
    let log = folder.path().join("usage.jsonl");
    let usage = Some(format!("path = \"{}\"\notlp = true", log.display()));
    let bed = Bed::start(&addrs, Settings { usage, ..tracing_to(&collector, QUIET) });
    // One that is tried twice, one that is served, and those that are refused.
    assert_eq!(traced(&bed).words(), "hello");
    assert_eq!(stream(&bed, &format!("traceparent: {PARENT}\r\n")).words(), "hello");
    let head = format!("{AUTH}traceparent: {PARENT}\r\n");
    for body in ["{", "{\"model\":\"nobody's\"}", "{\"model\":\"m\"}"] {
        ask(bed.addr, &post_with("/v1/chat/completions", &head, body));
    }
    let Bed { gateway, .. } = bed;
    gateway.stop();
    let sent = collector.requests();
    let lines = sent.iter().map(|one| format!("{} {}\n", one.path(), python::hex(&one.body)));
    let counts = python::ask(&python, "tests/telemetry/strict.py", lines.collect());
    let of = |path: &str| -> usize {
        let of = sent.iter().zip(&counts).filter(|(one, _)| one.path() == path);
        of.map(|(_, count)| count.parse::<usize>().expect("a number")).sum()
    };
    assert_eq!(of("/v1/traces"), spans(&collector).len());
    assert_eq!(of("/v1/logs"), std::fs::read_to_string(&log).expect("the log").lines().count());
    assert!(of("/v1/traces") > 10 && of("/v1/logs") == 5, "{counts:?}");
}
