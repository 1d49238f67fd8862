//! The field section of a complete head: its lines as name and value, and the few shapes that
//! fields share (given once, list of options). Stateless. `httparse` splits the lines; it is
//! laxer than the scanner, so what it forgives is refused here again, and a head is strict even
//! if no scanner saw it. Follows RFC 9112 5 and RFC 9110 5.3.

use httparse::Header;

use super::limits::FIELDS_MAX;
use super::{HeadError, Span};

/// Room for the fields of one head, on the caller's stack.
pub(super) type Slots<'h> = [Header<'h>; FIELDS_MAX];

/// Splits `head` into its first line, without line end, and its fields.
///
/// # Errors
/// If it is not, from its first byte to its last, one head with CRLF as the only line end.
pub(super) fn split<'s, 'h>(
    head: &'h [u8],
    slots: &'s mut Slots<'h>,
) -> Result<(&'h [u8], &'s [Header<'h>]), HeadError> {
    const MALFORMED: HeadError = HeadError::BadRequest("malformed header section");
    let line_end = memchr::memchr(b'\n', head).ok_or(MALFORMED)?;
    let (first_line, section) =
        head.split_at_checked(line_end.saturating_add(1)).ok_or(MALFORMED)?;
    let first_line = first_line.strip_suffix(b"\r\n").ok_or(MALFORMED)?;
    let bare = |feed: usize| feed.checked_sub(1).and_then(|at| section.get(at)) != Some(&b'\r');
    if memchr::memchr_iter(b'\n', section).any(bare) {
        return Err(HeadError::BadRequest("line feed without carriage return"));
    }
    match httparse::parse_headers(section, slots) {
        Ok(httparse::Status::Complete((len, fields))) if len == section.len() => {
            Ok((first_line, fields))
        }
        Err(httparse::Error::TooManyHeaders) => Err(HeadError::HeadTooLarge),
        _ => Err(MALFORMED),
    }
}

/// A field that may be given once; a second one is refused, since readers differ in which wins.
#[derive(Clone, Copy, Default)]
pub(super) struct Once<'h>(Option<&'h [u8]>);

impl<'h> Once<'h> {
    pub(super) fn set(&mut self, value: &'h [u8]) -> Result<(), HeadError> {
        match self.0.replace(value) {
            None => Ok(()),
            Some(_) => Err(HeadError::BadRequest("a field that may appear once appears twice")),
        }
    }

    pub(super) fn get(self) -> Option<&'h [u8]> {
        self.0
    }

    pub(super) fn span(self, head: &[u8]) -> Option<Span> {
        self.0.map(|value| Span::locate(value, head))
    }
}

/// A field that only advises: given twice, it is as if not given.
#[derive(Clone, Copy, Default)]
pub(super) struct Hint<'h> {
    value: Option<&'h [u8]>,
    doubled: bool,
}

impl<'h> Hint<'h> {
    pub(super) fn set(&mut self, value: &'h [u8]) {
        self.doubled |= self.value.replace(value).is_some();
    }

    pub(super) fn span(self, head: &[u8]) -> Option<Span> {
        self.value.filter(|_| !self.doubled).map(|value| Span::locate(value, head))
    }
}

/// The connection options that we heed, over all Connection lines (RFC 9110 7.6.1).
#[derive(Clone, Copy, Default)]
pub(super) struct ConnectionOptions {
    pub(super) close: bool,
    pub(super) keep_alive: bool,
}

impl ConnectionOptions {
    pub(super) fn add(&mut self, value: &[u8]) {
        for option in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    /// RFC 9112 9.3: does the connection persist after this message? `close` wins.
    pub(super) fn persist(self, version: super::Version) -> bool {
        !self.close && (version == super::Version::Http11 || self.keep_alive)
    }
}
