//! Types for what must never be shown: upstream keys, and digests of tenants' keys.
//!
//! Neither has `Display`; `Debug` shows a stand-in. They live here and not in `tenants`, since the
//! configuration holds them and imports run downwards.

use std::fmt;

use sha2::{Digest, Sha256};

/// A configured secret (an upstream key, a store's URL). Only [`Secret::expose`] gives it out.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// The secret itself: for the one place that sends it, never for a message.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// SHA-256 of a tenant's key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyDigest(pub [u8; 32]);

/// The public name of a key: the first 8 hex digits of its digest. Too short to find the key by.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId([u8; 8]);

impl KeyDigest {
    /// The digest of a presented key.
    pub fn of(key: &[u8]) -> KeyDigest {
        KeyDigest(Sha256::digest(key).into())
    }

    /// Parses `sha256:` and 64 hex digits of either case; `None` for anything else.
    pub fn parse(text: &str) -> Option<KeyDigest> {
        let hex = text.strip_prefix("sha256:")?.as_bytes();
        let mut digest = [0u8; 32];
        if hex.len() != 64 {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(hex.chunks_exact(2)) {
            let digit = |c: u8| char::from(c).to_digit(16);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Some(KeyDigest(digest))
    }

    /// The line for the configuration file: `sha256:` and 64 hex digits.
    pub fn to_text(&self) -> String {
        let mut text = String::from("sha256:");
        for byte in self.0 {
            text.push_str(&format!("{byte:02x}"));
        }
        text
    }

    /// The key's public name.
    pub fn key_id(&self) -> KeyId {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut id = [0u8; 8];
        for (pair, byte) in id.chunks_exact_mut(2).zip(self.0) {
            pair[0] = HEX[usize::from(byte >> 4)];
            pair[1] = HEX[usize::from(byte & 15)];
        }
        KeyId(id)
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyDigest({}..)", self.key_id().as_str())
    }
}

impl KeyId {
    /// The id of a caller without a key, in open mode: "-".
    pub const OPEN: KeyId = KeyId(*b"-\0\0\0\0\0\0\0");

    /// 8 hex digits, or "-".
    pub fn as_str(&self) -> &str {
        let text = if self.0[0] == b'-' { &self.0[..1] } else { &self.0[..] };
        std::str::from_utf8(text).unwrap_or("-")
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_sha256_and_round_trips() {
        // FIPS 180-2, appendix B.1.
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let digest = KeyDigest::of(b"abc");
        assert_eq!(digest.to_text(), text);
        assert!(KeyDigest::parse(text) == Some(digest));
        assert!(KeyDigest::parse(&text.to_uppercase().replace("SHA", "sha")) == Some(digest));
        assert_eq!(digest.key_id().as_str(), "ba7816bf");
        assert_eq!(KeyId::OPEN.as_str(), "-");
    }

    #[test]
    fn malformed_digests_are_none() {
        for text in ["", "sha256:", "sha256:abcd", &"a".repeat(71)] {
            assert!(KeyDigest::parse(text).is_none(), "{text}");
        }
        assert!(KeyDigest::parse(&format!("sha256:{}g", "a".repeat(63))).is_none());
        assert!(KeyDigest::parse(&format!("sha256:{}", "é".repeat(32))).is_none());
    }

    #[test]
    fn debug_shows_a_stand_in() {
        assert_eq!(format!("{:?}", Secret::new("canary".into())), "Secret(***)");
        assert_eq!(format!("{:?}", KeyDigest::of(b"abc")), "KeyDigest(ba7816bf..)");
    }
}
