//! What counts, what does not, and that sums are those of the writer's own lines.

use super::super::record::tests::record;
use super::*;

fn line(change: impl FnOnce(&mut crate::usage::UsageRecord)) -> Vec<u8> {
    let mut record = record("r");
    record.input_tokens = Some(100);
    record.cached_tokens = Some(40);
    change(&mut record);
    let mut out = Vec::new();
    record.write_json(&mut out);
    out
}

fn by(names: &str) -> Vec<By> {
    names.split(',').map(|name| By::of_name(name).unwrap()).collect()
}

fn some(values: &[&str]) -> Vec<Option<String>> {
    values.iter().map(|value| Some((*value).to_owned())).collect()
}

#[test]
fn records_are_summed_by_group() {
    let mut sums = Sums::new(Query { by: by("tenant,model,day"), ..Query::default() });
    let mut log = Vec::new();
    for n in 0..3 {
        log.extend(line(|record| {
            record.tenant = if n == 2 { "b".into() } else { "a".into() };
            record.model = (n < 2).then(|| "say \"x\"".into());
            record.cost = Some(0.1);
        }));
    }
    assert_eq!(sums.feed(&log), log.len());
    let groups = sums.groups();
    assert_eq!(groups[0].0, some(&["a", "say \"x\"", "2025-12-31"]));
    assert_eq!(groups[1].0[1], None);
    let a = groups[0].1;
    assert_eq!((a.requests, a.input_tokens, a.cached_tokens, a.output_tokens), (2, 200, 80, 14));
    assert_eq!(a.cost.value(), 0.2);
    let total = sums.total();
    assert_eq!((total.requests, (total.cost.value() * 1e9).round()), (3, 3e8));
    assert_eq!((sums.records, sums.foreign, sums.torn), (3, 0, 0));
}

#[test]
fn prices_of_the_query_stand_in_and_cached_input_has_its_own() {
    let price = Price { input: 10.0, cached: 1.0, output: 100.0 };
    let prices = Some(HashMap::from([("llama-8b".to_owned(), price)]));
    let mut sums = Sums::new(Query { prices, ..Query::default() });
    sums.feed(&line(|record| record.cost = Some(99.0)));
    sums.feed(&line(|record| record.pool = Some("other".into())));
    sums.feed(&line(|record| record.cached_tokens = None));
    let total = sums.total();
    let parts = total.parts.map(|part| (part.value() * 1e6).round());
    assert_eq!(parts, [1600.0, 40.0, 1400.0]);
    assert_eq!((total.cost.value() * 1e6).round(), 3040.0);
    assert_eq!(total.unpriced, 1, "the other pool has no price");
}

#[test]
fn half_a_line_and_a_foreign_one_are_told_and_not_counted() {
    let good = String::from_utf8(line(|_| {})).unwrap();
    let good = good.trim_end();
    let mut sums = Sums::new(Query::default());
    for bad in [
        "",
        "{}",
        "null",
        "hello",
        "{\"ts\":\"2026\"}",
        &good.replace("\"truncated\"", "\"unheard of\""),
        &good.replace("\"output_tokens\":7", "\"output_tokens\":\"7\""),
        &good.replace("\"output_tokens\":7", "\"output_tokens\":7.5"),
        &good.replace("\"output_tokens\":7", "\"output_tokens\":-7"),
        &good.replace("\"output_tokens\":7", "\"output_tokens\":{}"),
        &good.replace("\"output_tokens\":7", "\"output_tokens\":"),
        &good.replace("\"cost\":0.000125", "\"cost\":-inf"),
        &good.replace("\"cost\":0.000125", "\"cost\":1e999"),
        &good.replace("2025-12-31T23:59:59.123Z", "garbage"),
        &good.replace("2025-12-31T23:59:59.123Z", "2025-12-31T23:59:59.123"),
        &good.replace("2025-12-31T23:59:59.123Z", "2025-13-31T23:59:59.123Z"),
        &good.replace("2025-12-31T23:59:59.123Z", "2025-12-31Z"),
        &good.replace("\"tenant\":\"acme\",", ""),
        &good[..good.len() - 1],
        &good[..200],
        &format!("{good}{good}"),
        &format!("{} x", good),
    ] {
        let before = sums.foreign;
        sums.feed(format!("{bad}\n").as_bytes());
        assert_eq!((sums.foreign, sums.records), (before + 1, 0), "{bad}");
    }
    assert_eq!(sums.feed(good.as_bytes()), 0);
    sums.end(good.as_bytes());
    sums.end(b"");
    assert_eq!((sums.torn, sums.records), (1, 0));
    assert!(sums.groups().is_empty());
}

#[test]
fn spaces_and_unknown_members_do_not_matter() {
    let text = String::from_utf8(line(|_| {})).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut spaced = serde_json::to_string_pretty(&value).unwrap().replace('\n', " ");
    spaced.insert_str(1, "\"more\": \"a \\\" {} \\\\\",");
    let mut sums = Sums::new(Query { by: by("outcome,status,stream"), ..Query::default() });
    sums.feed(format!(" {spaced} \r\n").as_bytes());
    assert_eq!((sums.records, sums.foreign), (1, 0), "{spaced}");
    assert_eq!(sums.groups()[0].0, some(&["truncated", "200", "true"]));
}

#[test]
fn times_bound_what_counts() {
    // 2025-12-31T23:59:59.123Z
    for (since, until, counts) in [
        (None, None, 1),
        (Some("2025-12-31"), None, 1),
        (Some("2026"), None, 0),
        (Some("2025-12-31T23:59:59.123"), Some("2025-12-31T23:59:59.124"), 1),
        (None, Some("2025-12-31T23:59:59.123"), 0),
        (None, Some("2025-12-31"), 0),
    ] {
        let [since, until] = [since, until].map(|text| text.map(str::to_owned));
        let mut sums = Sums::new(Query { since, until, ..Query::default() });
        sums.feed(&line(|_| {}));
        assert_eq!((sums.total().requests, sums.records), (counts, 1));
    }
}

#[test]
fn requests_that_were_open_count_as_such() {
    let open = "{\"ts\":\"2026-01-01T00:00:00.000Z\",\"request_id\":\"r\",\"tenant\":\"t\",\
                \"outcome\":\"open\",\"certain\":true,\"run\":\"0\",\"place\":1}\n";
    let mut sums = Sums::new(Query { by: by("outcome"), ..Query::default() });
    sums.feed(open.as_bytes());
    assert_eq!((sums.groups()[0].0[0].as_deref(), sums.foreign), (Some("open"), 0));
}

#[test]
fn a_sum_of_many_loses_nothing() {
    let mut sum = Sum::default();
    sum.add(1e9);
    (0..1_000_000).for_each(|_| sum.add(1e-9));
    assert_eq!(sum.value(), 1e9 + 1e-3);
}

#[test]
fn every_grouping_has_a_name_and_no_other() {
    assert!(By::names().all(|name| By::of_name(name).is_some()));
    assert_eq!(By::names().count(), 14);
    assert_eq!(By::of_name("tokens"), None);
}

#[test]
fn a_time_is_one_of_the_calendar() {
    for good in [
        "2026",
        "2026-02",
        "2026-02-28",
        "2024-02-29",
        "2000-02-29",
        "2026-12-31T23",
        "2026-01-31T12:00",
        "2016-12-31T23:59:60Z",
        "2026-01-31T12:00:00.000Z",
    ] {
        assert!(is_time(good), "{good}");
    }
    for bad in [
        "",
        "26",
        "2026-13-01",
        "2026-00",
        "2026-01-00",
        "2026-01-32",
        "2026-02-29",
        "1900-02-29",
        "2026-04-31",
        "2026-01-01T24",
        "2026-01-01T12:60",
        "2026-01-01T12:00:61",
        "2026-01-01 12:00",
        "2026-01-01T12:00:00.000ZZ",
        "2026-1-1",
        "yesterday",
        "\u{e9}\u{e9}",
    ] {
        assert!(!is_time(bad), "{bad}");
    }
}

#[test]
fn money_beyond_all_numbers_stays_the_largest() {
    let mut sums = Sums::new(Query::default());
    for cost in ["1e308", "1e308", "1e308", "0.5"] {
        let text = String::from_utf8(line(|record| record.cost = Some(0.000_125))).unwrap();
        sums.feed(text.replace("0.000125", cost).as_bytes());
    }
    assert_eq!(sums.total().cost.value(), f64::MAX);
    let mut sum = Sum::default();
    [1.7e308, -1.7e308, 2.0].iter().for_each(|n| sum.add(*n));
    assert_eq!(sum.value(), 2.0);
}
