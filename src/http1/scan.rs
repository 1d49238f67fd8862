//! Finds the end of a head, looking once at each byte however the bytes arrive, and refuses
//! illegal bytes, lines and sizes as soon as they are certain.
//!
//! State: a position and the part of the head it is in; owned by the connection. It proves the
//! line structure and the bytes of each part; what the parts mean is for `request` and `response`.
//! Follows RFC 9112 2.1, 2.2, 3, 4, 5 and the field grammar of RFC 9110 5.5, 5.6.2. CRLF is the
//! only line end, whitespace is one SP, folding is refused.

use super::HeadError;
use super::limits::{
    FIELDS_MAX, LINE_BYTES_MAX, METHOD_BYTES_MAX, REQUEST_HEAD_BYTES_MAX, RESPONSE_HEAD_BYTES_MAX,
    TARGET_BYTES_MAX, VERSION_BYTES_MAX,
};

/// Of a token: `tchar` of RFC 9110 5.6.2.
pub(super) const TOKEN: u8 = 1;
/// Of a field value or reason phrase: HTAB, SP, VCHAR, obs-text.
pub(super) const TEXT: u8 = 2;
/// Of a request target: visible ASCII but `"`, `#`, `<`, `>`, `\`, which no URI contains.
pub(super) const TARGET: u8 = 4;
/// Of a quoted-string between its quotes, but for quoted pairs: `qdtext` of RFC 9110 5.6.4.
pub(super) const QUOTED: u8 = 8;

static CLASS: [u8; 256] = classes();

#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)] // Evaluated by the compiler.
const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        let visible = b > b' ' && b < 0x7f;
        let mut class = 0;
        if b.is_ascii_alphanumeric()
            || matches!(b, b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.')
            || matches!(b, b'^' | b'_' | b'`' | b'|' | b'~')
        {
            class |= TOKEN;
        }
        if visible || b == b' ' || b == b'\t' || b >= 0x80 {
            class |= TEXT;
            if !matches!(b, b'"' | b'\\') {
                class |= QUOTED;
            }
        }
        if visible && !matches!(b, b'"' | b'#' | b'<' | b'>' | b'\\') {
            class |= TARGET;
        }
        table[byte] = class;
        byte += 1;
    }
    table
}

/// True if `byte` is in `class`, one of the constants above.
#[inline]
pub(super) fn is(byte: u8, class: u8) -> bool {
    CLASS.get(usize::from(byte)).is_some_and(|classes| classes & class != 0)
}

/// True if `text` is a token.
pub(super) fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&byte| is(byte, TOKEN))
}

/// The parts of a head, in the order of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    RequestStart,
    EmptyLineEnd,
    Method,
    Target,
    Version,
    StatusLine,
    LineEnd,
    FieldStart,
    Name,
    Value,
    HeadEnd,
    Done,
}

/// Finds the end of a head; see the module. One serves a connection for its whole life:
/// [`HeadScanner::reset`] after each head.
#[derive(Clone, Debug)]
pub struct HeadScanner {
    first: Part,
    head_bytes_max: usize,
    part: Part,
    /// Bytes looked at, from the start of the buffer.
    at: usize,
    /// Where the part that has a length limit began; for a field, its line.
    from: usize,
    fields: usize,
}

impl Default for HeadScanner {
    /// As [`HeadScanner::request`].
    fn default() -> Self {
        HeadScanner::request()
    }
}

impl HeadScanner {
    /// A scanner for request heads; one empty line before the request line is allowed.
    pub fn request() -> Self {
        HeadScanner::new(Part::RequestStart, REQUEST_HEAD_BYTES_MAX)
    }

    /// A scanner for response heads.
    pub fn response() -> Self {
        HeadScanner::new(Part::StatusLine, RESPONSE_HEAD_BYTES_MAX)
    }

    fn new(first: Part, head_bytes_max: usize) -> Self {
        HeadScanner { first, head_bytes_max, part: first, at: 0, from: 0, fields: 0 }
    }

    /// Makes ready for the next head.
    pub fn reset(&mut self) {
        *self = HeadScanner::new(self.first, self.head_bytes_max);
    }

    /// Looks at the bytes of `buf` that it has not seen. `buf` begins where the head begins and
    /// only ever grows between calls. Returns the length of the complete head, a leading empty
    /// line and the final CRLF CRLF included, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// As soon as no continuation can make a legal head. The same error again if called again.
    pub fn advance(&mut self, buf: &[u8]) -> Result<Option<usize>, HeadError> {
        if self.part == Part::StatusLine && !buf.iter().zip(b"HTTP/").all(|(a, b)| a == b) {
            return Err(HeadError::BadRequest("not an HTTP response"));
        }
        let bound = buf.get(..self.head_bytes_max).unwrap_or(buf);
        while self.part != Part::Done {
            self.skip_run(bound)?;
            let Some(&byte) = bound.get(self.at) else {
                return match bound.len() < self.head_bytes_max {
                    true => Ok(None),
                    false => Err(HeadError::HeadTooLarge),
                };
            };
            self.step(byte)?;
        }
        Ok(Some(self.at))
    }

    /// Passes over the bytes that simply continue the present part.
    fn skip_run(&mut self, buf: &[u8]) -> Result<(), HeadError> {
        let (class, bytes_max, too_long) = match self.part {
            Part::Method => (TOKEN, METHOD_BYTES_MAX, HeadError::MethodUnknown),
            Part::Target => (TARGET, TARGET_BYTES_MAX, HeadError::TargetTooLong),
            Part::Version => {
                (TARGET, VERSION_BYTES_MAX, HeadError::BadRequest("malformed HTTP version"))
            }
            Part::StatusLine => (TEXT, LINE_BYTES_MAX, HeadError::HeadTooLarge),
            Part::Name => (TOKEN, LINE_BYTES_MAX, HeadError::HeadTooLarge),
            Part::Value => (TEXT, LINE_BYTES_MAX, HeadError::HeadTooLarge),
            _ => return Ok(()),
        };
        let room = bytes_max.saturating_sub(self.at.saturating_sub(self.from));
        let unseen = buf.get(self.at..).unwrap_or_default();
        let run = unseen.iter().take(room).take_while(|&&byte| is(byte, class)).count();
        self.at = self.at.saturating_add(run);
        match buf.get(self.at) {
            Some(&byte) if run == room && is(byte, class) => Err(too_long),
            _ => Ok(()),
        }
    }

    /// Takes the byte at which the present part ends, or says what is wrong with it.
    fn step(&mut self, byte: u8) -> Result<(), HeadError> {
        let part_is_empty = self.at == self.from;
        let next = match (self.part, byte) {
            (Part::RequestStart, b'\r') => Part::EmptyLineEnd,
            (Part::RequestStart, _) => return self.enter(Part::Method),
            (Part::EmptyLineEnd, b'\n') => Part::Method,
            (Part::Method, b' ') if !part_is_empty => Part::Target,
            (Part::Target, b' ') if !part_is_empty => Part::Version,
            (Part::Version | Part::StatusLine | Part::Value, b'\r') => Part::LineEnd,
            (Part::LineEnd, b'\n') => Part::FieldStart,
            (Part::FieldStart, b'\r') => Part::HeadEnd,
            (Part::FieldStart, _) if self.fields == FIELDS_MAX => {
                return Err(HeadError::HeadTooLarge);
            }
            (Part::FieldStart, _) if is(byte, TOKEN) => {
                self.fields = self.fields.saturating_add(1);
                return self.enter(Part::Name);
            }
            (Part::Name, b':') => {
                // The limit of a value is that of its line, which began with the name.
                self.at = self.at.saturating_add(1);
                self.part = Part::Value;
                return Ok(());
            }
            (Part::HeadEnd, b'\n') => Part::Done,
            (part, byte) => return Err(HeadError::BadRequest(objection(part, byte))),
        };
        self.at = self.at.saturating_add(1);
        self.enter(next)
    }

    /// Begins a part at the present byte.
    fn enter(&mut self, part: Part) -> Result<(), HeadError> {
        self.part = part;
        self.from = self.at;
        Ok(())
    }
}

/// What is wrong with `byte` at the end of `part`.
fn objection(part: Part, byte: u8) -> &'static str {
    match (part, byte) {
        (_, b'\n') => "line feed without carriage return",
        (Part::EmptyLineEnd | Part::LineEnd | Part::HeadEnd, _) => {
            "carriage return without line feed"
        }
        (Part::FieldStart, b' ' | b'\t') => "folded field line",
        (Part::Method | Part::Target | Part::Version, _) => "malformed request line",
        (Part::FieldStart | Part::Name, _) => "malformed field name",
        _ => "control character in the head",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(head: &[u8]) -> Result<Option<usize>, HeadError> {
        HeadScanner::request().advance(head)
    }

    /// The error, and the number of bytes after which it was certain.
    fn refusal(mut scanner: HeadScanner, bytes: &[u8]) -> (HeadError, usize) {
        (1..=bytes.len())
            .find_map(|n| scanner.advance(&bytes[..n]).err().map(|error| (error, n)))
            .expect("refused")
    }

    /// A legal head of exactly this many bytes.
    fn head_of(bytes: usize) -> Vec<u8> {
        let mut head = b"GET / HTTP/1.1\r\n".to_vec();
        for lines in (1..=4).rev() {
            let line = (bytes - 2 - head.len()) / lines;
            head.extend([b"x:", &b"v".repeat(line - 4)[..], b"\r\n"].concat());
        }
        head.extend_from_slice(b"\r\n");
        head
    }

    #[test]
    fn a_head_ends_at_its_empty_line_and_stays_found() {
        let bytes = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nrest";
        let mut scanner = HeadScanner::request();
        assert_eq!(scanner.advance(bytes), Ok(Some(bytes.len() - 4)));
        assert_eq!(scanner.advance(bytes), Ok(Some(bytes.len() - 4)));
        scanner.reset();
        assert_eq!(scanner.advance(b"GET / HT"), Ok(None));
    }

    #[test]
    fn one_empty_line_may_come_first_and_counts() {
        assert_eq!(scan(b"\r\nGET / HTTP/1.1\r\n\r\n"), Ok(Some(20)));
        assert_eq!(refusal(HeadScanner::request(), b"\r\n\r\nGET / HTTP/1.1\r\n\r\n").1, 3);
        assert_eq!(refusal(HeadScanner::response(), b"\r\nHTTP/1.1 200 OK\r\n\r\n").1, 1);
    }

    #[test]
    fn each_byte_is_looked_at_once() {
        let head = head_of(REQUEST_HEAD_BYTES_MAX);
        let mut scanner = HeadScanner::request();
        for end in 1..head.len() {
            assert_eq!(scanner.advance(&head[..end]), Ok(None));
            assert_eq!(scanner.at, end, "all bytes are behind it, none will be read again");
        }
        assert_eq!(scanner.advance(&head), Ok(Some(head.len())));
    }

    #[test]
    fn illegal_bytes_are_refused_at_once() {
        for (bytes, at) in [
            (&b"\x16\x03\x01"[..], 1),
            (b" GET / HTTP/1.1\r\n", 1),
            (b"GET / HTTP/1.1\n", 15),
            (b"GET / HTTP/1.1\r\r", 16),
            (b"GET  / HTTP/1.1\r\n", 5),
            (b"GET /\t", 6),
            (b"GET /\x80", 6),
            (b"GET / HTTP/1.1\r\nA\x00: b", 18),
            (b"GET / HTTP/1.1\r\n: b", 17),
            (b"GET / HTTP/1.1\r\n a: b", 17),
            (b"GET / HTTP/1.1\r\na : b", 18),
            (b"GET / HTTP/1.1\r\na\r\n", 18),
            (b"GET / HTTP/1.1\r\na: \x7f", 20),
            (b"GET / HTTP/1.1\r\na: b\rc", 22),
            (b"GET / HTTP/1.1\r\na: b\r\n\r\r", 24),
            (b"GET / HTTP/1.10\r\n", 15),
        ] {
            let (error, after) = refusal(HeadScanner::request(), bytes);
            assert!(matches!(error, HeadError::BadRequest(_)), "{}", bytes.escape_ascii());
            assert_eq!(after, at, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_response_that_is_not_http_is_refused_within_five_bytes() {
        assert_eq!(refusal(HeadScanner::response(), b"<html>").1, 1);
        assert_eq!(refusal(HeadScanner::response(), b"HTTQ/1.1").1, 4);
        assert_eq!(HeadScanner::response().advance(b"HTTP"), Ok(None));
    }

    #[test]
    fn each_limit_admits_its_amount_and_no_more() {
        let line = |method: usize, target: usize| {
            [&b"A".repeat(method)[..], b" /", &b"t".repeat(target - 1), b" HTTP/1.1\r\n\r\n"]
                .concat()
        };
        assert!(matches!(scan(&line(METHOD_BYTES_MAX, 1)), Ok(Some(_))));
        assert_eq!(scan(&line(METHOD_BYTES_MAX + 1, 1)), Err(HeadError::MethodUnknown));
        assert!(matches!(scan(&line(3, TARGET_BYTES_MAX)), Ok(Some(_))));
        assert_eq!(scan(&line(3, TARGET_BYTES_MAX + 1)), Err(HeadError::TargetTooLong));

        let field = |name: usize, value: usize| {
            let (name, value) = (b"n".repeat(name), b"v".repeat(value));
            [b"GET / HTTP/1.1\r\n", &name[..], b":", &value, b"\r\n\r\n"].concat()
        };
        assert!(matches!(scan(&field(1, LINE_BYTES_MAX - 2)), Ok(Some(_))));
        assert_eq!(scan(&field(1, LINE_BYTES_MAX - 1)), Err(HeadError::HeadTooLarge));
        assert_eq!(scan(&field(LINE_BYTES_MAX + 1, 1)), Err(HeadError::HeadTooLarge));

        let fields = |n: usize| [b"GET / HTTP/1.1\r\n", &b"a:\r\n".repeat(n)[..], b"\r\n"].concat();
        assert!(matches!(scan(&fields(FIELDS_MAX)), Ok(Some(_))));
        assert_eq!(scan(&fields(FIELDS_MAX + 1)), Err(HeadError::HeadTooLarge));

        assert_eq!(scan(&head_of(REQUEST_HEAD_BYTES_MAX)), Ok(Some(REQUEST_HEAD_BYTES_MAX)));
        assert_eq!(scan(&head_of(REQUEST_HEAD_BYTES_MAX + 1)), Err(HeadError::HeadTooLarge));
    }
}
