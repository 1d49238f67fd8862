//! The two formats of Prometheus: its text format 0.0.4, and OpenMetrics 1.0, which has exemplars.
//! One HELP and TYPE a family, labels escaped.

use std::fmt::Write as _;

use crate::runtime::cells::{BOUNDS_NS, BOUNDS_TOKENS, Exemplar, Sum};

/// A page being written.
#[derive(Default)]
pub(super) struct Page {
    text: String,
    open: bool,
}

/// The labels of one series.
pub(super) type Labels<'l> = &'l [(&'static str, &'l str)];

impl Page {
    /// `open`: in OpenMetrics' format.
    pub(super) fn new(open: bool) -> Page {
        Page { text: String::with_capacity(64 << 10), open }
    }

    pub(super) fn into_text(mut self) -> String {
        if self.open {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    /// Begins a family; every series of it follows before the next family.
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        // OpenMetrics names a counter's family without the suffix of its series.
        let bare = name.strip_suffix("_total").filter(|_| self.open && kind == "counter");
        let name = bare.unwrap_or(name);
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A series with one value.
    pub(super) fn value(&mut self, name: &str, labels: Labels<'_>, value: impl std::fmt::Display) {
        self.text.push_str(name);
        self.labels(labels, None);
        let _ = writeln!(self.text, " {value}");
    }

    /// A histogram's series, in seconds.
    pub(super) fn histogram(&mut self, name: &str, labels: Labels<'_>, sum: &Sum) {
        self.histogram_with(name, labels, sum, |_| None);
    }

    /// The same, with the exemplar of each bucket where the format has such.
    pub(super) fn histogram_with(
        &mut self,
        name: &str,
        labels: Labels<'_>,
        sum: &Sum,
        exemplar: impl Fn(usize) -> Option<Exemplar>,
    ) {
        let bounds = BOUNDS_NS.map(|ns| ns as f64 / 1e9);
        let seconds = (sum.sum_ns as f64 / 1e9).to_string();
        self.buckets(name, labels, (&bounds, &sum.buckets), &seconds, exemplar);
    }

    /// A histogram of tokens.
    pub(super) fn tokens(&mut self, name: &str, labels: Labels<'_>, buckets: &[u64], sum: u64) {
        let bounds = BOUNDS_TOKENS.map(|tokens| tokens as f64);
        self.buckets(name, labels, (&bounds, buckets), &sum.to_string(), |_| None);
    }

    fn buckets(
        &mut self,
        name: &str,
        labels: Labels<'_>,
        (bounds, buckets): (&[f64], &[u64]),
        sum: &str,
        exemplar: impl Fn(usize) -> Option<Exemplar>,
    ) {
        let mut total: u64 = 0;
        for (i, entries) in buckets.iter().enumerate() {
            total = total.wrapping_add(*entries);
            let bound = bounds.get(i).map(|bound| self.bound(*bound));
            let _ = write!(self.text, "{name}_bucket");
            self.labels(labels, Some(bound.as_deref().unwrap_or("+Inf")));
            let _ = write!(self.text, " {total}");
            if let Some(Exemplar { trace_id, ns, unix_ms }) = exemplar(i).filter(|_| self.open) {
                let (value, at) = (ns as f64 / 1e9, unix_ms as f64 / 1e3);
                let _ = write!(self.text, " # {{trace_id=\"{trace_id:032x}\"}} {value} {at}");
            }
            self.text.push('\n');
        }
        for (suffix, value) in [("_sum", sum), ("_count", &total.to_string())] {
            let _ = write!(self.text, "{name}{suffix}");
            self.labels(labels, None);
            let _ = writeln!(self.text, " {value}");
        }
    }

    /// A bucket's bound. OpenMetrics wants the form that Go writes ("Canonical numbers").
    fn bound(&self, bound: f64) -> String {
        match self.open {
            false => bound.to_string(),
            true if bound < 1e-4 => {
                let text = format!("{bound:e}");
                let (digits, exponent) = text.split_once("e-").unwrap_or((&text, "0"));
                format!("{digits}e-{exponent:0>2}")
            }
            true if bound.fract() == 0.0 => format!("{bound:.1}"),
            true => bound.to_string(),
        }
    }

    fn labels(&mut self, labels: Labels<'_>, bound: Option<&str>) {
        if labels.is_empty() && bound.is_none() {
            return;
        }
        let mut before = '{';
        for (name, value) in labels.iter().copied().chain(bound.map(|b| ("le", b))) {
            let _ = write!(self.text, "{before}{name}=\"");
            for c in value.chars() {
                match c {
                    '"' => self.text.push_str("\\\""),
                    '\\' => self.text.push_str("\\\\"),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
            before = ',';
        }
        self.text.push('}');
    }
}

/// Does a scraper want OpenMetrics' format (RFC 9110, 12.5.1)? Only where it says so, and not less
/// than the text format.
pub(super) fn wants_open(accept: &str) -> bool {
    let quality = |kind: &str| {
        let of = |range: &str| {
            let mut parts = range.split(';').map(str::trim);
            if !parts.next()?.eq_ignore_ascii_case(kind) {
                return None;
            }
            let mut q = 1.0;
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                match name.trim().to_ascii_lowercase().as_str() {
                    "q" => q = value.trim().parse().unwrap_or(0.0),
                    // The text format has versions of its own.
                    "version" if kind != "text/plain" && value.trim() != "1.0.0" => return None,
                    _ => {}
                }
            }
            Some(q)
        };
        accept.split(',').filter_map(of).fold(0.0_f64, f64::max)
    };
    let open = quality("application/openmetrics-text");
    open > 0.0 && open >= quality("text/plain")
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

    #[test]
    fn the_open_format_has_exemplars_canonical_bounds_and_an_end() {
        let mut page = Page::new(true);
        page.family("x_total", "counter", "Things.");
        page.value("x_total", &[], 7);
        page.family("y_seconds", "histogram", "Time.");
        let h = Histogram::default();
        h.observe_ns(2_000_000);
        let mut sum = Sum::default();
        sum.add(&h);
        let seen = Exemplar { trace_id: 0xab, ns: 2_000_000, unix_ms: 1_500 };
        page.histogram_with("y_seconds", &[], &sum, |bucket| (bucket == 8).then_some(seen));
        let text = page.into_text();
        assert!(text.starts_with("# HELP x Things.\n# TYPE x counter\nx_total 7\n"), "{text}");
        let id = "000000000000000000000000000000ab";
        let line = format!("{{le=\"0.0025\"}} 1 # {{trace_id=\"{id}\"}} 0.002 1.5\n");
        assert!(text.contains(&line), "{text}");
        assert_eq!(text.matches("trace_id").count(), 1);
        for bound in ["5e-06", "1e-05", "2.5e-05", "0.0001", "1.0", "2.5", "10.0", "120.0"] {
            assert!(text.contains(&format!("{{le=\"{bound}\"}}")), "{bound}");
        }
        assert!(text.ends_with("y_seconds_count 1\n# EOF\n"), "{text}");
    }

    #[test]
    fn the_text_format_has_no_exemplars() {
        let mut page = Page::default();
        let seen = Exemplar { trace_id: 0xab, ns: 1, unix_ms: 1 };
        page.histogram_with("y_seconds", &[], &Sum::default(), |_| Some(seen));
        page.tokens("z", &[("k", "v")], &[1, 0, 2], 130);
        let text = page.into_text();
        assert!(!text.contains('#') && text.contains("{le=\"0.000005\"} 0\n"), "{text}");
        assert!(text.contains("z_bucket{k=\"v\",le=\"16\"} 3\n"), "{text}");
        assert!(text.contains("z_sum{k=\"v\"} 130\nz_count{k=\"v\"} 3\n"), "{text}");
    }

    #[test]
    fn the_open_format_is_for_who_asks() {
        for yes in [
            "application/openmetrics-text",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
             application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,\
             */*;q=0.2",
        ] {
            assert!(wants_open(yes), "{yes}");
        }
        for no in [
            "",
            "*/*",
            "text/plain",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=x",
            "text/plain;q=0.9,application/openmetrics-text;q=0.1",
        ] {
            assert!(!wants_open(no), "{no}");
        }
    }
}
