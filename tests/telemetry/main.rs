//! What is told of requests: traces and the records beside them at a collector, the access log,
//! exemplars; and that nobody's secret and no prompt is in any of it.

mod access;
mod canary;
#[path = "../common/mod.rs"]
mod common;
mod exemplars;
#[path = "../support/python.rs"]
mod python;
mod traces;

use common::engine::{Engine, json};
use common::faults::counted;
use common::gateway::Settings;
use serde_json::Value;

/// A collector that takes everything.
fn collector() -> Engine {
    Engine::always(json(200, "{\"partialSuccess\":{}}"))
}

/// A gateway that traces to this collector; `more` are further lines of `[otel]`.
fn tracing_to(collector: &Engine, more: &str) -> Settings {
    let more = format!(
        "[routing]\npolicy = \"round_robin\"\n[otel]\nendpoint = \"http://{}\"\n{more}\n",
        collector.addr
    );
    Settings { more, ..Settings::default() }
}

/// An engine whose streams have 5 tokens of prompt and 2 of answer.
fn engine() -> Engine {
    Engine::always(counted())
}

/// What lies below `keys` in each request of this path that the collector has got.
fn received(collector: &Engine, path: &str, keys: [&str; 3]) -> Vec<Value> {
    let requests = collector.requests().into_iter().filter(|request| request.path() == path);
    let bodies = requests.map(|request| {
        assert_eq!(request.fields("content-type"), ["application/json"]);
        serde_json::from_slice::<Value>(&request.body).expect("JSON")
    });
    let items = |body: Value| {
        let items = &body[keys[0]][0][keys[1]][0][keys[2]];
        items.as_array().expect("a list").clone()
    };
    bodies.flat_map(items).collect()
}

/// Every span that it has got.
fn spans(collector: &Engine) -> Vec<Value> {
    received(collector, "/v1/traces", ["resourceSpans", "scopeSpans", "spans"])
}

/// The value of a span's attribute.
fn attribute<'s>(span: &'s Value, key: &str) -> &'s Value {
    let all = span["attributes"].as_array().expect("attributes");
    let value = all.iter().find(|one| one["key"] == key).map(|one| &one["value"]);
    let kinds = ["stringValue", "intValue", "doubleValue", "boolValue"];
    value.and_then(|value| kinds.iter().find_map(|kind| value.get(kind))).unwrap_or(&Value::Null)
}
