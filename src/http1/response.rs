//! What a response head says: status, body length, persistence, and the few fields that the
//! gateway reads. Stateless. An upstream is trusted no more than a client. Follows RFC 9112 4.

use super::fields::{self, ConnectionOptions, Hint, Once};
use super::framing::{FramingFields, ResponseBody};
use super::scan::{TEXT, is};
use super::{HeadError, Span, Version};

/// A parsed response head. Spans count from the first byte of the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// 100 to 599. Interim responses (1xx) come out like any other, with no body; the final one
    /// follows on the same connection, unless it is 101, which we never ask for.
    pub status: u16,
    /// HTTP version of the sender.
    pub version: Version,
    /// Length of the body.
    pub body: ResponseBody,
    /// May the connection be used again once the body is over.
    pub keep_alive: bool,
    /// Content-Type.
    pub content_type: Option<Span>,
    /// Content-Encoding; we ask for `identity`, so any other is a fault of the upstream.
    pub content_encoding: Option<Span>,
    /// Retry-After, unchecked.
    pub retry_after: Option<Span>,
    /// x-request-id, unchecked.
    pub request_id: Option<Span>,
    /// Length of the head; the body begins after it.
    pub head_bytes: u32,
}

/// Reads a complete response head, `buf[..len]` of [`HeadScanner::advance`](super::HeadScanner).
///
/// # Errors
/// Whatever is wrong, the upstream does not speak HTTP/1.1.
pub fn parse_response(
    head: &[u8],
    request_method_is_head: bool,
) -> Result<ResponseHead, HeadError> {
    let mut slots = [httparse::EMPTY_HEADER; super::limits::FIELDS_MAX];
    let (status_line, fields) = fields::split(head, &mut slots)?;
    let (version, status) = parse_status_line(status_line)?;

    let mut framing = FramingFields::default();
    let mut connection = ConnectionOptions::default();
    let (mut content_type, mut content_encoding) = (Once::default(), Once::default());
    let (mut retry_after, mut request_id) = (Hint::default(), Hint::default());
    for field in fields {
        let is_name = |name: &str| field.name.eq_ignore_ascii_case(name);
        match field.name.len() {
            10 if is_name("connection") => connection.add(field.value),
            11 if is_name("retry-after") => retry_after.set(field.value),
            12 if is_name("content-type") => content_type.set(field.value)?,
            12 if is_name("x-request-id") => request_id.set(field.value),
            14 if is_name("content-length") => framing.content_length.set(field.value)?,
            16 if is_name("content-encoding") => content_encoding.set(field.value)?,
            17 if is_name("transfer-encoding") => framing.transfer_encoding.set(field.value)?,
            _ => {}
        }
    }
    let (body, reusable) = framing.of_response(version, status, request_method_is_head)?;
    Ok(ResponseHead {
        status,
        version,
        body,
        keep_alive: reusable && body != ResponseBody::UntilClose && connection.persist(version),
        content_type: content_type.span(head),
        content_encoding: content_encoding.span(head),
        retry_after: retry_after.span(head),
        request_id: request_id.span(head),
        head_bytes: Span::locate(head, head).len,
    })
}

/// RFC 9112 4: HTTP-version SP 3DIGIT SP [ reason ]. The second space may be absent when there is
/// no reason, as senders get that wrong and nothing depends on it.
fn parse_status_line(line: &[u8]) -> Result<(Version, u16), HeadError> {
    const MALFORMED: HeadError = HeadError::BadRequest("malformed status line");
    let mut parts = line.splitn(3, |&byte| byte == b' ');
    let version = Version::parse(parts.next().ok_or(MALFORMED)?)?;
    let reason_is_text = |reason: &[u8]| reason.iter().all(|&byte| is(byte, TEXT));
    let (Some(&[a, b, c]), true) = (parts.next(), parts.next().is_none_or(reason_is_text)) else {
        return Err(MALFORMED);
    };
    if !(b'1'..=b'5').contains(&a) || !b.is_ascii_digit() || !c.is_ascii_digit() {
        return Err(MALFORMED);
    }
    let value = |digit: u8| u16::from(digit.saturating_sub(b'0'));
    let tens = value(a).saturating_mul(10).saturating_add(value(b));
    Ok((version, tens.saturating_mul(10).saturating_add(value(c))))
}
