//! Prompts on their way from text to tokens and block hashes, in turns of bounded work.
//!
//! A [`Work`] owns what it encodes, so that it can wait on its core, or go to another thread, while
//! the connection it belongs to goes on. Reads no clock: a turn is bounded by bytes.

use std::sync::Arc;

use super::blocks::{self, BlockHash, Root};
use super::encode::{EncodeJob, Progress};
use super::model::{Piece, Source, Text};
use super::segments::SegmentCache;
use super::tokenizer::{EncodeError, Tokenizer};
use super::{Basis, Prompt};
use crate::openai::{Call, Endpoint, Truncate};

/// Estimate of one picture, sound or film in tokens, until the engine tells: its size is not in
/// the text.
const MEDIA_TOKENS: u64 = 1_000;

/// What besides its text decides a prompt's tokens and hashes.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Whether and how far a prompt is cut.
    truncate: Option<Truncate>,
    /// Most tokens of the context that a prompt may have.
    context_tokens: Option<u64>,
    /// The caller says which end is cut off.
    side_given: bool,
    /// It is the end.
    right: bool,
    root: Root,
    block_tokens: u32,
}

impl Terms {
    /// The terms of a call for a model with a context of `context_tokens`, for hashes of blocks of
    /// `block_tokens` (0 = none) from `root`.
    #[must_use]
    pub fn new(
        endpoint: Endpoint,
        call: &Call,
        context_tokens: Option<u64>,
        (root, block_tokens): (Root, u32),
    ) -> Terms {
        // A token of the context is left for the answer, where one is asked for (vLLM 0.32).
        let default = endpoint == Endpoint::Completions;
        let asked = call.output_tokens_max().map_or(default, |tokens| tokens > 0);
        Terms {
            truncate: call.truncate,
            context_tokens: context_tokens.map(|most| most.saturating_sub(u64::from(asked))),
            side_given: call.truncate_right.is_some(),
            // Pooling cuts at the end, generation at the start, unless the call says otherwise.
            right: call.truncate_right.unwrap_or(endpoint == Endpoint::Embeddings),
            root,
            block_tokens,
        }
    }

    /// What is left of a prompt once the engine has cut it. Unless the side is given it is the
    /// tokenizer that cuts, and the tokens that it puts around the text (`affixes`: before,
    /// behind) stay (vLLM 0.32).
    fn cut(&self, ids: &mut Vec<u32>, affixes: (usize, usize)) {
        let most = match self.truncate {
            Some(Truncate::To(most)) => Some(most),
            Some(Truncate::ToContext) => self.context_tokens,
            None => None,
        };
        let Some(most) = most.map(|most| usize::try_from(most).unwrap_or(usize::MAX)) else {
            return;
        };
        let Some(over) = ids.len().checked_sub(most).filter(|over| *over > 0) else { return };
        let kept = !self.side_given && most > affixes.0 + affixes.1;
        let (before, behind) = if kept { affixes } else { (0, 0) };
        if self.right {
            let end = ids.len() - behind;
            ids.drain(end - over..end);
        } else {
            ids.drain(before..before + over);
        }
    }
}

/// What a turn came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// All prompts are encoded.
    Done,
    /// Another turn is due.
    More,
    /// What comes next cannot be cut into turns: it belongs on another thread.
    Long,
}

/// Prompts that are being encoded, one after the other. See the module.
pub struct Work {
    tokenizer: Option<Arc<Tokenizer>>,
    terms: Terms,
    waiting: std::vec::IntoIter<Piece>,
    running: Option<Running>,
    done: Vec<Vec<u32>>,
    media_parts: u32,
}

struct Running {
    text: Text,
    job: EncodeJob,
    ids: Vec<u32>,
}

impl Work {
    /// The prompts of `source`; a `tokenizer` is needed when any of them is text.
    #[must_use]
    pub fn new(tokenizer: Option<&Arc<Tokenizer>>, source: Source, terms: Terms) -> Work {
        Work {
            tokenizer: tokenizer.map(Arc::clone),
            terms: Terms { truncate: terms.truncate.or(source.truncate), ..terms },
            done: Vec::with_capacity(source.prompts.len()),
            waiting: source.prompts.into_iter(),
            running: None,
            media_parts: source.media_parts,
        }
    }

    /// Encodes about `bytes` bytes of what is not cached.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn turn(&mut self, cache: &mut SegmentCache, bytes: usize) -> Result<Turn, EncodeError> {
        loop {
            if self.running.is_none() && !self.begin()? {
                return Ok(Turn::Done);
            }
            let Some(running) = &mut self.running else { continue };
            if !running.text.parts.is_empty() {
                return Ok(Turn::Long);
            }
            let Running { text, job, ids } = running;
            match job.advance(&text.text, cache, bytes, ids)? {
                Progress::More => return Ok(Turn::More),
                Progress::TooLong { .. } => return Ok(Turn::Long),
                Progress::Done => self.end(),
            }
        }
    }

    /// Encodes all that is left, whatever it takes: for a thread that nobody waits on.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn rest(&mut self, cache: &mut SegmentCache) -> Result<(), EncodeError> {
        loop {
            match self.turn(cache, usize::MAX)? {
                Turn::Done => return Ok(()),
                Turn::More => {}
                Turn::Long => self.finish_running(cache)?,
            }
        }
    }

    /// Encodes what is left of the running prompt in one go.
    fn finish_running(&mut self, cache: &mut SegmentCache) -> Result<(), EncodeError> {
        let (Some(running), Some(tokenizer)) = (&mut self.running, &self.tokenizer) else {
            return Ok(());
        };
        let Running { text: Text { text, parts, .. }, job, ids } = running;
        if parts.is_empty() {
            job.finish(text, cache, ids)?;
        }
        let mut start = 0;
        for part in parts {
            let piece = text.get(start..part.end).unwrap_or_default();
            start = part.end;
            match part.trusted {
                true => tokenizer.encode_whole(piece, false, ids)?,
                false => tokenizer.encode_ordinary(piece, ids)?,
            }
        }
        self.end();
        Ok(())
    }

    /// Takes up the next prompt. False: there is none.
    fn begin(&mut self) -> Result<bool, EncodeError> {
        match self.waiting.next() {
            None => return Ok(false),
            Some(Piece::Ids(mut ids)) => {
                self.terms.cut(&mut ids, (0, 0));
                self.done.push(ids);
            }
            Some(Piece::Text(text)) => {
                let tokenizer = self.tokenizer.as_ref().ok_or_else(EncodeError::no_tokenizer)?;
                let job = EncodeJob::new(tokenizer, text.add_special);
                let ids = Vec::with_capacity(text.text.len() / 3 + 8);
                self.running = Some(Running { text, job, ids });
            }
        }
        Ok(true)
    }

    fn end(&mut self) {
        let Some(Running { text, mut ids, .. }) = self.running.take() else { return };
        let affixes = match (&self.tokenizer, text.add_special) {
            (Some(tokenizer), true) => (tokenizer.prefix(true).len(), tokenizer.suffix(true).len()),
            _ => (0, 0),
        };
        self.terms.cut(&mut ids, affixes);
        self.done.push(ids);
    }

    /// What is known of the prompts now that all are encoded, and their ids.
    #[must_use]
    pub fn finish(self) -> (Prompt, Vec<Vec<u32>>) {
        let Terms { root, block_tokens, .. } = self.terms;
        let lengths = || self.done.iter().map(|ids| ids.len() as u64);
        let media = u64::from(self.media_parts);
        let tokens = lengths().sum::<u64>() + media * MEDIA_TOKENS;
        let mut hashes: Vec<BlockHash> = Vec::new();
        let first = self.done.first().map(Vec::as_slice).unwrap_or_default();
        blocks::of_tokens(root, first, block_tokens as usize, &mut hashes);
        let prompt = Prompt {
            tokens,
            // With media the parts are one prompt.
            longest: if media > 0 { tokens } else { lengths().max().unwrap_or(0) },
            basis: if media > 0 { Basis::Media } else { Basis::Exact },
            hashes,
            block_tokens,
            cut_to_context: self.terms.truncate == Some(Truncate::ToContext),
        };
        (prompt, self.done)
    }
}

#[cfg(test)]
#[path = "work_tests.rs"]
mod tests;
