//! Who may use the admin listener: the holder of `admin_secret`, or, without one, whoever reaches
//! it and is no foreign web page.
//!
//! A page can have a name of its own lead here (DNS rebinding): its requests then are of the same
//! origin, but for their `Host`, which is that name. A page cannot own an address or `localhost`.
//!
//! Reads fields only. Never says, counts or logs what was presented.

use std::net::{IpAddr, Ipv6Addr};

use hyper::Method;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN};
use subtle::ConstantTimeEq;

use crate::config::{KeyDigest, Secret};

/// Why a request is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// No secret, or another one: 401.
    NoSecret,
    /// A browser sends it on behalf of a page that is not ours: 403.
    Foreign,
    /// Without a secret a browser may ask only for what it names by its address: 403.
    Named,
}

/// Paths that load balancers and people's browsers ask without the secret: they tell yes or no, and
/// a page that holds nothing before its script has the secret.
const OPEN: [&str; 3] = ["/live", "/ready", "/status"];
/// Before a pool's name: yes or no of it alone.
pub(super) const POOLS: &str = "/ready/";

/// What browsers say of the page that has a request sent (Fetch Metadata, section 2).
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH: [HeaderName; 3] =
    [SITE, HeaderName::from_static("sec-fetch-mode"), HeaderName::from_static("sec-fetch-dest")];

/// May a request of this method and with these fields go on to `path`?
///
/// # Errors
/// Why not.
pub(super) fn check(
    secret: Option<&Secret>,
    (method, path): (&Method, &str),
    fields: &HeaderMap,
) -> Result<(), Refused> {
    let open = OPEN.contains(&path) || path.starts_with(POOLS);
    if open && matches!(*method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    // Links and bookmarks say `none`. Without this any page in an operator's browser could drain
    // the gateway on the loopback of that machine.
    let own = |site: &[u8]| site == b"same-origin" || site == b"none";
    if fields.get(SITE).is_some_and(|site| !own(site.as_bytes())) {
        return Err(Refused::Foreign);
    }
    let Some(secret) = secret else {
        let of_browser =
            fields.contains_key(ORIGIN) || FETCH.iter().any(|f| fields.contains_key(f));
        let named = fields.get_all(HOST).iter().any(|host| !is_address(host.as_bytes()));
        // Browsers mark all that may change something with its origin. What they do not mark comes
        // from a program, which may call a gateway by its name.
        return match named && of_browser {
            true => Err(Refused::Named),
            false => Ok(()),
        };
    };
    let mut given = fields.get_all(AUTHORIZATION).iter();
    let token = given.next().and_then(|field| bearer(field.as_bytes()));
    let (Some(token), None) = (token, given.next()) else { return Err(Refused::NoSecret) };
    // Digests: neither the length nor the first byte that differs shows in the time it takes.
    let (ours, theirs) = (KeyDigest::of(secret.expose().as_bytes()), KeyDigest::of(token));
    match bool::from(ours.0.ct_eq(&theirs.0)) {
        true => Ok(()),
        false => Err(Refused::NoSecret),
    }
}

/// Is this `Host` an IP address or `localhost`, with a port or without?
fn is_address(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(v6, _)| v6.parse::<Ipv6Addr>().is_ok());
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// The token of `Bearer TOKEN`; the scheme's case does not matter (RFC 9110, section 11.1).
fn bearer(field: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = field.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |&(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), value.parse().expect("value"))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn the_secret_opens_every_path_and_nothing_else_does() {
        let secret = Secret::new("canary-canary-canary".to_owned());
        let asked = |path, pairs: &[(&'static str, &str)]| {
            check(Some(&secret), (&Method::GET, path), &fields(pairs))
        };
        let good = ("authorization", "Bearer canary-canary-canary");
        for path in ["/metrics", "/status.json", "/drain", "/replicas/r", "/nowhere", "/status/"] {
            assert_eq!(asked(path, &[good]), Ok(()), "{path}");
            assert_eq!(asked(path, &[("authorization", "bEARER canary-canary-canary")]), Ok(()));
            for bad in ["Bearer canary-canary-canarz", "Bearer ", "Bearer", "canary-canary-canary"]
            {
                assert_eq!(asked(path, &[("authorization", bad)]), Err(Refused::NoSecret), "{bad}");
            }
            assert_eq!(asked(path, &[]), Err(Refused::NoSecret));
            assert_eq!(asked(path, &[good, good]), Err(Refused::NoSecret), "which of the two?");
        }
        for path in OPEN.into_iter().chain(["/ready/llama"]) {
            assert_eq!(asked(path, &[]), Ok(()), "{path}");
        }
        assert_eq!(check(None, (&Method::POST, "/drain"), &fields(&[])), Ok(()));
        let posted = check(Some(&secret), (&Method::POST, "/ready"), &fields(&[]));
        assert_eq!(posted, Err(Refused::NoSecret), "only asking is open");
    }

    #[test]
    fn a_foreign_page_in_a_browser_is_turned_away_with_and_without_a_secret() {
        for site in ["cross-site", "same-site", "something"] {
            let fields = fields(&[("sec-fetch-site", site)]);
            let asked = |method, path| check(None, (&method, path), &fields);
            assert_eq!(asked(Method::POST, "/drain"), Err(Refused::Foreign), "{site}");
            assert_eq!(asked(Method::GET, "/status"), Ok(()), "a link to the page");
        }
        for site in ["same-origin", "none"] {
            let fields = fields(&[("sec-fetch-site", site)]);
            assert_eq!(check(None, (&Method::POST, "/drain"), &fields), Ok(()));
        }
    }

    #[test]
    fn a_page_whose_name_leads_here_may_ask_nothing() {
        let own = ["127.0.0.1:9090", "10.1.2.3", "[::1]:9090", "[::1]", "LocalHost:9090"];
        let names =
            ["evil.example:9090", "evil.example", "localhost.evil.example", "127.0.0.1.x:1"];
        let odd = ["", ":9090", "[evil]:1", "[::1", "a@127.0.0.1:1", "::1"];
        let secret = Secret::new("canary-canary-canary".to_owned());
        for (hosts, named) in [(&own[..], false), (&names[..], true), (&odd[..4], true)] {
            for &host in hosts {
                let refused = if named { Err(Refused::Named) } else { Ok(()) };
                let asked = |method, path, more: &[(&'static str, &str)]| {
                    check(None, (&method, path), &fields(&[&[("host", host)], more].concat()))
                };
                let marks = [("origin", "http://a"), ("sec-fetch-mode", "cors")];
                for mark in marks {
                    assert_eq!(asked(Method::GET, "/metrics", &[mark]), refused, "{host}");
                    assert_eq!(asked(Method::POST, "/explain", &[mark]), refused, "{host}");
                    assert_eq!(asked(Method::GET, "/ready", &[mark]), Ok(()), "{host}");
                }
                for method in [Method::POST, Method::DELETE, Method::GET] {
                    assert_eq!(asked(method.clone(), "/replicas/r", &[marks[0]]), refused);
                    assert_eq!(asked(method, "/replicas/r", &[]), Ok(()), "{host}");
                }
                let bearer = ("authorization", "Bearer canary-canary-canary");
                let known = fields(&[("host", host), marks[0], bearer]);
                assert_eq!(check(Some(&secret), (&Method::POST, "/drain"), &known), Ok(()));
            }
        }
        assert!(!is_address(odd[4].as_bytes()) && !is_address(odd[5].as_bytes()));
    }
}
