//! The writer thread: takes records out of the ring, appends them, syncs once a second.
//!
//! It polls (5 ms) instead of being woken, so that a core spends no system call on it. A write
//! that fails is repeated with the same bytes; whether requests are refused meanwhile is policy
//! (`on_full`). A torn last line of an earlier life is cut at the start.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;

use super::record::UsageRecord;
use crate::config::{OnFull, UsageConfig};

/// Requests under way and records not yet written, together.
const PLACES: usize = 65_536;
/// Between two looks at the ring.
const POLL: Duration = Duration::from_millis(5);
/// Between two `fdatasync`.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Between two tries of a write that failed.
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// Records of one write.
const BATCH: usize = 4_096;

/// What the writer has done.
#[derive(Debug, Default)]
pub struct Counts {
    /// Records appended.
    pub written: AtomicU64,
    /// Records given up by policy `drop`, or at the end when the disk stayed away.
    pub dropped: AtomicU64,
    /// Writes that failed.
    pub failed: AtomicU64,
}

struct Queue {
    ring: ArrayQueue<UsageRecord>,
    /// Places taken: open slots and queued records.
    taken: AtomicUsize,
    healthy: AtomicBool,
    refuse: bool,
    off: bool,
    stop: AtomicBool,
    counts: Counts,
}

/// The cores' end.
#[derive(Clone)]
pub struct UsageSink(Arc<Queue>);

/// No record could be kept of a request that starts now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageUnavailable;

/// One request's place; used or dropped exactly once.
pub struct Slot(Option<Arc<Queue>>);

impl UsageSink {
    /// Takes a place for a request that starts.
    ///
    /// # Errors
    /// Policy `refuse`, and the log cannot be written or every place is taken.
    pub fn reserve(&self) -> Result<Slot, UsageUnavailable> {
        let queue = &self.0;
        let taken = queue.taken.fetch_add(1, Ordering::Relaxed);
        let unable = taken >= PLACES || !queue.healthy.load(Ordering::Relaxed);
        if queue.refuse && unable {
            queue.taken.fetch_sub(1, Ordering::Relaxed);
            return Err(UsageUnavailable);
        }
        Ok(Slot(Some(Arc::clone(queue))))
    }

    /// What was written so far.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// Can records be written?
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.0.healthy.load(Ordering::Relaxed)
    }

    /// Open requests and queued records.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.0.taken.load(Ordering::Relaxed)
    }
}

impl Slot {
    /// Hands the record to the writer.
    pub fn push(mut self, record: UsageRecord) {
        let Some(queue) = self.0.take() else { return };
        // Full only under policy `drop`: otherwise a place was reserved.
        if queue.off || queue.ring.push(record).is_err() {
            queue.taken.fetch_sub(1, Ordering::Relaxed);
            if !queue.off {
                queue.counts.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(queue) = self.0.take() {
            queue.taken.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The running writer.
pub struct Writer {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Opens the log and starts the thread.
    ///
    /// # Errors
    /// The file cannot be opened for appending.
    pub fn start(config: &UsageConfig) -> io::Result<(UsageSink, Writer)> {
        let out = Out::open(&config.path)?;
        let queue = Arc::new(Queue {
            ring: ArrayQueue::new(PLACES),
            taken: AtomicUsize::new(0),
            healthy: AtomicBool::new(true),
            refuse: config.on_full == OnFull::Refuse,
            off: matches!(out, Out::Nowhere),
            stop: AtomicBool::new(false),
            counts: Counts::default(),
        });
        let shared = Arc::clone(&queue);
        let thread = std::thread::Builder::new()
            .name("usage".to_owned())
            .spawn(move || run(&shared, out))?;
        Ok((UsageSink(Arc::clone(&queue)), Writer { queue, thread: Some(thread) }))
    }

    /// Writes what is left, syncs, ends the thread. A disk that stays away is waited for two
    /// seconds.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.queue.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end();
    }
}

enum Out {
    File(File),
    Stdout,
    Nowhere,
}

impl Out {
    fn open(path: &str) -> io::Result<Out> {
        match path {
            "-" => return Ok(Out::Stdout),
            "none" => return Ok(Out::Nowhere),
            _ => {}
        }
        let mut options = File::options();
        options.append(true).create(true);
        if std::fs::metadata(path).is_ok_and(|m| m.is_file()) {
            let mut file = options.read(true).open(path)?;
            cut_torn_line(&mut file)?;
            return Ok(Out::File(file));
        }
        // A pipe that nobody reads must not stop the start or, later, the thread's end.
        use std::os::unix::fs::OpenOptionsExt;
        let fifo = std::fs::metadata(path).is_ok();
        if fifo {
            options.read(true).custom_flags(libc::O_NONBLOCK);
        }
        Ok(Out::File(options.open(path)?))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Out::File(file) => file.write(bytes),
            Out::Stdout => io::stdout().write(bytes),
            Out::Nowhere => Ok(bytes.len()),
        }
    }

    fn sync(&self) {
        if let Out::File(file) = self {
            // Not every file can be synced (a pipe); a disk that fails shows it at the next write.
            let _ = file.sync_data();
        }
    }
}

/// Cuts what stands behind the last line end: a record that was being written when we died.
fn cut_torn_line(file: &mut File) -> io::Result<()> {
    let mut end = file.seek(SeekFrom::End(0))?;
    let mut block = [0; 4096];
    let mut keep = 0;
    while end > 0 {
        let from = end.saturating_sub(block.len() as u64);
        let part = &mut block[..(end - from) as usize];
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(part)?;
        if let Some(at) = memchr::memrchr(b'\n', part) {
            keep = from + at as u64 + 1;
            break;
        }
        end = from;
    }
    file.set_len(keep)?;
    file.seek(SeekFrom::End(0)).map(drop)
}

fn run(queue: &Queue, mut out: Out) {
    let mut batch = Vec::new();
    let mut synced = Instant::now();
    let mut dirty = false;
    loop {
        let stop = queue.stop.load(Ordering::Acquire);
        batch.clear();
        let mut records = 0;
        while records < BATCH
            && let Some(record) = queue.ring.pop()
        {
            record.write_json(&mut batch);
            records += 1;
        }
        if records > 0 {
            append(queue, &mut out, &batch, records);
            queue.taken.fetch_sub(records, Ordering::Relaxed);
            dirty = true;
        }
        if dirty && (stop || synced.elapsed() >= SYNC_EVERY) {
            out.sync();
            synced = Instant::now();
            dirty = false;
        }
        if records == 0 {
            if stop {
                return;
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Appends a batch, whatever it takes; gives up only by policy or at the end.
fn append(queue: &Queue, out: &mut Out, mut bytes: &[u8], records: usize) {
    let mut patience = Duration::from_secs(2);
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(n) if n > 0 => {
                bytes = bytes.get(n..).unwrap_or_default();
                continue;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            _ => {}
        }
        queue.counts.failed.fetch_add(1, Ordering::Relaxed);
        queue.healthy.store(false, Ordering::Relaxed);
        let ending = queue.stop.load(Ordering::Acquire);
        if ending {
            patience = patience.saturating_sub(RETRY_EVERY);
        }
        if (ending && patience.is_zero()) || !queue.refuse {
            queue.counts.dropped.fetch_add(records as u64, Ordering::Relaxed);
            return;
        }
        std::thread::sleep(RETRY_EVERY);
    }
    queue.healthy.store(true, Ordering::Relaxed);
    queue.counts.written.fetch_add(records as u64, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::super::record::sample;
    use super::*;

    fn config(path: &std::path::Path, on_full: OnFull) -> UsageConfig {
        UsageConfig { path: path.to_string_lossy().into_owned(), on_full }
    }

    fn wait_until(what: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !what() {
            assert!(Instant::now() < end, "never happened");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn records_are_written_whole_and_a_torn_line_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("usage.jsonl");
        let torn = format!("{{\"a\":1}}\n{}", "x".repeat(9_000));
        std::fs::write(&path, torn).unwrap();
        let (sink, writer) = Writer::start(&config(&path, OnFull::Refuse)).unwrap();
        for _ in 0..10_000 {
            sink.reserve().unwrap().push(sample());
        }
        drop(sink.reserve().unwrap());
        writer.stop();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 10_001);
        assert!(text.lines().all(|l| serde_json::from_str::<serde_json::Value>(l).is_ok()));
        assert_eq!(sink.taken(), 0);
        assert_eq!(sink.counts().written.load(Ordering::Relaxed), 10_000);
    }

    #[test]
    fn a_full_disk_refuses_requests_until_it_takes_records_again() {
        let full = std::path::Path::new("/dev/full");
        let (sink, writer) = Writer::start(&config(full, OnFull::Refuse)).unwrap();
        sink.reserve().unwrap().push(sample());
        wait_until(|| !sink.is_healthy());
        assert!(sink.reserve().is_err());
        drop(writer);
        assert_eq!(sink.counts().dropped.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn policy_drop_serves_on_and_counts() {
        let full = std::path::Path::new("/dev/full");
        let (sink, writer) = Writer::start(&config(full, OnFull::Drop)).unwrap();
        for _ in 0..3 {
            sink.reserve().unwrap().push(sample());
            let failed = || sink.counts().failed.load(Ordering::Relaxed);
            wait_until(|| failed() > 0);
        }
        writer.stop();
        assert_eq!(sink.counts().dropped.load(Ordering::Relaxed), 3);
        assert_eq!(sink.taken(), 0);
    }
}
