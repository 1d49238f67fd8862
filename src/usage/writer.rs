//! The thread that owns the usage file, and the ring by which the cores reach it.
//!
//! A core reserves a [`Slot`] before a request starts and pushes the record through it when the
//! request ends. Neither blocks, waits or wakes anybody: the thread polls. Slots and queued records
//! together never exceed the ring, so that the push of a reserved record cannot fail.
//!
//! The thread appends whole batches, one write each, and calls fdatasync once a second: a crash of
//! the host loses at most that second, a crash of the process nothing that was written. A write
//! that fails is tried again every 100 ms from the very byte where it stopped, so that a line is
//! never doubled or torn. Pipes are written without blocking. A file that was renamed away (by
//! logrotate) is opened anew.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;

use super::record::UsageRecord;
use crate::config::{OnFull, UsageConfig};

/// Requests open and records queued, over all cores: about 30 s of a full disk at 2,000 requests a
/// second, and some 25 MB.
const CAPACITY: usize = 65_536;
/// A batch is written once it has this many bytes; the last record may pass it.
const BATCH_BYTES: usize = 256 << 10;
const IDLE: Duration = Duration::from_millis(5);
const RETRY: Duration = Duration::from_millis(100);
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// How long a stop goes on trying to write while writes fail.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// The usage log cannot take another request; clients get 503 `usage_unavailable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageUnavailable;

/// Records so far, as metrics show them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageCounters {
    /// Records handed to the kernel.
    pub written: u64,
    /// Records lost: by the policy `drop`, or at a stop while writes failed.
    pub dropped: u64,
    /// Writes, opens and syncs that failed.
    pub failed: u64,
}

/// The cores' end; cheap to clone.
#[derive(Clone)]
pub struct UsageSink(Arc<Shared>);

struct Shared {
    ring: ArrayQueue<UsageRecord>,
    /// Slots not yet pushed, and records in the ring.
    claimed: AtomicUsize,
    policy: OnFull,
    off: bool,
    healthy: AtomicBool,
    stop: AtomicBool,
    written: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

/// Room for one record. Dropped without a push, it gives the room back.
pub struct Slot {
    shared: Arc<Shared>,
    claimed: bool,
}

/// The writer thread; keep it, and [`UsageWriter::stop`] it after the last request.
pub struct UsageWriter {
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

impl UsageSink {
    /// Makes sure that the record of a request which is about to start will be kept.
    ///
    /// # Errors
    /// With the policy `refuse`, while writes fail or the ring is full. Never with `drop`.
    pub fn reserve(&self) -> Result<Slot, UsageUnavailable> {
        let shared = &self.0;
        let refuse = shared.policy == OnFull::Refuse;
        if shared.off {
            return Ok(Slot { shared: shared.clone(), claimed: false });
        }
        if refuse && !self.is_healthy() {
            return Err(UsageUnavailable);
        }
        let more = |claimed: usize| (claimed < shared.ring.capacity()).then_some(claimed + 1);
        let claimed = shared.claimed.fetch_update(AcqRel, Relaxed, more).is_ok();
        if refuse && !claimed {
            return Err(UsageUnavailable);
        }
        Ok(Slot { shared: shared.clone(), claimed })
    }

    /// False from a failed write until one succeeds.
    pub fn is_healthy(&self) -> bool {
        self.0.healthy.load(Acquire)
    }

    /// What became of the records so far.
    pub fn counters(&self) -> UsageCounters {
        UsageCounters {
            written: self.0.written.load(Relaxed),
            dropped: self.0.dropped.load(Relaxed),
            failed: self.0.failed.load(Relaxed),
        }
    }

    /// Open slots and queued records: zero at rest.
    pub fn outstanding(&self) -> usize {
        self.0.claimed.load(Acquire)
    }
}

impl Slot {
    /// Hands the record over. Without room (policy `drop`, ring full) it is dropped and counted.
    pub fn push(mut self, record: UsageRecord) {
        if std::mem::take(&mut self.claimed) {
            // The ring holds as many as may be claimed, and this slot is one of them. The claim
            // goes with the record, and the writer gives it back.
            let kept = self.shared.ring.push(record).is_ok();
            debug_assert!(kept, "a claimed slot has room");
        } else if !self.shared.off {
            self.shared.dropped.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.claimed {
            self.shared.claimed.fetch_sub(1, AcqRel);
        }
    }
}

impl UsageWriter {
    /// Opens the sink, cuts a torn last line, and starts the thread. A pipe that nobody reads yet
    /// is no error: the sink is unhealthy until somebody does.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread not be started.
    pub fn start(config: &UsageConfig) -> io::Result<(UsageSink, UsageWriter)> {
        UsageWriter::start_with(config, CAPACITY)
    }

    fn start_with(config: &UsageConfig, capacity: usize) -> io::Result<(UsageSink, UsageWriter)> {
        let off = config.path == "none";
        let shared = Arc::new(Shared {
            ring: ArrayQueue::new(if off { 1 } else { capacity }),
            claimed: AtomicUsize::new(0),
            policy: config.on_full,
            off,
            healthy: AtomicBool::new(true),
            stop: AtomicBool::new(false),
            written: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        });
        let mut thread = None;
        if !off {
            let target = match open(&config.path) {
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => None,
                opened => Some(opened?),
            };
            shared.healthy.store(target.is_some(), Release);
            let appender = Appender::new(&config.path, target, shared.clone());
            let builder = std::thread::Builder::new().name("usage".to_owned());
            thread = Some(builder.spawn(move || appender.run())?);
        }
        Ok((UsageSink(shared.clone()), UsageWriter { thread, shared }))
    }

    /// Writes what is queued, syncs, ends the thread. Call it when no slot is open any more. True
    /// when the thread ended within `patience`; a pipe on stdout that nobody reads may hold it.
    pub fn stop(mut self, patience: Duration) -> bool {
        self.shared.stop.store(true, Release);
        let Some(thread) = self.thread.take() else { return true };
        let start = Instant::now();
        while !thread.is_finished() {
            if start.elapsed() >= patience {
                return false;
            }
            std::thread::sleep(IDLE);
        }
        thread.join().is_ok()
    }
}

impl Drop for UsageWriter {
    fn drop(&mut self) {
        self.shared.stop.store(true, Release);
    }
}

enum Target {
    /// A file that can be cut and synced.
    Regular(File),
    /// A pipe or a device.
    Stream(File),
    Stdout(io::Stdout),
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Target::Regular(file) | Target::Stream(file) => file.write(bytes),
            Target::Stdout(stdout) => {
                let mut lock = stdout.lock();
                lock.write_all(bytes)?;
                lock.flush()?;
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn open(path: &str) -> io::Result<Target> {
    if path == "-" {
        return Ok(Target::Stdout(io::stdout()));
    }
    // Not blocking: to open a pipe that nobody reads must fail, not wait. Files do not mind.
    let mut options = OpenOptions::new();
    let file = options.create(true).append(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() || kind.is_char_device() || kind.is_socket() {
        return Ok(Target::Stream(file));
    }
    cut_torn_tail(Path::new(path))?;
    Ok(Target::Regular(file))
}

/// Cuts what follows the last newline: half a line that a crash left.
fn cut_torn_tail(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let len = file.seek(SeekFrom::End(0))?;
    let (mut end, mut block) = (len, [0u8; 4096]);
    while end > 0 {
        let start = end.saturating_sub(block.len() as u64);
        let part = &mut block[..(end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        if let Some(last) = memchr::memrchr(b'\n', part) {
            end = start + last as u64 + 1;
            break;
        }
        end = start;
    }
    if end < len { file.set_len(end) } else { Ok(()) }
}

/// The thread's own state.
struct Appender {
    path: String,
    target: Option<Target>,
    shared: Arc<Shared>,
    /// Whole lines, of which the first `done` bytes are written.
    batch: Vec<u8>,
    done: usize,
    dirty: bool,
    synced: Instant,
}

impl Appender {
    fn new(path: &str, target: Option<Target>, shared: Arc<Shared>) -> Appender {
        let (path, batch) = (path.to_owned(), Vec::with_capacity(BATCH_BYTES + 4096));
        Appender { path, target, shared, batch, done: 0, dirty: false, synced: Instant::now() }
    }

    fn run(mut self) {
        let mut stop_since: Option<Instant> = None;
        loop {
            // Read before the ring, so that what was pushed before the stop is seen.
            if stop_since.is_none() && self.shared.stop.load(Acquire) {
                stop_since = Some(Instant::now());
            }
            let idle = !self.fill();
            let failed = self.write(stop_since.is_some()).is_err();
            self.shared.healthy.store(!failed, Release);
            match (failed, stop_since) {
                (true, since) => {
                    self.shared.failed.fetch_add(1, Relaxed);
                    if self.shared.policy == OnFull::Drop {
                        self.drop_unwritten();
                    }
                    if since.is_some_and(|since| since.elapsed() >= STOP_PATIENCE) {
                        return self.give_up();
                    }
                    std::thread::sleep(RETRY);
                }
                (false, Some(_)) if idle => return,
                (false, _) if idle => std::thread::sleep(IDLE),
                (false, _) => {}
            }
        }
    }

    /// Takes records out of the ring. True when there is something to write.
    fn fill(&mut self) -> bool {
        while self.batch.len() < BATCH_BYTES {
            let Some(record) = self.shared.ring.pop() else { break };
            self.shared.claimed.fetch_sub(1, AcqRel);
            record.write_json(&mut self.batch);
        }
        !self.batch.is_empty()
    }

    /// Writes the batch, and syncs when it is time or `now`.
    fn write(&mut self, now: bool) -> io::Result<()> {
        let target = match &mut self.target {
            Some(target) => target,
            empty => empty.insert(open(&self.path)?),
        };
        while self.done < self.batch.len() {
            let rest = &self.batch[self.done..];
            match target.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    let lines = memchr::memchr_iter(b'\n', &rest[..n]).count();
                    self.shared.written.fetch_add(lines as u64, Relaxed);
                    self.done += n;
                    self.dirty = true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.batch.clear();
        self.done = 0;
        if now || self.synced.elapsed() >= SYNC_INTERVAL {
            self.sync()?;
        }
        Ok(())
    }

    /// fdatasync, and a new file when the path no longer leads to ours.
    fn sync(&mut self) -> io::Result<()> {
        let Some(Target::Regular(file)) = &self.target else { return Ok(()) };
        if self.dirty {
            file.sync_data()?;
            self.dirty = false;
        }
        self.synced = Instant::now();
        let ours = file.metadata()?;
        let same =
            |other: std::fs::Metadata| (other.dev(), other.ino()) == (ours.dev(), ours.ino());
        if !std::fs::metadata(&self.path).is_ok_and(same) {
            self.target = None;
            self.target = Some(open(&self.path)?);
        }
        Ok(())
    }

    /// Drops the lines of which nothing is written; a begun one is kept to be ended.
    fn drop_unwritten(&mut self) {
        let start = memchr::memrchr(b'\n', &self.batch[..self.done]).map_or(0, |end| end + 1);
        self.batch.drain(..start);
        self.done -= start;
        let keep = match self.done {
            0 => 0,
            _ => memchr::memchr(b'\n', &self.batch).map_or(self.batch.len(), |end| end + 1),
        };
        let lost = memchr::memchr_iter(b'\n', &self.batch[keep..]).count();
        self.shared.dropped.fetch_add(lost as u64, Relaxed);
        self.batch.truncate(keep);
    }

    fn give_up(mut self) {
        while let Some(_record) = self.shared.ring.pop() {
            self.shared.claimed.fetch_sub(1, AcqRel);
            self.shared.dropped.fetch_add(1, Relaxed);
        }
        let lost = memchr::memchr_iter(b'\n', &self.batch[self.done..]).count();
        self.shared.dropped.fetch_add(lost as u64, Relaxed);
        self.batch.clear();
    }
}

#[cfg(test)]
mod tests;
