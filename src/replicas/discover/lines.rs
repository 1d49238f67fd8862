//! The file of replicas: a URL a line, or a JSON list. Pure.
//!
//! ```text
//! # comment
//! http://10.0.0.1:8000
//! http://10.0.0.2:8000 id=r2 zone=b weight=2
//! ```
//!
//! or `["http://10.0.0.1:8000", {"url": "http://10.0.0.2:8000", "id": "r2"}]`. A file with one
//! mistake lists nobody: half of a list must not pass for a whole one. An empty list is written as
//! `[]`; a file with nothing in it is taken for an accident.

use std::collections::HashSet;

use serde::Deserialize;

use super::super::describe::Description;
use super::super::members::{LISTED_MAX, Listed};
use crate::config;

/// Reads the text of a file.
pub(super) fn parse(text: &str) -> Result<Vec<Listed>, String> {
    let list = match text.trim_start().starts_with('[') {
        true => json(text)?,
        false => lines(text)?,
    };
    if list.len() > LISTED_MAX {
        return Err(format!("it lists {} replicas; at most {LISTED_MAX} are taken", list.len()));
    }
    let mut seen = HashSet::new();
    let doubled = list.iter().find(|r| !seen.insert(r.id.as_str()) || !seen.insert(&r.url));
    if let Some(replica) = doubled {
        return Err(format!("it lists {} twice", replica.id));
    }
    Ok(list.into_iter().map(Listed::new).collect())
}

/// Is the last line whole? Without its end it may be half of one.
pub(super) fn is_whole(text: &str) -> bool {
    let json = text.trim_start().starts_with('[');
    json || text.is_empty() || text.ends_with('\n')
}

fn lines(text: &str) -> Result<Vec<config::Replica>, String> {
    let numbered = text.lines().enumerate().map(|(n, line)| (n + 1, line.trim()));
    let lines = numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let list: Result<Vec<_>, _> =
        lines.map(|(n, line)| one_line(line).map_err(|what| format!("line {n}: {what}"))).collect();
    match list {
        Ok(list) if list.is_empty() => {
            Err("it has nothing in it (an empty list is written as [])".to_owned())
        }
        list => list,
    }
}

fn one_line(line: &str) -> Result<config::Replica, String> {
    let mut words = line.split_ascii_whitespace();
    let url = words.next().unwrap_or_default().to_owned();
    let mut replica = Description { url, ..Description::default() };
    for word in words {
        match word.split_once('=') {
            Some(("id", id)) => replica.id = Some(id.to_owned()),
            Some(("zone", zone)) => replica.zone = Some(zone.to_owned()),
            Some(("weight", weight)) => {
                let parsed = weight.parse().map_err(|_| "weight must be a number")?;
                replica.weight = Some(parsed);
            }
            _ => return Err("after the URL only id=, zone= and weight= may come".to_owned()),
        }
    }
    replica.checked()
}

fn json(text: &str) -> Result<Vec<config::Replica>, String> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Item {
        Url(String),
        Full(Description),
    }
    let items: Vec<Item> = serde_json::from_str(text).map_err(|e| format!("not a list: {e}"))?;
    let entry = |item| match item {
        Item::Url(url) => Description { url, ..Description::default() },
        Item::Full(description) => description,
    };
    let read = |(n, item)| {
        let replica = entry(item).checked();
        replica.map_err(|what| format!("entry {}: {what}", n + 1))
    };
    items.into_iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Vec<String> {
        let list = parse(text).expect("a list");
        list.into_iter().map(|listed| listed.replica.id).collect()
    }

    #[test]
    fn lines_and_json_list_the_same() {
        let text =
            "# fleet\n\nhttp://10.0.0.1:8000\n  http://10.0.0.2:8000 id=r2 zone=b weight=2\n";
        assert_eq!(ids(text), ["10.0.0.1:8000", "r2"]);
        let json = r#" ["http://10.0.0.1:8000",
            {"url":"http://10.0.0.2:8000","id":"r2","zone":"b","weight":2}]"#;
        assert_eq!(parse(text), parse(json));
        assert_eq!(parse("[]"), Ok(Vec::new()));
    }

    #[test]
    fn a_mistake_lists_nobody_and_names_its_place() {
        for (text, place) in [
            ("", "nothing"),
            ("# only this\n", "nothing"),
            ("http://a:1\nhttp://b\n", "line 2"),
            ("http://a:1 weight=-1\n", "line 1"),
            ("http://a:1 colour=red\n", "line 1"),
            ("http://a:1 id=\n", "line 1"),
            ("http://a:1\nhttp://a:1\n", "twice"),
            ("[\"http://a:1\", \"ftp://b:1\"]", "entry 2"),
            ("[\"http://a:1\",", "not a list"),
            ("[{\"url\":\"http://a:1\",\"typo\":1}]", "not a list"),
        ] {
            let what = parse(text).expect_err(text);
            assert!(what.contains(place), "{text:?}: {what}");
        }
    }

    #[test]
    fn a_line_without_its_end_may_be_half_of_one() {
        assert!(is_whole("http://a:8000\n") && is_whole("[\"http://a:8000\"]") && is_whole(""));
        assert!(!is_whole("http://a:8000\nhttp://b:80"));
    }
}
