//! Who may use the admin listener: the holder of `admin_secret`, or, without one, whoever reaches
//! it and is no foreign web page.
//!
//! Reads fields only. Never says, counts or logs what was presented.

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName};
use subtle::ConstantTimeEq;

use crate::config::{KeyDigest, Secret};

/// Why a request is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// No secret, or another one: 401.
    NoSecret,
    /// A browser sends it on behalf of a page that is not ours: 403.
    Foreign,
}

/// Paths that load balancers and people's browsers ask without the secret: they tell yes or no, and
/// a page that holds nothing before its script has the secret.
const OPEN: [&str; 3] = ["/live", "/ready", "/status"];

/// What browsers say of the page that has a request sent (Fetch Metadata, section 2.3).
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// May a request with these fields go on to `path`?
///
/// # Errors
/// Why not.
pub(super) fn check(
    secret: Option<&Secret>,
    path: &str,
    fields: &HeaderMap,
) -> Result<(), Refused> {
    // Links and bookmarks say `none`. Without this any page in an operator's browser could drain
    // the gateway on the loopback of that machine.
    let own = |site: &[u8]| site == b"same-origin" || site == b"none";
    if !OPEN.contains(&path) && fields.get(SITE).is_some_and(|site| !own(site.as_bytes())) {
        return Err(Refused::Foreign);
    }
    let Some(secret) = secret.filter(|_| !OPEN.contains(&path)) else { return Ok(()) };
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
        let asked =
            |path, pairs: &[(&'static str, &str)]| check(Some(&secret), path, &fields(pairs));
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
        for path in OPEN {
            assert_eq!(asked(path, &[]), Ok(()), "{path}");
        }
        assert_eq!(check(None, "/drain", &fields(&[])), Ok(()));
    }

    #[test]
    fn a_foreign_page_in_a_browser_is_turned_away_with_and_without_a_secret() {
        for site in ["cross-site", "same-site", "something"] {
            let fields = fields(&[("sec-fetch-site", site)]);
            assert_eq!(check(None, "/drain", &fields), Err(Refused::Foreign), "{site}");
            assert_eq!(check(None, "/status", &fields), Ok(()), "a link to the page");
        }
        for site in ["same-origin", "none"] {
            assert_eq!(check(None, "/drain", &fields(&[("sec-fetch-site", site)])), Ok(()));
        }
    }
}
