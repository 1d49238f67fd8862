//! Sums over usage records: lines in, totals by group out, for `expedite usage sum`.
//!
//! Pure: no I/O, no clock. A line counts when all of it is a record: an object with the documented
//! members in any order, numbers where numbers belong, an outcome that is known. Anything else is
//! counted as foreign, half a line at the end of a file as torn; nothing is guessed.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use memchr::{memchr, memchr2};

use super::record::Outcome;
use crate::config::Price;

/// What records can be grouped by: the texts among their members, and parts of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A member that is a text, by its index among them.
    Text(usize),
    /// `status`.
    Status,
    /// `stream`.
    Stream,
    /// The first so many characters of `ts`.
    Time(usize),
}

/// Members that are texts, in the order of their index.
const TEXTS: [&str; 9] = [
    "tenant",
    "key_id",
    "model",
    "pool",
    "adapter",
    "replica",
    "endpoint",
    "outcome",
    "tokens_source",
];
const OUTCOME: usize = 7;
const POOL: usize = 3;
const TIMES: [(&str, usize); 3] = [("month", 7), ("day", 10), ("hour", 13)];

impl By {
    /// Names of all groupings.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let times = TIMES.iter().map(|(name, _)| *name);
        TEXTS.into_iter().chain(["status", "stream"]).chain(times)
    }

    /// The grouping of that name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<By> {
        let text = || TEXTS.iter().position(|text| *text == name).map(By::Text);
        let time = || TIMES.iter().find(|(time, _)| *time == name).map(|(_, n)| By::Time(*n));
        match name {
            "status" => Some(By::Status),
            "stream" => Some(By::Stream),
            _ => text().or_else(time),
        }
    }
}

/// Which records count, and how.
#[derive(Default)]
pub struct Query {
    /// In this order.
    pub by: Vec<By>,
    /// Only `ts` from here on; a date, or a time without its `Z`.
    pub since: Option<String>,
    /// Only `ts` before.
    pub until: Option<String>,
    /// Prices by pool that stand in for the records' own `cost`; `None`: the records'.
    pub prices: Option<HashMap<String, Price>>,
}

/// Totals of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Records, or requests of a list of open ones.
    pub requests: u64,
    /// Prompt tokens, cached or not.
    pub input_tokens: u64,
    /// Of these, from a prefix cache.
    pub cached_tokens: u64,
    /// Tokens produced.
    pub output_tokens: u64,
    /// Money.
    pub cost: Sum,
    /// The parts of it by the query's prices: input that was not cached, cached, output.
    pub parts: [Sum; 3],
    /// Records with tokens and without a price.
    pub unpriced: u64,
}

/// A sum of many small numbers that loses nothing of them (Neumaier).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    sum: f64,
    lost: f64,
}

impl Sum {
    /// The sum.
    #[must_use]
    pub fn value(self) -> f64 {
        (self.sum + self.lost).clamp(f64::MIN, f64::MAX)
    }

    /// What is beyond all numbers stays the largest.
    fn add(&mut self, n: f64) {
        let sum = self.sum + n;
        if !sum.is_finite() {
            *self = Sum { sum: sum.clamp(f64::MIN, f64::MAX), lost: 0.0 };
            return;
        }
        let big_first = self.sum.abs() >= n.abs();
        self.lost += if big_first { (self.sum - sum) + n } else { (n - sum) + self.sum };
        self.sum = sum;
    }
}

/// The sums so far.
pub struct Sums {
    query: Query,
    groups: HashMap<Vec<u8>, Totals, RandomState>,
    key: Vec<u8>,
    /// Whole lines that are records, also outside the query's time.
    pub records: u64,
    /// Lines that are no records.
    pub foreign: u64,
    /// Files that end in the middle of a line.
    pub torn: u64,
}

impl Sums {
    /// Of nothing yet.
    #[must_use]
    pub fn new(query: Query) -> Sums {
        let (groups, key) = (HashMap::default(), Vec::new());
        Sums { query, groups, key, records: 0, foreign: 0, torn: 0 }
    }

    /// Adds the whole lines of `bytes`; how many bytes these were.
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..)
            && let Some(end) = memchr(b'\n', rest)
        {
            let line = rest.get(..end).unwrap_or_default();
            if self.line(line).is_none() {
                self.foreign += 1;
            }
            done += end + 1;
        }
        done
    }

    /// A file has ended with `rest` after its last newline.
    pub fn end(&mut self, rest: &[u8]) {
        self.torn += u64::from(!rest.is_empty());
    }

    /// The groups by their values, in order; a member that was null, or not there, is `None`.
    #[must_use]
    pub fn groups(&self) -> Vec<(Vec<Option<String>>, &Totals)> {
        let mut groups: Vec<_> =
            self.groups.iter().map(|(key, totals)| (values(key), totals)).collect();
        groups.sort_by(|a, b| a.0.cmp(&b.0));
        groups
    }

    /// All groups together.
    #[must_use]
    pub fn total(&self) -> Totals {
        let mut total = Totals::default();
        for totals in self.groups.values() {
            total.requests += totals.requests;
            total.unpriced += totals.unpriced;
            total.input_tokens = total.input_tokens.saturating_add(totals.input_tokens);
            total.cached_tokens = total.cached_tokens.saturating_add(totals.cached_tokens);
            total.output_tokens = total.output_tokens.saturating_add(totals.output_tokens);
            total.cost.add(totals.cost.value());
            for (sum, part) in total.parts.iter_mut().zip(&totals.parts) {
                sum.add(part.value());
            }
        }
        total
    }

    /// `None`: no record.
    fn line(&mut self, line: &[u8]) -> Option<()> {
        let members = Members::read(line)?;
        let ts = members.ts.filter(|ts| is_whole_time(ts))?;
        let outcome = members.texts.get(OUTCOME)?.as_ref()?;
        let known = |known: &Outcome| known.as_str().as_bytes() == *outcome;
        let open = *outcome == b"open";
        if !open && !Outcome::ALL.iter().any(known) {
            return None;
        }
        members.request_id?;
        members.texts.first()?.as_ref()?;
        let input = members.input_tokens.unwrap_or(0);
        let cached = members.cached_tokens.unwrap_or(0).min(input);
        let output = members.output_tokens.unwrap_or(0);
        self.records += 1;
        let from = self.query.since.as_ref().is_none_or(|since| ts >= since.as_bytes());
        let before = self.query.until.as_ref().is_none_or(|until| ts < until.as_bytes());
        if !from || !before {
            return Some(());
        }
        self.key.clear();
        for by in &self.query.by {
            let value = match *by {
                By::Text(n) => members.texts.get(n).copied().flatten(),
                By::Status => members.status,
                By::Stream => members.stream,
                By::Time(n) => ts.get(..n),
            };
            // A raw text holds no control characters.
            self.key.extend_from_slice(value.unwrap_or(b"\x01"));
            self.key.push(0);
        }
        let totals = match self.groups.get_mut(&self.key) {
            Some(totals) => totals,
            None => self.groups.entry(self.key.clone()).or_default(),
        };
        totals.requests += 1;
        totals.input_tokens = totals.input_tokens.saturating_add(input);
        totals.cached_tokens = totals.cached_tokens.saturating_add(cached);
        totals.output_tokens = totals.output_tokens.saturating_add(output);
        let price = self.query.prices.as_ref().map(|prices| {
            let pool = members.texts.get(POOL).copied().flatten().unwrap_or_default();
            prices.get(std::str::from_utf8(pool).unwrap_or_default())
        });
        match (price, members.cost) {
            (Some(Some(price)), _) => {
                let parts = [
                    (input - cached) as f64 * price.input / 1e6,
                    cached as f64 * price.cached / 1e6,
                    output as f64 * price.output / 1e6,
                ];
                for (sum, part) in totals.parts.iter_mut().zip(parts) {
                    sum.add(part);
                    totals.cost.add(part);
                }
            }
            (None, Some(cost)) => totals.cost.add(cost),
            _ => totals.unpriced += u64::from(input > 0 || output > 0),
        }
        Some(())
    }
}

/// Is this the beginning of a time in UTC (RFC 3339), a year at least?
#[must_use]
pub fn is_time(text: &str) -> bool {
    let bare = text.strip_suffix('Z').unwrap_or(text).as_bytes();
    matches!(bare.len(), 4 | 7 | 10 | 13 | 16 | 19 | 23) && begins_a_time(bare)
}

/// A time such as records have it, to the second at least.
fn is_whole_time(text: &[u8]) -> bool {
    text.strip_suffix(b"Z").is_some_and(|t| matches!(t.len(), 19 | 23) && begins_a_time(t))
}

fn begins_a_time(text: &[u8]) -> bool {
    const SHAPE: &[u8] = b"0000-00-00T00:00:00.000";
    let fits = |(byte, shape): (&u8, &u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        shape => byte == shape,
    };
    // What follows may be missing; a minute of 61 seconds has a leap second.
    let within = |at: usize, low: u8, high: u8| match text.get(at..at + 2) {
        Some(&[tens, ones]) => (low..=high).contains(&((tens - b'0') * 10 + ones - b'0')),
        _ => true,
    };
    text.len() <= SHAPE.len()
        && text.iter().zip(SHAPE).all(fits)
        && within(5, 1, 12)
        && within(8, 1, days(text))
        && [(11, 23), (14, 59), (17, 60)].iter().all(|&(at, high)| within(at, 0, high))
}

/// Days of the month that digits name; 31 of none.
fn days(text: &[u8]) -> u8 {
    let number = |digits: Option<&[u8]>| std::str::from_utf8(digits?).ok()?.parse::<u16>().ok();
    let year = number(text.get(..4)).unwrap_or(0);
    match number(text.get(5..7)) {
        Some(2) if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        Some(2) => 28,
        Some(4 | 6 | 9 | 11) => 30,
        _ => 31,
    }
}

/// A group's key taken apart.
fn values(key: &[u8]) -> Vec<Option<String>> {
    let text = |raw: &[u8]| {
        let quoted = [b"\"", raw, b"\""].concat();
        serde_json::from_slice(&quoted)
            .unwrap_or_else(|_| String::from_utf8_lossy(raw).into_owned())
    };
    let parts = key.split_inclusive(|&byte| byte == 0);
    parts
        .map(|part| match part.strip_suffix(b"\0").unwrap_or(part) {
            b"\x01" => None,
            raw => Some(text(raw)),
        })
        .collect()
}

/// What is read of a line; texts as they stand between their quotes.
#[derive(Default)]
struct Members<'l> {
    ts: Option<&'l [u8]>,
    request_id: Option<&'l [u8]>,
    texts: [Option<&'l [u8]>; TEXTS.len()],
    stream: Option<&'l [u8]>,
    status: Option<&'l [u8]>,
    input_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cost: Option<f64>,
}

enum Value<'l> {
    Text(&'l [u8]),
    /// A number, `true`, `false`.
    Bare(&'l [u8]),
    Null,
}

impl<'l> Members<'l> {
    fn read(line: &'l [u8]) -> Option<Members<'l>> {
        let mut members = Members::default();
        let mut rest = blank(line).strip_prefix(b"{")?;
        loop {
            let (name, after) = text(blank(rest))?;
            let (value, after) = value(blank(blank(after).strip_prefix(b":")?))?;
            members.keep(name, value)?;
            match blank(after).split_first()? {
                (b',', after) => rest = after,
                (b'}', after) => return blank(after).is_empty().then_some(members),
                _ => return None,
            }
        }
    }

    /// `None` when the member is there with a value that does not belong to it.
    fn keep(&mut self, name: &[u8], value: Value<'l>) -> Option<()> {
        let index = match name {
            b"ts" => return keep_text(&mut self.ts, value),
            b"request_id" => return keep_text(&mut self.request_id, value),
            b"input_tokens" => return keep_number(&mut self.input_tokens, value),
            b"cached_tokens" => return keep_number(&mut self.cached_tokens, value),
            b"output_tokens" => return keep_number(&mut self.output_tokens, value),
            b"cost" => {
                keep_number(&mut self.cost, value)?;
                return self.cost.is_none_or(f64::is_finite).then_some(());
            }
            b"status" => return keep_bare(&mut self.status, value),
            b"stream" => return keep_bare(&mut self.stream, value),
            b"tenant" => 0,
            b"key_id" => 1,
            b"model" => 2,
            b"pool" => POOL,
            b"adapter" => 4,
            b"replica" => 5,
            b"endpoint" => 6,
            b"outcome" => OUTCOME,
            b"tokens_source" => 8,
            _ => return Some(()),
        };
        keep_text(self.texts.get_mut(index)?, value)
    }
}

fn keep_text<'l>(to: &mut Option<&'l [u8]>, value: Value<'l>) -> Option<()> {
    match value {
        Value::Text(text) => *to = Some(text),
        Value::Null => {}
        Value::Bare(_) => return None,
    }
    Some(())
}

fn keep_bare<'l>(to: &mut Option<&'l [u8]>, value: Value<'l>) -> Option<()> {
    match value {
        Value::Bare(bare) => *to = Some(bare),
        Value::Null => {}
        Value::Text(_) => return None,
    }
    Some(())
}

fn keep_number<T: std::str::FromStr>(to: &mut Option<T>, value: Value<'_>) -> Option<()> {
    match value {
        Value::Bare(bare) => *to = Some(std::str::from_utf8(bare).ok()?.parse().ok()?),
        Value::Null => {}
        Value::Text(_) => return None,
    }
    Some(())
}

fn blank(bytes: &[u8]) -> &[u8] {
    match bytes.first() {
        Some(b' ' | b'\t' | b'\r') => bytes.trim_ascii_start(),
        _ => bytes,
    }
}

/// A text without its quotes, and what follows it.
fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let inner = bytes.strip_prefix(b"\"")?;
    let mut at = 0;
    loop {
        at += memchr2(b'"', b'\\', inner.get(at..)?)?;
        if inner.get(at) == Some(&b'"') {
            let (text, rest) = inner.split_at_checked(at)?;
            return Some((text, rest.get(1..)?));
        }
        at += 2;
    }
}

fn value(bytes: &[u8]) -> Option<(Value<'_>, &[u8])> {
    if bytes.first() == Some(&b'"') {
        let (text, rest) = text(bytes)?;
        return Some((Value::Text(text), rest));
    }
    let is_bare = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let end = bytes.iter().position(|byte| !is_bare(byte))?;
    let (bare, rest) = bytes.split_at_checked(end)?;
    match bare {
        b"null" => Some((Value::Null, rest)),
        b"true" | b"false" => Some((Value::Bare(bare), rest)),
        [b'0'..=b'9', ..] | [b'-', b'0'..=b'9', ..] => Some((Value::Bare(bare), rest)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
