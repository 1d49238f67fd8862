//! An engine's batch of KV events, read off the wire in one pass without a tree, and without a copy
//! but for the hashes and token ids, which go into reused vectors.
//!
//! A batch is `[time, events, rank]`. An event is a map with `type` (vLLM 0.26 and later) or an
//! array that begins with it (0.11 to 0.20, shorter the older). Fields and events of later versions
//! are read over and counted. Hashes are opaque keys, integers or bytes: nothing is ever recomputed
//! from them. Pure; a batch that is not whole is refused before anything of it is told.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use super::msgpack::{Malformed, Reader, Value};

/// Most blocks of one event: a million tokens in blocks of 16.
const BLOCKS_MAX: usize = 1 << 16;
/// Most blocks of a batch, and most tokens: several such events.
const KEYS_MAX: usize = 1 << 18;
const TOKENS_MAX: usize = 4 << 20;
/// Most events of a batch: each of a step's removals is one.
const EVENTS_MAX: usize = 1 << 16;
/// Events for which room is made before they are seen.
const EVENTS_RESERVED: usize = 256;
/// What the vectors keep after a large batch.
const ROOM_KEPT: usize = 1 << 16;
/// Lengths of a hash that comes as bytes: from xxh3-64 to SHA-512.
const HASH_BYTES: std::ops::RangeInclusive<usize> = 8..=64;

/// What an engine calls a block. Opaque: it matches removals and parents, within one engine.
pub type Key = u64;

/// A whole batch, as read.
pub struct Batch<'e> {
    /// The data-parallel rank that it is of; `None` when it tells none.
    pub rank: Option<u32>,
    /// The names of all blocks in it, those of parents too.
    pub keys: &'e [Key],
    tokens: &'e [u32],
    events: Vec<Fields<'e>>,
}

impl Batch<'_> {
    /// Its events in order.
    pub fn events(&self) -> impl Iterator<Item = Event<'_>> {
        self.events.iter().map(|fields| self.event(fields))
    }

    fn event<'e>(&'e self, fields: &Fields<'e>) -> Event<'e> {
        let gpu = fields.medium.is_none_or(|medium| medium == b"GPU");
        let place = Place { gpu, group: fields.group, kind: fields.spec };
        let keys = fields.keys.clone().and_then(|keys| self.keys.get(keys));
        let tokens = fields.tokens.clone().and_then(|tokens| self.tokens.get(tokens));
        match (fields.kind, keys, tokens) {
            (b"AllBlocksCleared", ..) => Event::Cleared,
            (b"BlockRemoved", Some(keys), _) if !fields.odd => {
                Event::Removed(Removed { keys, place })
            }
            (b"BlockStored", Some(keys), Some(tokens)) if !fields.odd => {
                let whole = keys.len().checked_mul(fields.block_tokens as usize);
                if fields.block_tokens == 0 || whole != Some(tokens.len()) {
                    return Event::Odd;
                }
                let Some(adapter) = adapter(fields) else { return Event::Odd };
                Event::Stored(Stored {
                    keys,
                    parent: fields.parent,
                    tokens,
                    block_tokens: fields.block_tokens,
                    adapter,
                    extra: Extra::new(fields.extra),
                    place,
                })
            }
            (b"BlockStored" | b"BlockRemoved" | b"", ..) => Event::Odd,
            _ => Event::Unknown,
        }
    }
}

/// What happened in an engine's cache.
#[derive(Debug)]
pub enum Event<'e> {
    /// Blocks are held from now on.
    Stored(Stored<'e>),
    /// One copy of each of these blocks is gone.
    Removed(Removed<'e>),
    /// Nothing is held any more.
    Cleared,
    /// An event of a later version.
    Unknown,
    /// An event whose fields are missing or of another type.
    Odd,
}

/// Consecutive blocks of one sequence.
#[derive(Debug)]
pub struct Stored<'e> {
    /// What the engine calls them, in order.
    pub keys: &'e [Key],
    /// The block before the first; `None` at the start of a sequence.
    pub parent: Option<Key>,
    /// Their tokens, `block_tokens` each.
    pub tokens: &'e [u32],
    /// Tokens in a block.
    pub block_tokens: u32,
    /// The adapter that they were computed with.
    pub adapter: Adapter<'e>,
    /// What else their hashes depend on.
    pub extra: Extra<'e>,
    /// Where they are.
    pub place: Place<'e>,
}

/// Blocks that are gone.
#[derive(Debug)]
pub struct Removed<'e> {
    /// What the engine calls them.
    pub keys: &'e [Key],
    /// Where they were.
    pub place: Place<'e>,
}

/// Which of an engine's caches an event is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'e> {
    /// In the GPU's memory, not offloaded.
    pub gpu: bool,
    /// Group of layers that share a block table.
    pub group: u32,
    /// What attention these layers have, when told.
    pub kind: Option<&'e [u8]>,
}

/// The adapter of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adapter<'e> {
    /// None: the base model.
    Base,
    /// By name.
    Named(&'e str),
    /// There is one, but its name is not told (vLLM 0.11).
    Nameless,
}

/// Reads batches; keeps the vectors that they are read into.
#[derive(Default)]
pub struct Decoder {
    keys: Vec<Key>,
    tokens: Vec<u32>,
}

/// The fields of an event, before it is known which event it is.
#[derive(Default)]
struct Fields<'p> {
    kind: &'p [u8],
    odd: bool,
    /// Where its hashes and its tokens are.
    keys: Option<Range<usize>>,
    tokens: Option<Range<usize>>,
    parent: Option<Key>,
    block_tokens: u32,
    has_adapter: bool,
    adapter: Option<&'p [u8]>,
    medium: Option<&'p [u8]>,
    extra: Option<Reader<'p>>,
    group: u32,
    spec: Option<&'p [u8]>,
}

/// Fields of events that are arrays, in order after the name.
const STORED_FIELDS: [&[u8]; 10] = [
    b"block_hashes",
    b"parent_block_hash",
    b"token_ids",
    b"block_size",
    b"lora_id",
    b"medium",
    b"lora_name",
    b"extra_keys",
    b"group_idx",
    b"kv_cache_spec_kind",
];
const REMOVED_FIELDS: [&[u8]; 3] = [b"block_hashes", b"medium", b"group_idx"];

impl Decoder {
    /// Reads the whole of `payload`.
    ///
    /// # Errors
    /// It is not a batch, or not whole: nothing of it is told.
    pub fn read<'e, 'p: 'e>(&'e mut self, payload: &'p [u8]) -> Result<Batch<'e>, Malformed> {
        let mut at = Reader::new(payload);
        self.keys.clear();
        self.keys.shrink_to(ROOM_KEPT);
        self.tokens.clear();
        self.tokens.shrink_to(ROOM_KEPT);
        let parts = at.array()?;
        if parts < 2 {
            return Err(Malformed);
        }
        at.skip()?;
        let count = at.array()?;
        if count > EVENTS_MAX {
            return Err(Malformed);
        }
        let mut events = Vec::with_capacity(count.min(EVENTS_RESERVED));
        for _ in 0..count {
            events.push(self.fields(&mut at)?);
        }
        let mut rank = None;
        for part in 2..parts {
            let mut value = at;
            at.skip()?;
            if part == 2
                && let Value::Integer(told) = value.value()?
            {
                rank = u32::try_from(told).ok();
            }
        }
        if !at.is_at_end() {
            return Err(Malformed);
        }
        Ok(Batch { rank, keys: &self.keys, tokens: &self.tokens, events })
    }

    fn fields<'p>(&mut self, at: &mut Reader<'p>) -> Result<Fields<'p>, Malformed> {
        let mut fields = Fields::default();
        let mut event = *at;
        match event.value()? {
            Value::Map(pairs) => {
                for _ in 0..pairs {
                    let mut name = event;
                    event.skip()?;
                    match name.value()? {
                        Value::Text(name) => self.field(name, &mut event, &mut fields)?,
                        // Names are text in all versions: another kind is read over.
                        _ => event.skip()?,
                    }
                }
                *at = event;
            }
            Value::Array(count) if count > 0 => {
                self.positional(count, &mut event, &mut fields)?;
                *at = event;
            }
            _ => at.skip()?,
        }
        Ok(fields)
    }

    fn positional<'p>(
        &mut self,
        count: usize,
        at: &mut Reader<'p>,
        fields: &mut Fields<'p>,
    ) -> Result<(), Malformed> {
        self.field(b"type", at, fields)?;
        let names: &[&[u8]] = match fields.kind {
            b"BlockStored" => &STORED_FIELDS,
            b"BlockRemoved" => &REMOVED_FIELDS,
            _ => &[],
        };
        for i in 1..count {
            match names.get(i - 1) {
                Some(name) => self.field(name, at, fields)?,
                None => at.skip()?,
            }
        }
        Ok(())
    }

    /// Reads the value of a field. A value of another type leaves the event odd, and is read over.
    fn field<'p>(
        &mut self,
        name: &[u8],
        at: &mut Reader<'p>,
        fields: &mut Fields<'p>,
    ) -> Result<(), Malformed> {
        let mut value = *at;
        let understood = match name {
            b"block_hashes" => {
                let start = self.keys.len();
                let read = keys(&mut value, &mut self.keys);
                fields.keys = Some(start..self.keys.len());
                read
            }
            b"token_ids" => {
                let start = self.tokens.len();
                let read = tokens(&mut value, &mut self.tokens);
                fields.tokens = Some(start..self.tokens.len());
                read
            }
            b"parent_block_hash" => value.value().and_then(key).map(|parent| {
                fields.parent = parent;
                self.keys.extend(parent);
            }),
            b"extra_keys" => {
                fields.extra = Some(value);
                value.skip()
            }
            _ => scalar(name, &mut value, fields),
        };
        match understood {
            Ok(()) => *at = value,
            Err(Malformed) => {
                fields.odd = true;
                at.skip()?;
            }
        }
        Ok(())
    }
}

fn adapter<'p>(fields: &Fields<'p>) -> Option<Adapter<'p>> {
    Some(match fields.adapter {
        Some(name) => Adapter::Named(std::str::from_utf8(name).ok()?),
        None if fields.has_adapter => Adapter::Nameless,
        None => Adapter::Base,
    })
}

/// A field that is one value; an unknown one is read over.
fn scalar<'p>(name: &[u8], at: &mut Reader<'p>, fields: &mut Fields<'p>) -> Result<(), Malformed> {
    match name {
        b"type" => fields.kind = text(at)?.unwrap_or_default(),
        b"block_size" => fields.block_tokens = at.integer()?,
        b"lora_id" => fields.has_adapter = at.value()? != Value::Nil,
        b"lora_name" => fields.adapter = text(at)?,
        b"medium" => fields.medium = text(at)?,
        b"kv_cache_spec_kind" => fields.spec = text(at)?,
        b"group_idx" => {
            fields.group = match at.value()? {
                Value::Nil => 0,
                Value::Integer(group) => u32::try_from(group).map_err(|_| Malformed)?,
                _ => return Err(Malformed),
            }
        }
        _ => at.skip()?,
    }
    Ok(())
}

fn text<'p>(at: &mut Reader<'p>) -> Result<Option<&'p [u8]>, Malformed> {
    match at.value()? {
        Value::Nil => Ok(None),
        Value::Text(text) => Ok(Some(text)),
        _ => Err(Malformed),
    }
}

/// The engine's name of a block: its integer, or a hash of its bytes; `None` for nil.
fn key(value: Value<'_>) -> Result<Option<Key>, Malformed> {
    match value {
        Value::Nil => Ok(None),
        Value::Integer(key) => Ok(Some(key)),
        Value::Bytes(bytes) | Value::Text(bytes) if HASH_BYTES.contains(&bytes.len()) => {
            Ok(Some(xxh3_64(bytes)))
        }
        _ => Err(Malformed),
    }
}

fn keys(at: &mut Reader<'_>, out: &mut Vec<Key>) -> Result<(), Malformed> {
    let count = at.array()?;
    if count > BLOCKS_MAX || out.len() + count > KEYS_MAX {
        return Err(Malformed);
    }
    for _ in 0..count {
        out.push(key(at.value()?)?.ok_or(Malformed)?);
    }
    Ok(())
}

fn tokens(at: &mut Reader<'_>, out: &mut Vec<u32>) -> Result<(), Malformed> {
    let count = at.array()?;
    if out.len() + count > TOKENS_MAX {
        return Err(Malformed);
    }
    out.reserve(count);
    for _ in 0..count {
        out.push(at.integer()?);
    }
    Ok(())
}

/// What the hashes of an event's blocks depend on beside their tokens, block by block.
#[derive(Debug, Clone, Copy)]
pub struct Extra<'e> {
    blocks: Option<(Reader<'e>, usize)>,
}

/// What one block's hash depends on beside tokens and adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockExtra<'e> {
    /// Nothing.
    None,
    /// One text: the cache salt, if the block is the first of a sequence.
    Salt(&'e str),
    /// Images, embeddings, or what we do not know.
    Foreign,
}

impl<'e> Extra<'e> {
    fn new(field: Option<Reader<'e>>) -> Extra<'e> {
        let blocks = field.and_then(|mut at| match at.value() {
            Ok(Value::Array(count)) => Some((at, count)),
            _ => None,
        });
        Extra { blocks }
    }

    /// The next block's. Its adapter's name is among its keys and is left out (vLLM 0.20 to 0.32:
    /// untagged texts, the adapter first; tagged ones are understood too).
    pub fn next(&mut self, adapter: Adapter<'_>) -> BlockExtra<'e> {
        let Some((at, left)) = self.blocks.as_mut() else { return BlockExtra::None };
        let Some(fewer) = left.checked_sub(1) else { return BlockExtra::None };
        *left = fewer;
        let mut block = *at;
        // The form was checked with the batch: this cannot fail.
        if at.skip().is_err() {
            return BlockExtra::Foreign;
        }
        block_extra(&mut block, adapter).unwrap_or(BlockExtra::Foreign)
    }
}

fn block_extra<'e>(at: &mut Reader<'e>, adapter: Adapter<'_>) -> Option<BlockExtra<'e>> {
    let count = match at.value().ok()? {
        Value::Nil => 0,
        Value::Array(count) => count,
        _ => return None,
    };
    let mut salt = None;
    for i in 0..count {
        let item = match at.value().ok()? {
            Value::Text(name)
                if i == 0 && adapter == Adapter::Named(str::from_utf8(name).ok()?) =>
            {
                continue;
            }
            Value::Text(text) => text,
            Value::Array(parts) if parts > 0 => match (at.value().ok()?, parts) {
                (Value::Text(b"lora"), _) => {
                    (1..parts).try_for_each(|_| at.skip()).ok()?;
                    continue;
                }
                (Value::Text(b"cache_salt"), 2) => match at.value().ok()? {
                    Value::Text(text) => text,
                    _ => return None,
                },
                _ => return None,
            },
            _ => return None,
        };
        if salt.replace(str::from_utf8(item).ok()?).is_some() {
            return None;
        }
    }
    Some(salt.map_or(BlockExtra::None, BlockExtra::Salt))
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
