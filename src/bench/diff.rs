//! Two results side by side: ratios, each with its spread. No I/O, no clock.
//!
//! The spread of one run is that of its own samples: of a quantile the 95 % band by order
//! statistics (ranks `n q ± 1.96 sqrt(n q (1 - q))`), of a rate and a mean by the standard error.
//! What two runs of one thing differ by is more than that; so either side may have several runs,
//! whose median then stands with the range from the least to the most.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::document::{FORMAT, KIND};
use super::report::told;

/// Standard errors of a 95 % band.
const Z: f64 = 1.96;

/// As people call it, the figure, its histogram and quantile if it has one.
type Compared = (&'static str, &'static str, Option<(&'static str, f64)>);

/// What is compared.
const ROWS: [Compared; 12] = [
    ("requests/s", "request_throughput", None),
    ("output tokens/s", "output_throughput", None),
    ("first token p50, ms", "median_ttft_ms", Some(("ttft", 0.5))),
    ("first token p90, ms", "p90_ttft_ms", Some(("ttft", 0.9))),
    ("first token p99, ms", "p99_ttft_ms", Some(("ttft", 0.99))),
    ("per output token p50, ms", "median_tpot_ms", Some(("tpot", 0.5))),
    ("per output token p99, ms", "p99_tpot_ms", Some(("tpot", 0.99))),
    ("between events p50, ms", "median_itl_ms", Some(("itl", 0.5))),
    ("between events p99, ms", "p99_itl_ms", Some(("itl", 0.99))),
    ("total p50, ms", "median_e2el_ms", Some(("e2el", 0.5))),
    ("total p90, ms", "p90_e2el_ms", Some(("e2el", 0.9))),
    ("total p99, ms", "p99_e2el_ms", Some(("e2el", 0.99))),
];

/// A figure with the range that it may lie in.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Band {
    low: f64,
    value: f64,
    high: f64,
}

/// One figure of both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    called: &'static str,
    figure: &'static str,
    a: f64,
    b: f64,
    /// Of B to A.
    ratio: f64,
    low: f64,
    high: f64,
}

/// Two sides compared.
#[derive(Clone, Debug, Default)]
pub struct Diff {
    /// The figures that both sides have.
    pub rows: Vec<Row>,
    /// What was not the same in both, so that the ratios may not be the servers' doing.
    pub unlike: Vec<String>,
    runs: [usize; 2],
}

/// Whether a JSON text is a result of ours; the result.
///
/// # Errors
/// It is none, or of a format that this program does not read.
pub fn read(text: &str) -> Result<Value, String> {
    let ours = "not a result of `expedite bench --json`";
    let all: Value = serde_json::from_str(text).map_err(|error| format!("{ours}: {error}"))?;
    if all["kind"] != KIND {
        return Err(ours.to_owned());
    }
    match all["format"].as_u64() {
        Some(FORMAT) => Ok(all),
        other => {
            let other = other.map_or_else(|| "none".to_owned(), |n| n.to_string());
            Err(format!("of format {other}, and this program reads format {FORMAT}"))
        }
    }
}

impl Diff {
    /// Compares the runs of two sides, at least one each.
    #[must_use]
    pub fn of(a: &[Value], b: &[Value]) -> Diff {
        let row = |(called, figure, histogram): &Compared| {
            let (a, b) = (band(a, figure, *histogram)?, band(b, figure, *histogram)?);
            let ratio = b.value / a.value;
            let (low, high) = (b.low / a.high.max(1e-12), b.high / a.low.max(1e-12));
            let (a, b) = (a.value, b.value);
            ratio.is_finite().then_some(Row { called, figure, a, b, ratio, low, high })
        };
        let rows = ROWS.iter().filter_map(row).collect();
        let unlike = match (a.first(), b.first()) {
            (Some(a), Some(b)) => unlike(a, b),
            _ => Vec::new(),
        };
        Diff { rows, unlike, runs: [a.len(), b.len()] }
    }

    /// The table; `names` are those of the sides.
    #[must_use]
    pub fn table(&self, names: [&str; 2]) -> String {
        let mut out = format!("A: {}\nB: {}\n\n", names[0], names[1]);
        let _ = writeln!(out, "{:<26}{:>12}{:>12}{:>10}{:>20}", "", "A", "B", "B / A", "spread");
        for row in &self.rows {
            let spread = format!("{} - {}", told(row.low), told(row.high));
            let _ = writeln!(
                out,
                "{:<26}{:>12}{:>12}{:>10}{spread:>20}  {}",
                row.called,
                told(row.a),
                told(row.b),
                told(row.ratio),
                row.verdict()
            );
        }
        if !self.unlike.is_empty() {
            out.push_str("\nNot the same in both:\n");
        }
        for unlike in &self.unlike {
            let _ = writeln!(out, "  {unlike}");
        }
        if self.runs.contains(&1) {
            out.push_str(
                "\nThe spread of one run is that of its samples (95 %); runs differ by more. Give \
                 several\nof each side, A1.json,A2.json B1.json,B2.json, and it is that of the \
                 runs.\n",
            );
        }
        out
    }

    /// The same as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "figure": row.figure, "a": row.a, "b": row.b, "ratio": row.ratio,
                "ratio_low": row.low, "ratio_high": row.high,
                "apart": !row.verdict().is_empty(),
            })
        };
        json!({
            "kind": "expedite bench diff",
            "runs_a": self.runs[0],
            "runs_b": self.runs[1],
            "figures": self.rows.iter().map(row).collect::<Vec<_>>(),
            "unlike": self.unlike,
        })
    }
}

impl Row {
    /// What can be said; nothing when 1 lies in the spread.
    fn verdict(&self) -> &'static str {
        match self {
            Row { low, .. } if *low > 1.0 => "more",
            Row { high, .. } if *high < 1.0 => "less",
            _ => "",
        }
    }
}

/// A figure of a side; none when a run has none, or counted nothing for it.
fn band(runs: &[Value], figure: &str, histogram: Option<(&str, f64)>) -> Option<Band> {
    let mut values: Vec<f64> = Vec::with_capacity(runs.len());
    for run in runs {
        if let Some((name, _)) = histogram {
            run["histograms"].get(name)?;
        }
        values.push(run[figure].as_f64()?);
    }
    values.sort_by(f64::total_cmp);
    let (low, high) = (*values.first()?, *values.last()?);
    if let [run] = runs {
        return Some(match histogram {
            Some((name, q)) => by_ranks(&run["histograms"][name], q, low),
            None => by_slots(&run["series"], low),
        });
    }
    let middle = |i: usize| values.get(i).copied().unwrap_or(low);
    let value = f64::midpoint(middle((values.len() - 1) / 2), middle(values.len() / 2));
    Some(Band { low, value, high })
}

/// The band of a quantile in ms, from the ranks between which it lies.
fn by_ranks(histogram: &Value, q: f64, value: f64) -> Band {
    let list = |name: &str| {
        let all = histogram[name].as_array().map_or(&[][..], Vec::as_slice);
        all.iter().filter_map(Value::as_f64).collect::<Vec<_>>()
    };
    let (us, counts) = (list("us"), list("counts"));
    let n: f64 = counts.iter().sum();
    let off = Z * (n * q * (1.0 - q)).sqrt();
    let at = |rank: f64| {
        let rank = rank.clamp(1.0, n.max(1.0));
        let mut below = 0.0;
        let reached = us.iter().zip(&counts).find(|(_, count)| {
            below += **count;
            below >= rank
        });
        reached.or(us.last().zip(counts.last())).map_or(value, |(us, _)| us / 1000.0)
    };
    Band {
        low: at((n * q - off).floor()).min(value),
        value,
        high: at((n * q + off).ceil()).max(value),
    }
}

/// The band of a rate, by how it changed from slot to slot; without the last one, which is short.
fn by_slots(series: &Value, value: f64) -> Band {
    let all = series["completed"].as_array().map_or(&[][..], Vec::as_slice);
    let counts: Vec<f64> = all.iter().filter_map(Value::as_f64).collect();
    let whole = &counts[..counts.len().saturating_sub(1)];
    let n = whole.len() as f64;
    let mean = whole.iter().sum::<f64>() / n;
    if whole.len() < 2 || mean <= 0.0 {
        return Band { low: value, value, high: value };
    }
    let variance = whole.iter().map(|c| (c - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let off = Z * (variance / n).sqrt() / mean * value;
    Band { low: (value - off).max(0.0), value, high: value + off }
}

/// Options and facts that are not the same, but for addresses and the seed.
fn unlike(a: &Value, b: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |name: String, a: &Value, b: &Value| {
        if a != b {
            found.push(format!("{name}: {a} and {b}"));
        }
    };
    let names = |of: &Value| of.as_object().map_or(Vec::new(), |all| all.keys().cloned().collect());
    for name in names(&a["options"]) {
        if !["target", "direct", "seed"].contains(&name.as_str()) {
            compare(name.clone(), &a["options"][&name], &b["options"][&name]);
        }
    }
    for name in ["model_id", "version", "target_version"] {
        compare(name.to_owned(), &a[name], &b[name]);
    }
    for name in ["cpu", "kernel", "cpus_allowed", "driver"] {
        compare(format!("host's {name}"), &a["host"][name], &b["host"][name]);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A result whose first tokens took 1, 2, ... `n` ms times `factor`.
    fn result(n: u64, factor: u64) -> Value {
        let us: Vec<u64> = (1..=n).map(|i| i * 1000 * factor).collect();
        json!({
            "kind": KIND, "format": FORMAT,
            "request_throughput": 100.0 / factor as f64,
            "median_ttft_ms": (n / 2 * factor) as f64,
            "histograms": { "ttft": { "us": us, "counts": vec![1; us.len()] } },
            "series": { "completed": [99, 101, 100, 98, 102, 7] },
            "options": { "target": format!("http://{factor}"), "turns": factor },
            "model_id": "m",
        })
    }

    #[test]
    fn a_ratio_has_the_spread_of_the_samples() {
        let diff = Diff::of(&[result(1000, 1)], &[result(1000, 2)]);
        let by = |figure: &str| diff.rows.iter().find(|row| row.figure == figure).unwrap().clone();
        let median = by("median_ttft_ms");
        // Ranks 500 ± 1.96 sqrt(250): 469 to 531.
        assert_eq!((median.a, median.b, median.ratio), (500.0, 1000.0, 2.0));
        assert!((median.low - 938.0 / 531.0).abs() < 0.01, "{median:?}");
        assert!((median.high - 1062.0 / 469.0).abs() < 0.01, "{median:?}");
        let rate = by("request_throughput");
        assert!(rate.low > 0.48 && rate.low < 0.5 && rate.high > 0.5 && rate.high < 0.52);
        assert_eq!((median.verdict(), rate.verdict()), ("more", "less"));
        assert_eq!(diff.unlike, ["turns: 1 and 2"]);
        let same = Diff::of(&[result(1000, 1)], &[result(1000, 1)]);
        assert!(same.rows.iter().all(|row| row.verdict().is_empty() && row.ratio == 1.0));
        assert!(same.unlike.is_empty());
    }

    #[test]
    fn several_runs_have_their_own_spread() {
        let with = |ms: f64| {
            let mut result = result(10, 1);
            result["median_ttft_ms"] = json!(ms);
            result
        };
        let a = [with(10.0), with(12.0), with(11.0)];
        let b = [with(22.0), with(24.0)];
        let diff = Diff::of(&a, &b);
        let row = diff.rows.iter().find(|row| row.figure == "median_ttft_ms").unwrap();
        assert_eq!((row.a, row.b), (11.0, 23.0));
        assert!((row.low - 22.0 / 12.0).abs() < 1e-9 && (row.high - 2.4).abs() < 1e-9);
        assert!(!diff.table(["a", "b"]).contains("one run"));
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        for (text, what) in [
            ("{}", "not a result of"),
            ("[1, 2]", "not a result of"),
            ("nonsense", "not a result of"),
            (r#"{"kind": "expedite bench"}"#, "format none"),
            (r#"{"kind": "expedite bench", "format": 99}"#, "format 99"),
        ] {
            assert!(read(text).unwrap_err().contains(what), "{text}");
        }
        assert!(read(&result(3, 1).to_string()).is_ok());
    }
}
