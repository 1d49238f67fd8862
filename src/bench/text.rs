//! The texts of prompts: words of three letters and a space. Pure.
//!
//! Four bytes are a token for the simulator, and each of these words is one token for the
//! tokenizers of Llama, Qwen and GPT, so that a prompt is about as long as it was asked to be
//! everywhere; the server's own count is in the report.

use crate::plan::random::mix;

/// Bytes of a token.
pub(super) const TOKEN_BYTES: usize = 4;

/// One for each value of six bits.
const WORDS: [&[u8; TOKEN_BYTES]; 64] = [
    b"the ", b"and ", b"for ", b"are ", b"but ", b"not ", b"you ", b"all ", b"any ", b"can ",
    b"had ", b"her ", b"was ", b"one ", b"our ", b"out ", b"day ", b"get ", b"has ", b"him ",
    b"his ", b"how ", b"man ", b"new ", b"now ", b"old ", b"see ", b"two ", b"way ", b"who ",
    b"boy ", b"did ", b"its ", b"let ", b"put ", b"say ", b"she ", b"too ", b"use ", b"act ",
    b"add ", b"age ", b"ago ", b"air ", b"arm ", b"art ", b"ask ", b"bad ", b"bag ", b"bar ",
    b"bed ", b"big ", b"bit ", b"box ", b"bus ", b"buy ", b"car ", b"cat ", b"cup ", b"cut ",
    b"dog ", b"eat ", b"end ", b"far ",
];

/// Adds `bytes` of the text that `key` names: the same key gives the same text.
pub(super) fn append(key: u64, bytes: usize, out: &mut Vec<u8>) {
    let end = out.len() + bytes;
    let mut state = key;
    while out.len() < end {
        state = mix(state);
        // Ten words of six bits are in it.
        for word in 0..10 {
            let six = (state >> (6 * word)) & 63;
            out.extend_from_slice(WORDS[six as usize]);
        }
    }
    out.truncate(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(key: u64, bytes: usize) -> Vec<u8> {
        let mut out = b"x".to_vec();
        append(key, bytes, &mut out);
        out.split_off(1)
    }

    #[test]
    fn a_key_names_a_text_and_the_beginning_of_longer_ones() {
        assert_eq!(text(7, 4000), text(7, 9000)[..4000]);
        assert_ne!(text(7, 64), text(8, 64));
        assert_eq!((text(7, 0).len(), text(7, 1).len(), text(7, 403).len()), (0, 1, 403));
        let plain = |b: &u8| b.is_ascii_lowercase() || *b == b' ';
        assert!(text(9, 4000).iter().all(plain));
    }

    #[test]
    fn no_word_is_there_twice() {
        let words: std::collections::HashSet<_> = WORDS.iter().collect();
        assert_eq!(words.len(), 64);
    }
}
