//! HTTP/1.1 without I/O: bytes in, answers out; strict, incremental, in both directions.
//!
//! | step | file | answers |
//! | --- | --- | --- |
//! | where does the head end, and may it go on | [`scan`](HeadScanner) | offset, or the refusal |
//! | what does a request say | [`request`](parse_request) | [`RequestHead`] |
//! | what does a response say | [`response`](parse_response) | [`ResponseHead`] |
//! | how long is the body | `framing` | [`BodyLength`], [`ResponseBody`] |
//! | what is each byte of a chunked body | [`chunked`](ChunkTracker) | [`Piece`] |
//! | bytes of a head or chunk of our own | [`mod@write`] | appended to a buffer |
//! | what does a segment of a path stand for | `percent` | [`unescaped`] text |
//!
//! State: only what [`HeadScanner`] and [`ChunkTracker`] hold, one of each per direction of a
//! connection, owned by the connection's core. Nothing here allocates (but for [`unescaped`]),
//! reads a clock, knows a socket, or keeps a reference into the buffer: places are [`Span`]s,
//! which survive its growth.
//!
//! Every answer depends on the bytes alone, never on how they were split into reads. Hence
//! byte-level refusals come in byte order from the scanner, and refusals that need the whole head
//! only once it is complete. After any error the connection has no framing left: answer, close.
//!
//! Follows RFC 9112 and the field rules of RFC 9110. Where a MAY allows leniency, it is not used.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

mod chunked;
mod error;
mod fields;
mod framing;
pub mod limits;
mod percent;
mod request;
mod response;
mod scan;
mod span;
pub mod write;

#[cfg(test)]
mod tests;

pub use chunked::{ChunkError, ChunkTracker, Piece, PieceKind};
pub use error::HeadError;
pub use framing::{BodyLength, ResponseBody};
pub use percent::unescaped;
pub use request::{Method, RequestHead, parse_request};
pub use response::{ResponseHead, parse_response};
pub use scan::HeadScanner;
pub use span::Span;

/// The two versions that this module speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `HTTP/1.0`: no chunked coding, closes unless asked to stay open.
    Http10,
    /// `HTTP/1.1`.
    Http11,
}

impl Version {
    /// RFC 9112 2.3: `HTTP/` DIGIT `.` DIGIT, case-sensitive. Another version in that form is
    /// [`HeadError::VersionUnsupported`]; any other form is no HTTP at all.
    fn parse(text: &[u8]) -> Result<Version, HeadError> {
        match text {
            b"HTTP/1.1" => Ok(Version::Http11),
            b"HTTP/1.0" => Ok(Version::Http10),
            [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
                if major.is_ascii_digit() && minor.is_ascii_digit() =>
            {
                Err(HeadError::VersionUnsupported)
            }
            _ => Err(HeadError::BadRequest("malformed HTTP version")),
        }
    }
}
