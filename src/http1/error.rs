//! Why a head is refused. The kinds are those that need different answers; the status itself is
//! chosen by the gateway's reply module.

use std::fmt;

/// Why a head is refused, for requests named after the status that it earns. In a response every
/// kind means the same to the caller: the upstream does not speak HTTP/1.1, close and answer 502.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// 400: not HTTP/1.1, or framing in doubt; what was wrong, without any byte of the peer's.
    BadRequest(&'static str),
    /// 414: the target is longer than [`limits::TARGET_BYTES_MAX`](super::limits).
    TargetTooLong,
    /// 417: an expectation other than `100-continue`.
    ExpectationFailed,
    /// 421: an absolute-form target whose authority is not that of Host.
    Misdirected,
    /// 431: the head, a line of it, or the number of its fields is over its limit.
    HeadTooLarge,
    /// 501: a method token that we do not know.
    MethodUnknown,
    /// 501: a registered transfer coding besides chunked.
    CodingUnsupported,
    /// 505: an HTTP version other than 1.0 and 1.1.
    VersionUnsupported,
}

impl HeadError {
    /// What was wrong, fit for an error body: fixed text.
    pub fn reason(self) -> &'static str {
        match self {
            HeadError::BadRequest(reason) => reason,
            HeadError::TargetTooLong => "request target too long",
            HeadError::ExpectationFailed => "only the expectation 100-continue can be met",
            HeadError::Misdirected => "the target's authority differs from the Host field",
            HeadError::HeadTooLarge => "header section too large",
            HeadError::MethodUnknown => "unknown method",
            HeadError::CodingUnsupported => "no transfer coding but chunked is supported",
            HeadError::VersionUnsupported => "only HTTP/1.1 and HTTP/1.0 are spoken here",
        }
    }
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for HeadError {}
