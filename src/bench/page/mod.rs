//! A run's JSON as one HTML page: tables and charts in inline SVG, nothing from elsewhere, the
//! JSON itself at the end. Everything is drawn from the JSON, so that no number can differ from
//! it; a cell says which one it shows (`data-of`, a JSON pointer). No I/O, no clock.

mod charts;
mod plot;

use std::fmt::Write as _;

use serde_json::Value;

use super::report::TIMES;
use crate::plan::svg::{escape, open};

/// Charts side by side as wide as they fit, and as wide as a phone.
const STYLE: &str = "<style>.charts{display:grid;gap:1.2em;\
grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr))}\
.charts svg{width:100%}.tables{display:flex;flex-wrap:wrap;gap:0 3em}\
.tables section{max-width:100%}h2{margin-top:1.6em}summary{cursor:pointer;margin-top:1em}\
pre{overflow-x:auto}</style>\n";

/// What a column of the table of times is called, and its figure's first word.
const QUANTILES: [(&str, &str); 7] = [
    ("mean", "mean"),
    ("std", "std"),
    ("p50", "median"),
    ("p90", "p90"),
    ("p99", "p99"),
    ("p99.9", "p999"),
    ("max", "max"),
];

/// The lines of the table of counts: what it is called, the figure, digits after the point.
const COUNTS: [(&str, &str, usize); 15] = [
    ("requests due", "sent", 0),
    ("answered", "completed", 0),
    ("failed", "failed", 0),
    ("given up on purpose", "cancelled", 0),
    ("unfinished", "unfinished", 0),
    ("seconds", "duration", 2),
    ("requests/s", "request_throughput", 2),
    ("good requests/s", "request_goodput", 2),
    ("output tokens/s", "output_throughput", 1),
    ("all tokens/s", "total_token_throughput", 1),
    ("events/s", "event_throughput", 1),
    ("prompt tokens", "total_input_tokens", 0),
    ("of them cached", "total_cached_tokens", 0),
    ("output tokens", "total_output_tokens", 0),
    ("events", "total_events", 0),
];

/// The end of a table.
const END: &str = "</tbody></table></div></section>\n";

/// The lateness of the generator that is worth a warning, in ms at the 99th percentile.
const LATE_MS: f64 = 5.0;

/// The page of a document as `document` makes it.
#[must_use]
pub fn page(all: &Value) -> String {
    let word = |pointer: &str| all.pointer(pointer).and_then(Value::as_str).unwrap_or("");
    let mut out = open("expedite bench", "Load test");
    out.push_str(STYLE);
    let label = all["label"].as_str().map(|label| format!("{label}: ")).unwrap_or_default();
    let _ = writeln!(
        out,
        "<p>{}</p>",
        escape(&format!(
            "{label}{} at {}, {} UTC, by expedite {}",
            word("/model_id"),
            word("/options/target"),
            word("/date"),
            word("/version")
        ))
    );
    warnings(all, &mut out);
    out.push_str("<div class=\"tables\">\n");
    counts(all, &mut out);
    times(all, &mut out);
    steps(all, &mut out);
    out.push_str("</div>\n");
    let limit = |name: &str| all["slo"][name].as_f64();
    let (ttft, tpot) = (limit("ttft_ms"), limit("tpot_ms"));
    out.push_str("<h2>Charts</h2>\n<div class=\"charts\">\n");
    let drawn = [
        charts::against_rate(all, "ttft", "Time to the first token by rate", ttft),
        charts::against_rate(all, "tpot", "Time per output token by rate", tpot),
        charts::shares(all, "ttft", "Time to the first token", ttft),
        charts::shares(all, "tpot", "Time per output token", tpot),
        charts::shares(all, "e2el", "Time of the whole answer", None),
        charts::rates(all),
        charts::first_tokens(all),
        charts::gaps(all),
    ];
    out.push_str(&drawn.concat());
    out.push_str("</div>\n");
    for (title, name) in [("Options", "options"), ("Load generator's host", "host")] {
        facts(title, &all[name], &mut out);
    }
    // In a script element nothing but its end is markup.
    let data = all.to_string().replace('<', "\\u003c");
    let _ = writeln!(
        out,
        "<p>All of it, histograms too, is in this page as JSON (<code>#data</code>).</p>\n\
         <script type=\"application/json\" id=\"data\">{data}</script>\n</body></html>"
    );
    out
}

/// A cell that shows the number at `pointer` with `digits` after the point.
fn cell(all: &Value, pointer: &str, digits: usize, out: &mut String) {
    match all.pointer(pointer).and_then(Value::as_f64) {
        Some(number) => {
            let _ = write!(out, "<td data-of=\"{}\">{number:.digits$}</td>", escape(pointer));
        }
        None => out.push_str("<td>-</td>"),
    }
}

fn warnings(all: &Value, out: &mut String) {
    let mut warn = |what: String| {
        let _ = writeln!(out, "<p class=\"warning\">{}</p>", escape(&what));
    };
    for side in [all, &all["direct"]] {
        for (kind, error) in side["errors"].as_object().into_iter().flatten() {
            let first = error["first"].as_str().unwrap_or("").escape_debug();
            warn(format!("{} failed: {kind}; the first: {first}", error["count"]));
        }
    }
    for side in [all, &all["direct"]] {
        if let Some(n) = side["unfinished"].as_u64().filter(|n| *n > 0) {
            warn(format!(
                "{n} of the requests had not ended when the run was: no time counts them."
            ));
        }
    }
    if let Some(late) = all["p99_lateness_ms"].as_f64().filter(|ms| *ms > LATE_MS) {
        warn(format!(
            "The load generator was late itself: {late:.1} ms at the 99th percentile. These times \
             count as the target's; give it more threads or a quieter machine."
        ));
    }
    if all["slo"]["met"] == false {
        warn("The limits were not met.".to_owned());
    }
}

fn head(title: &str, columns: &[&str], out: &mut String) {
    let _ = write!(out, "<section><h2>{title}</h2><div class=\"wide\"><table><thead><tr><th></th>");
    for column in columns {
        let _ = write!(out, "<th>{column}</th>");
    }
    out.push_str("</tr></thead><tbody>\n");
}

fn counts(all: &Value, out: &mut String) {
    let paired = all["direct"].is_object();
    let sides: &[&str] = if paired { &["target", "direct"] } else { &["target"] };
    head("Counts", sides, out);
    let present = |(_, name, _): &&(&str, &str, usize)| !all[*name].is_null();
    for (called, name, digits) in COUNTS.iter().filter(present) {
        let _ = write!(out, "<tr><td>{called}</td>");
        cell(all, &format!("/{name}"), *digits, out);
        if paired {
            cell(all, &format!("/direct/{name}"), *digits, out);
        }
        out.push_str("</tr>\n");
    }
    out.push_str(END);
    if all["slo"].is_object() {
        head("Limits", &["limit, ms", "share within", "share asked for"], out);
        for (called, name) in [("first token", "ttft"), ("later tokens", "tpot")] {
            let _ = write!(out, "<tr><td>{called}</td>");
            cell(all, &format!("/slo/{name}_ms"), 1, out);
            cell(all, &format!("/slo/{name}_ok_ratio"), 4, out);
            cell(all, &format!("/slo/{name}_ok_ratio_min"), 2, out);
            out.push_str("</tr>\n");
        }
        out.push_str(END);
    }
}

fn times(all: &Value, out: &mut String) {
    head("Times, ms", &QUANTILES.map(|(called, _)| called), out);
    for (side, under) in [("", ""), ("direct: ", "/direct")] {
        for (name, called) in TIMES {
            let seen = all.pointer(&format!("{under}/histograms/{name}"));
            if seen.is_none() {
                continue;
            }
            let _ = write!(out, "<tr><td>{side}{called}</td>");
            for (_, quantile) in QUANTILES {
                cell(all, &format!("{under}/{quantile}_{name}_ms"), 3, out);
            }
            out.push_str("</tr>\n");
        }
    }
    out.push_str(END);
    if all["overhead"].is_object() {
        head("Added by the target, ms", &["p50", "p99"], out);
        for (name, called) in [("ttft", "first token"), ("e2el", "total")] {
            let _ = write!(out, "<tr><td>{called}</td>");
            cell(all, &format!("/overhead/{name}_p50_ms"), 3, out);
            cell(all, &format!("/overhead/{name}_p99_ms"), 3, out);
            out.push_str("</tr>\n");
        }
        out.push_str(END);
    }
}

/// A line a rate; with a direct endpoint half of what was asked for went there.
fn steps(all: &Value, out: &mut String) {
    const COLUMNS: [(&str, &str, usize); 9] = [
        ("asked for/s", "request_rate", 2),
        ("answered/s", "request_throughput", 2),
        ("failed", "failed", 0),
        ("unfinished", "unfinished", 0),
        ("TTFT p50", "median_ttft_ms", 2),
        ("p99", "p99_ttft_ms", 2),
        ("TPOT p50", "median_tpot_ms", 3),
        ("p99", "p99_tpot_ms", 3),
        ("sent late p99", "p99_lateness_ms", 3),
    ];
    let Some(steps) = all["steps"].as_array() else { return };
    head("Rates", &COLUMNS.map(|(called, _, _)| called), out);
    for (i, step) in steps.iter().enumerate() {
        let met = match step["slo"]["met"].as_bool() {
            Some(true) => "within",
            Some(false) => "not within",
            None => "",
        };
        let _ = write!(out, "<tr><td>{met}</td>");
        for (_, name, digits) in COLUMNS {
            cell(all, &format!("/steps/{i}/{name}"), digits, out);
        }
        out.push_str("</tr>\n");
    }
    out.push_str(END);
    if all["highest_rate_within_slo"].is_number() {
        out.push_str("<table><tbody><tr><td>highest rate within the limits, requests/s</td>");
        cell(all, "/highest_rate_within_slo", 2, out);
        out.push_str("</tr></tbody></table>\n");
    }
}

/// Names and values of an object, folded.
fn facts(title: &str, of: &Value, out: &mut String) {
    let Some(of) = of.as_object() else { return };
    let _ = writeln!(out, "<details><summary>{title}</summary><div class=\"wide\"><table><tbody>");
    for (name, value) in of {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"words\">{}</td></tr>",
            escape(name),
            escape(&value)
        );
    }
    out.push_str("</tbody></table></div></details>\n");
}
