//! A place in a body, kept instead of a copy or a borrow.

/// A run of bytes: `start` and `len` count bytes from the beginning of the body.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// Bytes before it.
    pub start: u32,
    /// Its bytes.
    pub len: u32,
}

impl Span {
    /// The span from `start` up to `end`. Bodies of over 4 GiB are refused before spans are made.
    #[must_use]
    pub fn between(start: usize, end: usize) -> Self {
        Span { start: start as u32, len: end.saturating_sub(start) as u32 }
    }

    /// Where it begins.
    #[must_use]
    pub fn start(self) -> usize {
        self.start as usize
    }

    /// The first byte behind it.
    #[must_use]
    pub fn end(self) -> usize {
        self.start as usize + self.len as usize
    }

    /// Its bytes in `body`; empty when `body` is shorter than the one it was made for.
    #[must_use]
    pub fn within(self, body: &[u8]) -> &[u8] {
        body.get(self.start()..self.end()).unwrap_or_default()
    }
}
