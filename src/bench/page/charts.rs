//! The charts of a report, each drawn from the JSON alone. Pure.

use serde_json::Value;

use super::plot::{Axis, Plot};

/// Columns of the map of gaps: more slots than this share them.
const COLUMNS_MAX: usize = 120;

/// Numbers of an array; NaN where there is none.
fn numbers(of: &Value) -> Vec<f64> {
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    of.as_array().map_or(Vec::new(), |all| all.iter().map(number).collect())
}

fn most(of: &[f64]) -> f64 {
    of.iter().copied().filter(|n| n.is_finite()).fold(0.0, f64::max)
}

/// A histogram as points: time in ms, share of the entries that took at most that long.
fn cumulated(histogram: &Value) -> Vec<(f64, f64)> {
    let (us, counts) = (numbers(&histogram["us"]), numbers(&histogram["counts"]));
    let all: f64 = counts.iter().sum();
    let (mut below, mut points) = (0.0, Vec::with_capacity(us.len() * 2));
    for (us, count) in us.iter().zip(&counts) {
        // Nothing is shorter than a microsecond.
        let ms = us.max(1.0) / 1000.0;
        points.push((ms, below / all));
        below += count;
        points.push((ms, below / all));
    }
    points
}

/// Which share of the answers took how long: the target's, and the direct endpoint's.
pub(super) fn shares(all: &Value, name: &str, title: &str, limit: Option<f64>) -> String {
    let sides = [("target", all), ("direct", &all["direct"])];
    let curves = sides.map(|(side, of)| (side, cumulated(&of["histograms"][name])));
    let points = || curves.iter().map(|(_, points)| points);
    let firsts: Vec<f64> = points().filter_map(|p| p.first()).map(|point| point.0).collect();
    let lasts: Vec<f64> = points().filter_map(|p| p.last()).map(|point| point.0).collect();
    if firsts.is_empty() {
        return String::new();
    }
    let low = firsts.into_iter().fold(f64::MAX, f64::min);
    let x = Axis::spread("ms", low, most(&lasts));
    let mut plot = Plot::new(title, x, Axis::up_to("% of the answers", 100.0));
    for (i, (side, points)) in curves.iter().enumerate().filter(|(_, (_, p))| !p.is_empty()) {
        plot.curve(side, i, points.iter().map(|(ms, share)| (*ms, share * 100.0)));
    }
    if let Some(limit) = limit {
        plot.limit_x(limit);
    }
    plot.end()
}

/// Points of an array by time: in the middle of its slot.
fn over_time(of: &[f64], slot_seconds: f64) -> impl Iterator<Item = (f64, f64)> {
    of.iter().enumerate().map(move |(i, value)| ((i as f64 + 0.5) * slot_seconds, *value))
}

/// What came, what was answered and what failed, a second.
pub(super) fn rates(all: &Value) -> String {
    let series = &all["series"];
    let slot = series["slot_seconds"].as_f64().unwrap_or(1.0);
    let named = ["due", "completed", "failed", "cancelled"].map(|name| {
        let a_second = numbers(&series[name]).into_iter().map(|n| n / slot);
        (name, a_second.collect::<Vec<_>>())
    });
    let high = named.iter().map(|(_, of)| most(of)).fold(0.0, f64::max);
    let end = named[0].1.len() as f64 * slot;
    let x = Axis::up_to("s since the begin", end);
    let mut plot = Plot::new("Requests a second", x, Axis::linear("requests/s", high));
    for (i, (name, of)) in named.iter().enumerate() {
        if i < 3 || most(of) > 0.0 {
            plot.curve(name, i, over_time(of, slot));
        }
    }
    plot.end()
}

/// First tokens by the moment at which their requests were due.
pub(super) fn first_tokens(all: &Value) -> String {
    let series = &all["series"];
    let slot = series["slot_seconds"].as_f64().unwrap_or(1.0);
    let named = ["median_ttft_ms", "p99_ttft_ms"].map(|name| numbers(&series[name]));
    let seen = || named.iter().flatten().copied().filter(|ms| ms.is_finite());
    if seen().next().is_none() {
        return String::new();
    }
    let y = Axis::spread("ms", seen().fold(f64::MAX, f64::min), seen().fold(0.0, f64::max));
    let x = Axis::up_to("s since the begin, when due", named[0].len() as f64 * slot);
    let mut plot = Plot::new("Time to the first token", x, y);
    for (i, (name, of)) in ["p50", "p99"].iter().zip(&named).enumerate() {
        plot.curve(name, i, over_time(of, slot));
    }
    plot.end()
}

/// How long the gaps between events were, and when: the denser the more.
pub(super) fn gaps(all: &Value) -> String {
    let edges: Vec<f64> = numbers(&all["gaps"]["edges_us"]);
    let slots: Vec<Vec<f64>> = all["gaps"]["counts"]
        .as_array()
        .map_or(Vec::new(), |all| all.iter().map(numbers).collect());
    let (Some(low), Some(high)) = (edges.first(), edges.last()) else { return String::new() };
    let slot_seconds = all["series"]["slot_seconds"].as_f64().unwrap_or(1.0);
    let together = slots.len().div_ceil(COLUMNS_MAX).max(1);
    let column = |slots: &[Vec<f64>]| {
        let row = |row| slots.iter().map(|slot| slot.get(row).copied().unwrap_or(0.0)).sum();
        (0..edges.len() - 1).map(row).collect::<Vec<f64>>()
    };
    let columns: Vec<Vec<f64>> = slots.chunks(together).map(column).collect();
    let densest = columns.iter().map(|column| most(column)).fold(0.0, f64::max);
    let x = Axis::up_to("s since the begin", slots.len() as f64 * slot_seconds);
    let y = Axis::log("ms", low / 1000.0, high / 1000.0);
    let mut plot = Plot::new("Gaps between events", x, y);
    let wide = together as f64 * slot_seconds;
    for (i, column) in columns.iter().enumerate() {
        for ((edge, next), count) in edges.iter().zip(edges.iter().skip(1)).zip(column) {
            if *count > 0.0 {
                let from = (i as f64 * wide, edge / 1000.0);
                let to = ((i + 1) as f64 * wide, next / 1000.0);
                plot.cell(from, to, count.ln_1p() / densest.ln_1p());
            }
        }
    }
    plot.note("denser: more gaps (logarithmic)");
    plot.end()
}

/// A time at each rate that was run.
pub(super) fn against_rate(all: &Value, name: &str, title: &str, limit: Option<f64>) -> String {
    let Some(steps) = all["steps"].as_array() else { return String::new() };
    let at = |quantile: &str| {
        let figure = format!("{quantile}_{name}_ms");
        let point = |step: &Value| Some((step["request_rate"].as_f64()?, step[&figure].as_f64()?));
        let mut points: Vec<(f64, f64)> = steps.iter().filter_map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let curves = [("p50", at("median")), ("p90", at("p90")), ("p99", at("p99"))];
    let values = || curves.iter().flat_map(|(_, points)| points).filter(|(_, ms)| *ms > 0.0);
    let high = values().map(|(_, ms)| *ms).fold(0.0, f64::max);
    let low = values().map(|(_, ms)| *ms).fold(f64::MAX, f64::min);
    if high <= 0.0 {
        return String::new();
    }
    let fastest = curves[0].1.last().map_or(1.0, |point| point.0);
    let x = Axis::linear("requests/s asked for", fastest);
    let mut plot = Plot::new(title, x, Axis::spread("ms", low, high));
    for (i, (quantile, points)) in curves.iter().enumerate() {
        plot.curve(quantile, i, points.iter().copied());
        let says = |(rate, ms): &(f64, f64)| {
            (*rate, *ms, format!("{quantile} at {rate:.1} requests/s: {ms:.3} ms"))
        };
        plot.dots(i, points.iter().map(says));
    }
    if let Some(limit) = limit {
        plot.limit_y(limit);
    }
    plot.end()
}
