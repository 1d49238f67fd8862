//! The key that a client presents: found in the head, checked for shape, borrowed.
//!
//! `Authorization: Bearer KEY` (RFC 9110 section 11, RFC 6750 section 2.1: the scheme in any case,
//! one space or more) or `x-api-key: KEY`, as Anthropic's clients send it.

use std::fmt;

use super::KeyDigest;

/// Ours have 46 bytes; those of other makers, taken over in a migration, up to 200.
const KEY_BYTES_MAX: usize = 512;

/// A key as presented, borrowed from the request's head. Its content cannot be printed.
#[derive(Clone, Copy)]
pub struct ClientKey<'a>(&'a [u8]);

/// Why a caller is not let in. Clients get the same 401 for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthError {
    /// Neither field is there.
    Missing,
    /// A field is there that cannot hold a key: another scheme, too long, not visible ASCII, or two
    /// different keys.
    Malformed,
    /// No tenant has this key.
    Unknown,
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AuthError::Missing => "no API key was presented",
            AuthError::Malformed => "the API key is malformed",
            AuthError::Unknown => "the API key is not known",
        })
    }
}

impl std::error::Error for AuthError {}

impl<'a> ClientKey<'a> {
    /// Takes the key out of the two fields' values.
    ///
    /// # Errors
    /// [`AuthError::Missing`] or [`AuthError::Malformed`]. Both fields with different keys are
    /// malformed: which of them was meant cannot be known.
    pub fn from_fields(
        authorization: Option<&'a [u8]>,
        x_api_key: Option<&'a [u8]>,
    ) -> Result<ClientKey<'a>, AuthError> {
        let key = match (authorization, x_api_key) {
            (None, None) => return Err(AuthError::Missing),
            (Some(field), None) => bearer(field).ok_or(AuthError::Malformed)?,
            (None, Some(field)) => trim(field),
            (Some(field), Some(other)) => {
                let key = bearer(field).ok_or(AuthError::Malformed)?;
                Some(key).filter(|key| *key == trim(other)).ok_or(AuthError::Malformed)?
            }
        };
        let visible = key.iter().all(u8::is_ascii_graphic);
        if key.is_empty() || key.len() > KEY_BYTES_MAX || !visible {
            return Err(AuthError::Malformed);
        }
        Ok(ClientKey(key))
    }

    /// SHA-256 of the key.
    pub fn digest(self) -> KeyDigest {
        KeyDigest::of(self.0)
    }
}

impl fmt::Debug for ClientKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientKey(..)")
    }
}

fn bearer(field: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = trim(field).split_at_checked(6)?;
    let key = trim(rest);
    (scheme.eq_ignore_ascii_case(b"bearer") && key.len() < rest.len()).then_some(key)
}

/// Without the optional white space around a field's value (RFC 9110 section 5.5).
fn trim(bytes: &[u8]) -> &[u8] {
    let white = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = bytes.iter().position(|byte| !white(byte)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|byte| !white(byte)).map_or(start, |last| last + 1);
    bytes.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(authorization: &str) -> Result<KeyDigest, AuthError> {
        ClientKey::from_fields(Some(authorization.as_bytes()), None).map(ClientKey::digest)
    }

    #[test]
    fn bearer_in_any_case_with_one_space_or_more() {
        let digest = KeyDigest::of(b"sk-1");
        for field in ["Bearer sk-1", "bearer sk-1", "BEARER   sk-1", " Bearer sk-1\t"] {
            assert_eq!(found(field), Ok(digest), "{field:?}");
        }
        for field in ["", "Bearer", "Bearer ", "Bearersk-1", "Basic sk-1", "sk-1", "Bearer a b"] {
            assert_eq!(found(field), Err(AuthError::Malformed), "{field:?}");
        }
    }

    #[test]
    fn the_longest_key_passes_and_one_byte_more_does_not() {
        assert!(found(&format!("Bearer {}", "k".repeat(512))).is_ok());
        assert_eq!(found(&format!("Bearer {}", "k".repeat(513))), Err(AuthError::Malformed));
        assert_eq!(found("Bearer k\u{e9}y"), Err(AuthError::Malformed));
        assert_eq!(found("Bearer k\0y"), Err(AuthError::Malformed));
    }

    #[test]
    fn either_field_but_not_two_different_keys() {
        let key = |a: Option<&'static str>, x: Option<&'static str>| {
            let bytes = |field: Option<&'static str>| field.map(str::as_bytes);
            ClientKey::from_fields(bytes(a), bytes(x)).map(ClientKey::digest)
        };
        let digest = Ok(KeyDigest::of(b"sk-1"));
        assert_eq!(key(None, Some("sk-1")), digest);
        assert_eq!(key(Some("Bearer sk-1"), Some("sk-1")), digest);
        assert_eq!(key(Some("Bearer sk-1"), Some("sk-2")), Err(AuthError::Malformed));
        assert_eq!(key(None, Some(" ")), Err(AuthError::Malformed));
        assert_eq!(key(None, None), Err(AuthError::Missing));
    }

    #[test]
    fn debug_hides_the_key() {
        let key = ClientKey::from_fields(None, Some(b"canary")).unwrap();
        assert_eq!(format!("{key:?}"), "ClientKey(..)");
    }
}
