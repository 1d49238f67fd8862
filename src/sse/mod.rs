//! Event streams (WHATWG HTML, section 9.2) without I/O: found and read in place.
//!
//! [`EventScanner`] says where events end in a payload that arrives in pieces; [`data`] and
//! [`name`] read one event. Line ends are LF, CR or CRLF, also mixed, also split between two
//! pieces. Owns nothing but the scanner's counters; runs on whichever thread holds the stream.
//! Never copies a payload, never waits, never allocates (but for `data` fields of several lines).

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod event;
mod scanner;

pub use event::{data, data_lines, name};
pub use scanner::{EVENT_BYTES_MAX, EventScanner, LINE_BYTES_MAX, TooLong};
