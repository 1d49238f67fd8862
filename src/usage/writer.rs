//! The thread that owns the usage log.
//!
//! It appends whole batches, one write each, and calls fdatasync once a second: a crash of the host
//! loses at most that second, a crash of the process nothing (`table`). A write that fails is tried
//! again every 100 ms from the very byte where it stopped, so that a line is never doubled or torn.
//! Another gateway may write to the same log while one takes over from the other. Pipes are
//! written without blocking. A file that was renamed away is opened anew within a second, or when
//! it is told to. It also copies each written line to the stream and the collector, if there are
//! such.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::batch::Batch;
use super::log_file::{LogFile, Rotation};
use super::recover::{self, Claim};
use super::ring::{Shared, UsageSink};
use super::stream::{Feed, Stream};
use crate::config::{OnFull, OpenList, UsageConfig};
use crate::runtime::clock;

/// Requests open and records queued, over all cores: about 30 s of a full disk at 2,000 requests a
/// second, and some 25 MB; 32 MiB more for the table.
const CAPACITY: usize = 65_536;
const IDLE: Duration = Duration::from_millis(5);
const RETRY: Duration = Duration::from_millis(100);
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
const WARM_INTERVAL: Duration = Duration::from_millis(100);
/// Places that are warmed beyond what was ever open at once.
const WARM_AHEAD: usize = 1024;
/// How long a stop goes on trying to write while writes fail.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// Gets each written line, with its newline; must not wait.
pub type Copy = Box<dyn FnMut(&[u8]) + Send>;

/// Tells the operator what the log cannot; true: it is bad.
pub type Say = Box<dyn FnMut(bool, &str) + Send>;

/// The writer thread; keep it, and [`UsageWriter::stop`] it after the last request.
pub struct UsageWriter {
    thread: Option<JoinHandle<()>>,
    stream: Option<Stream>,
    shared: Arc<Shared>,
    notes: Vec<String>,
}

impl UsageWriter {
    /// Lists what an ended process left open, opens the log, cuts a torn last line, and starts the
    /// thread. A pipe that nobody reads yet is no error, nor is a disk without room for the table
    /// of open requests: the sink is unhealthy until there is.
    ///
    /// # Errors
    /// The file cannot be opened, the stream's URL not be read, or a thread not be started.
    pub fn start(config: &UsageConfig) -> io::Result<(UsageSink, UsageWriter)> {
        UsageWriter::begin(config, CAPACITY, (None, None))
    }

    /// The same; `copy` gets each line once it is written, `say` one when the log can no longer be
    /// written and one when it can again.
    ///
    /// # Errors
    /// As [`UsageWriter::start`].
    pub fn start_telling(
        config: &UsageConfig,
        copy: Option<Copy>,
        say: Say,
    ) -> io::Result<(UsageSink, UsageWriter)> {
        UsageWriter::begin(config, CAPACITY, (copy, Some(say)))
    }

    #[cfg(test)]
    fn start_with(config: &UsageConfig, capacity: usize) -> io::Result<(UsageSink, UsageWriter)> {
        UsageWriter::begin(config, capacity, (None, None))
    }

    fn begin(
        config: &UsageConfig,
        capacity: usize,
        (copy, say): (Option<Copy>, Option<Say>),
    ) -> io::Result<(UsageSink, UsageWriter)> {
        let off = config.path == "none";
        let shared = Arc::new(Shared::new(if off { 1 } else { capacity }, config.on_full, off));
        let mut writer =
            UsageWriter { thread: None, stream: None, shared: shared.clone(), notes: Vec::new() };
        if off {
            return Ok((UsageSink(shared), writer));
        }
        let (stream, feed) = match &config.stream {
            None => (None, None),
            Some(stream) => {
                let (stream, feed) = Stream::start(stream, shared.clone())?;
                (Some(stream), Some(feed))
            }
        };
        writer.stream = stream;
        let mut appender = Appender::new(config, capacity, shared.clone(), (feed, copy));
        appender.say = say;
        if let Err(error) = appender.claim() {
            writer.notes.push(format!("open requests are not kept yet: {error}"));
        }
        match appender.open().map(drop) {
            Err(error) if error.raw_os_error() != Some(libc::ENXIO) => return Err(error),
            opened => {
                appender.say_place();
                let promised = appender.has_table() || config.on_full == OnFull::Drop;
                shared.healthy.store(opened.is_ok() && promised, Release);
            }
        }
        writer.notes.extend(appender.claim.iter_mut().flat_map(|claim| claim.notes.drain(..)));
        let builder = std::thread::Builder::new().name("usage".to_owned());
        writer.thread = Some(builder.spawn(move || appender.run())?);
        Ok((UsageSink(shared), writer))
    }

    /// What the operator should know of the start: requests that were open at a kill.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Writes what is queued, syncs, ends the threads. Call it when no slot is open any more. True
    /// when they ended within `patience`; a pipe on stdout that nobody reads may hold one.
    pub fn stop(mut self, patience: Duration) -> bool {
        self.shared.stop.store(true, Release);
        let start = Instant::now();
        let ended = |thread: JoinHandle<()>| {
            while !thread.is_finished() {
                if start.elapsed() >= patience {
                    return false;
                }
                std::thread::sleep(IDLE);
            }
            thread.join().is_ok()
        };
        // The stream gets the last lines of the log.
        self.thread.take().is_none_or(ended)
            && self.stream.take().is_none_or(|stream| ended(stream.stop()))
    }
}

impl Drop for UsageWriter {
    fn drop(&mut self) {
        self.shared.stop.store(true, Release);
        if let Some(stream) = self.stream.take() {
            drop(stream.stop());
        }
    }
}

/// The thread's own state.
struct Appender {
    path: String,
    rotation: Rotation,
    /// Where open requests are listed at a start; `None`: no table is kept.
    list: Option<PathBuf>,
    capacity: usize,
    shared: Arc<Shared>,
    feed: Option<Feed>,
    copy: Option<Copy>,
    say: Option<Say>,
    /// While it cannot be written: what was lost before.
    failing: Option<u64>,
    claim: Option<Claim>,
    log: Option<LogFile>,
    batch: Batch,
    synced: Instant,
    claimed: Instant,
    warmed: Instant,
    /// Most requests that were open at once.
    peak: usize,
}

impl Appender {
    fn new(
        config: &UsageConfig,
        capacity: usize,
        shared: Arc<Shared>,
        (feed, copy): (Option<Feed>, Option<Copy>),
    ) -> Appender {
        let UsageConfig { rotate_bytes, rotate_hours, keep, .. } = *config;
        Appender {
            path: config.path.clone(),
            rotation: Rotation { bytes: rotate_bytes, hours: rotate_hours, keep },
            list: list_of(config),
            capacity,
            shared,
            feed,
            copy,
            say: None,
            failing: None,
            claim: None,
            log: None,
            batch: Batch::new(),
            synced: Instant::now(),
            claimed: Instant::now(),
            warmed: Instant::now(),
            peak: 0,
        }
    }

    /// Takes a table, and lists what the last process left in its own.
    fn claim(&mut self) -> io::Result<()> {
        let Some(list) = self.list.as_ref().filter(|_| !self.has_table()) else { return Ok(()) };
        // Records that are found go to the list where the log cannot be appended to twice.
        let log = if self.path == "-" { list } else { Path::new(&self.path) };
        let claim = match &self.claim {
            Some(claim) => claim,
            None => self.claim.insert(recover::claim(list, log)?),
        };
        let table = claim.table(self.capacity)?;
        table.warm(WARM_AHEAD);
        self.shared.open.store(claim.listed, Relaxed);
        let _ = self.shared.table.set(table);
        self.say_place();
        Ok(())
    }

    /// Tells the next start where to look for the lines to come.
    fn say_place(&self) {
        let place = self.log.as_ref().and_then(LogFile::place);
        if let (Some(table), Some(place)) = (self.shared.table.get(), place) {
            table.writing_to(place);
        }
    }

    fn has_table(&self) -> bool {
        self.list.is_none() || self.shared.table.get().is_some()
    }

    /// A kill would lose nothing that was open, or the policy allows that.
    fn has_promise(&mut self, stopping: bool) -> bool {
        if self.has_table() || stopping {
            return true;
        }
        if self.claimed.elapsed() < RETRY {
            return self.shared.policy == OnFull::Drop;
        }
        self.claimed = Instant::now();
        self.claim().is_ok() || self.shared.policy == OnFull::Drop
    }

    fn open(&mut self) -> io::Result<&mut LogFile> {
        match &mut self.log {
            Some(log) => Ok(log),
            empty => Ok(empty.insert(LogFile::open(&self.path, self.rotation)?)),
        }
    }

    fn run(mut self) {
        let mut stop_since: Option<Instant> = None;
        loop {
            // Read before the ring, so that what was pushed before the stop is seen.
            if stop_since.is_none() && self.shared.stop.load(Acquire) {
                stop_since = Some(Instant::now());
            }
            let idle = !self.batch.fill(&self.shared);
            let why = match self.write(stop_since.is_some()) {
                Err(error) => Some(error.to_string()),
                Ok(()) if self.has_promise(stop_since.is_some()) => None,
                Ok(()) => Some("no room for the table of open requests".to_owned()),
            };
            let failed = why.is_some();
            self.shared.healthy.store(!failed, Release);
            self.tell(why);
            self.warm();
            match (failed, stop_since) {
                (true, since) => {
                    self.shared.failed.fetch_add(1, Relaxed);
                    if self.shared.policy == OnFull::Drop {
                        self.batch.drop_unwritten(&self.shared, false);
                    }
                    if since.is_some_and(|since| since.elapsed() >= STOP_PATIENCE) {
                        return self.give_up();
                    }
                    std::thread::sleep(RETRY);
                }
                (false, Some(_)) if idle => return self.end(),
                (false, _) if idle => std::thread::sleep(IDLE),
                (false, _) => {}
            }
        }
    }

    /// Says when writing begins to fail and when it ends, not each try.
    fn tell(&mut self, why: Option<String>) {
        let dropped = self.shared.dropped.load(Relaxed);
        let (bad, line) = match (why, self.failing) {
            (Some(why), None) => {
                self.failing = Some(dropped);
                let cost = match self.shared.policy {
                    OnFull::Refuse => "requests are refused",
                    OnFull::Drop => "records are lost",
                };
                let path = &self.path;
                (
                    true,
                    format!("the usage log {path} cannot be written: {why}; until it can, {cost}"),
                )
            }
            (None, Some(before)) => {
                self.failing = None;
                let lost = match dropped.saturating_sub(before) {
                    0 => String::new(),
                    lost => format!("; records lost meanwhile: {lost}"),
                };
                (false, format!("the usage log {} can be written again{lost}", self.path))
            }
            _ => return,
        };
        if let Some(say) = &mut self.say {
            say(bad, &line);
        }
    }

    /// Writes the batch, and syncs when it is time or `now`. The log's lock is kept only while a
    /// line is begun.
    fn write(&mut self, now: bool) -> io::Result<()> {
        let written = self.write_batch(now);
        if let (Some(log), true) = (&mut self.log, self.batch.is_whole()) {
            log.unlock();
        }
        written
    }

    fn write_batch(&mut self, now: bool) -> io::Result<()> {
        self.open()?;
        let Some(log) = &mut self.log else { return Ok(()) };
        if self.batch.is_whole() && !self.batch.rest().is_empty() {
            if log.is_full(clock::unix_ms()) {
                // A log that cannot be rotated goes on growing.
                let rotated = log.rotate(clock::unix_ms());
                self.shared.failed.fetch_add(rotated.is_err().into(), Relaxed);
            }
            log.lock()?;
            self.say_place();
        }
        let Some(log) = &mut self.log else { return Ok(()) };
        while !self.batch.rest().is_empty() {
            match log.write(self.batch.rest()) {
                Ok(n) => self.batch.wrote(n, &self.shared, |line| {
                    if let Some(feed) = &mut self.feed {
                        feed.offer(line);
                    }
                    if let Some(copy) = &mut self.copy {
                        copy(line);
                    }
                }),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let asked = self.shared.reopen.swap(false, AcqRel);
        if now || asked || self.synced.elapsed() >= SYNC_INTERVAL {
            log.sync()?;
            self.synced = Instant::now();
            if log.was_moved() {
                self.log = None;
                self.open()?;
            }
        }
        Ok(())
    }

    /// Keeps the table's pages such that cores need not wait for them.
    fn warm(&mut self) {
        self.peak = self.peak.max(self.shared.outstanding());
        if let (Some(table), true) =
            (self.shared.table.get(), self.warmed.elapsed() >= WARM_INTERVAL)
        {
            table.warm(self.peak.saturating_add(WARM_AHEAD));
            self.warmed = Instant::now();
        }
    }

    /// Nothing can be written: what is queued is lost to the log, but stays in the table.
    fn give_up(mut self) {
        let before = self.shared.dropped.load(Relaxed);
        while self.batch.fill(&self.shared) {
            self.batch.drop_unwritten(&self.shared, true);
            if !self.batch.rest().is_empty() {
                break; // The rest of a begun line, which the next start cuts.
            }
        }
        while let Some(ended) = self.shared.ring.pop() {
            self.shared.release(ended.place, true);
            self.shared.dropped.fetch_add(1, Relaxed);
        }
        let lost = self.shared.dropped.load(Relaxed).saturating_sub(before);
        if let Some(say) = self.say.as_mut().filter(|_| lost > 0) {
            let path = &self.path;
            say(true, &format!("the usage log {path} ends without the last {lost} records"));
        }
    }

    fn end(mut self) {
        if let Some(claim) = self.claim.take().filter(|_| self.shared.outstanding() == 0) {
            claim.remove();
        }
    }
}

/// Where open requests are listed. What is no file has no folder to keep a table in.
fn list_of(config: &UsageConfig) -> Option<PathBuf> {
    use std::os::unix::fs::FileTypeExt;
    let path = Path::new(&config.path);
    match &config.open {
        OpenList::None => None,
        OpenList::File(list) => Some(list.into()),
        OpenList::Beside if config.path == "-" => None,
        OpenList::Beside => {
            let kind = std::fs::metadata(path).map(|of| of.file_type());
            let is_file = kind.is_ok_and(|of| !of.is_fifo() && !of.is_char_device());
            (is_file || !path.exists()).then(|| beside(path))
        }
    }
}

/// `usage.jsonl` -> `usage.open.jsonl`.
fn beside(path: &Path) -> PathBuf {
    match path.extension().and_then(std::ffi::OsStr::to_str) {
        Some(extension) => path.with_extension(format!("open.{extension}")),
        None => path.with_extension("open"),
    }
}

#[cfg(test)]
mod tests;
