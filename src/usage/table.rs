//! The table of open requests: what a `kill -9` leaves behind for the next start.
//!
//! A file of fixed places that is mapped into memory. A core writes a request into a free place
//! when its record begins; the writer thread frees the place once the record's line is in the log.
//! Both are plain stores, which outlive the process and cost no system call: some 0.3 us a request
//! in all. Writing into the same file took 0.6 us each time and up to 1.3 ms (one core, ext4, a
//! thread beside it that appends and syncs), which a core may not wait. A list that the writer
//! thread keeps would miss whatever began in its last milliseconds, or while it waits for a disk.
//!
//! When a request ends, its record goes into the place too, so that what a kill finds on its way to
//! the log, behind a disk that takes its time, is still recorded by the next start. Before a line
//! is written its place is marked with the line's hash: a kill in the middle of a batch is decided
//! by the log itself, which has a line in full or has not.
//!
//! Used by all cores and the writer thread; lock-free. The file's name, lock and life are
//! `recover`'s business.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::record::{Figures, Outcome, SmallId, Texts, TokensSource, UsageRecord, write_line};
use crate::config::KeyId;
use crate::net::SharedWords;

/// Words before the first place: a page.
const HEADER_WORDS: usize = 512;
/// Words of a place: state and lengths of the opening, start, hash; the record's figures; texts.
const PLACE_WORDS: usize = 64;
const AT_STARTED: usize = 1;
const AT_HASH: usize = 2;
const AT_FIGURES: usize = 3;
const FIGURES: usize = 16;
const AT_TEXT: usize = AT_FIGURES + FIGURES;
/// Room for an id, an endpoint, a key's id and a tenant's name at their longest, and 140 bytes for
/// the names of model, pool, adapter and replica.
const TEXT_BYTES: usize = (PLACE_WORDS - AT_TEXT) * 8;
const MAGIC: u64 = u64::from_ne_bytes(*b"expopen1");
const PAGE_WORDS: usize = 512;

// Words of the header.
const AT_MAGIC: usize = 0;
const AT_RUN: usize = 1;
const AT_BOOT: usize = 2;
const AT_LOG: usize = 3; // device, inode, offset

const OPEN: u8 = 1;
const ENDED: u8 = 2;
const PENDING: u8 = 3;
/// Length of a name that a record has not.
const NO_NAME: u8 = u8::MAX;

/// A request as it is known when its record begins.
#[derive(Clone, Copy)]
pub struct Opening<'a> {
    /// In milliseconds since 1970 (UTC).
    pub started_unix_ms: u64,
    /// As in the `x-request-id` of the response.
    pub request_id: &'a SmallId,
    /// The tenant's id.
    pub tenant: &'a str,
    /// Public name of the key.
    pub key_id: KeyId,
    /// Name of the endpoint.
    pub endpoint: &'static str,
}

/// Index of a place that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u32);

/// Where in which file a batch of lines begins, or later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogPlace {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) offset: u64,
}

/// See the module.
pub(super) struct Table {
    map: SharedWords,
    free: Free,
}

impl Table {
    /// Bytes of the file of a table for so many requests.
    pub(super) fn bytes(places: usize) -> u64 {
        ((HEADER_WORDS + places * PLACE_WORDS) * 8) as u64
    }

    /// A new table in an empty file of which this process has the lock.
    ///
    /// # Errors
    /// The file cannot have that size or not be mapped.
    pub(super) fn create(file: &File, places: usize, run: u64, boot: u64) -> io::Result<Table> {
        let map = SharedWords::of(file, HEADER_WORDS + places * PLACE_WORDS)?;
        let table = Table { map, free: Free::new(places) };
        table.header(AT_RUN, run);
        table.header(AT_BOOT, boot);
        table.header(AT_MAGIC, MAGIC);
        Ok(table)
    }

    fn header(&self, at: usize, value: u64) {
        if let Some(word) = self.map.words().get(at) {
            word.store(value, Release);
        }
    }

    fn place(&self, Place(index): Place) -> &[AtomicU64] {
        let start = HEADER_WORDS + index as usize * PLACE_WORDS;
        self.map.words().get(start..start + PLACE_WORDS).unwrap_or_default()
    }

    fn store(&self, place: Place, at: usize, value: u64) {
        if let Some(word) = self.place(place).get(at) {
            word.store(value, Release);
        }
    }

    /// Enters a request; `None` when every place is taken.
    pub(super) fn take(&self, opening: &Opening<'_>) -> Option<Place> {
        let place = Place(self.free.take()?);
        let mut text = Text::default();
        let lengths = [
            text.push(opening.request_id.as_str()),
            text.push(opening.endpoint),
            text.push(opening.key_id.as_str()),
            text.push(opening.tenant),
        ];
        self.store(place, AT_STARTED, opening.started_unix_ms);
        self.store_text(place, 0, &text);
        // Last: from here on the place counts.
        let [id, endpoint, key, tenant] = lengths;
        self.store(place, 0, u64::from_ne_bytes([OPEN, id, endpoint, key, tenant, 0, 0, 0]));
        Some(place)
    }

    /// The request has ended, and this is its record.
    pub(super) fn ended(&self, place: Place, record: &UsageRecord) {
        let Some(state) = self.place(place).first().map(|word| word.load(Relaxed)) else { return };
        let [_, lengths @ .., _, _, _] = state.to_ne_bytes();
        // Behind the texts of the opening, from the next word on.
        let begun = lengths.map(usize::from).iter().sum::<usize>().next_multiple_of(8);
        let mut text = Text { len: begun, ..Text::default() };
        let names = record.texts().names.map(|name| match name {
            Some(name) if name.len() <= text.room() => text.push(name),
            // A name that does not fit is left out, never cut.
            _ => NO_NAME,
        });
        self.store_text(place, begun / 8, &text);
        for (n, word) in pack(&record.figures(), names).into_iter().enumerate() {
            self.store(place, AT_FIGURES + n, word);
        }
        self.mark(place, ENDED);
    }

    /// Stores the words of a text from the `from`-th on.
    fn store_text(&self, place: Place, from: usize, text: &Text) {
        let words = self.place(place).get(AT_TEXT..).unwrap_or_default();
        let until = text.len.div_ceil(8);
        let pairs = words.iter().zip(text.bytes.chunks_exact(8));
        for (word, bytes) in pairs.take(until).skip(from) {
            word.store(u64::from_ne_bytes(bytes.try_into().unwrap_or_default()), Relaxed);
        }
    }

    fn mark(&self, place: Place, as_what: u8) {
        if let Some(word) = self.place(place).first() {
            let mut state = word.load(Relaxed).to_ne_bytes();
            state[0] = as_what;
            word.store(u64::from_ne_bytes(state), Release);
        }
    }

    /// The place's line, of this hash, is about to be written.
    pub(super) fn pending(&self, place: Place, hash: u64) {
        self.store(place, AT_HASH, hash);
        self.mark(place, PENDING);
    }

    /// Nothing of the place's line has been written, and this process will not.
    pub(super) fn unwritten(&self, place: Place) {
        self.mark(place, ENDED);
    }

    /// The place's line is in the log, or its request has no record: free for another.
    pub(super) fn release(&self, place: Place) {
        self.store(place, 0, 0);
        self.free.put(place.0);
    }

    /// The lines of the pending places come into this file, from this offset on.
    pub(super) fn writing_to(&self, log: LogPlace) {
        self.header(AT_LOG, log.device);
        self.header(AT_LOG + 1, log.inode);
        self.header(AT_LOG + 2, log.offset);
    }

    /// Makes the pages of the first `places` places writable again, which the kernel takes back
    /// whenever it has written them to disk, so that a core seldom has to wait for that.
    pub(super) fn warm(&self, places: usize) {
        let words = self.map.words().get(HEADER_WORDS..).unwrap_or_default();
        let pages = places.saturating_mul(PLACE_WORDS).div_ceil(PAGE_WORDS);
        let pages = words.chunks(PAGE_WORDS).take(pages);
        for word in pages.filter_map(<[AtomicU64]>::first) {
            word.fetch_or(0, AcqRel);
        }
    }
}

/// Text that is cut at the end of the room for it.
struct Text {
    bytes: [u8; TEXT_BYTES],
    len: usize,
}

impl Default for Text {
    fn default() -> Text {
        Text { bytes: [0; TEXT_BYTES], len: 0 }
    }
}

impl Text {
    fn room(&self) -> usize {
        TEXT_BYTES.saturating_sub(self.len).min(usize::from(NO_NAME) - 1)
    }

    fn push(&mut self, part: &str) -> u8 {
        let room = self.bytes.get_mut(self.len..).unwrap_or_default();
        let n = part.len().min(room.len()).min(usize::from(NO_NAME) - 1);
        if let (Some(room), Some(part)) = (room.get_mut(..n), part.as_bytes().get(..n)) {
            room.copy_from_slice(part);
        }
        self.len += n;
        n as u8
    }
}

/// Free places, the last one freed on top: few pages are in use at a time. Treiber's stack, its
/// head tagged with a count so that a place that went and came back is not taken for still there.
struct Free {
    /// Count above, index plus one below; 0 = none.
    head: AtomicU64,
    /// Index plus one of the place below each.
    below: Box<[AtomicU32]>,
}

impl Free {
    fn new(places: usize) -> Free {
        let below = (0..places as u32)
            .map(|n| AtomicU32::new(if n + 1 == places as u32 { 0 } else { n + 2 }));
        Free { head: AtomicU64::new(u64::from(places > 0)), below: below.collect() }
    }

    fn take(&self) -> Option<u32> {
        let mut head = self.head.load(Acquire);
        loop {
            let index = (head as u32).checked_sub(1)?;
            let below = self.below.get(index as usize)?.load(Relaxed);
            let next = ((head >> 32) + 1) << 32 | u64::from(below);
            match self.head.compare_exchange_weak(head, next, AcqRel, Acquire) {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
    }

    fn put(&self, index: u32) {
        let Some(below) = self.below.get(index as usize) else { return };
        let mut head = self.head.load(Acquire);
        loop {
            below.store(head as u32, Relaxed);
            let next = ((head >> 32) + 1) << 32 | u64::from(index + 1);
            match self.head.compare_exchange_weak(head, next, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// A table that another process has left.
#[derive(Debug, PartialEq)]
pub(super) struct Left {
    /// Which process.
    pub(super) run: u64,
    /// Since which start of the host.
    pub(super) boot: u64,
    /// Where the lines of pending places went.
    pub(super) log: LogPlace,
    pub(super) open: Vec<LeftOpen>,
}

/// A request in it.
#[derive(Debug, PartialEq)]
pub(super) struct LeftOpen {
    pub(super) place: u32,
    pub(super) started_unix_ms: u64,
    pub(super) request_id: String,
    pub(super) endpoint: String,
    pub(super) key_id: String,
    pub(super) tenant: String,
    /// Its record, if it had ended.
    pub(super) ended: Option<LeftEnded>,
}

/// The rest of a record.
#[derive(Debug, PartialEq)]
pub(super) struct LeftEnded {
    /// Hash of its line, if that was about to be written: it may be in the log.
    pub(super) line: Option<u64>,
    figures: Figures,
    names: [Option<String>; 4],
}

impl Left {
    /// Reads a table's bytes; `None` when they are none (or it was never begun).
    pub(super) fn read(bytes: &[u8]) -> Option<Left> {
        let (header, places) = bytes.split_at_checked(HEADER_WORDS * 8)?;
        let at = |n: usize| word(header, n);
        (at(AT_MAGIC)? == MAGIC).then_some(())?;
        let log = LogPlace { device: at(AT_LOG)?, inode: at(AT_LOG + 1)?, offset: at(AT_LOG + 2)? };
        let places = (0..).zip(places.chunks_exact(PLACE_WORDS * 8));
        let open = places.filter_map(|(n, place)| LeftOpen::read(n, place)).collect();
        Some(Left { run: at(AT_RUN)?, boot: at(AT_BOOT)?, log, open })
    }
}

impl LeftOpen {
    fn read(place: u32, bytes: &[u8]) -> Option<LeftOpen> {
        let [state, lengths @ .., _, _, _] = word(bytes, 0)?.to_ne_bytes();
        if !(OPEN..=PENDING).contains(&state) {
            return None;
        }
        let mut text = bytes.get(AT_TEXT * 8..)?;
        let [request_id, endpoint, key_id, tenant] = lengths.map(|len| next(&mut text, len));
        let begun = lengths.map(usize::from).iter().sum::<usize>().next_multiple_of(8);
        let mut text = bytes.get(AT_TEXT * 8..)?.get(begun..)?;
        let ended = (state != OPEN).then(|| -> Option<LeftEnded> {
            let words: Vec<u64> =
                (AT_FIGURES..AT_TEXT).map(|n| word(bytes, n)).collect::<Option<_>>()?;
            let (figures, names) = unpack(words.try_into().ok()?)?;
            let names = names.map(|len| (len != NO_NAME).then(|| next(&mut text, len)).flatten());
            let line = if state == PENDING { Some(word(bytes, AT_HASH)?) } else { None };
            Some(LeftEnded { line, figures, names })
        });
        Some(LeftOpen {
            place,
            started_unix_ms: word(bytes, AT_STARTED)?,
            request_id: request_id?,
            endpoint: endpoint?,
            key_id: key_id?,
            tenant: tenant?,
            ended: match ended {
                Some(ended) => Some(ended?),
                None => None,
            },
        })
    }

    /// Appends the record's line, if the request had ended.
    pub(super) fn write_line(&self, out: &mut Vec<u8>) {
        let Some(ended) = &self.ended else { return };
        let texts = Texts {
            request_id: &self.request_id,
            tenant: &self.tenant,
            key_id: &self.key_id,
            endpoint: &self.endpoint,
            names: ended.names.each_ref().map(Option::as_deref),
        };
        write_line(out, &texts, &ended.figures);
    }
}

fn next(text: &mut &[u8], len: u8) -> Option<String> {
    let (part, rest) = text.split_at_checked(len.into())?;
    *text = rest;
    Some(String::from_utf8_lossy(part).into_owned())
}

/// Figures as words: the small ones, which are null with the names' lengths, and the 13 others.
fn pack(figures: &Figures, names: [u8; 4]) -> [u64; FIGURES] {
    let outcome = Outcome::ALL.iter().position(|outcome| *outcome == figures.outcome);
    let source = match figures.tokens_source {
        None => 0,
        Some(TokensSource::Engine) => 1,
        Some(TokensSource::Gateway) => 2,
    };
    let [low, high] = figures.status.to_ne_bytes();
    let [a, b] = u16::try_from(figures.attempts).unwrap_or(u16::MAX).to_ne_bytes();
    let outcome = outcome.and_then(|n| u8::try_from(n).ok()).unwrap_or(u8::MAX);
    let small = [outcome, source, u8::from(figures.stream), 0, low, high, a, b];
    let tokens = figures.tokens.iter().copied();
    let values = tokens.chain(figures.reals.iter().map(|real| real.map(f64::to_bits)));
    let (mut words, mut known) = ([0; FIGURES], 0_u16);
    for (n, (word, value)) in words.iter_mut().skip(3).zip(values).enumerate() {
        known |= u16::from(value.is_some()) << n;
        *word = value.unwrap_or(0);
    }
    let [k, l] = known.to_ne_bytes();
    let [model, pool, adapter, replica] = names;
    let heads = [
        figures.ts_unix_ms,
        u64::from_ne_bytes(small),
        u64::from_ne_bytes([k, l, model, pool, adapter, replica, 0, 0]),
    ];
    for (word, head) in words.iter_mut().zip(heads) {
        *word = head;
    }
    words
}

fn unpack(words: [u64; FIGURES]) -> Option<(Figures, [u8; 4])> {
    let [ts_unix_ms, small, known, values @ ..] = words;
    let [outcome, source, stream, _, low, high, a, b] = small.to_ne_bytes();
    let [k, l, model, pool, adapter, replica, ..] = known.to_ne_bytes();
    let known = u16::from_ne_bytes([k, l]);
    let mut all = [None; 13];
    for (n, (to, value)) in all.iter_mut().zip(values).enumerate() {
        *to = (known >> n & 1 == 1).then_some(value);
    }
    let [t0, t1, t2, t3, t4, t5, reals @ ..] = all;
    let figures = Figures {
        ts_unix_ms,
        stream: stream == 1,
        outcome: *Outcome::ALL.get(usize::from(outcome))?,
        status: u16::from_ne_bytes([low, high]),
        tokens_source: match source {
            1 => Some(TokensSource::Engine),
            2 => Some(TokensSource::Gateway),
            _ => None,
        },
        attempts: u16::from_ne_bytes([a, b]).into(),
        tokens: [t0, t1, t2, t3, t4, t5],
        reals: reals.map(|bits| bits.map(f64::from_bits)),
    };
    Some((figures, [model, pool, adapter, replica]))
}

fn word(bytes: &[u8], n: usize) -> Option<u64> {
    let bytes = bytes.get(n * 8..)?.first_chunk()?;
    Some(u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests;
