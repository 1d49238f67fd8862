//! What the writer keeps, cuts, repeats and gives up.

use std::collections::HashSet;
use std::io::BufRead;
use std::path::PathBuf;

use super::super::record::tests::record;
use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

fn config(path: &str, on_full: OnFull) -> UsageConfig {
    UsageConfig { path: path.to_owned(), on_full }
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
    sink.reserve().unwrap().push(record(id));
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
    assert_eq!(sink.counters(), UsageCounters { written: 10_000, dropped: 0, failed: 0 });
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
    let (early, late) = (sink.reserve().unwrap(), sink.reserve().unwrap());
    early.push(record("early"));
    until(|| !sink.is_healthy());
    assert!(sink.reserve().is_err());
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
    assert!(sink.reserve().is_err());
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
    until(|| sink.outstanding() == 0);
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
    let (one, two) = (sink.reserve().unwrap(), sink.reserve().unwrap());
    assert!(sink.reserve().is_err());
    drop(one);
    let again = sink.reserve().unwrap();
    assert!(sink.reserve().is_err());
    two.push(record("two"));
    again.push(record("again"));
    assert!(writer.stop(PATIENCE));
    assert_eq!((sink.counters().written, sink.outstanding()), (2, 0));
}

#[test]
fn without_room_the_policy_drop_lets_requests_pass_and_counts() {
    let (sink, writer) = UsageWriter::start_with(&config("/dev/null", OnFull::Drop), 1).unwrap();
    let (one, two) = (sink.reserve().unwrap(), sink.reserve().unwrap());
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

#[test]
fn a_begun_line_is_kept_when_the_rest_is_dropped() {
    let (sink, _writer) = UsageWriter::start(&config("none", OnFull::Drop)).unwrap();
    for (done, kept, left, lost) in
        [(0, "", 0, 3), (5, "", 0, 2), (7, "bbbb\n", 2, 1), (9, "bbbb\n", 4, 1), (15, "", 0, 0)]
    {
        let mut appender = Appender::new("none", None, sink.0.clone());
        appender.batch.extend_from_slice(b"aaaa\nbbbb\ncccc\n");
        appender.done = done;
        let before = sink.counters().dropped;
        appender.drop_unwritten();
        let now = (std::str::from_utf8(&appender.batch).unwrap(), appender.done);
        assert_eq!((now, sink.counters().dropped - before), ((kept, left), lost), "done {done}");
    }
}
