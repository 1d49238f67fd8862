//! The text of a prompt and where it is cut: what the model's own format is, what others wrote.
//!
//! Owns no state and no thread; does no I/O.

use super::Harmony;

/// A stretch of the rendered text that is encoded on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Offset behind its last byte in the text, in bytes; it begins where the one before it ends.
    pub end: usize,
    /// True: the format's own text, in which special tokens are special. False: text of others,
    /// which is encoded as ordinary text even where it spells a special token.
    pub trusted: bool,
}

/// Writes a prompt piece by piece.
#[derive(Debug)]
pub(super) struct Pieces<'o> {
    out: &'o mut String,
    segments: Vec<Segment>,
    whole: bool,
}

impl<'o> Pieces<'o> {
    pub(super) fn new(out: &'o mut String) -> Self {
        Pieces { out, segments: Vec::new(), whole: true }
    }

    /// Text of the format. Cuts inside it fall at special tokens, or before a space, where the
    /// model's pattern cuts anyway; so neighbours are one segment.
    pub(super) fn format(&mut self, text: &str) {
        self.out.push_str(text);
        let end = self.out.len();
        match self.segments.last_mut() {
            Some(last) if last.trusted => last.end = end,
            _ => self.segments.push(Segment { end, trusted: true }),
        }
    }

    /// One piece of others' text, written by `write`; nothing when it writes nothing.
    pub(super) fn ordinary<E>(
        &mut self,
        write: impl FnOnce(&mut String) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = self.out.len();
        write(self.out)?;
        let written = self.out.get(start..).unwrap_or_default();
        if written.is_empty() {
            return Ok(());
        }
        let beside = self.segments.last().is_some_and(|last| !last.trusted);
        self.whole &= !beside && memchr::memmem::find(written.as_bytes(), b"<|").is_none();
        self.segments.push(Segment { end: self.out.len(), trusted: false });
        Ok(())
    }

    /// The prompt up to where the model goes on.
    pub(super) fn finish(mut self) -> Harmony {
        self.format("<|start|>assistant");
        Harmony { segments: self.segments, whole: self.whole }
    }
}
