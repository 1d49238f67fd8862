//! A place in a buffer or body, kept instead of a borrow: it stays right when the buffer grows or
//! moves.

/// Byte range inside the connection's buffer; survives the buffer's growth.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Length in bytes.
    pub len: u32,
}

impl Span {
    /// The bytes of this range; empty if `buf` does not hold all of them.
    pub fn of<'b>(&self, buf: &'b [u8]) -> &'b [u8] {
        buf.get(self.start()..self.end()).unwrap_or_default()
    }

    /// The range from `start` up to `end`. What is received is bounded far below 4 GiB.
    pub fn between(start: usize, end: usize) -> Span {
        Span { start: start as u32, len: end.saturating_sub(start) as u32 }
    }

    /// Offset of the first byte.
    pub fn start(&self) -> usize {
        self.start as usize
    }

    /// Offset after the last byte.
    pub fn end(&self) -> usize {
        self.start().saturating_add(self.len as usize)
    }

    /// True if there is not a byte in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where `part`, a subslice of `buf`, lies in it. A `part` from elsewhere gives a span that
    /// is empty or out of range, so [`Span::of`] finds nothing.
    pub(super) fn locate(part: &[u8], buf: &[u8]) -> Span {
        let offset = (part.as_ptr() as usize).checked_sub(buf.as_ptr() as usize);
        let start = offset.and_then(|offset| u32::try_from(offset).ok());
        match (start, u32::try_from(part.len())) {
            (Some(start), Ok(len)) => Span { start, len },
            _ => Span::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_finds_its_bytes_again_after_the_buffer_moved() {
        let buf = b"GET /v1/models".to_vec();
        let span = Span::locate(&buf[4..], &buf);
        let mut moved = Vec::with_capacity(4096);
        moved.extend_from_slice(&buf);
        assert_eq!(span.of(&moved), b"/v1/models");
        assert_eq!(span.end(), 14);
    }

    #[test]
    fn out_of_range_is_empty_not_a_panic() {
        assert_eq!(Span { start: 3, len: 2 }.of(b"abcd"), b"");
        assert_eq!(Span { start: u32::MAX, len: u32::MAX }.of(b"abcd"), b"");
        assert!(Span::default().is_empty());
    }
}
