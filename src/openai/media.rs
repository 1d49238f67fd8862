//! URLs in a call's messages. The engine fetches images, sound and video from wherever it is told
//! (CVE-2025-6242), from within the network that it stands in: so a caller must not name an address
//! that only that network reaches.
//!
//! Names are judged as they stand: no name is resolved here, and where a server redirects to is the
//! engine's to judge.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

use super::error::BodyError;
use super::json::{self, Key, Kind, Scanner};
use super::{Call, Endpoint, Span};

/// URLs that one call may name.
const URLS_MAX: usize = 1_024;
/// Longest URL that is no `data:` one, in bytes.
const URL_BYTES_MAX: usize = 8_192;

/// Members that are a URL to fetch, or an object with one as its `url`. (A `url` elsewhere, such as
/// that of a citation, is text.)
const KEYS: [&[u8]; 5] = [b"image_url", b"audio_url", b"video_url", b"file_url", b"source"];

/// Names that stand for the machine, or for what only its network knows.
const INNER_NAMES: [&str; 6] = ["localhost", "local", "internal", "intranet", "lan", "home.arpa"];

/// Notes the URLs in a call's messages, or its input, that the engine would fetch.
///
/// # Errors
/// More than [`URLS_MAX`].
pub(super) fn note(call: &mut Call, endpoint: Endpoint, body: &[u8]) -> Result<(), BodyError> {
    let input = call.prompt_span.filter(|_| endpoint == Endpoint::Responses);
    let Some(value) = call.messages_span.or(input) else { return Ok(()) };
    let list = value.of(body);
    // A text without a list within it has no parts, and so no URLs.
    let Some((b'[', within)) = list.split_first() else { return Ok(()) };
    if memchr::memchr(b'[', within).is_none() {
        return Ok(());
    }
    let mut walk = Walk { found: Vec::new(), from: value.start(), field: field(call) };
    walk.value(&mut Scanner::new(list)?, false)?;
    call.media = walk.found;
    Ok(())
}

fn field(call: &Call) -> &'static str {
    if call.messages_span.is_some() { "messages" } else { "input" }
}

struct Walk {
    found: Vec<Span>,
    from: usize,
    field: &'static str,
}

impl Walk {
    /// The scanner bounds how deep this goes. `held`: it is what a member of [`KEYS`] holds.
    fn value(&mut self, scanner: &mut Scanner<'_>, held: bool) -> Result<(), BodyError> {
        match scanner.peek() {
            Some(Kind::Array) => scanner.array(|scanner, _| self.value(scanner, held)).map(drop),
            Some(Kind::Object) => {
                scanner.object(|scanner, key| self.member(scanner, key, held)).map(drop)
            }
            _ => scanner.value().map(drop).map_err(BodyError::from),
        }
    }

    fn member(
        &mut self,
        scanner: &mut Scanner<'_>,
        key: Key<'_>,
        held: bool,
    ) -> Result<(), BodyError> {
        let holds = KEYS.contains(&key.name);
        // A source that is text names where a passage is from.
        let is_url = (holds && key.name != b"source") || (held && key.name == b"url");
        if !is_url || scanner.peek() != Some(Kind::String) {
            return self.value(scanner, holds);
        }
        let span = scanner.value()?.span;
        let span = Span::between(self.from + span.start(), self.from + span.end());
        if self.found.len() == URLS_MAX {
            let message = format!("{} names more than {URLS_MAX} URLs", self.field);
            return Err(BodyError::value(self.field, message, span));
        }
        self.found.push(span);
        Ok(())
    }
}

/// Refuses a call with a URL that the engine must not fetch. `hosts`: the only ones that it may,
/// where they are told: names, addresses, or `*.` and what names end with.
///
/// # Errors
/// The first such URL.
pub fn check(call: &Call, body: &[u8], hosts: Option<&[String]>) -> Result<(), BodyError> {
    for span in &call.media {
        let quoted = span.of(body);
        // Not taken apart: it may have megabytes.
        if is_data(json::inner(quoted)) {
            continue;
        }
        if let Err(why) = judge(&json::text(quoted), hosts) {
            let field = field(call);
            return Err(BodyError::value(field, format!("a URL in {field} {why}"), *span));
        }
    }
    Ok(())
}

fn is_data(url: &[u8]) -> bool {
    url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"data:"))
}

/// May the engine fetch this?
fn judge(text: &str, hosts: Option<&[String]>) -> Result<(), &'static str> {
    if is_data(text.as_bytes()) {
        return Ok(());
    }
    if text.len() > URL_BYTES_MAX {
        return Err("is over 8192 bytes long");
    }
    // What readers of URLs take in different ways is no address that one can judge for another.
    if text.bytes().any(|byte| byte <= b' ' || byte == b'\\' || byte == 0x7f) {
        return Err("has spaces, control characters or backslashes");
    }
    let url = Url::parse(text).map_err(|_| "cannot be read")?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("must be of http, https or data");
    }
    let (_, rest) = text.split_once(':').unwrap_or_default();
    let Some(rest) = rest.strip_prefix("//").filter(|rest| !rest.starts_with('/')) else {
        return Err("cannot be read");
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains(['@', '%']) {
        return Err("has a user or an escape before its path");
    }
    let host = url.host().ok_or("names no host")?;
    let name = match &host {
        Host::Domain(name) => name.trim_end_matches('.').to_owned(),
        Host::Ipv4(addr) => addr.to_string(),
        Host::Ipv6(addr) => addr.to_string(),
    };
    match hosts {
        Some(hosts) if hosts.iter().any(|pattern| matches(pattern, &name)) => Ok(()),
        Some(_) => Err("names a host that is not among media_hosts"),
        None if is_inner(&host, &name) => Err("names a host of a private network"),
        None => Ok(()),
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(end) => is_under(name, end) && name.len() > end.len(),
        None => pattern.trim_matches(['[', ']']).eq_ignore_ascii_case(name),
    }
}

/// Is `name` this one, or one under it?
fn is_under(name: &str, end: &str) -> bool {
    let Some(at) = name.len().checked_sub(end.len()) else { return false };
    let (before, last) = name.split_at_checked(at).unwrap_or_default();
    last.eq_ignore_ascii_case(end) && (before.is_empty() || before.ends_with('.'))
}

fn is_inner(host: &Host<&str>, name: &str) -> bool {
    match host {
        Host::Ipv4(addr) => !is_public(IpAddr::V4(*addr)),
        Host::Ipv6(addr) => !is_public(IpAddr::V6(*addr)),
        // A name without a dot is one of the resolver's own domain.
        Host::Domain(_) => {
            !name.contains('.') || INNER_NAMES.iter().any(|inner| is_under(name, inner))
        }
    }
}

/// Reached over the internet, and by nothing nearer (IANA's registries of special addresses).
fn is_public(addr: IpAddr) -> bool {
    match addr.to_canonical() {
        IpAddr::V4(addr) => is_public_v4(addr),
        IpAddr::V6(addr) => is_public_v6(addr),
    }
}

fn is_public_v4(addr: Ipv4Addr) -> bool {
    let [a, b, c, _] = addr.octets();
    let special = matches!(
        (a, b, c),
        (0 | 10 | 127 | 224.., ..)
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 168, _)
            | (192, 0, 0 | 2)
            | (198, 18..=19, _)
            | (198, 51, 100)
            | (203, 0, 113)
    );
    !special
}

fn is_public_v6(addr: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = addr.segments();
    let v4 = |high: u16, low: u16| {
        let ([w, x], [y, z]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(w, x, y, z))
    };
    match (a, b) {
        // Translated to IPv4 (NAT64), and wrapped for it (6to4).
        (0x64, 0xff9b) if [c, d, e, f] == [0; 4] => v4(g, h),
        (0x2002, _) => v4(b, c),
        (0x2001, 0xdb8 | 0..=0x1ff) => false,
        // All that is given out to anybody.
        _ => a >> 13 == 1,
    }
}

#[cfg(test)]
#[path = "media_tests.rs"]
mod tests;
