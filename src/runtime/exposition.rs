//! Prometheus' text format 0.0.4, written into a string. No I/O; runs on the control thread.
//!
//! A family's HELP and TYPE come once, when it is begun; its samples follow. Whoever writes a
//! sample has summed it over the cores.

use std::fmt::Write;

use super::cells::HistogramSnapshot;

/// The content type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The kind of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only goes up.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Buckets, sum and count.
    Histogram,
}

/// A page of metrics being written.
#[derive(Debug, Default)]
pub struct Exposition {
    out: String,
}

/// One family; its samples are written through it.
#[derive(Debug)]
pub struct Family<'e> {
    out: &'e mut String,
    name: &'e str,
}

impl Exposition {
    /// An empty page.
    pub fn new() -> Exposition {
        Exposition::default()
    }

    /// Begins a family; call once for each name.
    pub fn family<'e>(&'e mut self, name: &'e str, kind: Kind, help: &str) -> Family<'e> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.out.push_str("# HELP ");
        self.out.push_str(name);
        self.out.push(' ');
        escape(&mut self.out, help, false);
        let _ = writeln!(self.out, "\n# TYPE {name} {kind}");
        Family { out: &mut self.out, name }
    }

    /// The page.
    pub fn finish(self) -> String {
        self.out
    }
}

impl Family<'_> {
    /// One sample that is a whole number.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<i128>) {
        self.head("", labels, None);
        let _ = writeln!(self.out, " {}", value.into());
    }

    /// One sample that is not; infinities and NaN as the format spells them.
    pub fn sample_f64(&mut self, labels: &[(&str, &str)], value: f64) {
        self.head("", labels, None);
        let _ = match value {
            f64::INFINITY => writeln!(self.out, " +Inf"),
            f64::NEG_INFINITY => writeln!(self.out, " -Inf"),
            _ => writeln!(self.out, " {value}"),
        };
    }

    /// A histogram in seconds: cumulative buckets, sum and count.
    pub fn histogram(&mut self, labels: &[(&str, &str)], values: &HistogramSnapshot) {
        let mut below: u64 = 0;
        for (n, count) in values.counts.iter().enumerate() {
            below = below.wrapping_add(*count);
            let bound = values.bounds_ns.get(n).map(|ns| seconds(*ns).to_string());
            self.head("_bucket", labels, Some(bound.as_deref().unwrap_or("+Inf")));
            let _ = writeln!(self.out, " {below}");
        }
        self.head("_sum", labels, None);
        let _ = writeln!(self.out, " {}", seconds(values.sum_ns));
        self.head("_count", labels, None);
        let _ = writeln!(self.out, " {below}");
    }

    fn head(&mut self, suffix: &str, labels: &[(&str, &str)], le: Option<&str>) {
        self.out.push_str(self.name);
        self.out.push_str(suffix);
        let labels = labels.iter().copied().chain(le.map(|le| ("le", le)));
        let mut gap = '{';
        for (name, value) in labels {
            self.out.push(gap);
            self.out.push_str(name);
            self.out.push_str("=\"");
            escape(self.out, value, true);
            self.out.push('"');
            gap = ',';
        }
        if gap == ',' {
            self.out.push('}');
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Backslash and newline are escaped everywhere, quotes in label values only.
fn escape(out: &mut String, text: &str, quotes: bool) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            _ => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cells::Histogram;
    use super::*;

    #[test]
    fn help_and_type_once_and_labels_escaped() {
        let mut page = Exposition::new();
        let mut family = page.family("x_total", Kind::Counter, "What \"x\" is\\.\nReally.");
        family.sample(&[], 1u64);
        family.sample(&[("pool", "a\"b\\c\nd"), ("kind", "input")], 2u64);
        page.family("up", Kind::Gauge, "Up.").sample_f64(&[], 0.25);
        assert_eq!(
            page.finish(),
            "# HELP x_total What \"x\" is\\\\.\\nReally.\n# TYPE x_total counter\nx_total 1\n\
             x_total{pool=\"a\\\"b\\\\c\\nd\",kind=\"input\"} 2\n\
             # HELP up Up.\n# TYPE up gauge\nup 0.25\n"
        );
    }

    #[test]
    fn histograms_are_cumulative_in_seconds() {
        let histogram: Histogram<2> = Histogram::new(&[100_000, 2_000_000_000]);
        for ns in [50_000, 1_000_000_000, 3_000_000_000] {
            histogram.record_ns(ns);
        }
        let mut page = Exposition::new();
        let mut family = page.family("t_seconds", Kind::Histogram, "T.");
        family.histogram(&[("pool", "p")], &histogram.snapshot());
        family.histogram(&[], &histogram.snapshot());
        let text = page.finish();
        let samples: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            samples,
            [
                "t_seconds_bucket{pool=\"p\",le=\"0.0001\"} 1",
                "t_seconds_bucket{pool=\"p\",le=\"2\"} 2",
                "t_seconds_bucket{pool=\"p\",le=\"+Inf\"} 3",
                "t_seconds_sum{pool=\"p\"} 4.00005",
                "t_seconds_count{pool=\"p\"} 3",
                "t_seconds_bucket{le=\"0.0001\"} 1",
                "t_seconds_bucket{le=\"2\"} 2",
                "t_seconds_bucket{le=\"+Inf\"} 3",
                "t_seconds_sum 4.00005",
                "t_seconds_count 3",
            ]
        );
    }

    #[test]
    fn gauges_may_be_negative_and_infinite() {
        let mut page = Exposition::new();
        let mut family = page.family("g", Kind::Gauge, "G.");
        family.sample(&[], -3i64);
        family.sample_f64(&[], f64::INFINITY);
        family.sample_f64(&[], f64::NAN);
        assert!(page.finish().ends_with("g -3\ng +Inf\ng NaN\n"));
    }
}
