//! `/status`: the live page for people. One file without assets, which asks `/status.json` and
//! `/decisions` of the listener that it came from; it holds nothing of the gateway itself, so that
//! it is served without the admin secret and asks for that itself.

use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};

const PAGE: &str = include_str!("status.html");

/// Only what stands in the page runs, and it can send what it learns nowhere else.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

const FIELDS: [(HeaderName, &str); 5] = [
    (header::CONTENT_TYPE, "text/html; charset=utf-8"),
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-cache"),
];

/// The page.
pub(super) fn answer() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(PAGE.as_bytes())));
    for (name, value) in FIELDS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
