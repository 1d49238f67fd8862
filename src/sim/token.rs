//! The pseudo tokenizer and the words that a simulated model says.
//!
//! A token of a prompt is four of its bytes, as a little-endian number: `/tokenize`, `/detokenize`
//! and `usage.prompt_tokens` all follow from that one rule and agree by construction. A token of
//! an answer is a word that depends on a tag and on its place only, so that whoever knows the tag
//! can check every answer, token by token and in order.
//!
//! Owns nothing, does no I/O, runs anywhere.

/// Length of every word of [`token_text`], its leading space included.
pub const WORD_BYTES: usize = 7;

/// Bytes of prompt text in one pseudo token.
pub const TOKEN_BYTES: usize = 4;

const CONSONANTS: &[u8; 16] = b"bdfghjklmnprstvz";
const VOWELS: &[u8; 4] = b"aeio";

/// Word `index` (from 0) of the answer to `tag`: a space and three syllables.
///
/// It is splitmix64 of `tag` at step `index + 1`; the lowest 18 bits then choose, six at a time,
/// a consonant (4 bits) and a vowel (2 bits). Choice `c` of prompt `p` of a request with `n`
/// choices uses `tag + p * n + c` (wrapping), where `tag` is that prompt's own.
#[must_use]
pub fn token_text(tag: u64, index: u64) -> [u8; WORD_BYTES] {
    let bits = mix(tag, index.wrapping_add(1));
    let mut word = [b' '; WORD_BYTES];
    for syllable in 0..3 {
        let six = (bits >> (6 * syllable)) as usize;
        word[1 + 2 * syllable] = CONSONANTS[six & 15];
        word[2 + 2 * syllable] = VOWELS[(six >> 4) & 3];
    }
    word
}

/// splitmix64: the `step`-th output of the generator seeded with `seed`.
pub(super) fn mix(seed: u64, step: u64) -> u64 {
    let mut z = seed.wrapping_add(step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Hash of some bytes, eight at a time; not for anything that an adversary feeds.
pub(super) fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let (eights, rest) = bytes.as_chunks::<8>();
    let mut h = seed ^ (bytes.len() as u64);
    for eight in eights {
        h = (h.rotate_left(5) ^ u64::from_le_bytes(*eight)).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(h ^ u64::from_le_bytes(last), 1)
}

/// Number of pseudo tokens of `text`.
pub(super) fn count(text: &[u8]) -> u64 {
    text.len().div_ceil(TOKEN_BYTES) as u64
}

/// The pseudo tokens of `text`; the last one is padded with zero bytes.
pub(super) fn tokens(text: &[u8]) -> impl Iterator<Item = u32> {
    text.chunks(TOKEN_BYTES).map(|piece| {
        let mut four = [0; TOKEN_BYTES];
        four[..piece.len()].copy_from_slice(piece);
        u32::from_le_bytes(four)
    })
}

/// The text of pseudo tokens: the inverse of [`tokens`] for text without zero bytes.
pub(super) fn text(tokens: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut bytes: Vec<u8> = tokens.flat_map(u32::to_le_bytes).collect();
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes
}

/// What a prompt orders of the simulator, as `[[name:value]]` in its last user text; the last one
/// of a name counts.
pub(super) fn directive<'t>(text: &'t [u8], name: &str) -> Option<&'t [u8]> {
    let mark = format!("[[{name}:");
    let start = memchr::memmem::rfind(text, mark.as_bytes())? + mark.len();
    let value = &text[start..];
    Some(&value[..memchr::memmem::find(value, b"]]")?])
}

/// A directive whose value is a number.
pub(super) fn number(text: &[u8], name: &str) -> Option<u64> {
    std::str::from_utf8(directive(text, name)?).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_depend_on_tag_and_place_and_never_change() {
        assert_eq!(&token_text(7, 0), b" lelobi");
        assert_eq!(token_text(7, 3), token_text(7, 3));
        let distinct: std::collections::HashSet<_> = (0..1000).map(|i| token_text(7, i)).collect();
        assert!(distinct.len() > 990, "{}", distinct.len());
        assert_ne!(token_text(7, 0), token_text(8, 0));
    }

    #[test]
    fn pseudo_tokens_come_back_as_the_text() {
        for text_in in ["", "abcd", "Once upon a time", "a\u{e9}\u{20ac} x"] {
            let ids: Vec<u32> = tokens(text_in.as_bytes()).collect();
            assert_eq!(ids.len() as u64, count(text_in.as_bytes()));
            assert_eq!(text(ids.into_iter()), text_in.as_bytes());
        }
    }

    #[test]
    fn the_last_directive_of_a_name_counts() {
        let prompt = b"x [[tag:12]] y [[len:3]] [[tag:99]] [[args:{\"a\":[1]}]]";
        assert_eq!(number(prompt, "tag"), Some(99));
        assert_eq!(number(prompt, "len"), Some(3));
        assert_eq!(directive(prompt, "args"), Some(&b"{\"a\":[1]}"[..]));
        assert_eq!(number(b"[[tag:x]]", "tag"), None);
        assert_eq!(number(b"[[tag:5", "tag"), None);
    }
}
