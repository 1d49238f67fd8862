//! Every limit of this module, with its reason. All are inclusive: the named amount is accepted,
//! one more is refused. None is configurable: each is far above what an honest peer sends and far
//! below what would cost us memory or time.

/// Whole request head, up to and with the empty line. Four times what browsers and SDKs with
/// large cookies send; bounds the memory of a connection that has not shown a key yet.
pub const REQUEST_HEAD_BYTES_MAX: usize = 32 * 1024;

/// Whole response head. Replicas are ours and may sit behind a sidecar that adds fields.
pub const RESPONSE_HEAD_BYTES_MAX: usize = 64 * 1024;

/// One field line or status line without its CRLF. Keeps one value from filling the head.
pub const LINE_BYTES_MAX: usize = 16 * 1024;

/// Number of field lines in a head. What Apache allows; SDKs send about 20.
pub const FIELDS_MAX: usize = 100;

/// Request target. RFC 9112 3 asks for at least 8,000; the next power of two is the cap.
pub const TARGET_BYTES_MAX: usize = 8192;

/// Method token. The longest of the IANA registry is `UPDATEREDIRECTREF` (17 bytes), so a longer
/// one is certain to be unknown.
pub const METHOD_BYTES_MAX: usize = 32;

/// `HTTP/1.1`; a longer version is certain to be malformed.
pub const VERSION_BYTES_MAX: usize = 8;

/// Hex digits of a chunk size: as many as fit 64 bits, so that the sum cannot wrap.
pub const CHUNK_SIZE_DIGITS_MAX: u8 = 16;

/// Chunk extensions of one body, all together. Nobody uses them; attackers do (CVE-2023-39326).
pub const CHUNK_EXTENSION_BYTES_MAX: u64 = 4 * 1024;

/// Trailer section of one body, with its line ends and the final one. We drop trailers, so this is
/// only patience.
pub const TRAILER_BYTES_MAX: u64 = 8 * 1024;

/// Chunk framing (all that is not data) that a body may have before any data counts.
pub const CHUNK_OVERHEAD_BASE_BYTES: u64 = 16 * 1024;

/// Chunk framing per 100 bytes of data in a request body. Chunks of 24 bytes or more stay within
/// it for ever; a client that sends a byte a chunk is refused after some 3,400 of them.
pub const REQUEST_CHUNK_OVERHEAD_PERCENT: u64 = 25;

/// Chunk framing per 100 bytes of data in a response body. A replica may send a byte a chunk (5
/// bytes of framing each), so only padding with extensions or leading zeros is refused.
pub const RESPONSE_CHUNK_OVERHEAD_PERCENT: u64 = 800;
