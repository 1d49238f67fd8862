//! The start after a kill: which requests were open, which had ended without their record in the
//! log, and a table for this process.
//!
//! Each process has a table of its own (`.NAME.0`, `.NAME.1`, ... beside the list of open requests)
//! and holds its lock for life, so that two may share a log while one takes over from the other. A
//! table whose lock is free belongs to a process that has ended. From it, records that are not in
//! the log are appended to it, requests that were open to the list; then it is emptied or removed.
//! Whether a record is in the log is told by its hash, whether a request is in the list by process
//! and place, so that a kill in between writes nothing twice.
//!
//! On the thread that starts the gateway, or on the writer's; never on a core.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use xxhash_rust::xxh3::xxh3_64;

use super::log_file::{cut_torn_tail, find, folder_of, is_same, lock};
use super::record::{write_escaped, write_rfc3339_ms};
use super::table::{Left, LeftOpen, LogPlace, Table};

/// More processes than may ever share a log.
const TABLES_MAX: usize = 64;
/// Far more than one batch of lines, which is all that can be in doubt.
const DOUBTFUL_BYTES_MAX: u64 = 64 << 20;
/// Of the list, this much is searched for lines of the same process.
const LIST_BYTES_MAX: u64 = 64 << 20;

/// A table's file, locked for this process.
pub(super) struct Claim {
    file: File,
    path: PathBuf,
    run: u64,
    boot: u64,
    /// Requests that were listed, and for the log what should be known.
    pub(super) listed: u64,
    pub(super) notes: Vec<String>,
}

/// Settles what ended processes have left, and takes a table's file for this one. `list` is where
/// open requests are listed, `log` where records go.
///
/// # Errors
/// The folder cannot be written to.
pub(super) fn claim(list: &Path, log: &Path) -> io::Result<Claim> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot = xxh3_64(&boot);
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|e| io::Error::other(e.to_string()))?;
    let mut free = Vec::new();
    for n in 0..TABLES_MAX {
        let path = table_path(list, n);
        if !free.is_empty() && !path.exists() {
            continue;
        }
        free.extend(locked(&path)?.map(|file| (file, path)));
    }
    let place = Places { list, log, boot };
    let (mut mine, mut listed, mut notes) = (None, 0, Vec::new());
    for (mut file, path) in free {
        match place.settle(&mut file) {
            Ok(Settled { open: 0, ended: 0 }) => {}
            Ok(Settled { open, ended }) => {
                listed += open;
                notes.push(format!(
                    "a gateway ended in the middle of its work: {open} requests were open, now in \
                     {}; {ended} records were on their way, now in {}",
                    list.display(),
                    log.display()
                ));
            }
            Err(error) => {
                // It stays for the next start, and this process takes another.
                notes.push(format!("cannot settle {}: {error}", path.display()));
                continue;
            }
        }
        match &mine {
            None => {
                file.set_len(0)?;
                mine = Some((file, path));
            }
            Some(_) => std::fs::remove_file(&path)?,
        }
    }
    let (file, path) = match mine {
        Some(mine) => mine,
        None => another(list)?,
    };
    Ok(Claim { file, path, run: u64::from_ne_bytes(random), boot, listed, notes })
}

/// A new table's file, when those that are there must stay.
fn another(list: &Path) -> io::Result<(File, PathBuf)> {
    for path in (0..TABLES_MAX).map(|n| table_path(list, n)).filter(|path| !path.exists()) {
        if let Some(file) = locked(&path)? {
            return Ok((file, path));
        }
    }
    Err(io::Error::other("too many tables of open requests"))
}

impl Claim {
    /// The table itself.
    ///
    /// # Errors
    /// There is no room for it.
    pub(super) fn table(&self, places: usize) -> io::Result<Table> {
        let table = Table::create(&self.file, places, self.run, self.boot);
        table.map_err(|error| {
            let mib = Table::bytes(places).div_ceil(1 << 20);
            let path = self.path.display();
            io::Error::new(error.kind(), format!("no {mib} MiB for {path}: {error}"))
        })
    }

    /// Nothing was open at the end: nothing is left behind.
    pub(super) fn remove(self) {
        // An empty table that stays is emptied at the next start.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// `.usage.open.jsonl.0` beside `usage.open.jsonl`: hidden, so that no glob takes it for a log.
fn table_path(list: &Path, n: usize) -> PathBuf {
    let name = list.file_name().and_then(OsStr::to_str).unwrap_or("usage");
    folder_of(list).join(format!(".{name}.{n}"))
}

/// The file with its lock; `None` while another process has it.
fn locked(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    loop {
        let file = options.open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            other => other?,
        }
        // Its owner may have removed it between the two.
        let there = std::fs::metadata(path);
        if there.is_ok_and(|there| file.metadata().is_ok_and(|ours| is_same(&ours, &there))) {
            return Ok(Some(file));
        }
    }
}

/// Where things are, and what is known of them.
struct Places<'p> {
    list: &'p Path,
    log: &'p Path,
    boot: u64,
}

/// What was found in a table and written.
struct Settled {
    open: u64,
    ended: u64,
}

impl Places<'_> {
    fn settle(&self, file: &mut File) -> io::Result<Settled> {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let none = Settled { open: 0, ended: 0 };
        let Some(mut left) = Left::read(&bytes).filter(|left| !left.open.is_empty()) else {
            return Ok(none);
        };
        left.open.sort_by_key(|open| (open.started_unix_ms, open.place));
        let any_ended = left.open.iter().any(|open| open.ended.is_some());
        let written = if any_ended { lines_since(self.log, &left.log)? } else { None };
        let listed = already_listed(self.list, left.run)?;
        // After a crash of the host the table may be older than the log, or newer.
        let same_boot = left.boot == self.boot;
        let (mut found, mut records, mut lines) = (none, Vec::new(), Vec::new());
        for open in &left.open {
            let (begin, mut certain) = (records.len(), same_boot);
            if let Some(ended) = &open.ended {
                open.write_line(&mut records);
                let line = records.get(begin..).unwrap_or_default();
                let is_written = |lines: &HashSet<u64>| {
                    lines.contains(&xxh3_64(line)) || ended.line.is_some_and(|l| lines.contains(&l))
                };
                if written.as_ref().is_some_and(is_written) {
                    records.truncate(begin);
                    continue;
                }
                // It was not about to be written, or the log is there and has it not.
                if same_boot && (ended.line.is_none() || written.is_some()) {
                    found.ended += 1;
                    continue;
                }
                records.truncate(begin);
                certain = false;
            }
            if !listed.contains(&open.place) {
                write_open(&mut lines, open, left.run, certain);
                found.open += 1;
            }
        }
        append(self.log, &records)?;
        append(self.list, &lines)?;
        Ok(found)
    }
}

/// Appends whole lines to a file of whole lines, to which others may write as well.
fn append(path: &Path, lines: &[u8]) -> io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut options = OpenOptions::new();
    let mut to = options.create(true).append(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !to.metadata()?.is_file() {
        return to.write_all(lines);
    }
    let mut to = options.read(true).open(path)?;
    lock(&to)?;
    cut_torn_tail(&to)?;
    to.write_all(lines)?;
    to.sync_data()
}

/// Hashes of the whole lines from a place on; `None` when its file is gone or was cut.
fn lines_since(log: &Path, place: &LogPlace) -> io::Result<Option<HashSet<u64>>> {
    let Some(path) = find(log, place) else { return Ok(None) };
    let mut file = File::open(path)?;
    if file.metadata()?.len() < place.offset {
        return Ok(None);
    }
    file.seek(SeekFrom::Start(place.offset))?;
    let mut bytes = Vec::new();
    file.take(DOUBTFUL_BYTES_MAX).read_to_end(&mut bytes)?;
    let whole = bytes.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
    Ok(Some(whole.map(xxh3_64).collect()))
}

/// Places of this process that the list names already.
fn already_listed(list: &Path, run: u64) -> io::Result<HashSet<u32>> {
    let mut file = match File::open(list) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(HashSet::new()),
        opened => opened?,
    };
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(LIST_BYTES_MAX)))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let mark = run_mark(run);
    let place = |line: &str| line.strip_suffix("}\n")?.split_once(&mark)?.1.parse().ok();
    Ok(text.split_inclusive('\n').filter_map(place).collect())
}

fn run_mark(run: u64) -> String {
    format!(",\"run\":\"{run:016x}\",\"place\":")
}

/// One line of the list.
fn write_open(out: &mut Vec<u8>, open: &LeftOpen, run: u64, certain: bool) {
    out.extend_from_slice(b"{\"ts\":\"");
    write_rfc3339_ms(out, open.started_unix_ms);
    for (name, value) in [
        ("request_id", &open.request_id),
        ("tenant", &open.tenant),
        ("key_id", &open.key_id),
        ("endpoint", &open.endpoint),
    ] {
        out.extend_from_slice(format!("\",\"{name}\":\"").as_bytes());
        write_escaped(out, value);
    }
    let (mark, place) = (run_mark(run), open.place);
    out.extend_from_slice(
        format!("\",\"outcome\":\"open\",\"certain\":{certain}{mark}{place}}}\n").as_bytes(),
    );
}

#[cfg(test)]
mod tests;
