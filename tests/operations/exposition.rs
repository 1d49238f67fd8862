//! A strict reader of Prometheus' text format 0.0.4, for tests: what it accepts, Prometheus does.

use std::collections::{BTreeMap, BTreeSet};

/// A family of a page.
#[derive(Debug, Default)]
pub(crate) struct Family {
    pub(crate) kind: String,
    /// Values of each label, over all series.
    pub(crate) labels: BTreeMap<String, BTreeSet<String>>,
    /// Value of each series, by its suffix and labels as written.
    pub(crate) series: BTreeMap<String, f64>,
}

/// Reads a page; panics where it breaks the format.
pub(crate) fn read(page: &str) -> BTreeMap<String, Family> {
    assert!(page.ends_with('\n'), "the last line must end");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let (mut helped, mut current) = (String::new(), String::new());
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect(line);
            assert!(!families.contains_key(name), "{name} comes twice");
            assert!(!help.is_empty(), "{line}");
            helped = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            assert_eq!(name, helped, "HELP goes before TYPE");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            current = name.to_owned();
            let family = Family { kind: kind.to_owned(), ..Family::default() };
            families.insert(current.clone(), family);
        } else {
            assert!(!line.starts_with('#') && !line.is_empty(), "{line:?}");
            let family = families.get_mut(&current).expect("a series goes below its TYPE");
            series(line, &current, family);
        }
    }
    families.iter().for_each(|(name, family)| check(name, family));
    families
}

fn series(line: &str, name: &str, family: &mut Family) {
    let (series, value) = line.rsplit_once(' ').expect(line);
    let value = match value {
        "+Inf" | "-Inf" | "NaN" => panic!("{line}"),
        value => value.parse::<f64>().expect(line),
    };
    let rest = series.strip_prefix(name).unwrap_or_else(|| panic!("{line} below {name}"));
    let (suffix, labels) = rest.split_at(rest.find('{').unwrap_or(rest.len()));
    let allowed: &[&str] = match family.kind.as_str() {
        "histogram" => &["_bucket", "_sum", "_count"],
        _ => &[""],
    };
    assert!(allowed.contains(&suffix), "{line}");
    assert!(family.kind == "gauge" || value >= 0.0, "{line}");
    for (label, value) in self::labels(labels) {
        family.labels.entry(label).or_default().insert(value);
    }
    assert!(family.series.insert(rest.to_owned(), value).is_none(), "{line} comes twice");
}

/// The labels of `{a="b",c="d"}`.
pub(crate) fn labels(text: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let Some(mut rest) = text.strip_prefix('{') else { return all };
    while !rest.starts_with('}') {
        let (name, after) = rest.split_once("=\"").expect(text);
        let plain = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(name.chars().all(plain), "{text}");
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().expect(text) {
                (at, '"') => break at,
                (_, '\\') => match chars.next().expect(text).1 {
                    'n' => value.push('\n'),
                    c @ ('"' | '\\') => value.push(c),
                    _ => panic!("{text}"),
                },
                (_, c) => value.push(c),
            }
        };
        all.push((name.to_owned(), value));
        rest = &after[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    assert_eq!(rest, "}", "{text}");
    all
}

/// Buckets grow, and the last is the count.
fn check(name: &str, family: &Family) {
    let mut counts: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for (series, value) in &family.series {
        let Some(rest) = series.strip_prefix("_bucket") else { continue };
        let (mut bound, mut others) = (f64::NAN, String::new());
        for (label, text) in labels(rest) {
            match label.as_str() {
                "le" if text == "+Inf" => bound = f64::INFINITY,
                "le" => bound = text.parse().expect(series),
                _ => others += &format!("{label}={text},"),
            }
        }
        counts.entry(others).or_default().push((bound, *value));
    }
    for (labels, mut buckets) in counts {
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(buckets.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1), "{name} {labels}");
        let (bound, all) = buckets.last().unwrap();
        assert!(bound.is_infinite(), "{name} {labels} has no +Inf");
        let of_count = |(series, count): (&String, &f64)| {
            let mine = series.strip_prefix("_count").map(self::labels)?;
            let mine: String = mine.iter().map(|(l, v)| format!("{l}={v},")).collect();
            (mine == labels).then_some(*count)
        };
        assert_eq!(family.series.iter().find_map(of_count), Some(*all), "{name} {labels}");
    }
}

#[test]
fn broken_pages_are_found() {
    let good = "# HELP a_total A.\n# TYPE a_total counter\na_total{b=\"c\\\"\"} 1\n";
    assert_eq!(read(good)["a_total"].labels["b"], BTreeSet::from(["c\"".to_owned()]));
    let histogram = "# HELP h H.\n# TYPE h histogram\n";
    for bad in [
        &good.replace("} 1\n", "} 1"),
        &good.replace("counter", "gauge"),
        &good.replace("# HELP a_total A.\n", ""),
        &good.replace("} 1", "} -1"),
        &format!("{good}{good}"),
        &format!("{good}a_total{{b=\"c\\\"\"}} 2\n"),
        &format!("{good}other 2\n"),
        &format!("{histogram}h_bucket{{le=\"1\"}} 2\nh_bucket{{le=\"+Inf\"}} 1\nh_count 1\n"),
        &format!("{histogram}h_bucket{{le=\"1\"}} 1\nh_count 1\n"),
        &format!("{histogram}h_bucket{{le=\"+Inf\"}} 1\nh_count 2\n"),
    ] {
        let bad = bad.to_owned();
        assert!(std::panic::catch_unwind(|| read(&bad)).is_err(), "{bad}");
    }
}
