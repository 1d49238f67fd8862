//! Encoding a text in turns, part by part, through a core's cache.
//!
//! A turn ends after about as many bytes as the caller allows. Parts end at added tokens, and
//! within long ones at the first cut after some KiB: where a part ends depends only on the text up
//! to there, so a text that grows keeps its parts and finds them in the cache.
//! A stretch without any cut is for a thread beside the cores ([`EncodeJob::finish`]). Owned by a
//! request, on its core; no I/O, no clock.

use std::sync::Arc;

use super::segments::{PART_BYTES_MIN, SegmentCache};
use super::tokenizer::{EncodeError, Found, Role, Tokenizer};

/// A part from the cache costs about as much as this share of its bytes encoded.
const CACHED_SHARE: usize = 16;
/// Any part and the token after it cost at least this much, in bytes of the budget.
const PART_COST: usize = 16;
/// Bytes searched for an added token at a time: 5 to 40 us.
const WINDOW_BYTES: usize = 16 * 1024;

/// How much of a text is one part, by the speed of the library.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// A part ends at the first cut after this many bytes.
    part_bytes: usize,
    /// A core encodes no part longer than this.
    run_bytes_max: usize,
}

impl Pace {
    /// 2 KiB are 15 us of ordinary text; 4 KiB of letters without a space are 1 ms, the worst.
    const FAST: Pace = Pace { part_bytes: 2048, run_bytes_max: 4096 };
    /// `tokenizers` takes 0.7 us a byte.
    const SLOW: Pace = Pace { part_bytes: 256, run_bytes_max: 768 };
}

/// How far a turn came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// All ids are there.
    Done,
    /// The budget is used up; another turn goes on.
    More,
    /// The next part has no cut within what a core may encode at once: give the job to a thread
    /// beside the cores, which calls [`EncodeJob::finish`].
    TooLong {
        /// Bytes of the text that are still to do.
        bytes: usize,
    },
}

/// The encoding of one text, to be resumed until it is done.
pub struct EncodeJob {
    tokenizer: Arc<Tokenizer>,
    add_special: bool,
    pace: Pace,
    stage: Stage,
    /// All of the text before this is encoded.
    at: usize,
    search: Search,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    New,
    Running,
    Done,
}

/// The next part: `at..end`, then perhaps an added token, then `resume`.
struct Part {
    end: usize,
    token: Option<u32>,
    resume: usize,
    /// No added token is in it.
    plain: bool,
}

impl EncodeJob {
    /// A job for one text; `add_special` as for [`Tokenizer::encode_whole`].
    pub fn new(tokenizer: &Arc<Tokenizer>, add_special: bool) -> EncodeJob {
        EncodeJob {
            tokenizer: Arc::clone(tokenizer),
            add_special,
            pace: if tokenizer.is_fast() { Pace::FAST } else { Pace::SLOW },
            stage: Stage::New,
            at: 0,
            search: Search::default(),
        }
    }

    /// Appends ids of `text`, the same in every turn, at least a part and until about `budget`
    /// bytes are encoded. Parts
    /// that the cache knows cost a sixteenth of their length; a part that is begun is ended.
    ///
    /// A byte takes 5 ns in ordinary text (Gemma: 45) and 60 to 100 at worst (words of thousands of
    /// letters): who watches a clock gives 4 KiB at a time until a turn's share of it is used up.
    ///
    /// # Errors
    /// The library's; `ids` is then of no use.
    pub fn advance(
        &mut self,
        text: &str,
        cache: &mut SegmentCache,
        budget: usize,
        ids: &mut Vec<u32>,
    ) -> Result<Progress, EncodeError> {
        self.run(text, cache, budget, self.pace.run_bytes_max, ids)
    }

    /// Appends all the ids that are missing, however long it takes: on a thread beside the cores,
    /// with its own cache.
    ///
    /// # Errors
    /// As for [`EncodeJob::advance`].
    pub fn finish(
        &mut self,
        text: &str,
        cache: &mut SegmentCache,
        ids: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        self.run(text, cache, usize::MAX, usize::MAX, ids).map(|_| ())
    }

    /// Bytes of the text that are encoded.
    pub fn done_bytes(&self) -> usize {
        self.at
    }

    fn run(
        &mut self,
        text: &str,
        cache: &mut SegmentCache,
        budget: usize,
        run_max: usize,
        ids: &mut Vec<u32>,
    ) -> Result<Progress, EncodeError> {
        if self.stage == Stage::New {
            self.stage = Stage::Running;
            ids.extend_from_slice(self.tokenizer.prefix(self.add_special));
        }
        let mut spent = 0_usize;
        while self.at < text.len() {
            if spent > 0 && spent >= budget {
                return Ok(Progress::More);
            }
            let Some(part) = self.part(text, run_max) else {
                return Ok(Progress::TooLong { bytes: text.len() - self.at });
            };
            let other = || EncodeError::new("the text is not that of the last turn");
            let body = text.get(self.at..part.end).ok_or_else(other)?;
            spent += self.encode(body, part.plain, cache, ids)? + PART_COST;
            ids.extend(part.token);
            self.at = part.resume;
        }
        if self.stage == Stage::Running {
            self.stage = Stage::Done;
            ids.extend_from_slice(self.tokenizer.suffix(self.add_special));
        }
        Ok(Progress::Done)
    }

    /// Encodes a part; gives its cost in bytes of the budget.
    fn encode(
        &self,
        part: &str,
        plain: bool,
        cache: &mut SegmentCache,
        ids: &mut Vec<u32>,
    ) -> Result<usize, EncodeError> {
        if part.len() < PART_BYTES_MIN {
            if !part.is_empty() {
                self.tokenizer.encode_part(part, plain, ids)?;
            }
            return Ok(part.len());
        }
        if cache.get(&self.tokenizer, part, ids) {
            return Ok(part.len() / CACHED_SHARE);
        }
        let start = ids.len();
        self.tokenizer.encode_part(part, plain, ids)?;
        cache.put(&self.tokenizer, part, ids.get(start..).unwrap_or_default());
        Ok(part.len())
    }

    /// The part that begins at `at`, or nothing if it is longer than `run_max`.
    fn part(&mut self, text: &str, run_max: usize) -> Option<Part> {
        let limit = self.at.saturating_add(run_max);
        let tokenizer = &*self.tokenizer;
        let cuts = tokenizer.cuts();
        if cuts.added.is_err() {
            let end = text.len();
            return (end <= limit).then_some(Part { end, token: None, resume: end, plain: false });
        }
        let want = self.at.saturating_add(self.pace.part_bytes);
        let mut plain = tokenizer.finds_all();
        let mut from = self.at;
        loop {
            let found = self.search.next(tokenizer, text, from, limit);
            let gap_end = found.map_or(text.len().min(limit), |found| found.start);
            if gap_end >= want
                && let Some(end) = cuts.find(text, from.max(want), gap_end)
                && end < text.len()
            {
                return Some(Part { end, token: None, resume: end, plain });
            }
            let Some(found) = found else {
                let end = text.len();
                return (end <= limit).then_some(Part { end, token: None, resume: end, plain });
            };
            if found.role == Role::Boundary {
                let (end, resume) = (found.start, found.end);
                return Some(Part { end, token: Some(found.id), resume, plain });
            }
            plain = false;
            from = found.end;
            if found.role == Role::Soft && from >= want {
                return Some(Part { end: from, token: None, resume: from, plain });
            }
        }
    }
}

/// The search for added tokens, which runs ahead of the parts; each byte is searched once.
#[derive(Default)]
struct Search {
    /// No token starts before this that is not behind the last part, ...
    clear: usize,
    /// ... and this one starts here, if it is known.
    next: Option<Found>,
}

impl Search {
    /// The first added token that starts in `from..until`.
    fn next(
        &mut self,
        tokenizer: &Tokenizer,
        text: &str,
        from: usize,
        until: usize,
    ) -> Option<Found> {
        let until = until.min(text.len());
        self.next = self.next.filter(|next| next.start >= from);
        self.clear = self.clear.max(from);
        while self.next.is_none() && self.clear < until {
            let window = self.clear.saturating_add(WINDOW_BYTES).min(text.len());
            self.next = tokenizer.find_added(text, self.clear, window);
            self.clear = self.next.map_or(window, |next| next.start);
        }
        self.next.filter(|next| next.start < until)
    }
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
