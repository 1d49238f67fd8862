//! Chained hashes of a prompt's blocks: two prompts share the hash of block `i` exactly when they
//! share everything before its end, their adapter and their cache salt.
//!
//! The engine's own hashes differ by version, algorithm and seed, so they are never recomputed;
//! these are ours: xxh3-128 of the parent's hash and the block's token ids (little-endian). The
//! chain starts from adapter and salt, as the engine starts its own. xxh3 is not collision
//! resistant: a crafted collision may cost its maker a detour, never another caller's answer.
//! Pure; allocates only in the caller's vector.

use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};

/// Hash of one block and of all before it.
pub type BlockHash = u128;

/// Bytes of text in one chunk, where there is no tokenizer: some sixty tokens of English. A shared
/// prefix that is worth a detour has many of them.
pub const TEXT_CHUNK_BYTES: usize = 256;

/// Largest block that an engine may use, in tokens.
pub const BLOCK_TOKENS_MAX: usize = 4096;

/// What a chain starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root(BlockHash);

impl Root {
    /// The start for an adapter and a cache salt; each `None` when there is none.
    #[must_use]
    pub fn new(adapter: Option<&str>, salt: Option<&str>) -> Root {
        if adapter.is_none() && salt.is_none() {
            return Root(0);
        }
        let mut bytes = Vec::with_capacity(64);
        for part in [adapter, salt] {
            // The length keeps ("a", "bc") from ("ab", "c"), and none from empty.
            let length = part.map_or(u64::MAX, |part| part.len() as u64);
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(part.unwrap_or_default().as_bytes());
        }
        Root(xxh3_128(&bytes))
    }

    /// The start behind a block: what continues from it is one chain with what led to it.
    #[must_use]
    pub fn behind_block(block: BlockHash) -> Root {
        Root(block)
    }

    /// The start behind `bytes` that are compared as a whole: the tools of a chat, which a
    /// template writes before its messages.
    #[must_use]
    pub fn behind(self, bytes: &[u8]) -> Root {
        let mut all = Vec::with_capacity(16 + bytes.len());
        all.extend_from_slice(&self.0.to_le_bytes());
        all.extend_from_slice(bytes);
        Root(xxh3_128(&all))
    }
}

/// Appends the hash of each full block of `block_tokens` in `ids` to `out`. Nothing for a block
/// size of 0 or above [`BLOCK_TOKENS_MAX`].
pub fn of_tokens(root: Root, ids: &[u32], block_tokens: usize, out: &mut Vec<BlockHash>) {
    if !(1..=BLOCK_TOKENS_MAX).contains(&block_tokens) {
        return;
    }
    let mut parent = root.0;
    // Blocks of usual sizes need no allocation: an engine's events come one block at a time.
    let (mut few, mut many) = ([0; 16 + 4 * 32], Vec::new());
    let bytes = match few.get_mut(..16 + 4 * block_tokens) {
        Some(bytes) => bytes,
        None => {
            many.resize(16 + 4 * block_tokens, 0);
            many.as_mut_slice()
        }
    };
    out.reserve(ids.len() / block_tokens);
    for block in ids.chunks_exact(block_tokens) {
        // In place and of fixed length, so that it is one copy and not a push for each token.
        let Some((head, tail)) = bytes.split_first_chunk_mut::<16>() else { return };
        *head = parent.to_le_bytes();
        for (place, id) in tail.as_chunks_mut::<4>().0.iter_mut().zip(block) {
            *place = id.to_le_bytes();
        }
        parent = xxh3_128(bytes);
        out.push(parent);
    }
}

/// Appends the hash of each full chunk of `text` to `out`: about [`TEXT_CHUNK_BYTES`] each, ended
/// at a character's end, so that a chunk depends on nothing behind it.
pub fn of_text(root: Root, text: &str, out: &mut Vec<BlockHash>) {
    let mut parent = root.0;
    let mut rest = text;
    out.reserve(text.len() / TEXT_CHUNK_BYTES);
    loop {
        let end = (TEXT_CHUNK_BYTES..=rest.len()).find(|&end| rest.is_char_boundary(end));
        let Some((chunk, behind)) = end.and_then(|end| rest.split_at_checked(end)) else { return };
        // The parent as seed: nothing is copied.
        parent = xxh3_128_with_seed(chunk.as_bytes(), (parent ^ parent >> 64) as u64);
        out.push(parent);
        rest = behind;
    }
}

/// Tokens of a prompt of `tokens` that a cache can spare the engine at most: whole blocks, and
/// never the last token, whose logits are needed (vLLM 0.32).
#[must_use]
pub fn reusable_tokens(tokens: u64, block_tokens: u64) -> u64 {
    let most = tokens.saturating_sub(1);
    most.checked_rem(block_tokens).map_or(0, |rest| most - rest)
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
