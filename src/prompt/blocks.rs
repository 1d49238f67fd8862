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

/// Bytes of text in one of the first chunks, where there is no tokenizer: some sixty tokens of
/// English. A shared prefix that is worth a detour has many of them.
pub const TEXT_CHUNK_BYTES: usize = 256;

/// Chunks until the next are twice as long: a prefix is known to one part in so many, and a long
/// text costs the index some hundreds of entries.
const CHUNKS_PER_LENGTH: usize = 32;

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

/// Bytes of the chunk of text with this number: [`TEXT_CHUNK_BYTES`] for the first 64, then twice
/// as many every [`CHUNKS_PER_LENGTH`] chunks.
fn chunk_bytes(number: usize) -> usize {
    // Texts of 4 GiB have 768 chunks: the shift stays far below 64.
    TEXT_CHUNK_BYTES << (number / CHUNKS_PER_LENGTH).saturating_sub(1).min(32)
}

/// Bytes of text in the first `chunks` chunks, but for the few that end a character.
#[must_use]
pub fn text_bytes(chunks: usize) -> usize {
    let lengths = (chunks / CHUNKS_PER_LENGTH).min(32);
    let whole: usize = (0..lengths)
        .map(|length| chunk_bytes(length * CHUNKS_PER_LENGTH) * CHUNKS_PER_LENGTH)
        .sum();
    whole.saturating_add((chunks - lengths * CHUNKS_PER_LENGTH).saturating_mul(chunk_bytes(chunks)))
}

/// Appends the hash of each full chunk of `text` to `out`: of about as many bytes as
/// [`text_bytes`] tells, ended at a character's end, so that a chunk depends on nothing behind it.
pub fn of_text(root: Root, text: &str, out: &mut Vec<BlockHash>) {
    let mut parent = root.0;
    let mut rest = text;
    for number in 0.. {
        let least = chunk_bytes(number);
        let end = (least..=rest.len()).find(|&end| rest.is_char_boundary(end));
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
