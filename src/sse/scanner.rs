//! Where events end, in a payload of which any split may reach us.
//!
//! An event is complete at its blank line, at once: nothing waits to learn whether an LF follows a
//! CR. When the CR ends a piece and the next piece begins with the LF of that line end, the LF is
//! consumed there, in front of whatever follows, and makes neither a line nor an event.

use memchr::memchr2;

/// Longest line of a stream, in bytes without its line end (limit of the house: faults, section 2).
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// Longest event of a stream, in bytes with its line ends.
pub const EVENT_BYTES_MAX: usize = 4 << 20;

const BOM: [u8; 3] = *b"\xef\xbb\xbf";

/// A line or an event passed its limit; the stream cannot be read further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooLong {
    /// More than [`LINE_BYTES_MAX`] bytes without a line end.
    Line,
    /// More than [`EVENT_BYTES_MAX`] bytes without a blank line.
    Event,
}

impl std::fmt::Display for TooLong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TooLong::Line => "an event stream line is longer than 1 MiB",
            TooLong::Event => "an event of the stream is longer than 4 MiB",
        })
    }
}

impl std::error::Error for TooLong {}

/// Finds event ends in a payload that arrives in pieces (chunk framing may lie between pieces).
#[derive(Debug, Default, Clone)]
pub struct EventScanner {
    /// Bytes of the open line.
    line: usize,
    /// Bytes of the open event, its open line included.
    event: usize,
    /// The last byte consumed was a CR: an LF that comes next belongs to it.
    after_cr: bool,
    /// How many bytes of a leading BOM were seen; 3 once the stream is past the place of one.
    bom: usize,
}

impl EventScanner {
    /// Consumes from `piece`. `Some(n)`: `piece[..n]` completes an event (`n` includes its blank
    /// line); call again with `piece[n..]`. `None`: all consumed, the event is still open.
    ///
    /// A blank line where no event is open, and a leading byte order mark, are handed out as
    /// events of their own; they have no data. An event may begin with the late LF of the one
    /// before it.
    ///
    /// # Errors
    /// [`TooLong`] when a line or an event passes its limit; the scanner is then of no more use.
    pub fn next(&mut self, piece: &[u8]) -> Result<Option<usize>, TooLong> {
        let mut at = 0;
        if self.bom < BOM.len() {
            match self.leading_bom(piece) {
                Some(Some(end)) => return Ok(Some(end)),
                Some(None) => return Ok(None),
                None => {}
            }
        }
        if self.after_cr && !piece.is_empty() {
            self.after_cr = false;
            if piece.first() == Some(&b'\n') {
                at = 1;
                self.event += usize::from(self.event > 0);
            }
        }
        loop {
            let rest = piece.get(at..).unwrap_or_default();
            let Some(found) = memchr2(b'\n', b'\r', rest) else {
                self.line += rest.len();
                self.event += rest.len();
                self.check()?;
                return Ok(None);
            };
            self.line += found;
            self.event += found;
            self.check()?;
            let crlf = rest.get(found) == Some(&b'\r');
            let mut taken = found + 1;
            if crlf {
                match rest.get(taken) {
                    Some(b'\n') => taken += 1,
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
            at += taken;
            self.event += taken - found;
            if self.line == 0 {
                self.event = 0;
                return Ok(Some(at));
            }
            self.line = 0;
        }
    }

    /// Bytes of the event still open; 0 = between events. A late LF alone opens no event.
    #[must_use]
    pub fn open_bytes(&self) -> usize {
        self.event
    }

    /// Matches a BOM at the start of the stream. `None`: there is none (any more), scan on.
    /// `Some(Some(n))`: it ends at `n`. `Some(None)`: the piece ended within it.
    fn leading_bom(&mut self, piece: &[u8]) -> Option<Option<usize>> {
        for (index, byte) in piece.iter().enumerate() {
            if BOM.get(self.bom) != Some(byte) {
                // The bytes before this one were data after all; those of this piece are scanned
                // again by the caller, so only those of earlier pieces stay counted.
                self.line -= index;
                self.event -= index;
                self.bom = BOM.len();
                return None;
            }
            self.bom += 1;
            self.line += 1;
            self.event += 1;
            if self.bom == BOM.len() {
                self.line = 0;
                self.event = 0;
                return Some(Some(index + 1));
            }
        }
        Some(None)
    }

    fn check(&self) -> Result<(), TooLong> {
        if self.line > LINE_BYTES_MAX {
            return Err(TooLong::Line);
        }
        if self.event > EVENT_BYTES_MAX {
            return Err(TooLong::Event);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Event ends of `pieces`, as offsets into their concatenation, and the bytes left open.
    fn ends(pieces: &[&[u8]]) -> (Vec<usize>, usize) {
        let mut scanner = EventScanner::default();
        let (mut found, mut base) = (Vec::new(), 0);
        for piece in pieces {
            let mut at = 0;
            while let Some(n) = scanner.next(&piece[at..]).unwrap() {
                at += n;
                found.push(base + at);
            }
            base += piece.len();
        }
        (found, scanner.open_bytes())
    }

    #[test]
    fn each_line_end_ends_an_event() {
        assert_eq!(ends(&[b"data: a\n\ndata: b\n\n"]), (vec![9, 18], 0));
        assert_eq!(ends(&[b"data: a\r\rdata: b\r\r"]), (vec![9, 18], 0));
        assert_eq!(ends(&[b"data: a\r\n\r\ndata: b\r\n\r\n"]), (vec![11, 22], 0));
        assert_eq!(ends(&[b"data: a\n\r\ndata: b\r\n\n"]), (vec![10, 20], 0));
        assert_eq!(ends(&[b"data: a\r\n\rdata: b\n\r"]), (vec![10, 19], 0));
    }

    #[test]
    fn a_late_lf_makes_no_event() {
        assert_eq!(ends(&[b"data: a\r\n\r", b"\ndata: b\n\n"]), (vec![10, 20], 0));
        assert_eq!(ends(&[b"data: a\r\n\r", b"\n"]), (vec![10], 0));
        assert_eq!(ends(&[b"data: a\r", b"\n\r", b"\n"]), (vec![10], 0));
        assert_eq!(ends(&[b"data: a\r", b"\n\n"]), (vec![10], 0));
        assert_eq!(ends(&[b"data: a\r\r", b"", b"\n\n"]), (vec![9, 11], 0));
    }

    #[test]
    fn an_open_event_is_counted() {
        assert_eq!(ends(&[b"data: a\n\ndata: b\n"]), (vec![9], 8));
        assert_eq!(ends(&[b"da", b"ta: a\r", b"\nda"]), (vec![], 11));
        assert_eq!(ends(&[b""]), (vec![], 0));
    }

    #[test]
    fn a_leading_bom_is_an_event_without_data() {
        assert_eq!(ends(&[b"\xef\xbb\xbfdata: a\n\n"]), (vec![3, 12], 0));
        assert_eq!(ends(&[b"\xef", b"\xbb", b"\xbfdata: a\n\n"]), (vec![3, 12], 0));
        assert_eq!(ends(&[b"\xef\xbb", b"data: a\n\n"]), (vec![11], 0));
        assert_eq!(ends(&[b"\xef\xbbd\n\n"]), (vec![5], 0));
        assert_eq!(ends(&[b"\n\xef\xbb\xbfdata: a\n\n"]), (vec![1, 13], 0));
        assert_eq!(ends(&[b"\xef\xbb"]), (vec![], 2));
    }

    #[test]
    fn limits_are_exact_whatever_the_split() {
        let line = vec![b'x'; LINE_BYTES_MAX];
        assert_eq!(ends(&[&line, b"\n\n"]).0, vec![LINE_BYTES_MAX + 2]);
        let mut scanner = EventScanner::default();
        assert_eq!(scanner.next(&line), Ok(None));
        assert_eq!(scanner.next(b"x"), Err(TooLong::Line));
        let mut whole = line.clone();
        whole.extend_from_slice(b"x\n\n");
        assert_eq!(EventScanner::default().next(&whole), Err(TooLong::Line));

        let mut lines = EventScanner::default();
        let long = [&line[1..], b"\n"].concat();
        for _ in 0..4 {
            assert_eq!(lines.next(&long), Ok(None));
        }
        assert_eq!(lines.open_bytes(), EVENT_BYTES_MAX);
        assert_eq!(lines.next(b"y"), Err(TooLong::Event));
    }
}
