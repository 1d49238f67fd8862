//! What the writer keeps, cuts, repeats and gives up.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use super::super::record::SmallId;
use super::super::record::tests::record;
use super::super::ring::{Slot, UsageCounters, UsageUnavailable};
use super::super::table::Opening;
use super::*;
use crate::config::KeyId;

const PATIENCE: Duration = Duration::from_secs(60);

fn config(path: &str, on_full: OnFull) -> UsageConfig {
    UsageConfig {
        path: path.to_owned(),
        on_full,
        open: OpenList::Beside,
        rotate_bytes: 0,
        rotate_hours: 0,
        keep: 0,
        stream: None,
        otlp: false,
    }
}

fn reserve(sink: &UsageSink, id: &str) -> Result<Slot, UsageUnavailable> {
    let (request_id, key_id) = (&SmallId::new(id).unwrap(), KeyId::OPEN);
    let tenant = "acme";
    sink.reserve(&Opening { started_unix_ms: 0, request_id, tenant, key_id, endpoint: "chat" })
}

fn folder_with(name: &str) -> (tempfile::TempDir, PathBuf, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let text = path.to_str().unwrap().to_owned();
    (folder, path, text)
}

fn fifo() -> (tempfile::TempDir, PathBuf, String) {
    let (folder, path, text) = folder_with("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    (folder, path, text)
}

fn push(sink: &UsageSink, id: &str) {
    reserve(sink, id).unwrap().push(record(id));
}

fn until(mut what: impl FnMut() -> bool) {
    while !what() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn ids(text: &str) -> Vec<String> {
    let id = |line: &str| {
        let parsed: serde_json::Value = serde_json::from_str(line).unwrap();
        parsed["request_id"].as_str().unwrap().to_owned()
    };
    text.lines().map(id).collect()
}

#[test]
fn a_stop_writes_every_record_of_every_thread_once() {
    let (_folder, path, text) = folder_with("usage.jsonl");
    let (sink, writer) = UsageWriter::start(&config(&text, OnFull::Refuse)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let sink = sink.clone();
            scope.spawn(move || (0..2500).for_each(|n| push(&sink, &format!("{thread}-{n}"))));
        }
    });
    assert!(writer.stop(PATIENCE));
    let written = ids(&std::fs::read_to_string(path).unwrap());
    assert_eq!(written.len(), 10_000);
    assert_eq!(written.iter().collect::<HashSet<_>>().len(), 10_000);
    assert_eq!(sink.counters(), UsageCounters { written: 10_000, ..UsageCounters::default() });
    assert_eq!(sink.outstanding(), 0);
}

#[test]
fn a_torn_tail_is_cut_at_the_start_and_whole_lines_stay() {
    let long = "x".repeat(10_000);
    let after_cut = format!("{long}\n");
    for (before, after) in [
        ("", ""),
        ("{\"a\":1}\n", "{\"a\":1}\n"),
        ("{\"a\":1}\n{\"b\"", "{\"a\":1}\n"),
        ("{\"b\"", ""),
        (long.as_str(), ""),
        (&format!("{after_cut}{long}"), &after_cut),
    ] {
        let (_folder, path, text) = folder_with("usage.jsonl");
        std::fs::write(&path, before).unwrap();
        let (sink, writer) = UsageWriter::start(&config(&text, OnFull::Refuse)).unwrap();
        push(&sink, "next");
        assert!(writer.stop(PATIENCE));
        let now = std::fs::read_to_string(&path).unwrap();
        let next = now.strip_prefix(after).unwrap();
        assert_eq!(ids(next), ["next"]);
    }
}

#[test]
fn a_full_disk_refuses_until_a_write_succeeds() {
    let (sink, writer) = UsageWriter::start(&config("/dev/full", OnFull::Refuse)).unwrap();
    let (early, late) = (reserve(&sink, "r").unwrap(), reserve(&sink, "r").unwrap());
    early.push(record("early"));
    until(|| !sink.is_healthy());
    assert!(reserve(&sink, "r").is_err());
    // Reserved before the failure: taken, and kept for the next try.
    late.push(record("late"));
    assert_eq!(sink.counters().dropped, 0);
    assert!(writer.stop(PATIENCE));
    let counters = sink.counters();
    assert_eq!((counters.written, counters.dropped, sink.outstanding()), (0, 2, 0));
    assert!(counters.failed > 0);
}

#[test]
fn a_full_disk_drops_and_counts() {
    let (sink, writer) = UsageWriter::start(&config("/dev/full", OnFull::Drop)).unwrap();
    (0..100).for_each(|n| push(&sink, &n.to_string()));
    until(|| sink.counters().dropped == 100);
    push(&sink, "more");
    assert!(writer.stop(PATIENCE));
    assert_eq!((sink.counters().written, sink.counters().dropped), (0, 101));
}

#[test]
fn a_pipe_without_a_reader_refuses_and_recovers_when_one_comes() {
    let (_folder, path, text) = fifo();
    let (sink, writer) = UsageWriter::start(&config(&text, OnFull::Refuse)).unwrap();
    assert!(reserve(&sink, "r").is_err());
    let reader = std::thread::spawn(move || {
        let mut line = String::new();
        io::BufReader::new(File::open(path).unwrap()).read_line(&mut line).unwrap();
        line
    });
    until(|| sink.is_healthy());
    push(&sink, "through");
    assert_eq!(ids(&reader.join().unwrap()), ["through"]);
    assert!(writer.stop(PATIENCE));
}

#[test]
fn a_pipe_that_nobody_reads_never_blocks_a_core_nor_tears_a_line() {
    let (_folder, path, text) = fifo();
    // Open and silent: 64 KiB fit, then writes would block.
    let mut options = OpenOptions::new();
    let pipe = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap();
    let (sink, writer) = UsageWriter::start_with(&config(&text, OnFull::Drop), 64).unwrap();
    // As many as it takes: a writer that is slow to begin finds the ring full, not the pipe.
    let mut pushed = 0_u64;
    until(|| {
        (0..20).for_each(|n| push(&sink, &(pushed + n).to_string()));
        pushed += 20;
        sink.counters().failed > 0
    });
    // The pipe is full: these have nowhere to go.
    (0..500).for_each(|n| push(&sink, &(pushed + n).to_string()));
    pushed += 500;
    // A line that is begun is not given up.
    until(|| sink.outstanding() <= 1);
    let reader = std::thread::spawn(move || {
        let (mut pipe, mut bytes, mut block) = (pipe, Vec::new(), [0u8; 4096]);
        loop {
            match pipe.read(&mut block) {
                Ok(0) => return String::from_utf8(bytes).unwrap(),
                Ok(n) => bytes.extend_from_slice(&block[..n]),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    });
    assert!(writer.stop(PATIENCE));
    let counters = sink.counters();
    assert_eq!(counters.written + counters.dropped, pushed);
    assert!(counters.dropped > 0);
    let text = reader.join().unwrap();
    assert_eq!(text.lines().count() as u64, counters.written);
    assert!(text.lines().all(|line| line.starts_with("{\"ts\"") && line.ends_with('}')));
}

#[test]
fn a_slot_is_room_and_gives_it_back() {
    let (sink, writer) = UsageWriter::start_with(&config("/dev/null", OnFull::Refuse), 2).unwrap();
    let (one, two) = (reserve(&sink, "r").unwrap(), reserve(&sink, "r").unwrap());
    assert!(reserve(&sink, "r").is_err());
    drop(one);
    let again = reserve(&sink, "r").unwrap();
    assert!(reserve(&sink, "r").is_err());
    two.push(record("two"));
    again.push(record("again"));
    assert!(writer.stop(PATIENCE));
    assert_eq!((sink.counters().written, sink.outstanding()), (2, 0));
}

#[test]
fn without_room_the_policy_drop_lets_requests_pass_and_counts() {
    let (sink, writer) = UsageWriter::start_with(&config("/dev/null", OnFull::Drop), 1).unwrap();
    let (one, two) = (reserve(&sink, "r").unwrap(), reserve(&sink, "r").unwrap());
    two.push(record("two"));
    one.push(record("one"));
    assert!(writer.stop(PATIENCE));
    assert_eq!((sink.counters().written, sink.counters().dropped), (1, 1));
}

#[test]
fn none_keeps_nothing_and_never_refuses() {
    let (sink, writer) = UsageWriter::start(&config("none", OnFull::Refuse)).unwrap();
    (0..10).for_each(|n| push(&sink, &n.to_string()));
    assert!(sink.is_healthy() && writer.stop(PATIENCE));
    assert_eq!((sink.counters(), sink.outstanding()), (UsageCounters::default(), 0));
    assert!(!std::path::Path::new("none").exists());
}

#[test]
fn a_file_renamed_away_is_opened_anew() {
    let (_folder, path, text) = folder_with("usage.jsonl");
    let (sink, writer) = UsageWriter::start(&config(&text, OnFull::Refuse)).unwrap();
    push(&sink, "old");
    until(|| sink.counters().written == 1);
    let rotated = path.with_extension("1");
    std::fs::rename(&path, &rotated).unwrap();
    until(|| path.exists());
    push(&sink, "new");
    assert!(writer.stop(PATIENCE));
    assert_eq!(ids(&std::fs::read_to_string(rotated).unwrap()), ["old"]);
    assert_eq!(ids(&std::fs::read_to_string(path).unwrap()), ["new"]);
}

#[test]
fn a_folder_that_does_not_exist_is_an_error_at_the_start() {
    let missing = config("/nonexistent/usage.jsonl", OnFull::Refuse);
    let error = UsageWriter::start(&missing).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}

/// What the folder holds but for the table, which is hidden.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

#[test]
fn a_file_that_is_full_is_rotated_and_no_record_is_lost() {
    let (folder, _, text) = folder_with("usage.jsonl");
    let config = UsageConfig { rotate_bytes: 20_000, ..config(&text, OnFull::Refuse) };
    let (sink, writer) = UsageWriter::start(&config).unwrap();
    for n in 0..300 {
        push(&sink, &n.to_string());
        if n % 30 == 0 {
            until(|| sink.outstanding() == 0);
        }
    }
    assert!(writer.stop(PATIENCE));
    assert_eq!(sink.counters().failed, 0);
    let names = names(folder.path());
    assert!(names.len() > 3, "{names:?}");
    let mut all = Vec::new();
    for name in &names[1..] {
        all.extend(ids(&std::fs::read_to_string(folder.path().join(name)).unwrap()));
    }
    all.extend(ids(&std::fs::read_to_string(folder.path().join(&names[0])).unwrap()));
    assert_eq!(all, (0..300).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[test]
fn it_is_opened_anew_when_told_and_a_folder_that_is_gone_refuses_until_it_is_back() {
    let (folder, _, _) = folder_with("x");
    let (logs, away) = (folder.path().join("logs"), folder.path().join("away"));
    std::fs::create_dir(&logs).unwrap();
    let path = logs.join("usage.jsonl");
    let config = config(path.to_str().unwrap(), OnFull::Refuse);
    let (sink, writer) = UsageWriter::start(&config).unwrap();
    push(&sink, "one");
    until(|| sink.counters().written == 1);
    std::fs::rename(&logs, &away).unwrap();
    sink.reopen();
    until(|| !sink.is_healthy());
    assert!(reserve(&sink, "r").is_err());
    std::fs::create_dir(&logs).unwrap();
    until(|| sink.is_healthy());
    push(&sink, "two");
    assert!(writer.stop(PATIENCE));
    assert_eq!(ids(&std::fs::read_to_string(path).unwrap()), ["two"]);
    assert_eq!(ids(&std::fs::read_to_string(away.join("usage.jsonl")).unwrap()), ["one"]);
}

#[test]
fn a_clean_end_leaves_nothing_and_what_was_open_is_listed_at_the_next_start() {
    let (folder, _, text) = folder_with("usage.jsonl");
    let config = config(&text, OnFull::Refuse);
    let (sink, writer) = UsageWriter::start_with(&config, 8).unwrap();
    push(&sink, "done");
    assert!(writer.stop(PATIENCE));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let (sink, writer) = UsageWriter::start_with(&config, 8).unwrap();
    let open = reserve(&sink, "open").unwrap();
    push(&sink, "done too");
    assert!(writer.stop(PATIENCE), "it does not wait for what is open");
    // The end of this process, as far as that can be had within it.
    let table = folder.path().join(".usage.open.jsonl.0");
    let left = std::fs::read(&table).unwrap();
    drop((open, sink));
    std::fs::write(&table, left).unwrap();
    let (sink, writer) = UsageWriter::start_with(&config, 8).unwrap();
    assert_eq!((sink.counters().open, writer.notes().len()), (1, 1));
    assert!(writer.stop(PATIENCE));
    let list = std::fs::read_to_string(folder.path().join("usage.open.jsonl")).unwrap();
    assert_eq!(ids(&list), ["open"]);
    assert_eq!(ids(&std::fs::read_to_string(text).unwrap()), ["done", "done too"]);
}

#[test]
fn a_stop_while_nothing_can_be_written_leaves_the_records_to_the_next_start() {
    let (folder, path, text) = folder_with("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let list = folder.path().join("open.jsonl");
    let open = OpenList::File(list.to_str().unwrap().to_owned());
    let config = UsageConfig { open, ..config(&text, OnFull::Drop) };
    let config = UsageConfig { on_full: OnFull::Refuse, ..config };
    let (sink, writer) = UsageWriter::start_with(&config, 8).unwrap();
    // Read once, so that it is healthy; then nobody reads any more.
    let mut options = OpenOptions::new();
    let reader = options.read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
    until(|| sink.is_healthy());
    let slot = reserve(&sink, "late").unwrap();
    drop(reader);
    slot.push(record("late"));
    assert!(writer.stop(PATIENCE));
    assert_eq!((sink.counters().dropped, sink.outstanding()), (1, 0));
    drop(sink);
    std::fs::remove_file(&path).unwrap();
    let (_, writer) = UsageWriter::start_with(&config, 8).unwrap();
    assert_eq!(writer.notes().len(), 1, "{:?}", writer.notes());
    assert!(writer.stop(PATIENCE));
    assert_eq!(ids(&std::fs::read_to_string(path).unwrap()), ["late"]);
}

#[test]
fn without_room_for_the_table_requests_are_refused_or_go_on_by_the_policy() {
    let (folder, _, text) = folder_with("usage.jsonl");
    let list = folder.path().join("gone/open.jsonl");
    let open = OpenList::File(list.to_str().unwrap().to_owned());
    let refuse = UsageConfig { open, ..config(&text, OnFull::Refuse) };
    let (sink, writer) = UsageWriter::start_with(&refuse, 8).unwrap();
    assert_eq!(writer.notes().len(), 1);
    assert!(reserve(&sink, "r").is_err());
    until(|| sink.counters().failed > 2);
    std::fs::create_dir(list.parent().unwrap()).unwrap();
    until(|| sink.is_healthy());
    push(&sink, "r");
    assert!(writer.stop(PATIENCE));
    std::fs::remove_dir_all(list.parent().unwrap()).unwrap();
    let drop = UsageConfig { on_full: OnFull::Drop, ..refuse };
    let (sink, writer) = UsageWriter::start_with(&drop, 8).unwrap();
    assert!(sink.is_healthy());
    push(&sink, "s");
    assert!(writer.stop(PATIENCE));
    assert_eq!(ids(&std::fs::read_to_string(text).unwrap()), ["r", "s"]);
}

#[test]
fn the_list_stands_beside_a_file_and_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    for (path, list) in [
        ("usage.jsonl", Some("usage.open.jsonl")),
        ("log", Some("log.open")),
        ("-", None),
        ("/dev/null", None),
    ] {
        let path =
            if path.starts_with(['-', '/']) { path.into() } else { folder.path().join(path) };
        let config = config(path.to_str().unwrap(), OnFull::Refuse);
        assert_eq!(list_of(&config), list.map(|list| folder.path().join(list)), "{path:?}");
    }
}

#[test]
fn a_failure_is_said_once_and_its_end_with_what_was_lost() {
    for (policy, cost, end) in [
        (OnFull::Drop, "records are lost", "can be written again; records lost meanwhile: 100"),
        (OnFull::Refuse, "requests are refused", "can be written again"),
    ] {
        let (_folder, path, text) = fifo();
        let said = Arc::new(std::sync::Mutex::new(Vec::new()));
        let lines = Arc::clone(&said);
        let say: Say =
            Box::new(move |bad, line| lines.lock().unwrap().push((bad, line.to_owned())));
        let (sink, writer) = UsageWriter::start_telling(&config(&text, policy), None, say).unwrap();
        until(|| said.lock().unwrap().len() == 1);
        if policy == OnFull::Drop {
            (0..100).for_each(|n| push(&sink, &n.to_string()));
            until(|| sink.counters().dropped == 100);
        }
        // Some more tries, none of which is told.
        let failed = sink.counters().failed;
        until(|| sink.counters().failed > failed + 1);
        let reader = std::thread::spawn(move || std::fs::read_to_string(path).unwrap());
        until(|| said.lock().unwrap().len() > 1);
        push(&sink, "through");
        assert!(writer.stop(PATIENCE));
        assert_eq!(ids(&reader.join().unwrap()), ["through"]);
        let said = said.lock().unwrap();
        let [(true, begun), (false, ended)] = &said[..] else { panic!("{said:?}") };
        assert!(begun.contains("cannot be written") && begun.ends_with(cost), "{begun}");
        assert!(ended.ends_with(end), "{ended}");
    }
}
