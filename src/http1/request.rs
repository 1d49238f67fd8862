//! What a request head says: method, target, body length, persistence, and the fields that the
//! gateway reads; all others are never looked at nor passed on. Stateless.
//! Follows RFC 9112 3 and RFC 9110 7.2, 10.1.1.

use std::net::Ipv6Addr;

use super::fields::{self, ConnectionOptions, Hint, Once};
use super::framing::{BodyLength, FramingFields};
use super::limits::{METHOD_BYTES_MAX, TARGET_BYTES_MAX};
use super::scan::{TARGET, is, is_token};
use super::{HeadError, Span, Version};

/// The methods of RFC 9110 9.3 and PATCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Delete,
    Patch,
    Options,
    Connect,
    Trace,
}

/// A parsed request head. Spans count from the first byte of the buffer, where the head begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// The method.
    pub method: Method,
    /// Path as sent, never decoded nor normalised: `/...`; `*` for OPTIONS; `host:port` for
    /// CONNECT. For a target in absolute form, its path.
    pub target: Span,
    /// What follows the first `?`, as sent; empty if nothing does.
    pub query: Span,
    /// HTTP version of the sender.
    pub version: Version,
    /// Host, checked against the grammar; empty only in HTTP/1.0. Never choose a route by it.
    pub host: Span,
    /// Length of the body.
    pub body: BodyLength,
    /// May the connection be used again once this request is answered and its body read.
    pub keep_alive: bool,
    /// The client waits for `100 Continue` before it sends the body.
    pub expect_continue: bool,
    /// Authorization. A secret.
    pub authorization: Option<Span>,
    /// x-api-key, the field of Anthropic's API. A secret.
    pub api_key: Option<Span>,
    /// Content-Type.
    pub content_type: Option<Span>,
    /// Content-Encoding.
    pub content_encoding: Option<Span>,
    /// x-request-id, unchecked; `None` if given twice.
    pub request_id: Option<Span>,
    /// W3C trace context, unchecked; `None` if given twice.
    pub traceparent: Option<Span>,
    /// W3C trace state, unchecked; `None` if given twice.
    pub tracestate: Option<Span>,
    /// x-request-deadline-ms, unchecked.
    pub deadline_ms: Option<Span>,
    /// x-gateway-policy, unchecked.
    pub policy: Option<Span>,
    /// Length of the head; the body begins after it.
    pub head_bytes: u32,
}

/// The fields that we read, as bytes of the head.
#[derive(Default)]
struct Fields<'h> {
    framing: FramingFields<'h>,
    connection: ConnectionOptions,
    host: Once<'h>,
    expect: Once<'h>,
    authorization: Once<'h>,
    api_key: Once<'h>,
    content_type: Once<'h>,
    content_encoding: Once<'h>,
    deadline_ms: Once<'h>,
    policy: Once<'h>,
    request_id: Hint<'h>,
    traceparent: Hint<'h>,
    tracestate: Hint<'h>,
}

/// Reads a complete request head, `buf[..len]` of [`HeadScanner::advance`](super::HeadScanner).
///
/// # Errors
/// The first that applies, in the order of the request line, the fields, the framing.
pub fn parse_request(head: &[u8]) -> Result<RequestHead, HeadError> {
    let mut slots = [httparse::EMPTY_HEADER; super::limits::FIELDS_MAX];
    // RFC 9112 2.2: one empty line before the request line is ignored.
    let message = head.strip_prefix(b"\r\n").unwrap_or(head);
    let (request_line, lines) = fields::split(message, &mut slots)?;
    let (method, target, version) = parse_request_line(request_line)?;
    let target = parse_target(target, method)?;
    let fields = read_fields(lines)?;
    let host = check_host(fields.host.get(), target.authority, version)?;
    let body = fields.framing.of_request(version)?;
    let expects = expects_continue(fields.expect.get())?;
    Ok(RequestHead {
        method,
        target: Span::locate(target.path, head),
        query: Span::locate(target.query, head),
        version,
        host: Span::locate(host, head),
        body,
        keep_alive: fields.connection.persist(version),
        // RFC 9110 10.1.1: ignored in HTTP/1.0, and pointless when no body will follow.
        expect_continue: expects
            && version == Version::Http11
            && !matches!(body, BodyLength::None | BodyLength::Length(0)),
        authorization: fields.authorization.span(head),
        api_key: fields.api_key.span(head),
        content_type: fields.content_type.span(head),
        content_encoding: fields.content_encoding.span(head),
        request_id: fields.request_id.span(head),
        traceparent: fields.traceparent.span(head),
        tracestate: fields.tracestate.span(head),
        deadline_ms: fields.deadline_ms.span(head),
        policy: fields.policy.span(head),
        head_bytes: Span::locate(head, head).len,
    })
}

/// RFC 9112 3: method SP request-target SP HTTP-version, single spaces.
fn parse_request_line(line: &[u8]) -> Result<(Method, &[u8], Version), HeadError> {
    const MALFORMED: HeadError = HeadError::BadRequest("malformed request line");
    let mut parts = line.split(|&byte| byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(MALFORMED);
    };
    if !is_token(method) || target.is_empty() || !target.iter().all(|&byte| is(byte, TARGET)) {
        return Err(MALFORMED);
    }
    if method.len() > METHOD_BYTES_MAX {
        return Err(HeadError::MethodUnknown);
    }
    if target.len() > TARGET_BYTES_MAX {
        return Err(HeadError::TargetTooLong);
    }
    // The version before the method, so that the preface of HTTP/2 (`PRI * HTTP/2.0`) is 505.
    let version = Version::parse(version)?;
    let method = match method {
        b"GET" => Method::Get,
        b"HEAD" => Method::Head,
        b"POST" => Method::Post,
        b"PUT" => Method::Put,
        b"DELETE" => Method::Delete,
        b"PATCH" => Method::Patch,
        b"OPTIONS" => Method::Options,
        b"CONNECT" => Method::Connect,
        b"TRACE" => Method::Trace,
        _ => return Err(HeadError::MethodUnknown),
    };
    Ok((method, target, version))
}

struct Target<'h> {
    path: &'h [u8],
    query: &'h [u8],
    /// Only of the absolute form.
    authority: Option<&'h [u8]>,
}

/// RFC 9112 3.2: the four forms of a target and the methods that they go with.
fn parse_target(target: &[u8], method: Method) -> Result<Target<'_>, HeadError> {
    const MALFORMED: HeadError = HeadError::BadRequest("malformed request target");
    let (path, authority) = match (method, target) {
        // 3.2.3 authority-form, with CONNECT and nothing else.
        (Method::Connect, _) => {
            let has_port = split_port(target).is_some_and(|(_, port)| !port.is_empty());
            return match has_port && is_host(target) {
                true => Ok(Target { path: target, query: &[], authority: None }),
                false => Err(MALFORMED),
            };
        }
        // 3.2.4 asterisk-form, with OPTIONS and nothing else.
        (Method::Options, b"*") => (target, None),
        // 3.2.1 origin-form.
        (_, [b'/', ..]) => (target, None),
        // 3.2.2 absolute-form.
        _ => {
            let (authority, path) = split_absolute(target).ok_or(MALFORMED)?;
            (path, Some(authority))
        }
    };
    let end = memchr::memchr(b'?', path).unwrap_or(path.len());
    let (path, query) = path.split_at_checked(end).ok_or(MALFORMED)?;
    Ok(Target { path, query: query.strip_prefix(b"?").unwrap_or_default(), authority })
}

/// Authority, and path with query, of `http://authority/path?query`.
fn split_absolute(target: &[u8]) -> Option<(&[u8], &[u8])> {
    let scheme_end = memchr::memmem::find(target, b"://")?;
    let (scheme, rest) = target.split_at_checked(scheme_end)?;
    if !scheme.eq_ignore_ascii_case(b"http") && !scheme.eq_ignore_ascii_case(b"https") {
        return None;
    }
    let after = rest.strip_prefix(b"://")?;
    let path_start = after.iter().position(|byte| matches!(byte, b'/' | b'?'));
    let (authority, path) = after.split_at_checked(path_start.unwrap_or(after.len()))?;
    match path {
        [b'/', ..] => Some((authority, path)),
        // 9112 3.2.1: an empty path means `/`; the one before the authority stands in for it.
        [] => Some((authority, rest.get(2..3)?)),
        _ => None,
    }
}

fn read_fields<'h>(lines: &[httparse::Header<'h>]) -> Result<Fields<'h>, HeadError> {
    let mut fields = Fields::default();
    for &httparse::Header { name, value } in lines {
        let is_name = |other: &str| name.eq_ignore_ascii_case(other);
        match name.len() {
            4 if is_name("host") => fields.host.set(value)?,
            6 if is_name("expect") => fields.expect.set(value)?,
            9 if is_name("x-api-key") => fields.api_key.set(value)?,
            10 if is_name("connection") => fields.connection.add(value),
            10 if is_name("tracestate") => fields.tracestate.set(value),
            11 if is_name("traceparent") => fields.traceparent.set(value),
            12 if is_name("content-type") => fields.content_type.set(value)?,
            12 if is_name("x-request-id") => fields.request_id.set(value),
            13 if is_name("authorization") => fields.authorization.set(value)?,
            14 if is_name("content-length") => fields.framing.content_length.set(value)?,
            16 if is_name("x-gateway-policy") => fields.policy.set(value)?,
            16 if is_name("content-encoding") => fields.content_encoding.set(value)?,
            17 if is_name("transfer-encoding") => fields.framing.transfer_encoding.set(value)?,
            21 if is_name("x-request-deadline-ms") => fields.deadline_ms.set(value)?,
            _ => {}
        }
    }
    Ok(fields)
}

/// RFC 9112 3.2: exactly one valid Host in HTTP/1.1, at most one in HTTP/1.0; 3.2.2: the authority
/// of an absolute-form target must be the same. Returns the host that the request is for.
fn check_host<'h>(
    host: Option<&'h [u8]>,
    authority: Option<&'h [u8]>,
    version: Version,
) -> Result<&'h [u8], HeadError> {
    if version == Version::Http11 && host.is_none() {
        return Err(HeadError::BadRequest("no Host field"));
    }
    let Some(name) = host.or(authority) else {
        return Ok(&[]);
    };
    if !is_host(name) {
        return Err(HeadError::BadRequest("invalid Host"));
    }
    match authority {
        Some(authority) if !authority.eq_ignore_ascii_case(name) => Err(HeadError::Misdirected),
        _ => Ok(name),
    }
}

/// `host [ ":" port ]` of RFC 3986 3.2.2, not empty. A comma is refused though a reg-name may have
/// one: it is what an intermediary makes of two Host lines.
fn is_host(text: &[u8]) -> bool {
    let (host, port) = split_port(text).unwrap_or((text, &[]));
    let port_ok = port.len() <= 5 && port.iter().all(u8::is_ascii_digit);
    let host_ok = match host {
        [] => false,
        [b'[', literal @ .., b']'] => {
            std::str::from_utf8(literal).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
        }
        _ => is_reg_name(host),
    };
    host_ok && port_ok
}

/// Splits at the colon before the port, which is not one of those within brackets.
fn split_port(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = memchr::memrchr(b':', text)?;
    let (host, port) = text.split_at_checked(colon)?;
    let port = port.strip_prefix(b":")?;
    (!port.contains(&b']')).then_some((host, port))
}

/// `*( unreserved / pct-encoded / sub-delims )` of RFC 3986, but for the comma.
fn is_reg_name(mut text: &[u8]) -> bool {
    loop {
        text = match text {
            [] => return true,
            [b'%', a, b, rest @ ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => rest,
            [b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'', rest @ ..] => rest,
            [b'(' | b')' | b'*' | b'+' | b';' | b'=', rest @ ..] => rest,
            [byte, rest @ ..] if byte.is_ascii_alphanumeric() => rest,
            _ => return false,
        };
    }
}

/// RFC 9110 10.1.1: the one expectation there is.
fn expects_continue(expect: Option<&[u8]>) -> Result<bool, HeadError> {
    match expect {
        None => Ok(false),
        Some(value) if value.eq_ignore_ascii_case(b"100-continue") => Ok(true),
        Some(_) => Err(HeadError::ExpectationFailed),
    }
}
