//! Chains: what they depend on, and what they do not.

use proptest::prelude::*;

use super::*;

const NONE: Root = Root(0);

fn tokens(root: Root, ids: &[u32], block: usize) -> Vec<BlockHash> {
    let mut out = Vec::new();
    of_tokens(root, ids, block, &mut out);
    out
}

fn text(root: Root, text: &str) -> Vec<BlockHash> {
    let mut out = Vec::new();
    of_text(root, text, &mut out);
    out
}

#[test]
fn only_full_blocks_have_a_hash() {
    let ids: Vec<u32> = (0..50).collect();
    assert_eq!(tokens(NONE, &ids, 16).len(), 3);
    assert_eq!(tokens(NONE, &ids[..15], 16), []);
    assert_eq!(tokens(NONE, &ids, 0), []);
    assert_eq!(tokens(NONE, &ids, BLOCK_TOKENS_MAX + 1), []);
}

#[test]
fn the_chain_is_pinned() {
    // Gateways of one fleet may be of different builds: the hashes are part of the format.
    let ids: Vec<u32> = (0..32).collect();
    let mut first = vec![0_u8; 16];
    (0..16_u32).for_each(|id| first.extend_from_slice(&id.to_le_bytes()));
    let first = xxh3_128(&first);
    let mut second = first.to_le_bytes().to_vec();
    (16..32_u32).for_each(|id| second.extend_from_slice(&id.to_le_bytes()));
    assert_eq!(tokens(NONE, &ids, 16), [first, xxh3_128(&second)]);
}

#[test]
fn a_chain_continues_from_any_of_its_blocks() {
    let ids: Vec<u32> = (0..160).collect();
    let whole = tokens(NONE, &ids, 16);
    for cut in 1..10 {
        let rest = tokens(Root::behind_block(whole[cut - 1]), &ids[16 * cut..], 16);
        assert_eq!(rest, whole[cut..]);
    }
}

#[test]
fn adapter_and_salt_separate() {
    let ids: Vec<u32> = (0..16).collect();
    let roots = [
        Root::new(None, None),
        Root::new(Some(""), None),
        Root::new(None, Some("")),
        Root::new(Some("a"), None),
        Root::new(None, Some("a")),
        Root::new(Some("a"), Some("bc")),
        Root::new(Some("ab"), Some("c")),
    ];
    let hashes: std::collections::HashSet<_> =
        roots.iter().map(|root| tokens(*root, &ids, 16)[0]).collect();
    assert_eq!(hashes.len(), roots.len());
}

#[test]
fn the_last_token_is_never_spared() {
    // 209 tokens in blocks of 32: the captures show cached_tokens 192.
    assert_eq!(reusable_tokens(209, 32), 192);
    assert_eq!(reusable_tokens(192, 32), 160);
    assert_eq!(reusable_tokens(193, 32), 192);
    assert_eq!(reusable_tokens(0, 16), 0);
    assert_eq!(reusable_tokens(5, 0), 0);
}

proptest! {
    #[test]
    fn hashes_agree_up_to_the_first_difference(
        ids in prop::collection::vec(any::<u32>(), 1..200),
        at in any::<prop::sample::Index>(),
        block in 1_usize..40,
    ) {
        let mut other = ids.clone();
        let at = at.index(ids.len());
        other[at] ^= 1;
        let (ours, theirs) = (tokens(NONE, &ids, block), tokens(NONE, &other, block));
        for (i, (a, b)) in ours.iter().zip(&theirs).enumerate() {
            prop_assert_eq!(a == b, i < at / block, "block {}", i);
        }
    }

    #[test]
    fn a_longer_prompt_begins_with_the_hashes_of_a_shorter_one(
        start in ".{0,1500}", more in ".{0,600}",
    ) {
        let whole = text(NONE, &format!("{start}{more}"));
        let part = text(NONE, &start);
        prop_assert!(whole.starts_with(&part));
        prop_assert!(part.len() >= start.len() / (TEXT_CHUNK_BYTES + 4));
    }

    #[test]
    fn a_long_text_has_few_chunks_and_is_known_to_a_thirtieth(bytes in 8_192_usize..2_000_000) {
        let chunks = text(NONE, &"a".repeat(bytes)).len();
        prop_assert!(text_bytes(chunks) <= bytes && bytes < text_bytes(chunks + 1));
        prop_assert!(bytes - text_bytes(chunks) <= bytes / 30);
        prop_assert!(chunks <= 32 * (bytes.ilog2() as usize - 11));
    }
}
