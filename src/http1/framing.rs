//! How long is the body: the rules of RFC 9112 6.3, numbered as there, right above the code that
//! decides. Stateless. Where the RFC lets a recipient repair a doubtful length, we refuse.

use super::fields::Once;
use super::{HeadError, Version};

/// Length of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// No body; the next byte begins the next request.
    None,
    /// This many bytes, from Content-Length.
    Length(u64),
    /// Until the last chunk: give the bytes to a [`ChunkTracker`](super::ChunkTracker).
    Chunked,
}

/// Length of a response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseBody {
    /// No body, whatever the fields say.
    None,
    /// This many bytes, from Content-Length.
    Length(u64),
    /// Until the last chunk: give the bytes to a [`ChunkTracker`](super::ChunkTracker).
    Chunked,
    /// Until the server closes; a cut-off cannot be told from an end.
    UntilClose,
}

/// The two fields that frame a body, as found in a head.
#[derive(Clone, Copy, Default)]
pub(super) struct FramingFields<'h> {
    pub(super) content_length: Once<'h>,
    pub(super) transfer_encoding: Once<'h>,
}

/// What the two fields say, before the kind of message is looked at.
enum Declared {
    Nothing,
    Length(u64),
    Chunked,
}

impl FramingFields<'_> {
    fn declared(self, version: Version) -> Result<Declared, HeadError> {
        match (self.transfer_encoding.get(), self.content_length.get()) {
            // 3. Both fields: an attempt at smuggling until proven otherwise. The RFC would let
            //    Transfer-Encoding win; 6.1 allows to refuse.
            (Some(_), Some(_)) => {
                Err(HeadError::BadRequest("both Transfer-Encoding and Content-Length"))
            }
            // 6.1: Transfer-Encoding in HTTP/1.0 is faulty framing.
            (Some(_), None) if version == Version::Http10 => {
                Err(HeadError::BadRequest("Transfer-Encoding in HTTP/1.0"))
            }
            // 4. Transfer-Encoding: `chunked` must be final; we take it alone. A second line is
            //    refused by `Once`, all else by `refuse_coding`.
            (Some(coding), None) if coding.eq_ignore_ascii_case(b"chunked") => {
                Ok(Declared::Chunked)
            }
            (Some(coding), None) => Err(refuse_coding(coding)),
            // 5. Invalid Content-Length: unrecoverable. A list of equal values may be repaired;
            //    we refuse it.
            // 6. Valid Content-Length: that many bytes.
            (None, Some(digits)) => parse_content_length(digits).map(Declared::Length),
            (None, None) => Ok(Declared::Nothing),
        }
    }

    /// Length of the body of a request.
    pub(super) fn of_request(self, version: Version) -> Result<BodyLength, HeadError> {
        Ok(match self.declared(version)? {
            Declared::Chunked => BodyLength::Chunked,
            Declared::Length(length) => BodyLength::Length(length),
            // 7. A request without either field has no body.
            Declared::Nothing => BodyLength::None,
        })
    }

    /// Length of the body of a response, and whether its fields agree with a body that its status
    /// rules out (if not, bytes that nobody expects may follow: do not reuse the connection).
    pub(super) fn of_response(
        self,
        version: Version,
        status: u16,
        request_method_is_head: bool,
    ) -> Result<(ResponseBody, bool), HeadError> {
        let declared = self.declared(version)?;
        // 1. HEAD, 1xx, 204 and 304: ends with the head, regardless of the fields. To HEAD and 304
        //    they tell of another response; in 1xx and 204 they MUST NOT be (6.1, 9110 8.6).
        if request_method_is_head || status == 304 {
            return Ok((ResponseBody::None, true));
        }
        if matches!(status, 100..=199 | 204) {
            let silent = matches!(declared, Declared::Nothing | Declared::Length(0));
            return Ok((ResponseBody::None, silent));
        }
        // 2. 2xx to CONNECT: never, since we never send CONNECT.
        Ok(match declared {
            Declared::Chunked => (ResponseBody::Chunked, true),
            Declared::Length(length) => (ResponseBody::Length(length), true),
            // 8. A response without either field ends with the connection.
            Declared::Nothing => (ResponseBody::UntilClose, true),
        })
    }
}

/// RFC 9112 6.1: 501 for a coding that is sound but not supported, that is, registered codings
/// before a final `chunked`. In any other text the sender's idea of the body's end is in doubt.
fn refuse_coding(codings: &[u8]) -> HeadError {
    let registered = |coding: &[u8]| {
        ["gzip", "x-gzip", "deflate", "compress", "x-compress"]
            .iter()
            .any(|name| coding.eq_ignore_ascii_case(name.as_bytes()))
    };
    let mut from_last = codings.rsplit(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    let chunked_last = from_last.next().is_some_and(|last| last.eq_ignore_ascii_case(b"chunked"));
    match chunked_last && from_last.all(registered) {
        true => HeadError::CodingUnsupported,
        false => HeadError::BadRequest("Transfer-Encoding is not chunked"),
    }
}

/// RFC 9110 8.6: `1*DIGIT`. No sign, no space, no list; no leading zero, which some read as octal;
/// and no more than 64 bits hold.
fn parse_content_length(digits: &[u8]) -> Result<u64, HeadError> {
    const INVALID: HeadError = HeadError::BadRequest("invalid Content-Length");
    if digits.is_empty() || (digits.len() > 1 && digits.starts_with(b"0")) {
        return Err(INVALID);
    }
    digits.iter().try_fold(0_u64, |length, &byte| {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit <= 9).ok_or(INVALID)?;
        length.checked_mul(10).and_then(|tens| tens.checked_add(u64::from(digit))).ok_or(INVALID)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields<'h>(te: Option<&'h str>, cl: Option<&'h str>) -> FramingFields<'h> {
        let mut fields = FramingFields::default();
        if let Some(te) = te {
            fields.transfer_encoding.set(te.as_bytes()).unwrap();
        }
        if let Some(cl) = cl {
            fields.content_length.set(cl.as_bytes()).unwrap();
        }
        fields
    }

    #[test]
    fn content_length_is_plain_digits_that_fit_64_bits() {
        for (digits, length) in [("0", 0), ("7", 7), ("10", 10), ("18446744073709551615", u64::MAX)]
        {
            assert_eq!(parse_content_length(digits.as_bytes()), Ok(length));
        }
        for digits in [
            "",
            "00",
            "07",
            "+5",
            "-5",
            "5 5",
            "5,5",
            "5, 5",
            "0x5",
            "0o5",
            "1_0",
            "5Z",
            "5.0",
            "\u{a0}5",
            "18446744073709551616",
            "99999999999999999999999999",
        ] {
            assert!(parse_content_length(digits.as_bytes()).is_err(), "{digits:?}");
        }
    }

    #[test]
    fn chunked_alone_and_only_in_http_1_1() {
        let request = |te, cl, version| fields(te, cl).of_request(version);
        assert_eq!(request(Some("ChUnKeD"), None, Version::Http11), Ok(BodyLength::Chunked));
        for te in ["", "gzip", "identity", "chunked, chunked", "gzip, chunked", "chunked;a=b"] {
            assert!(request(Some(te), None, Version::Http11).is_err(), "{te:?}");
        }
        for te in ["gzip, chunked", "x-gzip,deflate , Chunked"] {
            let refused = request(Some(te), None, Version::Http11);
            assert_eq!(refused, Err(HeadError::CodingUnsupported), "{te:?}");
        }
        for te in ["chunked, gzip", ",chunked", "chunked,", "br, chunked", "xchunked"] {
            let refused = request(Some(te), None, Version::Http11);
            assert!(matches!(refused, Err(HeadError::BadRequest(_))), "{te:?}");
        }
        assert!(request(Some("chunked"), None, Version::Http10).is_err());
        assert!(request(Some("chunked"), Some("4"), Version::Http11).is_err());
        assert_eq!(request(None, None, Version::Http11), Ok(BodyLength::None));
        assert_eq!(request(None, Some("4"), Version::Http10), Ok(BodyLength::Length(4)));
    }

    #[test]
    fn some_responses_have_no_body_whatever_they_say() {
        let response =
            |te, cl, status, head| fields(te, cl).of_response(Version::Http11, status, head);
        assert_eq!(response(None, Some("5"), 200, true), Ok((ResponseBody::None, true)));
        assert_eq!(response(Some("chunked"), None, 304, false), Ok((ResponseBody::None, true)));
        for status in [100, 103, 199, 204] {
            assert_eq!(response(None, None, status, false), Ok((ResponseBody::None, true)));
            assert_eq!(response(None, Some("5"), status, false), Ok((ResponseBody::None, false)));
            let chunked = response(Some("chunked"), None, status, false);
            assert_eq!(chunked, Ok((ResponseBody::None, false)));
        }
        assert_eq!(response(None, None, 200, false), Ok((ResponseBody::UntilClose, true)));
        assert!(response(Some("chunked"), Some("5"), 304, false).is_err());
    }
}
