//! What the next start makes of a table, whenever the kill came.

use serde_json::Value;

use super::super::record::tests::record;
use super::super::record::{SmallId, UsageRecord};
use super::super::table::{Opening, Place};
use super::*;
use crate::config::KeyId;

struct Bed {
    folder: tempfile::TempDir,
}

impl Bed {
    fn new() -> Bed {
        Bed { folder: tempfile::tempdir().unwrap() }
    }

    fn list(&self) -> PathBuf {
        self.folder.path().join("usage.open.jsonl")
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("usage.jsonl")
    }

    fn claim(&self) -> Claim {
        claim(&self.list(), &self.log()).unwrap()
    }

    fn listed(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.list()).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn ids(&self) -> Vec<String> {
        let id = |line: &Value| line["request_id"].as_str().unwrap().to_owned();
        self.listed().iter().map(id).collect()
    }
}

fn take(table: &Table, id: &str) -> Place {
    let (request_id, key_id) = (&SmallId::new(id).unwrap(), KeyId::OPEN);
    let started_unix_ms = 1_767_225_599_123;
    let tenant = "a\"b";
    let opening = Opening { started_unix_ms, request_id, tenant, key_id, endpoint: "chat" };
    table.take(&opening).unwrap()
}

/// The line of a request that has ended; its key and endpoint are those of `take`.
fn end(table: &Table, place: Place, id: &str) -> String {
    let record = UsageRecord {
        tenant: "a\"b".into(),
        key_id: KeyId::OPEN,
        endpoint: "chat",
        model: None,
        ..record(id)
    };
    table.ended(place, &record);
    let mut line = Vec::new();
    record.write_json(&mut line);
    String::from_utf8(line).unwrap()
}

fn place_of(path: &Path) -> LogPlace {
    use std::os::unix::fs::MetadataExt;
    let of = std::fs::metadata(path).unwrap();
    LogPlace { device: of.dev(), inode: of.ino(), offset: of.len() }
}

#[test]
fn open_requests_are_listed_and_records_that_were_on_their_way_are_in_the_log_once() {
    let bed = Bed::new();
    let first = bed.claim();
    assert_eq!(first.listed, 0);
    let table = first.table(8).unwrap();
    take(&table, "open");
    let places = ["done", "torn", "queued", "freed"].map(|id| take(&table, id));
    let lines = ["done", "torn", "queued", "freed"].map(|id| {
        let at = ["done", "torn", "queued", "freed"].iter().position(|other| *other == id);
        end(&table, places[at.unwrap()], id)
    });
    std::fs::write(bed.log(), "before\n").unwrap();
    table.writing_to(place_of(&bed.log()));
    table.pending(places[0], xxh3_64(lines[0].as_bytes()));
    table.pending(places[1], xxh3_64(lines[1].as_bytes()));
    table.release(places[3]);
    let (done, torn, queued) = (&lines[0], &lines[1], &lines[2]);
    std::fs::write(bed.log(), format!("before\n{done}{}", &torn[..torn.len() - 1])).unwrap();
    drop((table, first)); // The kernel does as much at a kill.
    let kept = std::fs::read(table_path(&bed.list(), 0)).unwrap();
    for listed in [1, 0] {
        let next = bed.claim();
        assert_eq!((next.listed, next.notes.len() as u64), (listed, listed));
        drop(next);
        let log = std::fs::read_to_string(bed.log()).unwrap();
        assert_eq!(log, format!("before\n{done}{torn}{queued}"));
        assert_eq!(bed.ids(), ["open"]);
        // A kill before the table was emptied: the same again.
        std::fs::write(table_path(&bed.list(), 0), &kept).unwrap();
    }
    let line = &bed.listed()[0];
    let want = (&"2025-12-31T23:59:59.123Z".into(), &"a\"b".into());
    assert_eq!((&line["ts"], &line["tenant"]), want);
    assert_eq!((&line["outcome"], &line["certain"]), (&"open".into(), &true.into()));
}

#[test]
fn a_kill_in_the_middle_of_the_listing_lists_nothing_twice() {
    let bed = Bed::new();
    let first = bed.claim();
    let table = first.table(8).unwrap();
    for n in 0..4 {
        take(&table, &n.to_string());
    }
    let path = first.path.clone();
    drop((table, first));
    let kept = std::fs::read(&path).unwrap();
    assert_eq!(bed.claim().listed, 4);
    let whole = std::fs::read_to_string(bed.list()).unwrap();
    // As if it had come after two lines and a half.
    let half = whole.match_indices('\n').nth(1).unwrap().0 + 100;
    std::fs::write(bed.list(), &whole[..half]).unwrap();
    std::fs::write(&path, &kept).unwrap();
    assert_eq!(bed.claim().listed, 2);
    assert_eq!(std::fs::read_to_string(bed.list()).unwrap(), whole);
    // And as if after all of them.
    std::fs::write(&path, &kept).unwrap();
    assert_eq!(bed.claim().listed, 0);
    assert_eq!(bed.ids(), ["0", "1", "2", "3"]);
}

#[test]
fn a_log_that_was_rotated_is_found_and_one_that_is_gone_leaves_a_doubt() {
    for gone in [false, true] {
        let bed = Bed::new();
        let first = bed.claim();
        let table = first.table(8).unwrap();
        let (done, _) = (take(&table, "done"), take(&table, "open"));
        std::fs::write(bed.log(), "").unwrap();
        table.writing_to(place_of(&bed.log()));
        let line = end(&table, done, "done");
        table.pending(done, xxh3_64(line.as_bytes()));
        std::fs::write(bed.log(), line).unwrap();
        let moved = bed.folder.path().join("usage.jsonl.1");
        std::fs::rename(bed.log(), &moved).unwrap();
        if gone {
            std::fs::remove_file(&moved).unwrap();
        }
        drop((table, first));
        bed.claim();
        assert!(!bed.log().exists(), "a record that may be there is not written again");
        let certain: Vec<_> = bed.listed().iter().map(|line| line["certain"].clone()).collect();
        match gone {
            false => assert_eq!((bed.ids(), certain), (vec!["open".to_owned()], vec![true.into()])),
            true => {
                assert_eq!(bed.ids(), ["done", "open"]);
                assert_eq!(certain, [Value::from(false), Value::from(true)]);
            }
        }
    }
}

#[test]
fn two_processes_have_a_table_each_and_the_living_ones_is_left_alone() {
    let bed = Bed::new();
    let (first, second) = (bed.claim(), bed.claim());
    assert_ne!(first.path, second.path);
    let (old, new) = (first.table(8).unwrap(), second.table(8).unwrap());
    take(&old, "old");
    take(&new, "new");
    drop((old, first));
    let third = bed.claim();
    assert_eq!(third.listed, 1);
    assert_eq!(bed.ids(), ["old"]);
    drop((new, second));
    // Both are free now; the one that is not needed goes.
    let path = third.path.clone();
    drop(third);
    let fourth = bed.claim();
    assert_eq!((fourth.listed, &fourth.path), (1, &path));
    let there = std::fs::read_dir(bed.folder.path()).unwrap();
    assert_eq!(there.count(), 2, "the list and one table");
    fourth.remove();
    assert!(!path.exists());
}

#[test]
fn a_list_that_cannot_be_written_keeps_the_table_for_the_next_start() {
    let bed = Bed::new();
    let first = bed.claim();
    let table = first.table(8).unwrap();
    take(&table, "open");
    drop((table, first));
    std::fs::create_dir(bed.list()).unwrap();
    let second = bed.claim();
    assert_eq!((second.listed, second.notes.len()), (0, 1));
    drop(second);
    std::fs::remove_dir(bed.list()).unwrap();
    assert_eq!(bed.claim().listed, 1);
}

#[test]
fn another_start_of_the_host_leaves_a_doubt() {
    let bed = Bed::new();
    let first = bed.claim();
    let table = Table::create(&first.file, 8, 1, first.boot ^ 1).unwrap();
    take(&table, "open");
    let ended = take(&table, "ended");
    end(&table, ended, "ended");
    drop((table, first));
    bed.claim();
    assert_eq!(bed.ids(), ["open", "ended"]);
    assert!(bed.listed().iter().all(|line| line["certain"] == false));
    assert!(!bed.log().exists());
}
