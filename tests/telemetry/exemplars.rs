//! The metrics page in OpenMetrics' format: exemplars of traced requests, and an end.

use crate::common::gateway::{AUTH, Bed};
use crate::common::{ask, post_with};
use crate::{collector, engine, tracing_to};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

fn page(bed: &Bed, accept: &str) -> (String, String) {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{accept}\r\n");
    let answer = ask(bed.admin, request.as_bytes());
    (answer.field("content-type").expect("a type").to_owned(), answer.text())
}

#[test]
fn slow_first_tokens_name_their_trace_to_who_reads_openmetrics() {
    let (collector, engine) = (collector(), engine());
    let bed = Bed::start(&[engine.addr], tracing_to(&collector, "sample_ratio = 0.0"));
    let json = "{\"model\":\"m\",\"stream\":true,\"messages\":[{}]}";
    for parent in ["", &format!("traceparent: 00-{TRACE}-b7ad6b7169203331-01\r\n")] {
        let fields = format!("{AUTH}{parent}");
        let answer = ask(bed.addr, &post_with("/v1/chat/completions", &fields, json));
        assert_eq!(answer.words(), "ab");
    }
    bed.records(2);
    let open = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let (kind, text) = page(&bed, open);
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(text.ends_with("\n# EOF\n"));
    let marked: Vec<_> = text.lines().filter(|line| line.contains(" # {")).collect();
    let [line] = marked[..] else { panic!("{marked:?}") };
    assert!(line.starts_with("expedite_ttft_seconds_bucket{pool=\"p\",le=\""), "{line}");
    let (_, exemplar) = line.split_once(" # ").expect("an exemplar");
    let rest = exemplar.strip_prefix(&format!("{{trace_id=\"{TRACE}\"}} ")).expect("the trace");
    let numbers: Vec<f64> = rest.split(' ').map(|n| n.parse().expect("a number")).collect();
    let bound: f64 = line
        .split("le=\"")
        .nth(1)
        .and_then(|r| r.split('"').next()?.parse().ok())
        .expect("a bound");
    assert!(numbers.len() == 2 && numbers[0] <= bound && numbers[1] > 1.7e9, "{line}");
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        assert!(!line.contains("_total "), "a family has no suffix: {line}");
    }
    let (kind, plain) = page(&bed, "");
    assert!(kind.starts_with("text/plain; version=0.0.4"));
    assert!(!plain.contains(" # {") && !plain.contains("# EOF"));
}
