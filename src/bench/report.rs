//! What a bench measured, as a table for people and as figures with the names of
//! `vllm bench serve`.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::Slo;
use super::drive::Share;
use super::tally::{Histo, Tally};

/// What a time is called in JSON, and by people.
pub(super) const TIMES: [(&str, &str); 5] = [
    ("ttft", "first token"),
    ("itl", "between events"),
    ("tpot", "per output token"),
    ("e2el", "total"),
    ("lateness", "sent late by"),
];

/// A bench's result.
#[derive(Clone, Debug)]
pub struct Report {
    /// Through the target.
    pub target: Tally,
    /// Of the requests that went to the direct endpoint.
    pub direct: Option<Tally>,
    streams: bool,
    slo: Slo,
    begin_ns: u64,
    end_ns: u64,
}

impl Report {
    pub(super) fn new(streams: bool, slo: Slo) -> Report {
        let (target, direct) = (Tally::default(), None);
        Report { target, direct, streams, slo, begin_ns: u64::MAX, end_ns: 0 }
    }

    pub(super) fn add(&mut self, share: Share) {
        self.target.add(share.target);
        if let Some(direct) = share.direct {
            self.direct.get_or_insert_default().add(direct);
        }
        self.begin_ns = self.begin_ns.min(share.begin_ns);
        self.end_ns = self.end_ns.max(share.end_ns);
    }

    /// From the first request due to the last answer's end, in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.end_ns.saturating_sub(self.begin_ns) as f64 / 1e9
    }

    /// Requests that failed, on both sides.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.target.failed() + self.direct.as_ref().map_or(0, Tally::failed)
    }

    /// Whether enough of the target's requests were within their limits ([`Slo::SHARES`]).
    #[must_use]
    pub fn is_within(&self) -> bool {
        let [ttft, tpot, _] = self.target.within();
        ttft >= Slo::SHARES[0] && tpot >= Slo::SHARES[1]
    }

    /// What the target adds to the direct endpoint at quantile `q`, in milliseconds: first of the
    /// time to the first token (of the total for whole bodies), then of the total.
    #[must_use]
    pub fn added_ms(&self, q: f64) -> Option<(f64, f64)> {
        let direct = self.direct.as_ref()?;
        let added = |a: &Histo, b: &Histo| a.quantile_ms(q) - b.quantile_ms(q);
        let total = added(&self.target.total, &direct.total);
        let first = if self.streams { added(&self.target.ttft, &direct.ttft) } else { total };
        Some((first, total))
    }

    /// One object: the target's numbers flat, the direct endpoint's under `direct`.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut object = self.side(&self.target);
        if let (Some(direct), Some(p50), Some(p99)) =
            (&self.direct, self.added_ms(0.5), self.added_ms(0.99))
        {
            object.insert("direct".to_owned(), Value::Object(self.side(direct)));
            let overhead = json!({
                "ttft_p50_ms": p50.0, "ttft_p99_ms": p99.0,
                "e2el_p50_ms": p50.1, "e2el_p99_ms": p99.1,
            });
            object.insert("overhead".to_owned(), overhead);
        }
        Value::Object(object)
    }

    /// How the target stands to its limits.
    #[must_use]
    pub fn slo_json(&self) -> Value {
        let [ttft, tpot, both] = self.target.within();
        json!({
            "ttft_ms": self.slo.ttft_ms, "tpot_ms": self.slo.tpot_ms,
            "ttft_ok_ratio": ttft, "tpot_ok_ratio": tpot, "good_ratio": both,
            "ttft_ok_ratio_min": Slo::SHARES[0], "tpot_ok_ratio_min": Slo::SHARES[1],
            "met": self.is_within(),
        })
    }

    fn side(&self, side: &Tally) -> Map<String, Value> {
        let seconds = self.seconds().max(1e-9);
        let errors: Map<String, Value> = side
            .failures
            .iter()
            .map(|(kind, (count, detail))| {
                (kind.to_string(), json!({ "count": count, "first": detail }))
            })
            .collect();
        let tokens = side.input_tokens + side.output_tokens;
        let mut object = Map::new();
        let mut set = |name: String, value: Value| drop(object.insert(name, value));
        set("duration".into(), self.seconds().into());
        set("sent".into(), side.sent.into());
        set("completed".into(), side.completed.into());
        set("failed".into(), side.failed().into());
        set("cancelled".into(), side.cancelled.into());
        set("unfinished".into(), side.unfinished().into());
        set("errors".into(), errors.into());
        set("total_input_tokens".into(), side.input_tokens.into());
        set("total_cached_tokens".into(), side.cached_tokens.into());
        set("total_output_tokens".into(), side.output_tokens.into());
        set("total_events".into(), side.events.into());
        set("request_throughput".into(), (side.completed as f64 / seconds).into());
        let good = self.slo.is_stated().then_some(side.good as f64 / seconds);
        set("request_goodput".into(), good.into());
        set("output_throughput".into(), (side.output_tokens as f64 / seconds).into());
        set("total_token_throughput".into(), (tokens as f64 / seconds).into());
        set("event_throughput".into(), (side.events as f64 / seconds).into());
        for ((name, _), times) in TIMES.iter().zip(times(side)) {
            set(format!("mean_{name}_ms"), times.mean_ms().into());
            set(format!("median_{name}_ms"), times.quantile_ms(0.5).into());
            set(format!("std_{name}_ms"), times.std_ms().into());
            set(format!("p90_{name}_ms"), times.quantile_ms(0.9).into());
            set(format!("p99_{name}_ms"), times.quantile_ms(0.99).into());
            set(format!("p999_{name}_ms"), times.quantile_ms(0.999).into());
            set(format!("max_{name}_ms"), times.max_ms().into());
        }
        object
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut out = String::new();
        self.section("target", &self.target, &mut out);
        if let Some(direct) = &self.direct {
            out.push('\n');
            self.section("direct", direct, &mut out);
            out.push('\n');
            let _ = writeln!(out, "{:<22}{:>10}{:>10}", "added by the target, ms", "p50", "p99");
            let added = |q| self.added_ms(q).unwrap_or_default();
            let (p50, p99) = (added(0.5), added(0.99));
            if self.streams {
                let _ = writeln!(out, "  {:<21}{:>10.3}{:>10.3}", "first token", p50.0, p99.0);
            }
            let _ = writeln!(out, "  {:<21}{:>10.3}{:>10.3}", "total", p50.1, p99.1);
        }
        out
    }

    fn section(&self, title: &str, side: &Tally, out: &mut String) {
        let seconds = self.seconds().max(1e-9);
        let rate = side.completed as f64 / seconds;
        let tokens = side.output_tokens as f64 / seconds;
        let _ = writeln!(
            out,
            "{title}: {} answered, {} failed in {seconds:.1} s: {rate:.0} requests/s, {tokens:.0} \
             tokens/s",
            side.completed,
            side.failed(),
        );
        if side.cancelled > 0 {
            let _ = writeln!(out, "  {} given up on purpose", side.cancelled);
        }
        if side.unfinished() > 0 {
            let _ = writeln!(
                out,
                "  {} had not ended when the run was: the times below are without them",
                side.unfinished()
            );
        }
        if self.slo.is_stated() {
            let [ttft, tpot, both] = side.within().map(|share| share * 100.0);
            let _ = writeln!(
                out,
                "  within limits: first token {ttft:.1} %, later tokens {tpot:.1} %, both \
                 {both:.1} %"
            );
        }
        let _ = writeln!(
            out,
            "  tokens: {} in ({} cached), {} out in {} events",
            side.input_tokens, side.cached_tokens, side.output_tokens, side.events
        );
        for (kind, (count, detail)) in &side.failures {
            let _ = writeln!(out, "  failed: {count} {kind}; the first: {}", detail.escape_debug());
        }
        if side.completed == 0 {
            return;
        }
        let _ = writeln!(
            out,
            "  {:<21}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "ms", "mean", "p50", "p90", "p99", "max"
        );
        let rows = TIMES.iter().zip(times(side));
        for ((_, name), times) in rows.filter(|(_, times)| times.count() > 0) {
            let _ = write!(out, "  {name:<21}{:>10}", told(times.mean_ms()));
            for q in [0.5, 0.9, 0.99] {
                let _ = write!(out, "{:>10}", told(times.quantile_ms(q)));
            }
            let _ = writeln!(out, "{:>10}", told(times.max_ms()));
        }
    }
}

/// A number of a table: with fewer digits where they mean less.
pub(super) fn told(number: f64) -> String {
    match number.abs() {
        size if size >= 100_000.0 => format!("{number:.0}"),
        size if size >= 1000.0 => format!("{number:.1}"),
        _ => format!("{number:.3}"),
    }
}

/// The histograms of a side, in the order of [`TIMES`].
pub(super) fn times(side: &Tally) -> [&Histo; 5] {
    [&side.ttft, &side.itl, &side.tpot, &side.total, &side.lateness]
}
