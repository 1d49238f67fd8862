//! Prometheus text format 0.0.4: one HELP and TYPE a family, labels escaped.

use std::fmt::Write as _;

use crate::runtime::cells::{BOUNDS_NS, Sum};

/// A page being written.
#[derive(Default)]
pub(super) struct Page(String);

/// The labels of one series.
pub(super) type Labels<'l> = &'l [(&'static str, &'l str)];

impl Page {
    pub(super) fn into_text(self) -> String {
        self.0
    }

    /// Begins a family; every series of it follows before the next family.
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A series with one value.
    pub(super) fn value(&mut self, name: &str, labels: Labels<'_>, value: impl std::fmt::Display) {
        self.0.push_str(name);
        self.labels(labels, None);
        let _ = writeln!(self.0, " {value}");
    }

    /// A histogram's series, in seconds.
    pub(super) fn histogram(&mut self, name: &str, labels: Labels<'_>, sum: &Sum) {
        let mut total: u64 = 0;
        for (i, entries) in sum.buckets.iter().enumerate() {
            total = total.wrapping_add(*entries);
            let bound = BOUNDS_NS.get(i).map(|ns| (*ns as f64 / 1e9).to_string());
            let _ = write!(self.0, "{name}_bucket");
            self.labels(labels, Some(bound.as_deref().unwrap_or("+Inf")));
            let _ = writeln!(self.0, " {total}");
        }
        let _ = write!(self.0, "{name}_sum");
        self.labels(labels, None);
        let _ = writeln!(self.0, " {}", sum.sum_ns as f64 / 1e9);
        let _ = write!(self.0, "{name}_count");
        self.labels(labels, None);
        let _ = writeln!(self.0, " {total}");
    }

    fn labels(&mut self, labels: Labels<'_>, bound: Option<&str>) {
        if labels.is_empty() && bound.is_none() {
            return;
        }
        let mut before = '{';
        for (name, value) in labels.iter().copied().chain(bound.map(|b| ("le", b))) {
            let _ = write!(self.0, "{before}{name}=\"");
            for c in value.chars() {
                match c {
                    '"' => self.0.push_str("\\\""),
                    '\\' => self.0.push_str("\\\\"),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
            before = ',';
        }
        self.0.push('}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::cells::Histogram;

    #[test]
    fn series_are_written_in_the_text_format() {
        let mut page = Page::default();
        page.family("x_total", "counter", "Things.");
        page.value("x_total", &[("a", "q\"\\\n")], 7);
        let h = Histogram::default();
        h.observe_ns(2_000_000);
        let mut sum = Sum::default();
        sum.add(&h);
        page.histogram("y_seconds", &[], &sum);
        let text = page.into_text();
        assert!(text.starts_with("# HELP x_total Things.\n# TYPE x_total counter\n"));
        assert!(text.contains("x_total{a=\"q\\\"\\\\\\n\"} 7\n"));
        assert!(text.contains("y_seconds_bucket{le=\"0.001\"} 0\n"));
        assert!(text.contains("y_seconds_bucket{le=\"0.0025\"} 1\n"));
        assert!(text.contains("y_seconds_bucket{le=\"+Inf\"} 1\n"));
        assert!(text.contains("y_seconds_sum 0.002\ny_seconds_count 1\n"));
    }
}
