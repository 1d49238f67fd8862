//! The log's file: opened without ever blocking, its torn tail cut, synced, opened anew when
//! somebody renamed it, and rotated by size and time. Owned by the writer thread; reads no clock.
//!
//! While one gateway takes over from another both write into it. Whoever writes has its lock until
//! the last line is whole, so that no line of the other comes into the middle of one, and who has
//! the lock and finds half a line at the end knows that its writer is dead, and cuts it.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::record::write_rfc3339_ms;
use super::table::LogPlace;

const HOUR_MS: u64 = 3_600_000;
const ROTATE_RETRY_MS: u64 = 1000;
/// Looks for a lock, and the time between two: a batch is written in a millisecond or so.
const LOCK_LOOKS: u32 = 50;
const LOCK_LOOK: Duration = Duration::from_millis(1);

/// When a file is full, and how many full ones are kept; 0 = never, all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rotation {
    pub(super) bytes: u64,
    pub(super) hours: u64,
    pub(super) keep: u64,
}

pub(super) struct LogFile {
    path: String,
    rotation: Rotation,
    target: Target,
    /// The lock is ours.
    locked: bool,
    dirty: bool,
    /// Bytes of the file, and the period of `rotation.hours` that they belong to.
    bytes: u64,
    period: u64,
    /// A rotation that failed is not tried again before.
    rotate_after_ms: u64,
}

enum Target {
    /// A file that can be cut and synced.
    Regular(File),
    /// A pipe or a device.
    Stream(File),
    Stdout(io::Stdout),
}

impl LogFile {
    pub(super) fn open(path: &str, rotation: Rotation) -> io::Result<LogFile> {
        let target = open(path)?;
        let (mut bytes, mut period) = (0, 0);
        if let Target::Regular(file) = &target {
            let now = file.metadata()?;
            bytes = now.len();
            let written_ms = u64::try_from(now.mtime()).unwrap_or(0).saturating_mul(1000);
            period = rotation.period(written_ms);
        }
        let path = path.to_owned();
        Ok(LogFile {
            path,
            rotation,
            target,
            locked: false,
            dirty: false,
            bytes,
            period,
            rotate_after_ms: 0,
        })
    }

    /// A file, no pipe and no device.
    pub(super) fn is_regular(&self) -> bool {
        matches!(self.target, Target::Regular(_))
    }

    /// Where the next line comes, or before; `None` where nobody could look for it.
    pub(super) fn place(&self) -> Option<LogPlace> {
        let Target::Regular(file) = &self.target else { return None };
        let now = file.metadata().ok()?;
        Some(LogPlace { device: now.dev(), inode: now.ino(), offset: now.len() })
    }

    /// Before the first line of a batch: takes the lock, and cuts what a dead writer left.
    ///
    /// # Errors
    /// Another writer keeps it for longer than a batch takes, or the file cannot be cut.
    pub(super) fn lock(&mut self) -> io::Result<()> {
        let Target::Regular(file) = &self.target else { return Ok(()) };
        if !self.locked {
            lock(file)?;
            self.locked = true;
            cut_torn_tail(file)?;
        }
        Ok(())
    }

    /// After the last whole line.
    pub(super) fn unlock(&mut self) {
        if let (Target::Regular(file), true) = (&self.target, self.locked) {
            let _ = flock(file, FlockOperation::Unlock);
            self.locked = false;
        }
    }

    /// Writes some of it.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = match &mut self.target {
            Target::Regular(file) | Target::Stream(file) => file.write(bytes)?,
            Target::Stdout(stdout) => {
                let mut lock = stdout.lock();
                lock.write_all(bytes)?;
                lock.flush()?;
                bytes.len()
            }
        };
        if n == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.dirty = true;
        self.bytes = self.bytes.saturating_add(n as u64);
        Ok(n)
    }

    /// fdatasync, where there is something to sync.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if let (Target::Regular(file), true) = (&self.target, self.dirty) {
            file.sync_data()?;
            self.dirty = false;
        }
        Ok(())
    }

    /// The path no longer leads to this file.
    pub(super) fn was_moved(&self) -> bool {
        let Target::Regular(file) = &self.target else { return false };
        let Ok(ours) = file.metadata() else { return true };
        let same = |other: std::fs::Metadata| is_same(&ours, &other);
        !std::fs::metadata(&self.path).is_ok_and(same)
    }

    /// The same path anew, once this file is synced.
    pub(super) fn reopened(&self) -> io::Result<LogFile> {
        LogFile::open(&self.path, self.rotation)
    }

    /// The file is full, or of a period that is over at `now_ms` (since 1970).
    pub(super) fn is_full(&self, now_ms: u64) -> bool {
        let Rotation { bytes, hours, .. } = self.rotation;
        let long = bytes > 0 && self.bytes >= bytes;
        let old = hours > 0 && self.rotation.period(now_ms) > self.period;
        let may = self.is_regular() && self.bytes > 0 && now_ms >= self.rotate_after_ms;
        may && (long || old)
    }

    /// Renames the file to its path and `now_ms`, opens a new one, removes what is too many.
    ///
    /// # Errors
    /// The file cannot be synced, renamed or made anew; it goes on as it is.
    pub(super) fn rotate(&mut self, now_ms: u64) -> io::Result<()> {
        self.rotate_after_ms = now_ms.saturating_add(ROTATE_RETRY_MS);
        self.sync()?;
        let mut stamp = Vec::new();
        write_rfc3339_ms(&mut stamp, now_ms);
        let stamp = String::from_utf8_lossy(&stamp).replace(':', "-");
        let base = format!("{}.{stamp}", self.path);
        let mut names =
            std::iter::once(base.clone()).chain((1..1000).map(|n| format!("{base}-{n}")));
        // Nothing is ever overwritten.
        let free = names.find(|name| std::fs::symlink_metadata(name).is_err());
        let full = free.ok_or(io::ErrorKind::AlreadyExists)?;
        // Somebody else may have renamed it already.
        if !self.was_moved() {
            std::fs::rename(&self.path, full)?;
        }
        *self = self.reopened()?;
        self.period = self.rotation.period(now_ms);
        if let Ok(folder) = File::open(folder_of(Path::new(&self.path))) {
            folder.sync_all()?;
        }
        self.prune();
        Ok(())
    }

    /// Removes the oldest of the rotated files, packed or not, but for the last `keep`.
    fn prune(&self) {
        let Ok(keep @ 1..) = usize::try_from(self.rotation.keep) else { return };
        let mut full = rotated(Path::new(&self.path));
        full.sort();
        let too_many = full.len().saturating_sub(keep);
        for path in full.iter().take(too_many) {
            // What stays is removed at the next rotation.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Rotation {
    /// Counted from 1970, so that a day of UTC is a period of 24 hours.
    fn period(self, unix_ms: u64) -> u64 {
        unix_ms.checked_div(self.hours.saturating_mul(HOUR_MS)).unwrap_or(0)
    }
}

/// The files that a rotation of `path` has left: its name, a dot, and a date.
fn rotated(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let is_stamp = |rest: &str| {
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        rest.get(..4).is_some_and(digits) && rest.get(10..11) == Some("T")
    };
    let is_ours = |path: &PathBuf| {
        let other = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        other.strip_prefix(name).and_then(|rest| rest.strip_prefix('.')).is_some_and(is_stamp)
    };
    files_beside(path).filter(is_ours).collect()
}

/// The file of this identity, which may have been renamed, in the folder of `path`.
pub(super) fn find(path: &Path, place: &LogPlace) -> Option<PathBuf> {
    let is_it = |path: &Path| {
        let other = std::fs::metadata(path);
        other.is_ok_and(|other| (other.dev(), other.ino()) == (place.device, place.inode))
    };
    if is_it(path) {
        return Some(path.to_owned());
    }
    files_beside(path).find(|path| is_it(path))
}

fn files_beside(path: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(folder_of(path)).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}

/// The folder of a file, also of one that is named without any.
pub(super) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// The two are one file.
pub(super) fn is_same(one: &std::fs::Metadata, other: &std::fs::Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn open(path: &str) -> io::Result<Target> {
    if path == "-" {
        return Ok(Target::Stdout(io::stdout()));
    }
    // Not blocking: to open a pipe that nobody reads must fail, not wait. Files do not mind.
    let mut options = OpenOptions::new();
    options.create(true).append(true).custom_flags(libc::O_NONBLOCK);
    // What is a file is read as well, to look for half a line at its end.
    let regular = std::fs::metadata(path).is_ok_and(|of| of.is_file());
    let file = options.read(regular).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() || kind.is_char_device() || kind.is_socket() {
        return Ok(Target::Stream(file));
    }
    let file = if regular { file } else { options.read(true).open(path)? };
    // Whoever has the lock is in the middle of a line, and cuts or ends it.
    if lock(&file).is_ok() {
        cut_torn_tail(&file)?;
        flock(&file, FlockOperation::Unlock)?;
    }
    Ok(Target::Regular(file))
}

/// Takes the lock of a log, without ever waiting for longer than a few batches take.
pub(super) fn lock(file: &File) -> io::Result<()> {
    for _ in 0..LOCK_LOOKS {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_LOOK),
            // Where a file system has no locks, a disk that gets full in a swap may mix two lines.
            Ok(()) | Err(_) => return Ok(()),
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Cuts what follows the last newline: half a line that a crash left. Its writer is dead, or the
/// caller has the lock.
pub(super) fn cut_torn_tail(mut file: &File) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn log(folder: &Path, rotation: Rotation) -> LogFile {
        LogFile::open(folder.join("u.jsonl").to_str().unwrap(), rotation).unwrap()
    }

    #[test]
    fn a_full_file_is_renamed_and_only_so_many_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(folder.path(), Rotation { bytes: 10, hours: 0, keep: 2 });
        for other in ["u.jsonl.old", "u.jsonl.2020.gz", "other.2020-01-01T00-00-00.000Z"] {
            std::fs::write(folder.path().join(other), "kept").unwrap();
        }
        for n in 0..4 {
            log.write(b"12345\n").unwrap();
            assert!(!log.is_full(n));
            log.write(b"12345\n").unwrap();
            assert!(log.is_full(n));
            // Twice in one millisecond, too.
            log.rotate(86_400_000 + n / 2).unwrap();
            assert!(!log.is_full(n));
        }
        let want = [
            "other.2020-01-01T00-00-00.000Z",
            "u.jsonl",
            "u.jsonl.1970-01-02T00-00-00.001Z",
            "u.jsonl.1970-01-02T00-00-00.001Z-1",
            "u.jsonl.2020.gz",
            "u.jsonl.old",
        ];
        assert_eq!(names(folder.path()), want);
        let last = folder.path().join("u.jsonl.1970-01-02T00-00-00.001Z-1");
        assert_eq!(std::fs::read_to_string(last).unwrap(), "12345\n12345\n");
    }

    #[test]
    fn a_file_of_a_period_that_is_over_is_full_unless_it_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(folder.path(), Rotation { bytes: 0, hours: 24, keep: 0 });
        let now_ms = log.period * 24 * HOUR_MS;
        assert!(!log.is_full(now_ms + 24 * HOUR_MS), "it is empty");
        log.write(b"1\n").unwrap();
        assert!(!log.is_full(now_ms + 24 * HOUR_MS - 1));
        assert!(log.is_full(now_ms + 24 * HOUR_MS));
        // A clock that goes back makes no file full.
        assert!(!log.is_full(now_ms - 24 * HOUR_MS));
        log.rotate(now_ms + 24 * HOUR_MS).unwrap();
        log.write(b"1\n").unwrap();
        assert!(!log.is_full(now_ms + 25 * HOUR_MS));
        assert_eq!(names(folder.path()).len(), 2);
    }

    #[test]
    fn a_begun_line_is_its_writers_until_it_is_whole_or_its_writer_dead() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("u.jsonl");
        let read = || std::fs::read_to_string(&path).unwrap();
        let [mut one, mut other] = [(); 2].map(|()| log(folder.path(), Rotation::default()));
        one.lock().unwrap();
        one.write(b"1\n2").unwrap();
        assert_eq!(other.lock().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // Who comes now, or opens the log anew, cuts nothing.
        let mut third = log(folder.path(), Rotation::default());
        assert_eq!(read(), "1\n2");
        one.write(b"\n").unwrap();
        one.unlock();
        other.lock().unwrap();
        other.write(b"3\n4").unwrap();
        // The kernel does as much at a kill.
        drop(other);
        third.lock().unwrap();
        third.write(b"5\n").unwrap();
        assert_eq!(read(), "1\n2\n3\n5\n");
    }

    #[test]
    fn a_file_that_was_renamed_is_found_by_its_identity() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(folder.path(), Rotation::default());
        log.write(b"1\n").unwrap();
        let (path, place) = (folder.path().join("u.jsonl"), log.place().unwrap());
        assert_eq!(place.offset, 2);
        assert_eq!(find(&path, &place), Some(path.clone()));
        let moved = folder.path().join("u.jsonl.1");
        std::fs::rename(&path, &moved).unwrap();
        assert!(log.was_moved());
        assert_eq!(find(&path, &place), Some(moved));
        assert_eq!(find(&path, &LogPlace { inode: 0, ..place }), None);
    }
}
