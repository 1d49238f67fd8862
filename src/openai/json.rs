//! A strict JSON reader in one pass (RFC 8259), in place.
//!
//! [`Scanner`] validates every byte that it passes over and hands out spans; it builds no tree.
//! What the caller does not name is skipped by [`Scanner::value`], which keeps its place in a bit
//! mask instead of on the native stack. Refused, each with its offset: invalid UTF-8, a byte order
//! mark, control characters in strings, unknown escapes, lone surrogates, numbers outside the
//! grammar (`NaN`, `Infinity`, `01`, `1.`) and integers that Python refuses, depth over
//! [`DEPTH_MAX`], anything after the value.
//!
//! Owns no state beyond the scan; allocates nothing.

use super::Span;

/// Deepest nesting of objects and arrays; the outermost counts as 1.
pub const DEPTH_MAX: u32 = 64;
/// Most digits of an integer: the engine (Python's `int`) refuses a body with a longer one.
const DIGITS_MAX: usize = 4300;

/// Longest key that can match a name we look for, in decoded bytes.
const KEY_BYTES_MAX: usize = 64;

/// Why a text is not JSON, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error {
    /// Bytes before the fault.
    pub offset: usize,
    /// What was wrong, as a phrase.
    pub what: &'static str,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at byte {}", self.what, self.offset)
    }
}

impl std::error::Error for Error {}

/// What kind of value a span holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `{...}`
    Object,
    /// `[...]`
    Array,
    /// `"..."`
    String,
    /// A number, in any spelling that the grammar allows.
    Number,
    /// `true`
    True,
    /// `false`
    False,
    /// `null`
    Null,
}

/// A value that was read: its kind and its bytes (a string's quotes included).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    /// Its kind.
    pub kind: Kind,
    /// Its bytes, without surrounding white space.
    pub span: Span,
}

/// A cursor over one JSON text. Each method reads what it names or fails.
#[derive(Debug)]
pub struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: u32,
    /// Bit n: the container at depth n + 1 is an object.
    objects: u64,
    keys_left: u32,
    string_bytes: usize,
}

impl<'a> Scanner<'a> {
    /// Starts on `bytes`, whose UTF-8 is checked here for the whole text at once.
    ///
    /// # Errors
    /// Invalid UTF-8, a byte order mark, or more bytes than a [`Span`] can name.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::of_text(text),
            Err(error) => Err(Error { offset: error.valid_up_to(), what: "invalid UTF-8" }),
        }
    }

    /// The same for what is known to be UTF-8.
    ///
    /// # Errors
    /// A byte order mark, or more bytes than a [`Span`] can name.
    pub fn of_text(text: &'a str) -> Result<Self, Error> {
        let bytes = text.as_bytes();
        if u32::try_from(bytes.len()).is_err() {
            return Err(Error { offset: 0, what: "text of over 4 GiB" });
        }
        if bytes.starts_with(b"\xef\xbb\xbf") {
            return Err(Error { offset: 0, what: "byte order mark" });
        }
        let (keys_left, string_bytes) = (u32::MAX, 0);
        Ok(Scanner { bytes, at: 0, depth: 0, objects: 0, keys_left, string_bytes })
    }

    /// Refuses a text of more than `keys` object keys in all.
    #[must_use]
    pub fn keys_max(mut self, keys: u32) -> Self {
        self.keys_left = keys;
        self
    }

    /// Bytes of the string values passed so far (quotes and keys not counted).
    #[must_use]
    pub fn string_bytes(&self) -> usize {
        self.string_bytes
    }

    /// Bytes before the next thing to read; exact behind a [`Scanner::peek`].
    #[must_use]
    pub fn offset(&self) -> usize {
        self.at
    }

    /// The kind of the value that comes next, told by its first byte and not yet validated.
    pub fn peek(&mut self) -> Option<Kind> {
        self.space();
        Some(match self.byte()? {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::String,
            b't' => Kind::True,
            b'f' => Kind::False,
            b'n' => Kind::Null,
            _ => Kind::Number,
        })
    }

    /// Reads an object: `member` is called behind each colon with the scanner and a [`Key`], and
    /// must read exactly one value. Answers the object's span.
    ///
    /// # Errors
    /// Not an object, or not JSON; an error of `member` is passed on.
    pub fn object<E: From<Error>>(
        &mut self,
        mut member: impl FnMut(&mut Self, Key<'_>) -> Result<(), E>,
    ) -> Result<Span, E> {
        self.space();
        let start = self.at;
        self.open(b'{', "expected an object")?;
        let mut index = 0;
        while self.next_item(b'}', index == 0)? {
            let mut buffer = [0; KEY_BYTES_MAX];
            let bytes = self.bytes;
            let span = self.key()?;
            let name = key_name(span.of(bytes), &mut buffer);
            member(self, Key { name, span, index })?;
            index += 1;
        }
        Ok(Span::between(start, self.at))
    }

    /// Reads an array: `item` is called before each value and must read exactly one. Answers the
    /// number of values.
    ///
    /// # Errors
    /// Not an array, or not JSON; an error of `item` is passed on.
    pub fn array<E: From<Error>>(
        &mut self,
        mut item: impl FnMut(&mut Self, usize) -> Result<(), E>,
    ) -> Result<usize, E> {
        self.space();
        self.open(b'[', "expected an array")?;
        let mut index = 0;
        while self.next_item(b']', index == 0)? {
            item(self, index)?;
            index += 1;
        }
        Ok(index)
    }

    /// Reads any one value, validating all of it.
    ///
    /// # Errors
    /// Not JSON.
    pub fn value(&mut self) -> Result<Value, Error> {
        self.space();
        let (start, floor) = (self.at, self.depth);
        let kind = self.atom()?;
        while self.depth > floor {
            let object = self.objects >> (self.depth - 1) & 1 == 1;
            let first = matches!(self.bytes.get(self.at - 1), Some(b'{' | b'['));
            if !self.next_item(if object { b'}' } else { b']' }, first)? {
                continue;
            }
            if object {
                self.key()?;
            }
            self.space();
            self.atom()?;
        }
        Ok(Value { kind, span: Span::between(start, self.at) })
    }

    /// Ends the scan.
    ///
    /// # Errors
    /// Something but white space follows.
    pub fn finish(mut self) -> Result<(), Error> {
        self.space();
        match self.byte() {
            None => Ok(()),
            Some(_) => self.fail("unexpected bytes after the JSON value"),
        }
    }

    /// Reads a scalar whole, or the opening bracket of a container.
    #[inline]
    fn atom(&mut self) -> Result<Kind, Error> {
        match self.byte() {
            Some(b'"') => {
                let start = self.at;
                self.string()?;
                self.string_bytes += self.at - start - 2;
                Ok(Kind::String)
            }
            Some(b'{') => self.open(b'{', "").map(|()| Kind::Object),
            Some(b'[') => self.open(b'[', "").map(|()| Kind::Array),
            Some(b't') => self.word(b"true").map(|()| Kind::True),
            Some(b'f') => self.word(b"false").map(|()| Kind::False),
            Some(b'n') => self.word(b"null").map(|()| Kind::Null),
            Some(b'-' | b'0'..=b'9') => self.number().map(|()| Kind::Number),
            Some(_) => self.fail("expected a JSON value"),
            None => self.fail("unexpected end of the JSON text"),
        }
    }

    fn open(&mut self, bracket: u8, what: &'static str) -> Result<(), Error> {
        if self.byte() != Some(bracket) {
            return self.fail(what);
        }
        if self.depth == DEPTH_MAX {
            return self.fail("nested deeper than 64 levels");
        }
        let bit = 1 << self.depth;
        if bracket == b'{' {
            self.objects |= bit;
        } else {
            self.objects &= !bit;
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    /// At a container's next item: true before an item, false behind the closing bracket.
    #[inline]
    fn next_item(&mut self, close: u8, first: bool) -> Result<bool, Error> {
        self.space();
        match self.byte() {
            Some(byte) if byte == close => {
                self.at += 1;
                self.depth -= 1;
                Ok(false)
            }
            Some(b',') if !first => {
                self.at += 1;
                self.space();
                Ok(true)
            }
            Some(_) if first => Ok(true),
            Some(_) => self.fail("expected a comma or the end of the object or array"),
            None => self.fail("unexpected end of the JSON text"),
        }
    }

    /// Reads a key and its colon; answers the key with its quotes.
    #[inline]
    fn key(&mut self) -> Result<Span, Error> {
        let start = self.at;
        if self.byte() != Some(b'"') {
            return self.fail("expected a key in quotes");
        }
        if self.keys_left == 0 {
            return self.fail("too many keys");
        }
        self.keys_left -= 1;
        self.string()?;
        let span = Span::between(start, self.at);
        self.space();
        if self.byte() != Some(b':') {
            return self.fail("expected a colon after the key");
        }
        self.at += 1;
        self.space();
        Ok(span)
    }

    /// Reads a string from its opening to behind its closing quote.
    #[inline]
    fn string(&mut self) -> Result<(), Error> {
        self.at += 1;
        loop {
            self.at += plain_run(self.bytes.get(self.at..).unwrap_or_default());
            match self.byte() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => match self.bytes.get(self.at + 1).copied().and_then(short_escape) {
                    Some(_) => self.at += 2,
                    None => self.escape()?,
                },
                Some(_) => return self.fail("control character in a string"),
                None => return self.fail("unexpected end of a string"),
            }
        }
    }

    #[cold]
    fn escape(&mut self) -> Result<(), Error> {
        match unescape(self.bytes.get(self.at..).unwrap_or_default()) {
            Ok((_, taken)) => {
                self.at += taken;
                Ok(())
            }
            Err(what) => self.fail(what),
        }
    }

    fn number(&mut self) -> Result<(), Error> {
        if self.byte() == Some(b'-') {
            self.at += 1;
        }
        let start = self.at;
        match self.byte() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        if self.at - start > DIGITS_MAX && !matches!(self.byte(), Some(b'.' | b'e' | b'E')) {
            self.at = start;
            return self.fail("an integer of more than 4300 digits");
        }
        if self.byte() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.byte(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.byte(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Error> {
        let start = self.at;
        while self.byte().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start { self.fail("expected a digit") } else { Ok(()) }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Error> {
        if !self.bytes.get(self.at..).unwrap_or_default().starts_with(word) {
            return self.fail("expected a JSON value");
        }
        self.at += word.len();
        Ok(())
    }

    #[inline]
    fn space(&mut self) {
        while matches!(self.byte(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    #[inline]
    fn byte(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[cold]
    fn fail<T>(&self, what: &'static str) -> Result<T, Error> {
        Err(Error { offset: self.at, what })
    }
}

/// A member's key.
#[derive(Debug, Clone, Copy)]
pub struct Key<'k> {
    /// The name with its escapes decoded: `"mod\u0065l"` is `model` to the engine, so to us too.
    /// Empty when an escaped key is longer than any name that we look for.
    pub name: &'k [u8],
    /// The key with its quotes.
    pub span: Span,
    /// Members before it.
    pub index: usize,
}

/// The text of a JSON string that a [`Scanner`] accepted, given with its quotes; escapes decoded.
#[must_use]
pub fn text(quoted: &[u8]) -> String {
    let mut text = String::with_capacity(quoted.len());
    push_text(std::str::from_utf8(quoted).unwrap_or_default(), &mut text);
    text
}

/// Appends what [`text`] answers; what stands between two escapes is copied whole.
pub fn push_text(quoted: &str, out: &mut String) {
    let mut rest = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
    while let Some((plain, escape)) = rest.split_at_checked(plain_run(rest.as_bytes()))
        && let Some((_, after)) = escape.split_at_checked(1)
    {
        out.push_str(plain);
        let (char, taken) = match after.as_bytes().first().copied().and_then(short_escape) {
            Some(char) => (char, 2),
            None => unescape(escape.as_bytes()).unwrap_or(('\\', 1)),
        };
        out.push(char);
        rest = escape.get(taken..).unwrap_or_default();
    }
    out.push_str(rest);
}

/// A JSON string without its quotes, escapes as they are.
pub(super) fn inner(quoted: &[u8]) -> &[u8] {
    quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default()
}

fn key_name<'k>(quoted: &'k [u8], buffer: &'k mut [u8; KEY_BYTES_MAX]) -> &'k [u8] {
    let raw = inner(quoted);
    if memchr::memchr(b'\\', raw).is_none() {
        return raw;
    }
    // An escape is at most six bytes a byte of text: a longer key cannot be a name of ours.
    if raw.len() > 6 * KEY_BYTES_MAX {
        return &[];
    }
    let text = text(quoted);
    match buffer.get_mut(..text.len()) {
        Some(name) => {
            name.copy_from_slice(text.as_bytes());
            name
        }
        None => &[],
    }
}

/// Decodes the escape at the start of `bytes`; answers the character and the bytes it took.
fn unescape(bytes: &[u8]) -> Result<(char, usize), &'static str> {
    let char = match bytes.get(1) {
        Some(b'u') => return unescape_unicode(bytes),
        Some(&byte) => short_escape(byte),
        None => None,
    };
    let char = char.ok_or("unknown escape in a string")?;
    Ok((char, 2))
}

/// The character of an escape of two bytes, from the second.
#[inline]
fn short_escape(byte: u8) -> Option<char> {
    Some(match byte {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        _ => return None,
    })
}

/// RFC 8259, section 7: a character outside the basic plane is a pair of surrogates.
fn unescape_unicode(bytes: &[u8]) -> Result<(char, usize), &'static str> {
    let high = hex4(bytes.get(2..6))?;
    if !(0xd800..0xe000).contains(&high) {
        return Ok((char::from_u32(high).unwrap_or_default(), 6));
    }
    if high < 0xdc00 && bytes.get(6..8) == Some(b"\\u") {
        let low = hex4(bytes.get(8..12))?;
        if (0xdc00..0xe000).contains(&low) {
            let code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
            return Ok((char::from_u32(code).unwrap_or_default(), 12));
        }
    }
    Err("lone surrogate in a string")
}

fn hex4(digits: Option<&[u8]>) -> Result<u32, &'static str> {
    let mut code = 0;
    for &digit in digits.ok_or("bad \\u escape in a string")? {
        let digit = char::from(digit).to_digit(16).ok_or("bad \\u escape in a string")?;
        code = code << 4 | digit;
    }
    Ok(code)
}

/// Bytes before the first quote, backslash or control character; all when there is none.
///
/// Eight at a time. In each byte of the word: `b ^ q` is 0 where `b == q`, `(x - 1) & !x` has the
/// high bit set where x is 0, `(b - 0x20) & !b` where b < 0x20. A subtraction can borrow only from
/// a byte that lies above one that matched, so the lowest set bit, the one used, is exact.
#[inline]
fn plain_run(bytes: &[u8]) -> usize {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let (words, tail) = bytes.as_chunks::<8>();
    let mut at = 0;
    for word in words {
        let word = u64::from_le_bytes(*word);
        let quote = word ^ (LOW * b'"' as u64);
        let slash = word ^ (LOW * b'\\' as u64);
        let found = (quote.wrapping_sub(LOW) & !quote)
            | (slash.wrapping_sub(LOW) & !slash)
            | (word.wrapping_sub(LOW * 0x20) & !word);
        let found = found & HIGH;
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let plain = |byte: &u8| !matches!(byte, b'"' | b'\\' | 0..0x20);
    at + tail.iter().take_while(|byte| plain(byte)).count()
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
