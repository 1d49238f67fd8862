//! All that a run measured and what it stands on, as one JSON object: what `--json` writes, what
//! the page shows and what `bench diff` reads.
//!
//! The figures stand at the top, with the names of `vllm bench serve` where it has them; of several
//! runs those of one, and all of them under `steps`. Histograms are whole, so that any other
//! quantile can be had later. No I/O, no clock.

use serde_json::{Map, Value, json};

use super::report::{Report, TIMES, times};
use super::{Answers, Api, Load, Options, Spacing, Tally};

/// What tells our files from others.
pub const KIND: &str = "expedite bench";
/// Grows when what is read of a file changes its meaning.
pub const FORMAT: u64 = 1;

/// One run.
#[derive(Clone, Debug)]
pub struct Step {
    /// Requests a second that were asked for; none of a closed loop.
    pub rate: Option<f64>,
    /// What came of it.
    pub report: Report,
}

/// What is known beside the runs.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// When it began: `YYYYMMDD-hhmmss`, UTC.
    pub date: String,
    /// What the operator calls it.
    pub label: Option<String>,
    /// What the target says of its version.
    pub target_version: Option<String>,
    /// The machine of the load generator.
    pub host: Value,
    /// A search for the highest rate within the limits was made, and this is what it found.
    pub searched: Option<f64>,
}

/// Of several runs, the one whose figures stand at the top: with limits the fastest that is within
/// them, else the last.
#[must_use]
pub fn shown(steps: &[Step], limited: bool) -> usize {
    let within = |(_, step): &(usize, &Step)| limited && step.report.is_within();
    let rate = |step: &Step| step.rate.unwrap_or(0.0);
    let best = steps.iter().enumerate().filter(within);
    let best = best.max_by(|(_, a), (_, b)| rate(a).total_cmp(&rate(b)));
    best.map_or(steps.len().saturating_sub(1), |(i, _)| i)
}

/// The object of at least one step.
#[must_use]
pub fn document(options: &Options, steps: &[Step], facts: &Facts) -> Value {
    let limited = options.slo.is_stated();
    let Some(step) = steps.get(shown(steps, limited)) else { return Value::Null };
    let mut all = Map::new();
    head(options, step, facts, &mut all);
    figures(step, limited, &mut all);
    detail(&step.report.target, &mut all);
    if let (Some(tally), Some(Value::Object(direct))) = (&step.report.direct, all.get_mut("direct"))
    {
        detail(tally, direct);
    }
    if steps.len() > 1 {
        let one = |step: &Step| {
            let mut one = Map::new();
            one.insert("request_rate".into(), step.rate.into());
            figures(step, limited, &mut one);
            one.insert("histograms".into(), histograms(&step.report.target));
            Value::Object(one)
        };
        all.insert("steps".into(), steps.iter().map(one).collect());
    }
    if let Some(rate) = facts.searched {
        all.insert("highest_rate_within_slo".into(), rate.into());
    }
    all.insert("host".into(), facts.host.clone());
    all.insert("options".into(), told(options, step.rate));
    Value::Object(all)
}

/// As a file has it: an entry a line, so that people find their way and arrays stay short.
#[must_use]
pub fn text(document: &Value) -> String {
    let Value::Object(entries) = document else { return format!("{document}\n") };
    let line = |(name, value): (&String, &Value)| format!("  {}: {value}", json!(name));
    format!("{{\n{}\n}}\n", entries.iter().map(line).collect::<Vec<_>>().join(",\n"))
}

fn head(options: &Options, step: &Step, facts: &Facts, all: &mut Map<String, Value>) {
    let backend = match options.api {
        Api::Chat => "openai-chat",
        Api::Completions => "openai",
    };
    let model = match options.models.as_slice() {
        [] => options.target.model.clone(),
        models => models.join(","),
    };
    let burstiness = match (&options.load, options.spacing) {
        (Load::Rate(_), Spacing::Poisson) => Some(1.0),
        _ => None,
    };
    let concurrency = match options.load {
        Load::Concurrency(n) => Some(n),
        _ => None,
    };
    let requests = step.report.target.sent + step.report.direct.as_ref().map_or(0, |d| d.sent);
    let entries = [
        ("kind", json!(KIND)),
        ("format", json!(FORMAT)),
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("date", json!(facts.date)),
        ("label", json!(facts.label)),
        ("backend", json!(backend)),
        ("endpoint_type", json!(backend)),
        ("target_version", json!(facts.target_version)),
        ("model_id", json!(model)),
        ("num_prompts", json!(requests)),
        ("request_rate", step.rate.map_or(json!("inf"), |rate| json!(rate))),
        ("burstiness", json!(burstiness)),
        ("max_concurrency", json!(concurrency)),
    ];
    all.extend(entries.map(|(name, value)| (name.to_owned(), value)));
}

fn figures(step: &Step, limited: bool, all: &mut Map<String, Value>) {
    if let Value::Object(figures) = step.report.json() {
        all.extend(figures);
    }
    if limited {
        all.insert("slo".into(), step.report.slo_json());
    }
}

/// What is kept of a side beside its figures.
fn detail(tally: &Tally, all: &mut Map<String, Value>) {
    all.insert("series".into(), tally.series.json());
    all.insert("gaps".into(), tally.series.gaps_json());
    all.insert("histograms".into(), histograms(tally));
}

fn histograms(tally: &Tally) -> Value {
    let named = TIMES.iter().zip(times(tally)).filter(|(_, times)| times.count() > 0);
    named.map(|((name, _), times)| ((*name).to_owned(), times.json())).collect::<Map<_, _>>().into()
}

/// The options as they were taken, keys left out; of several rates that of the run shown.
fn told(options: &Options, shown: Option<f64>) -> Value {
    let url = |target: &super::Target| format!("http://{}{}", target.authority, target.base);
    let load = match &options.load {
        Load::Rate(rate) => json!({ "rate": shown.unwrap_or(*rate) }),
        Load::Concurrency(n) => json!({ "concurrency": n }),
        Load::Trace(workload) => json!({ "trace_sessions": workload.sessions.len() }),
    };
    let spacing = match options.spacing {
        Spacing::Fixed => "fixed",
        Spacing::Poisson => "poisson",
    };
    let answers = match options.answers {
        Answers::Streams => json!("streams"),
        Answers::Whole => json!("whole"),
        Answers::MixedEvery(n) => json!({ "whole_every": n }),
    };
    json!({
        "target": url(&options.target),
        "direct": options.direct.as_ref().map(url),
        "load": load,
        "schedule": spacing,
        "duration_s": options.duration.as_secs_f64(),
        "requests": options.requests,
        "prompt_tokens": options.prompt_tokens.to_string(),
        "output_tokens": options.output_tokens.to_string(),
        "prefix_tokens": options.prefix_tokens,
        "prefixes": options.prefixes,
        "hot": options.hot,
        "zipf": options.zipf,
        "models": options.models,
        "turns": options.turns,
        "think_s": options.think.as_secs_f64(),
        "long": options.long.map(|(share, tokens)| json!([share, tokens])),
        "cancel": options.cancel,
        "answers": answers,
        "usage": options.usage,
        "ignore_eos": options.ignore_eos,
        "seed": options.seed,
        "threads": options.threads,
        "timeout_s": options.timeout.as_secs_f64(),
        "tokens_checked": options.words.is_some(),
    })
}

/// A line a run, for people; nothing when there was only one.
#[must_use]
pub fn table(steps: &[Step], facts: &Facts) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    if steps.len() > 1 {
        let names =
            ["asked/s", "answered/s", "failed", "unfinished", "TTFT p50", "p99", "TPOT p50"];
        for name in names {
            let _ = write!(out, "{name:>12}");
        }
        out.push_str("         p99\n");
    }
    for step in steps.iter().filter(|_| steps.len() > 1) {
        let (report, side) = (&step.report, &step.report.target);
        let answered = side.completed as f64 / report.seconds().max(1e-9);
        let _ = writeln!(
            out,
            "{:>12.2}{answered:>12.2}{:>12}{:>12}{:>12.2}{:>12.2}{:>12.3}{:>12.3}",
            step.rate.unwrap_or(0.0),
            side.failed(),
            side.unfinished(),
            side.ttft.quantile_ms(0.5),
            side.ttft.quantile_ms(0.99),
            side.tpot.quantile_ms(0.5),
            side.tpot.quantile_ms(0.99),
        );
    }
    match facts.searched {
        Some(rate) if rate > 0.0 => {
            let _ = writeln!(out, "\nhighest rate within the limits: {rate:.2} requests/s\n");
        }
        Some(_) => out.push_str("\nno rate was within the limits\n\n"),
        None if steps.len() > 1 => out.push('\n'),
        None => {}
    }
    out
}
