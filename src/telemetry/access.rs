//! The access log: a bounded ring that the cores push into without ever waiting, and the thread
//! that writes its lines.
//!
//! Lines are copies of what happened, not books: one that finds the ring full, or its file not
//! writable, is dropped and counted. A file that was renamed away is opened anew within a second,
//! or when it is told to.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;

use super::request::Request;
use crate::config::{Access, AccessFormat};

/// Requests that wait for the thread: some 3 MB, and four seconds at 2,000 a second.
const RING: usize = 8192;
/// A batch is written once it has this many bytes; the last line may pass it.
const BATCH_BYTES: usize = 64 << 10;
const IDLE: Duration = Duration::from_millis(10);
const LOOK: Duration = Duration::from_secs(1);

/// Lines so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessCounts {
    /// Handed to the kernel.
    pub written: u64,
    /// The ring was full.
    pub dropped: u64,
    /// They could not be written.
    pub failed: u64,
}

struct Shared {
    ring: ArrayQueue<Request>,
    stop: AtomicBool,
    reopen: AtomicBool,
    written: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

/// The cores' end; cheap to clone.
#[derive(Clone)]
pub struct AccessLog(Arc<Shared>);

impl AccessLog {
    fn new(lines: usize) -> AccessLog {
        let zero = || AtomicU64::new(0);
        AccessLog(Arc::new(Shared {
            ring: ArrayQueue::new(lines),
            stop: AtomicBool::new(false),
            reopen: AtomicBool::new(false),
            written: zero(),
            dropped: zero(),
            failed: zero(),
        }))
    }

    /// Hands a request over. Does not wait.
    pub fn push(&self, request: Request) {
        if self.0.ring.push(request).is_err() {
            self.0.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Has the thread open the log anew, as after somebody else renamed it. Does not wait.
    pub fn reopen(&self) {
        self.0.reopen.store(true, Release);
    }

    /// What became of the lines so far.
    #[must_use]
    pub fn counts(&self) -> AccessCounts {
        let [written, dropped, failed] =
            [&self.0.written, &self.0.dropped, &self.0.failed].map(|n| n.load(Relaxed));
        AccessCounts { written, dropped, failed }
    }
}

/// The thread; keep it, and [`AccessWriter::stop`] it after the last request.
pub struct AccessWriter {
    log: AccessLog,
    thread: JoinHandle<()>,
}

impl AccessWriter {
    /// Opens the log and starts the thread.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread not be started.
    pub fn start(config: &Access) -> io::Result<(AccessLog, AccessWriter)> {
        let log = AccessLog::new(RING);
        let out = match Out::open(&config.path) {
            // A pipe that nobody reads yet.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => None,
            opened => Some(opened?),
        };
        let (path, shared) = (config.path.clone(), Arc::clone(&log.0));
        let looked = Instant::now();
        let writer = Writer { path, format: config.format, shared, out, looked, torn: false };
        let builder = std::thread::Builder::new().name("access".to_owned());
        let thread = builder.spawn(move || writer.run())?;
        Ok((log.clone(), AccessWriter { log, thread }))
    }

    /// Writes what is queued and ends the thread. True when it ended within `patience`; a pipe that
    /// nobody reads may hold it.
    pub fn stop(self, patience: Duration) -> bool {
        self.log.0.stop.store(true, Release);
        let start = Instant::now();
        while !self.thread.is_finished() {
            if start.elapsed() >= patience {
                return false;
            }
            std::thread::sleep(IDLE);
        }
        self.thread.join().is_ok()
    }
}

/// Where lines go.
enum Out {
    Stderr,
    Stdout,
    File(File),
}

impl Out {
    fn open(path: &str) -> io::Result<Out> {
        match path {
            "stderr" => Ok(Out::Stderr),
            "-" => Ok(Out::Stdout),
            path => {
                let mut options = OpenOptions::new();
                // A pipe without a reader must not hold the thread.
                options.append(true).create(true).mode(0o640).custom_flags(libc::O_NONBLOCK);
                options.open(path).map(Out::File)
            }
        }
    }

    /// Writes some of it.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Out::Stderr => io::stderr().lock().write(bytes),
            Out::Stdout => {
                let mut out = io::stdout().lock();
                let n = out.write(bytes)?;
                out.flush().map(|()| n)
            }
            Out::File(file) => file.write(bytes),
        }
    }

    /// Writes all of it, or says how much.
    fn write_all(&mut self, bytes: &[u8]) -> Result<(), usize> {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            match self.write(rest) {
                Ok(n) if n > 0 => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => return Err(done),
            }
        }
        Ok(())
    }

    /// The path no longer leads to this file.
    fn was_moved(&self, path: &str) -> bool {
        let Out::File(file) = self else { return false };
        let place = |of: std::fs::Metadata| (of.dev(), of.ino());
        let (ours, there) = (file.metadata().map(place), std::fs::metadata(path).map(place));
        !matches!((ours, there), (Ok(ours), Ok(there)) if ours == there)
    }
}

/// The thread's own state.
struct Writer {
    path: String,
    format: AccessFormat,
    shared: Arc<Shared>,
    /// `None`: it could not be opened.
    out: Option<Out>,
    /// When the file was last looked at.
    looked: Instant,
    /// The last write ended within a line.
    torn: bool,
}

impl Writer {
    fn run(mut self) {
        let mut lines = Vec::with_capacity(BATCH_BYTES + 4096);
        loop {
            // Read before the ring, so that what was pushed before the stop is seen.
            let stopping = self.shared.stop.load(Acquire);
            self.look();
            lines.clear();
            let mut n = 0;
            while lines.len() < BATCH_BYTES {
                let Some(request) = self.shared.ring.pop() else { break };
                request.write_line(self.format, &mut lines);
                n += 1;
            }
            match n {
                0 if stopping => return,
                0 => std::thread::sleep(IDLE),
                n => self.write(&lines, n),
            }
        }
    }

    fn write(&mut self, lines: &[u8], n: u64) {
        let written = match &mut self.out {
            None => Err(0),
            // What is left of a torn line gets an end of its own.
            Some(out) if self.torn => out.write_all(b"\n").and_then(|()| out.write_all(lines)),
            Some(out) => out.write_all(lines),
        };
        let ended = match written {
            Ok(()) => n,
            Err(done) => {
                let done = lines.get(..done).unwrap_or_default();
                self.torn = done.last().map_or(self.torn, |&byte| byte != b'\n');
                memchr::memchr_iter(b'\n', done).count() as u64
            }
        };
        self.torn &= written.is_err();
        self.shared.written.fetch_add(ended, Relaxed);
        self.shared.failed.fetch_add(n.saturating_sub(ended), Relaxed);
    }

    /// Opens the file anew when it must be.
    fn look(&mut self) {
        let asked = self.shared.reopen.swap(false, AcqRel);
        if !asked && self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        if asked || self.out.as_ref().is_none_or(|out| out.was_moved(&self.path)) {
            self.out = Out::open(&self.path).ok();
            self.torn = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::tests::request;
    use super::*;

    fn start(path: &str) -> (AccessLog, AccessWriter) {
        let (path, format) = (path.to_owned(), AccessFormat::Json);
        AccessWriter::start(&Access { format, path }).unwrap()
    }

    #[test]
    fn what_was_pushed_before_the_stop_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.jsonl");
        let (log, writer) = start(path.to_str().unwrap());
        (0..1000).for_each(|_| log.push(request()));
        assert!(writer.stop(Duration::from_secs(60)));
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 1000);
        assert_eq!(log.counts(), AccessCounts { written: 1000, ..AccessCounts::default() });
    }

    #[test]
    fn a_renamed_file_is_begun_anew_when_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.jsonl");
        let (log, writer) = start(path.to_str().unwrap());
        log.push(request());
        while log.counts().written < 1 {
            std::thread::sleep(IDLE);
        }
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        log.reopen();
        while log.0.reopen.load(Acquire) {
            std::thread::sleep(IDLE);
        }
        log.push(request());
        assert!(writer.stop(Duration::from_secs(60)));
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_holds_nobody() {
        let (log, writer) = start("/dev/full");
        (0..10).for_each(|_| log.push(request()));
        assert!(writer.stop(Duration::from_secs(60)));
        let counts = log.counts();
        assert_eq!((counts.written, counts.failed), (0, 10));
        let log = AccessLog::new(4);
        (0..7).for_each(|_| log.push(request()));
        assert_eq!(log.counts().dropped, 3, "the ring is bounded");
    }
}
