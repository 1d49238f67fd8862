//! What a connection brought back, taken apart: the statuses, and whether anything is left over.

use crate::common::{Response, find};

/// What came back on a connection.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answers {
    pub(crate) statuses: Vec<u16>,
    /// The last one says `connection: close`.
    pub(crate) says_close: bool,
    /// Bytes that are no whole answer.
    pub(crate) rest: Vec<u8>,
    /// The gateway ended the connection by itself.
    pub(crate) closed: bool,
}

impl Answers {
    pub(crate) fn parse(mut bytes: &[u8]) -> Answers {
        let mut answers = Answers::default();
        while let Some(end) = find(bytes, b"\r\n\r\n") {
            let response = Response::parse(&bytes[..end + 4]);
            let length = response.field("content-length").map_or(0, |n| n.parse().expect("length"));
            let Some(rest) = bytes.get(end + 4 + length..) else { break };
            // An interim answer is due only where the body was not there yet (RFC 9110, 10.1.1).
            if bytes.starts_with(b"HTTP/1.1 100 ") {
                bytes = rest;
                continue;
            }
            answers.statuses.push(response.status());
            answers.says_close = response.field("connection") == Some("close");
            bytes = rest;
        }
        answers.rest = bytes.to_vec();
        answers
    }
}
