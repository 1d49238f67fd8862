//! The dashboard and the alerts against the metrics page of a gateway that has served: a name, a
//! label or a label's value that is not there any more fails here.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;

use serde_json::Value;

use crate::common::engine::{After, Engine, Received, adapter};
use crate::common::faults::counted;
use crate::common::gateway::{AUTH, Bed, Settings};
use crate::common::{ask, eventually, get, post_with};
use crate::exposition::{Family, read};

type Families = BTreeMap<String, Family>;

/// Labels that Prometheus adds, or that every histogram has.
const ADDED: [&str; 3] = ["instance", "job", "le"];
/// Labels whose values the page always lists, so that a literal must be one of them.
const LISTED: [&str; 9] =
    ["stage", "phase", "kind", "result", "side", "state", "direction", "hit", "reason"];
/// The head of an engine's metrics page, up to its length.
const PLAIN_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: ";
/// What Prometheus itself makes.
const OWN: [&str; 1] = ["up"];

/// The metrics page after a stream, one for an adapter, and one that a replica failed.
fn page() -> String {
    let told = "vllm:num_requests_running{engine=\"0\"} 1.0\n\
                vllm:num_requests_waiting{engine=\"0\"} 0.0\n\
                vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n";
    let told = [PLAIN_HEAD, &told.len().to_string(), "\r\n\r\n", told].concat().into_bytes();
    let stream =
        |_: &Received, wire: &mut TcpStream| wire.write_all(&counted()).map(|()| After::Keep);
    let engine = Engine::start_telling(stream, move || told.clone());
    // With a pool that prefills for it, so that what is told of such a pair is there too.
    let prefill = Engine::start(stream);
    let pool = "role = \"decode\"\npair = \"pre\"\n".to_owned();
    let more = format!(
        "[[pool]]\nname = \"pre\"\nrole = \"prefill\"\npair = \"p\"\nreplicas = [\"http://{}\"]\n",
        prefill.addr
    );
    let bed = Bed::start(&[engine.addr], Settings { pool, more, ..Settings::default() });
    eventually("the engine's gauges are read", || bed.metric("expedite_kv_used_ratio", "") > 0.0);
    for model in ["base", &adapter(engine.addr)] {
        let json = format!(
            "{{\"model\":\"{model}\",\"stream\":true,\
             \"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]}}"
        );
        let answer = ask(bed.addr, &post_with("/v1/chat/completions", AUTH, &json));
        assert_eq!(answer.words(), "ab");
    }
    bed.records(2);
    ask(bed.admin, &get("/metrics")).text()
}

/// A metric's name in an expression, and the labels that are matched.
#[derive(Debug, PartialEq)]
struct Selector {
    name: String,
    matchers: Vec<(String, Option<String>)>,
}

/// Every `expedite_...` of a text, with its matchers where it has some.
fn selectors(text: &str) -> Vec<Selector> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let mut all = Vec::new();
    for (at, _) in text.match_indices("expedite_") {
        if text[..at].ends_with(is_name) {
            continue;
        }
        let rest = &text[at..];
        let (name, rest) = rest.split_at(rest.find(|c| !is_name(c)).unwrap_or(rest.len()));
        let inner = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let matchers = inner.map_or("", |(inner, _)| inner).split(',').filter_map(|matcher| {
            let (label, value) = matcher.split_once('=')?;
            // `=~`, `!~` and `!=` match more than one value.
            let literal = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
            let literal = literal.filter(|_| !label.ends_with('!')).map(str::to_owned);
            Some((label.trim_end_matches('!').trim().to_owned(), literal))
        });
        all.push(Selector { name: name.to_owned(), matchers: matchers.collect() });
    }
    all
}

/// The labels of every `by (...)`, `on (...)` and `ignoring (...)` of an expression.
fn groupings(expression: &str) -> Vec<String> {
    let mut all = Vec::new();
    for word in ["by (", "on (", "ignoring ("] {
        for (at, _) in expression.match_indices(word) {
            let inner = expression[at + word.len()..].split(')').next().unwrap_or_default();
            all.extend(inner.split(',').map(|label| label.trim().to_owned()));
        }
    }
    all
}

/// The family of a name as an expression writes it.
fn family<'f>(families: &'f Families, name: &str) -> Option<&'f Family> {
    let stem = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
    let histogram = stem.and_then(|stem| families.get(stem));
    families.get(name).filter(|f| f.kind != "histogram").or(histogram)
}

/// What is wrong with an expression, or a text that names metrics.
fn faults(families: &Families, expression: &str) -> Vec<String> {
    let (mut faults, mut known) = (Vec::new(), Vec::new());
    for Selector { name, matchers } in selectors(expression) {
        let Some(family) = family(families, &name) else {
            faults.push(format!("no metric {name}"));
            continue;
        };
        for (label, value) in matchers {
            match (family.labels.get(&label), value) {
                _ if ADDED.contains(&&*label) => {}
                (None, _) => faults.push(format!("{name} has no label {label}")),
                (Some(values), Some(value))
                    if LISTED.contains(&&*label) && !values.contains(&value) =>
                {
                    faults.push(format!("{name} has no {label}=\"{value}\""));
                }
                _ => {}
            }
        }
        known.extend(family.labels.keys().cloned());
    }
    // The labels of a metric that is not there are not known either.
    let groups = if faults.is_empty() { groupings(expression) } else { Vec::new() };
    for label in groups {
        if !known.contains(&label) && !ADDED.contains(&&*label) {
            faults.push(format!("nothing in it has the label {label}"));
        }
    }
    faults.into_iter().map(|fault| format!("{fault}: {expression}")).collect()
}

/// The texts under `key`, anywhere.
fn strings(value: &Value, key: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                match value {
                    Value::String(text) if name == key => found.push(text.clone()),
                    value => strings(value, key, found),
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|value| strings(value, key, found)),
        _ => {}
    }
}

/// The expressions of the alert rules: behind `expr:`, on its line or indented below it.
fn rules(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let words = line.trim();
        if let Some(rest) = words.strip_prefix("expr:") {
            all.push(rest.trim().trim_start_matches('|').to_owned());
            inside = rest.trim() == "|";
        } else if inside && line.starts_with(&" ".repeat(10)) {
            let last = all.last_mut().expect("an expression");
            *last = format!("{last} {words}").trim().to_owned();
        } else {
            inside = false;
        }
    }
    all
}

#[test]
fn dashboard_and_alerts_name_what_is_exported() {
    let families = read(&page());
    let dashboard = crate::text("tuning/observability/dashboard.json");
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut expressions = Vec::new();
    strings(&dashboard, "expr", &mut expressions);
    let panels = expressions.len();
    strings(&dashboard, "definition", &mut expressions);
    let alerts = crate::text("tuning/observability/alerts.yml");
    let rules = rules(&alerts);
    assert!(panels > 50 && rules.len() > 15, "{panels} panels, {} rules", rules.len());
    assert_eq!(rules.len(), alerts.matches("- alert:").count());
    for rule in &rules {
        let own = OWN.iter().any(|own| rule.starts_with(&format!("{own}{{")));
        assert!(own || !selectors(rule).is_empty(), "{rule}");
    }
    expressions.extend(rules);
    // Texts of the alerts and of the guide name metrics too.
    let prose = ["tuning/observability/alerts.yml", "tuning/README.md"].map(crate::text);
    let names = prose.iter().flat_map(|text| selectors(text)).map(|selector| selector.name);
    let unknown = |name: &String| !families.contains_key(name) && family(&families, name).is_none();
    let mut faults: Vec<_> = names.filter(unknown).collect();
    faults.extend(expressions.iter().flat_map(|one| self::faults(&families, one)));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_is_not_exported_is_found() {
    let page = "# HELP expedite_a_seconds A.\n# TYPE expedite_a_seconds histogram\n\
                expedite_a_seconds_bucket{stage=\"x\",le=\"+Inf\"} 0\n\
                expedite_a_seconds_sum{stage=\"x\"} 0\nexpedite_a_seconds_count{stage=\"x\"} 0\n";
    let families = read(page);
    let good =
        "sum by (stage, le) (rate(expedite_a_seconds_bucket{instance=~\"$i\",stage=\"x\"}[5m]))";
    assert_eq!(faults(&families, good), Vec::<String>::new());
    for (from, to) in [
        ("expedite_a_seconds_bucket", "expedite_b_seconds_bucket"),
        ("expedite_a_seconds_bucket", "expedite_a_seconds"),
        ("stage=\"x\"", "stage=\"y\""),
        ("stage=\"x\"", "stages=\"x\""),
        ("by (stage, le)", "by (pool, le)"),
    ] {
        assert_eq!(faults(&families, &good.replace(from, to)).len(), 1, "{from} to {to}");
    }
    assert_eq!(
        rules("  expr: a\n  for: 1m\n  expr: |\n          b\n          + c\n  x: y\n"),
        ["a", "b + c"]
    );
}

#[test]
fn panels_have_names_ids_and_places_of_their_own() {
    let dashboard = crate::text("tuning/observability/dashboard.json");
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids: Vec<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), panels.len());
    let place = |panel: &Value| ["x", "y", "w", "h"].map(|k| panel["gridPos"][k].as_u64().unwrap());
    for (n, panel) in panels.iter().enumerate() {
        assert!(!panel["title"].as_str().unwrap().is_empty());
        let [x, y, w, h] = place(panel);
        assert!(x + w <= 24, "{panel:#}");
        for other in &panels[n + 1..] {
            let [ox, oy, ow, oh] = place(other);
            let apart = x + w <= ox || ox + ow <= x || y + h <= oy || oy + oh <= y;
            assert!(apart, "{} and {}", panel["title"], other["title"]);
        }
    }
}

/// What users may rely on: names, labels, and the values of labels that are always listed.
const PROMISED: [(&str, &str); 38] = [
    ("expedite_requests_total", "pool endpoint outcome"),
    ("expedite_ttft_seconds", "pool"),
    ("expedite_tpot_seconds", "pool"),
    (
        "expedite_overhead_seconds",
        "stage=head,auth,tokenize,quota,admission,route,connect,relay,total",
    ),
    ("expedite_tokens_total", "pool kind=input,cached,output"),
    ("expedite_in_flight", "pool replica"),
    ("expedite_queue_requests", "pool"),
    ("expedite_queue_tokens", "pool"),
    ("expedite_queue_wait_seconds", "pool"),
    ("expedite_shed_total", "pool reason=ttft,tpot,deadline,queue_full,queue_time"),
    ("expedite_kv_used_ratio", "pool replica"),
    ("expedite_pending_prefill_tokens", "pool replica"),
    ("expedite_prefix_hit_tokens_total", "pool kind=predicted,actual"),
    ("expedite_prefix_index_blocks", "pool"),
    ("expedite_prefix_mode", "pool replica mode"),
    ("expedite_replica_up", "pool replica"),
    ("expedite_replica_signal_age_seconds", "pool replica"),
    ("expedite_retries_total", "reason=refused,broken,draining,erred,full,late,other"),
    ("expedite_cancel_seconds", "phase=connect,first_token,stream,answer"),
    ("expedite_adapter_requests_total", "adapter hit=true,false"),
    ("expedite_quota_rejects_total", "reason=tokens,concurrency,size"),
    ("expedite_quota_store_seconds", ""),
    ("expedite_loop_stall_seconds", "core"),
    ("expedite_panics_total", ""),
    ("expedite_usage_records_total", "result=written,dropped,failed,open,streamed,stream_dropped"),
    ("expedite_connections", "side=client,upstream,upstream_idle"),
    ("expedite_access_lines_total", "result=written,dropped,failed"),
    ("expedite_otel_exported_total", "signal=spans,logs result=exported,dropped,refused"),
    ("expedite_core_connections", "core"),
    ("expedite_core_cpu_seconds_total", "core"),
    ("process_cpu_seconds_total", ""),
    ("process_resident_memory_bytes", ""),
    ("process_start_time_seconds", ""),
    ("gen_ai_server_time_to_first_token_seconds", GENAI),
    ("gen_ai_server_time_per_output_token_seconds", GENAI),
    ("gen_ai_server_request_duration_seconds", GENAI),
    ("gen_ai_client_token_usage", "gen_ai_token_type=input,output"),
    ("expedite_reloads_total", "result=done,refused"),
];
const GENAI: &str = "pool=p gen_ai_operation_name=chat gen_ai_provider_name=vllm \
                     gen_ai_request_model=base";

#[test]
fn every_metric_of_the_contract_is_exported_with_its_labels() {
    let families = read(&page());
    let mut faults = Vec::new();
    for (name, labels) in PROMISED {
        let Some(family) = families.get(name).filter(|family| !family.series.is_empty()) else {
            faults.push(format!("no {name}"));
            continue;
        };
        for promised in labels.split(' ').filter(|promised| !promised.is_empty()) {
            let (label, values) = promised.split_once('=').unwrap_or((promised, ""));
            let told = family.labels.get(label).cloned().unwrap_or_default();
            let missing = |value: &&str| !value.is_empty() && !told.contains(*value);
            if told.is_empty() || values.split(',').any(|value| missing(&value)) {
                faults.push(format!("{name} has {label} of {told:?}, not {promised}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
