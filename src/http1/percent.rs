//! Percent-encoding (RFC 3986, section 2.1), read.

use std::borrow::Cow;

/// The text that a segment of a path stands for; what is no escape, or none of UTF-8, stands as it
/// is.
#[must_use]
pub fn unescaped(segment: &str) -> Cow<'_, str> {
    if !segment.contains('%') {
        return Cow::Borrowed(segment);
    }
    let (mut plain, mut rest) = (Vec::with_capacity(segment.len()), segment.as_bytes());
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = match after {
            [high, low, ..] if byte == b'%' => hex(*high).zip(hex(*low)),
            _ => None,
        };
        match escaped {
            Some((high, low)) => {
                plain.push(high << 4 | low);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8(plain).map_or(Cow::Borrowed(segment), Cow::Owned)
}

fn hex(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_read_and_what_is_none_stays() {
        for (segment, plain) in [
            ("a:1", "a:1"),
            ("a%3A1", "a:1"),
            ("%3a%3A", "::"),
            ("%253A", "%3A"),
            ("%C3%A9", "\u{e9}"),
            ("%", "%"),
            ("a%2", "a%2"),
            ("%zz%41", "%zzA"),
            ("%+1", "%+1"),
            ("%ff", "%ff"),
        ] {
            assert_eq!(unescaped(segment), plain, "{segment}");
        }
    }
}
