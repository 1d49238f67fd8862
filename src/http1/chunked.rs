//! The chunked coding, followed but not rewritten: tells what each byte of the body is.
//!
//! State: a place in the grammar and four counts; owned by the connection. It keeps no bytes.
//! Follows RFC 9112 7.1. CRLF is the only line end; the whitespace that the grammar of extensions
//! calls bad is refused; extensions and trailers are checked and mean nothing.

use std::fmt;

use super::limits::{
    CHUNK_EXTENSION_BYTES_MAX, CHUNK_OVERHEAD_BASE_BYTES, CHUNK_SIZE_DIGITS_MAX,
    REQUEST_CHUNK_OVERHEAD_PERCENT, RESPONSE_CHUNK_OVERHEAD_PERCENT, TRAILER_BYTES_MAX,
};
use super::scan::{QUOTED, TEXT, TOKEN, is};

/// What the leading bytes of the input are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Framing or payload.
    pub kind: PieceKind,
    /// Number of bytes, to be taken off the input before the next call.
    pub len: usize,
}

/// The kinds of bytes in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// Size line with extensions, the CRLF after data, or a part of the body's end.
    Framing,
    /// Payload.
    Data,
    /// Framing of which the last byte ends the body: what follows is another message.
    End,
}

/// Why a chunked body is refused: fixed text, fit for an error body. Its connection has no framing
/// left; answer 400 (or, for an upstream, treat the body as cut off) and close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkError(&'static str);

impl ChunkError {
    /// What was wrong.
    pub fn reason(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for ChunkError {}

/// Places in the grammar, named after what was read last or is due next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At the start of a chunk: its first digit is due.
    ChunkStart,
    SizeDigits(u8),
    ExtensionNameStart,
    ExtensionName,
    ExtensionValueStart,
    ExtensionToken,
    ExtensionQuoted,
    ExtensionQuotedPair,
    ExtensionQuotedEnd,
    SizeLineFeed,
    Data,
    DataCarriageReturn,
    DataLineFeed,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLineFeed,
    FinalLineFeed,
    Done,
    Failed(ChunkError),
}

impl Place {
    fn is_extension(self) -> bool {
        matches!(
            self,
            Place::ExtensionNameStart
                | Place::ExtensionName
                | Place::ExtensionValueStart
                | Place::ExtensionToken
                | Place::ExtensionQuoted
                | Place::ExtensionQuotedPair
                | Place::ExtensionQuotedEnd
        )
    }

    fn is_trailer(self) -> bool {
        matches!(
            self,
            Place::TrailerStart
                | Place::TrailerName
                | Place::TrailerValue
                | Place::TrailerLineFeed
                | Place::FinalLineFeed
        )
    }
}

/// Follows one chunked body; see the module. To relay, write the data in chunks of one's own: the
/// sender's framing may carry extensions and trailers, which are not for the next hop, and a last
/// chunk that is passed on before it is whole cannot be taken back.
#[derive(Clone, Debug)]
pub struct ChunkTracker {
    place: Place,
    /// Size of the present chunk while its line is read, then its bytes that are still due.
    left: u64,
    data_bytes: u64,
    framing_bytes: u64,
    extension_bytes: u64,
    trailer_bytes: u64,
    overhead_percent: u64,
}

impl ChunkTracker {
    /// For the body of a request.
    pub fn request() -> Self {
        ChunkTracker::new(REQUEST_CHUNK_OVERHEAD_PERCENT)
    }

    /// For the body of a response.
    pub fn response() -> Self {
        ChunkTracker::new(RESPONSE_CHUNK_OVERHEAD_PERCENT)
    }

    fn new(overhead_percent: u64) -> Self {
        ChunkTracker {
            place: Place::ChunkStart,
            left: 0,
            data_bytes: 0,
            framing_bytes: 0,
            extension_bytes: 0,
            trailer_bytes: 0,
            overhead_percent,
        }
    }

    /// Says what the leading bytes of `bytes` are. A piece never spans data and framing, nor two
    /// chunks: a chunk comes as size line, data, CRLF, each in one piece or more. At least one
    /// byte is taken from an input that has one, until the body is over.
    ///
    /// # Errors
    /// At the first byte that cannot be of a legal body; the same for ever after. Framing before
    /// that byte in the same call is not reported; data always is, since it is a piece of its own.
    pub fn next(&mut self, bytes: &[u8]) -> Result<Piece, ChunkError> {
        if self.place == Place::Data {
            let due = usize::try_from(self.left).unwrap_or(usize::MAX);
            let len = due.min(bytes.len());
            self.left = self.left.saturating_sub(len as u64);
            self.data_bytes = self.data_bytes.saturating_add(len as u64);
            if self.left == 0 {
                self.place = Place::DataCarriageReturn;
            }
            return Ok(Piece { kind: PieceKind::Data, len });
        }
        let mut len = 0_usize;
        for &byte in bytes {
            if self.place == Place::Done {
                break;
            }
            self.place = self.step(byte).inspect_err(|&error| self.place = Place::Failed(error))?;
            len = len.saturating_add(1);
            if matches!(self.place, Place::Data | Place::ChunkStart) {
                break;
            }
        }
        match self.place {
            Place::Failed(error) => Err(error),
            Place::Done => Ok(Piece { kind: PieceKind::End, len }),
            _ => Ok(Piece { kind: PieceKind::Framing, len }),
        }
    }

    /// True between chunks: all bytes so far are whole chunks with their CRLF, so that a chunk of
    /// our own may be written here. False once the last chunk has begun.
    pub fn at_chunk_boundary(&self) -> bool {
        self.place == Place::ChunkStart
    }

    /// Bytes of data that the present chunk still owes. After a size line this is the whole chunk:
    /// the moment to refuse a body that will be too large, before any of it is read.
    pub fn data_left(&self) -> u64 {
        match self.place {
            Place::Data => self.left,
            _ => 0,
        }
    }

    /// True after the last byte of the body.
    pub fn is_done(&self) -> bool {
        self.place == Place::Done
    }

    /// Takes one byte of framing, counts it against the limits, and says where it leads.
    fn step(&mut self, byte: u8) -> Result<Place, ChunkError> {
        let from = self.place;
        let next = self.follow(byte)?;
        self.framing_bytes = self.framing_bytes.saturating_add(1);
        let overhead_max = (self.data_bytes / 100)
            .saturating_mul(self.overhead_percent)
            .saturating_add(CHUNK_OVERHEAD_BASE_BYTES);
        if self.framing_bytes > overhead_max {
            return Err(ChunkError("chunk framing out of proportion to its data"));
        }
        if next.is_extension() {
            self.extension_bytes = self.extension_bytes.saturating_add(1);
        }
        if from.is_trailer() {
            self.trailer_bytes = self.trailer_bytes.saturating_add(1);
        }
        if self.extension_bytes > CHUNK_EXTENSION_BYTES_MAX {
            return Err(ChunkError("chunk extensions too long"));
        }
        if self.trailer_bytes > TRAILER_BYTES_MAX {
            return Err(ChunkError("trailer section too long"));
        }
        Ok(next)
    }

    /// The grammar.
    fn follow(&mut self, byte: u8) -> Result<Place, ChunkError> {
        Ok(match (self.place, byte) {
            // chunk-size: hex digits only, at least one, no more than 64 bits.
            (Place::ChunkStart, _) => {
                self.left = 0;
                self.size_digit(0, byte)?
            }
            (Place::SizeDigits(_), b'\r') => Place::SizeLineFeed,
            (Place::SizeDigits(_), b';') => Place::ExtensionNameStart,
            (Place::SizeDigits(digits), _) => self.size_digit(digits, byte)?,

            // chunk-ext: *( ";" token [ "=" ( token / quoted-string ) ] ).
            (Place::ExtensionNameStart | Place::ExtensionName, _) if is(byte, TOKEN) => {
                Place::ExtensionName
            }
            (Place::ExtensionName, b'=') => Place::ExtensionValueStart,
            (Place::ExtensionValueStart, b'"') => Place::ExtensionQuoted,
            (Place::ExtensionValueStart | Place::ExtensionToken, _) if is(byte, TOKEN) => {
                Place::ExtensionToken
            }
            (Place::ExtensionQuoted, b'"') => Place::ExtensionQuotedEnd,
            (Place::ExtensionQuoted, b'\\') => Place::ExtensionQuotedPair,
            (Place::ExtensionQuoted, _) if is(byte, QUOTED) => Place::ExtensionQuoted,
            (Place::ExtensionQuotedPair, _) if is(byte, TEXT) => Place::ExtensionQuoted,
            (
                Place::ExtensionName | Place::ExtensionToken | Place::ExtensionQuotedEnd,
                b'\r' | b';',
            ) => match byte {
                b';' => Place::ExtensionNameStart,
                _ => Place::SizeLineFeed,
            },

            (Place::SizeLineFeed, b'\n') if self.left == 0 => Place::TrailerStart,
            (Place::SizeLineFeed, b'\n') => Place::Data,
            (Place::DataCarriageReturn, b'\r') => Place::DataLineFeed,
            (Place::DataLineFeed, b'\n') => Place::ChunkStart,

            // trailer-section: *( field-line CRLF ), then CRLF.
            (Place::TrailerStart, b'\r') => Place::FinalLineFeed,
            (Place::TrailerStart | Place::TrailerName, _) if is(byte, TOKEN) => Place::TrailerName,
            (Place::TrailerName, b':') => Place::TrailerValue,
            (Place::TrailerValue, b'\r') => Place::TrailerLineFeed,
            (Place::TrailerValue, _) if is(byte, TEXT) => Place::TrailerValue,
            (Place::TrailerLineFeed, b'\n') => Place::TrailerStart,
            (Place::FinalLineFeed, b'\n') => Place::Done,

            (Place::Failed(error), _) => return Err(error),
            (place, _) => return Err(ChunkError(objection(place))),
        })
    }

    /// Takes a digit of the size, of which there were `digits` before.
    fn size_digit(&mut self, digits: u8, byte: u8) -> Result<Place, ChunkError> {
        let digit = char::from(byte).to_digit(16).ok_or(ChunkError("malformed chunk size"))?;
        if digits == CHUNK_SIZE_DIGITS_MAX {
            return Err(ChunkError("chunk size too long"));
        }
        self.left = (self.left << 4) | u64::from(digit);
        Ok(Place::SizeDigits(digits.saturating_add(1)))
    }
}

/// What is wrong with a byte that cannot come at `place`.
fn objection(place: Place) -> &'static str {
    match place {
        Place::DataCarriageReturn | Place::DataLineFeed => "chunk data not ended by CRLF",
        Place::SizeLineFeed | Place::TrailerLineFeed | Place::FinalLineFeed => {
            "carriage return without line feed in chunked body"
        }
        Place::TrailerStart | Place::TrailerName | Place::TrailerValue => "malformed trailer",
        _ => "malformed chunk extension",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of a body that comes in one read.
    fn pieces(mut tracker: ChunkTracker, mut bytes: &[u8]) -> Result<Vec<Piece>, ChunkError> {
        let mut pieces = Vec::new();
        while !bytes.is_empty() && !tracker.is_done() {
            let piece = tracker.next(bytes)?;
            bytes = &bytes[piece.len..];
            pieces.push(piece);
        }
        Ok(pieces)
    }

    fn is_refused(body: &[u8]) -> bool {
        pieces(ChunkTracker::request(), body).is_err()
    }

    #[test]
    fn a_body_comes_apart_into_size_data_crlf_end() {
        use PieceKind::{Data, End, Framing};
        let body = b"5\r\nhello\r\nA;x=\"y\"\r\n0123456789\r\n0\r\nX-T: 1\r\n\r\nGET";
        let kinds: Vec<_> = pieces(ChunkTracker::request(), body)
            .unwrap()
            .iter()
            .map(|piece| (piece.kind, piece.len))
            .collect();
        let first = [(Framing, 3), (Data, 5), (Framing, 2)];
        let second = [(Framing, 9), (Data, 10), (Framing, 2)];
        assert_eq!(kinds, [&first[..], &second, &[(End, 13)]].concat());
    }

    #[test]
    fn the_boundary_and_the_debt_are_known_at_every_step() {
        let mut tracker = ChunkTracker::response();
        let mut seen = Vec::new();
        for piece in [&b""[..], b"5\r", b"\n", b"he", b"llo", b"\r", b"\n", b"0", b"\r\n\r\n"] {
            tracker.next(piece).unwrap();
            seen.push((tracker.at_chunk_boundary(), tracker.data_left(), tracker.is_done()));
        }
        assert_eq!(
            seen,
            [
                (true, 0, false),
                (false, 0, false),
                (false, 5, false),
                (false, 3, false),
                (false, 0, false),
                (false, 0, false),
                (true, 0, false),
                (false, 0, false),
                (false, 0, true),
            ]
        );
    }

    #[test]
    fn sizes_are_hex_digits_that_fit_64_bits() {
        let mut tracker = ChunkTracker::request();
        tracker.next(b"fffffffffffffffd\r\nhello").unwrap();
        assert_eq!(tracker.data_left(), 0xffff_ffff_ffff_fffd);
        assert!(!is_refused(b"0000000000000005\r\nhello\r\n0\r\n\r\n"));
        for size in [
            "",
            " ",
            "+5",
            "-5",
            "0x5",
            "0_5",
            " 5",
            "5 ",
            "5\t",
            "5g",
            "g",
            "5\n",
            "5\r\r",
            "00000000000000005",
            "fffffffffffffffff",
        ] {
            assert!(is_refused(format!("{size}\r\nhello\r\n0\r\n\r\n").as_bytes()), "{size:?}");
        }
    }

    #[test]
    fn extensions_follow_their_grammar() {
        for extension in [";a", ";a=b", ";a=b;c", ";a=\"\"", ";a=\"x;\\\"\t\"", ";a=\"\u{e9}\";b=c"]
        {
            let body = format!("1{extension}\r\nx\r\n0{extension}\r\n\r\n");
            assert!(!is_refused(body.as_bytes()), "{extension:?}");
        }
        for extension in [
            ";",
            ";=b",
            ";a=",
            ";a;",
            ";[=b",
            ";a\0=b",
            ";a\r=b",
            ";a=b c",
            "; a",
            ";a =b",
            ";a= b",
            ";a=\"b",
            ";a=\"b\"c",
            ";a=\"\0\"",
            ";a=\"\\\r\n\"",
            ";a=\"\\\0\"",
            ";\n",
            ";a\n",
            ",a",
        ] {
            assert!(is_refused(format!("1{extension}\r\nx\r\n").as_bytes()), "{extension:?}");
        }
    }

    #[test]
    fn data_and_body_end_with_crlf_and_nothing_else() {
        for body in [
            "1\r\nxy\r\n",
            "1\r\nx\n",
            "1\r\nx\r\r",
            "1\nx\r\n",
            "0\n\n",
            "0\r\n\n",
            "0\r\n\r\r",
            "0\r\nXX\r\n\r\n",
            "0\r\n: v\r\n\r\n",
            "0\r\n a: v\r\n\r\n",
            "0\r\na : v\r\n\r\n",
            "0\r\na: \0\r\n\r\n",
            "0\r\na: v\n\r\n",
            "0\r\na: v\r\n b\r\n\r\n",
        ] {
            assert!(is_refused(body.as_bytes()), "{body:?}");
        }
    }

    #[test]
    fn each_limit_admits_its_amount_and_no_more() {
        let extension = |bytes: u64| format!("1;{}\r\nx\r\n", "e".repeat(bytes as usize - 1));
        assert!(!is_refused(extension(CHUNK_EXTENSION_BYTES_MAX).as_bytes()));
        assert!(is_refused(extension(CHUNK_EXTENSION_BYTES_MAX + 1).as_bytes()));
        let over_two_chunks = [extension(3000), extension(3000)].concat();
        assert!(is_refused(over_two_chunks.as_bytes()), "the limit is that of the whole body");

        let trailer = |bytes: u64| format!("0\r\na:{}\r\n\r\n", "v".repeat(bytes as usize - 6));
        assert!(!is_refused(trailer(TRAILER_BYTES_MAX).as_bytes()));
        assert!(is_refused(trailer(TRAILER_BYTES_MAX + 1).as_bytes()));
    }

    #[test]
    fn framing_stays_in_proportion_to_data() {
        let byte_chunks = "1\r\nx\r\n".repeat(100_000);
        let error = pieces(ChunkTracker::request(), byte_chunks.as_bytes()).unwrap_err();
        assert_eq!(error.reason(), "chunk framing out of proportion to its data");
        assert!(pieces(ChunkTracker::response(), byte_chunks.as_bytes()).is_ok());
        let modest_chunks = format!("18\r\n{}\r\n", "x".repeat(24)).repeat(100_000);
        assert!(!is_refused(modest_chunks.as_bytes()));
        let padded = "000000000000001\r\nx\r\n".repeat(10_000);
        assert!(pieces(ChunkTracker::response(), padded.as_bytes()).is_err());
    }

    #[test]
    fn the_overhead_limit_admits_its_amount_and_no_more() {
        // 20 bytes of framing a chunk, and no data earns any: the first byte too many is certain.
        let body = "0000000000000001\r\nx\r\n".repeat(1000);
        let mut tracker = ChunkTracker::new(0);
        let framing_bytes = body
            .bytes()
            .map_while(|byte| tracker.next(&[byte]).ok())
            .filter(|piece| piece.kind == PieceKind::Framing)
            .count();
        assert_eq!(framing_bytes as u64, CHUNK_OVERHEAD_BASE_BYTES);
    }

    #[test]
    fn an_error_says_what_was_wrong() {
        for (body, reason) in [
            ("x", "malformed chunk size"),
            ("1;\r\n", "malformed chunk extension"),
            ("1\r\nxy", "chunk data not ended by CRLF"),
            ("1\rx", "carriage return without line feed in chunked body"),
            ("0\r\n:", "malformed trailer"),
        ] {
            let error = pieces(ChunkTracker::request(), body.as_bytes()).unwrap_err();
            assert_eq!((error.reason(), error.to_string().as_str()), (reason, reason), "{body:?}");
        }
    }

    #[test]
    fn an_error_is_for_ever() {
        let mut tracker = ChunkTracker::request();
        let error = tracker.next(b"x").unwrap_err();
        assert_eq!(tracker.next(b"5\r\n"), Err(error));
        assert_eq!(tracker.next(b""), Err(error));
    }

    #[test]
    fn nothing_is_taken_after_the_end() {
        let mut tracker = ChunkTracker::request();
        let end = Piece { kind: PieceKind::End, len: 5 };
        assert_eq!(tracker.next(b"0\r\n\r\nGET /"), Ok(end));
        assert_eq!(tracker.next(b"GET /"), Ok(Piece { kind: PieceKind::End, len: 0 }));
    }
}
