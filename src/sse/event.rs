//! Reads one event (WHATWG HTML, 9.2.6): its `data` and its `event` fields.
//!
//! `id` and `retry` steer a browser's reconnection and mean nothing to a gateway: passed over, like
//! comments and unknown fields.

use memchr::{memchr, memchr2};

/// The values of the event's `data` fields, in order, without line ends.
pub fn data_lines(event: &[u8]) -> impl Iterator<Item = &[u8]> {
    fields(event).filter(|(field, _)| *field == b"data").map(|(_, value)| value)
}

/// The event's data: borrowed from `event` when it is one line, else joined by LF in `scratch`.
/// `None`: a comment or an empty event, which a client is not shown.
pub fn data<'a>(event: &'a [u8], scratch: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    let mut lines = data_lines(event);
    let first = lines.next()?;
    let Some(second) = lines.next() else { return Some(first) };
    scratch.clear();
    scratch.extend_from_slice(first);
    for line in std::iter::once(second).chain(lines) {
        scratch.push(b'\n');
        scratch.extend_from_slice(line);
    }
    Some(scratch)
}

/// The event's type: the last `event` field, `None` when there is none or it is empty ("message").
#[must_use]
pub fn name(event: &[u8]) -> Option<&[u8]> {
    fields(event)
        .filter(|(field, _)| *field == b"event")
        .map(|(_, value)| value)
        .last()
        .filter(|name| !name.is_empty())
}

/// The event's fields as (name, value); comments and blank lines are passed over.
fn fields(event: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = event;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let end = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
            let line = rest.get(..end).unwrap_or_default();
            rest = rest.get(end + 1..).unwrap_or_default();
            if let Some(field) = field(line) {
                return Some(field);
            }
        }
        None
    })
}

/// Name and value of a line: one space after the colon is not part of the value; without a colon
/// the whole line is the name.
fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let Some(colon) = memchr(b':', line) else {
        return (!line.is_empty()).then_some((line, &[]));
    };
    let (name, value) = line.split_at_checked(colon)?;
    let value = value.get(1..).unwrap_or_default();
    (!name.is_empty()).then_some((name, value.strip_prefix(b" ").unwrap_or(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(event: &[u8]) -> Option<Vec<u8>> {
        data(event, &mut Vec::new()).map(<[u8]>::to_vec)
    }

    #[test]
    fn one_space_after_the_colon_is_dropped() {
        assert_eq!(text(b"data:x\n\n").unwrap(), b"x");
        assert_eq!(text(b"data: x\n\n").unwrap(), b"x");
        assert_eq!(text(b"data:  x \n\n").unwrap(), b" x ");
        assert_eq!(text(b"data: a:b\n\n").unwrap(), b"a:b");
    }

    #[test]
    fn several_data_lines_are_joined_by_lf() {
        assert_eq!(text(b"data: a\r\ndata: b\rdata\ndata: c\n\n").unwrap(), b"a\nb\n\nc");
        assert_eq!(text(b"data\n\n").unwrap(), b"");
    }

    #[test]
    fn one_data_line_is_borrowed() {
        let event = b"event: x\ndata: y\n\n";
        let mut scratch = Vec::new();
        let read = data(event, &mut scratch).unwrap();
        assert!(event.as_ptr_range().contains(&read.as_ptr()));
        assert_eq!(scratch.capacity(), 0);
    }

    #[test]
    fn events_without_data_have_none() {
        for event in [&b": keep-alive\n\n"[..], b"\n", b"", b"id: 1\nretry: 5\n\n", b"event: x\n\n"]
        {
            assert_eq!(text(event), None);
        }
        for event in [&b"Data: x\n\n"[..], b" data: x\n\n", b"\xef\xbb\xbfdata: x\n\n", b"datax\n"]
        {
            assert_eq!(text(event), None, "another field's name");
        }
    }

    #[test]
    fn the_last_event_field_names_it() {
        assert_eq!(name(b"event: a\nevent:b\ndata: x\n\n"), Some(&b"b"[..]));
        assert_eq!(name(b"event: a\nevent\n\n"), None);
        assert_eq!(name(b"data: event\n\n"), None);
    }

    #[test]
    fn a_late_lf_in_front_is_passed_over() {
        assert_eq!(text(b"\ndata: x\r\n\r").unwrap(), b"x");
    }
}
