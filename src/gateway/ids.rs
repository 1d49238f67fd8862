//! Ids of requests: the caller's own when it is fit, else a fresh one.

use super::core::Core;
use crate::usage::SmallId;

/// Longest id of a caller's that is kept.
const REQUEST_ID_BYTES_MAX: usize = 64;

/// Is a caller's id fit to be passed on, logged and recorded?
pub(super) fn is_valid_id(id: &[u8]) -> bool {
    let fit = |b: &u8| b.is_ascii_alphanumeric() || b"-_.:/+=@".contains(b);
    (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.iter().all(fit)
}

/// The 32 hex digits of 128 bits.
pub(super) fn hex(bits: u128) -> [u8; 32] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    for (i, digit) in text.iter_mut().enumerate() {
        *digit = HEX.get((bits >> (124 - i * 4)) as usize & 15).copied().unwrap_or(b'0');
    }
    text
}

/// A fresh id: 128 random bits in hex. Unique, not secret.
pub(super) fn new_id(core: &Core) -> SmallId {
    let text = hex(u128::from(core.random()) << 64 | u128::from(core.random()));
    // Hex digits are UTF-8, and 32 of them fit.
    std::str::from_utf8(&text).ok().and_then(SmallId::new).unwrap_or_default()
}
