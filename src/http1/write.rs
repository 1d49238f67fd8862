//! Bytes of heads and chunks of our own, appended to the caller's buffer. Stateless. What is
//! written parses here again; a name or value that would not is refused, so that no peer's bytes
//! can split a head in two (RFC 9110 5.5).

use super::Method;
use super::scan::{TARGET, TEXT, is, is_token};

/// The end of a chunked body: last chunk, no trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The end of a head, or of a chunk's data.
pub const CRLF: &[u8] = b"\r\n";

impl Method {
    /// The method as on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Patch => "PATCH",
            Method::Options => "OPTIONS",
            Method::Connect => "CONNECT",
            Method::Trace => "TRACE",
        }
    }
}

/// Appends `POST /v1/models HTTP/1.1` CRLF. False, with nothing appended, if a byte of `target`
/// may not be in one or it is empty.
#[must_use]
pub fn request_line(out: &mut Vec<u8>, method: Method, target: &[u8]) -> bool {
    if target.is_empty() || !target.iter().all(|&byte| is(byte, TARGET)) {
        return false;
    }
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(target);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    true
}

/// Appends `HTTP/1.1 429 Too Many Requests` CRLF.
pub fn status_line(out: &mut Vec<u8>, status: u16) {
    debug_assert!((100..=599).contains(&status), "not an HTTP status: {status}");
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
    out.push(b' ');
    out.extend_from_slice(reason(status).as_bytes());
    out.extend_from_slice(CRLF);
}

/// Appends `name: value` CRLF. False, with nothing appended, if the name is not a token or the
/// value has a control character: CR, LF, NUL.
#[must_use]
pub fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) -> bool {
    if !is_token(name.as_bytes()) || !value.iter().all(|&byte| is(byte, TEXT)) {
        return false;
    }
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(CRLF);
    true
}

/// Appends a field with a number, as `content-length: 17` CRLF. The name is our own.
pub fn number_field(out: &mut Vec<u8>, name: &'static str, value: u64) {
    let written = field(out, name, itoa::Buffer::new().format(value).as_bytes());
    debug_assert!(written, "not a field name: {name}");
}

/// Appends the size line of a chunk of `len` bytes; the data and a [`CRLF`] must follow. `len` is
/// not 0, which would end the body: that is [`LAST_CHUNK`].
pub fn chunk_header(out: &mut Vec<u8>, len: usize) {
    debug_assert!(len > 0, "an empty chunk ends the body");
    let digits = (usize::BITS.saturating_sub(len.leading_zeros()).div_ceil(4)).max(1);
    for place in (0..digits).rev() {
        let digit = (len >> place.saturating_mul(4)) & 0xf;
        out.push(b"0123456789abcdef".get(digit).copied().unwrap_or(b'0'));
    }
    out.extend_from_slice(CRLF);
}

/// Appends a whole chunk; nothing for an empty payload, which would end the body.
pub fn chunk(out: &mut Vec<u8>, payload: &[u8]) {
    if !payload.is_empty() {
        chunk_header(out, payload.len());
        out.extend_from_slice(payload);
        out.extend_from_slice(CRLF);
    }
}

/// The reason phrase of a status (RFC 9110 15, RFC 6585); empty for those that we do not know.
pub fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::super::{HeadScanner, ResponseBody, parse_request, parse_response};
    use super::*;

    #[test]
    fn a_response_head_of_ours_reads_back() {
        let mut out = Vec::new();
        status_line(&mut out, 429);
        assert!(field(&mut out, "content-type", b"application/json"));
        number_field(&mut out, "content-length", u64::MAX);
        out.extend_from_slice(CRLF);
        assert!(out.starts_with(b"HTTP/1.1 429 Too Many Requests\r\n"));
        assert_eq!(HeadScanner::response().advance(&out), Ok(Some(out.len())));
        let head = parse_response(&out, false).unwrap();
        assert_eq!((head.status, head.body), (429, ResponseBody::Length(u64::MAX)));
        assert_eq!(head.content_type.unwrap().of(&out), b"application/json");
    }

    #[test]
    fn a_request_head_of_ours_reads_back() {
        let mut out = Vec::new();
        assert!(request_line(&mut out, Method::Post, b"/v1/completions"));
        assert!(field(&mut out, "host", b"r1:8000"));
        out.extend_from_slice(CRLF);
        let head = parse_request(&out).unwrap();
        assert_eq!((head.method, head.target.of(&out)), (Method::Post, &b"/v1/completions"[..]));
    }

    #[test]
    fn what_would_split_a_head_is_not_written() {
        let mut out = Vec::new();
        for value in [&b"a\r\nb: c"[..], b"a\nb", b"a\rb", b"a\0b", b"a\x7fb", b"\x1b[1m"] {
            assert!(!field(&mut out, "x-request-id", value));
        }
        for name in ["", "a b", "a:", "a\r\n", "ä"] {
            assert!(!field(&mut out, name, b"v"));
        }
        for target in [&b""[..], b"/a b", b"/a\r\n", b"/\xff", b"/a#b"] {
            assert!(!request_line(&mut out, Method::Get, target));
        }
        assert!(out.is_empty(), "nothing is left half written");
    }

    #[test]
    fn chunk_sizes_are_bare_hex() {
        for len in [1, 9, 15, 16, 255, 256, 0x1000, 0xdead_beef, usize::MAX] {
            let mut out = Vec::new();
            chunk_header(&mut out, len);
            assert_eq!(out, format!("{len:x}\r\n").as_bytes());
        }
    }

    #[test]
    fn every_status_of_our_contract_has_a_phrase() {
        for status in [400, 401, 403, 404, 405, 408, 413, 414, 415, 417, 421, 429, 431] {
            assert!(!reason(status).is_empty(), "{status}");
        }
        assert_eq!(reason(599), "");
    }
}
