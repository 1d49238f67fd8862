//! Writes KV events as engines do: MessagePack values, events in both of their forms, batches.

/// A MessagePack value.
#[derive(Clone, Debug)]
pub(crate) enum V {
    Nil,
    Int(u64),
    Text(&'static str),
    Bytes(Vec<u8>),
    Array(Vec<V>),
    Map(Vec<(&'static str, V)>),
    Float(f64),
}

impl V {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            V::Nil => out.push(0xc0),
            V::Int(value) => integer(*value, out),
            V::Float(value) => {
                out.push(0xcb);
                out.extend_from_slice(&value.to_be_bytes());
            }
            V::Text(text) => {
                head(out, 0xa0, 32, 0xda, text.len());
                out.extend_from_slice(text.as_bytes());
            }
            V::Bytes(bytes) => {
                out.extend_from_slice(&[0xc5, (bytes.len() >> 8) as u8, bytes.len() as u8]);
                out.extend_from_slice(bytes);
            }
            V::Array(values) => {
                head(out, 0x90, 16, 0xdc, values.len());
                values.iter().for_each(|value| value.write(out));
            }
            V::Map(pairs) => {
                head(out, 0x80, 16, 0xde, pairs.len());
                for (name, value) in pairs {
                    V::Text(name).write(out);
                    value.write(out);
                }
            }
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }
}

fn head(out: &mut Vec<u8>, short: u8, below: usize, long: u8, length: usize) {
    match length {
        _ if length < below => out.push(short | length as u8),
        _ if length < 1 << 16 => out.extend_from_slice(&[long, (length >> 8) as u8, length as u8]),
        _ => {
            out.push(long + 1);
            out.extend_from_slice(&(length as u32).to_be_bytes());
        }
    }
}

fn integer(value: u64, out: &mut Vec<u8>) {
    match value {
        0..=0x7f => out.push(value as u8),
        0x80..=0xff => out.extend_from_slice(&[0xcc, value as u8]),
        0x100..=0xffff => {
            out.push(0xcd);
            out.extend_from_slice(&(value as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(0xce);
            out.extend_from_slice(&(value as u32).to_be_bytes());
        }
        _ => {
            out.push(0xcf);
            out.extend_from_slice(&value.to_be_bytes());
        }
    }
}

/// Which versions' form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// vLLM 0.11: arrays that end with the medium.
    Short,
    /// vLLM 0.20: arrays.
    Array,
    /// vLLM 0.26 and later: maps.
    Map,
}

/// A BlockStored before it is written.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) keys: Vec<V>,
    pub(crate) parent: V,
    pub(crate) tokens: Vec<u32>,
    pub(crate) block: u64,
    pub(crate) lora: Option<&'static str>,
    pub(crate) medium: V,
    pub(crate) extra: V,
    pub(crate) group: u64,
    pub(crate) kind: &'static str,
}

impl Stored {
    /// `keys` after `parent` (0: none), a block of `tokens` each.
    pub(crate) fn new(keys: &[u64], parent: u64, block: u64, tokens: &[u32]) -> Stored {
        Stored {
            keys: keys.iter().map(|key| V::Int(*key)).collect(),
            parent: if parent == 0 { V::Nil } else { V::Int(parent) },
            tokens: tokens.to_vec(),
            block,
            lora: None,
            medium: V::Text("GPU"),
            extra: V::Array(vec![V::Nil; keys.len()]),
            group: 0,
            kind: "full_attention",
        }
    }

    pub(crate) fn event(&self, form: Form) -> V {
        let lora_id = self.lora.map_or(V::Nil, |_| V::Int(1));
        let tokens = self.tokens.iter().map(|id| V::Int(u64::from(*id))).collect();
        let mut fields = vec![
            ("type", V::Text("BlockStored")),
            ("block_hashes", V::Array(self.keys.clone())),
            ("parent_block_hash", self.parent.clone()),
            ("token_ids", V::Array(tokens)),
            ("block_size", V::Int(self.block)),
            ("lora_id", lora_id),
            ("medium", self.medium.clone()),
            ("lora_name", self.lora.map_or(V::Nil, V::Text)),
            ("extra_keys", self.extra.clone()),
            ("group_idx", V::Int(self.group)),
            ("kv_cache_spec_kind", V::Text(self.kind)),
        ];
        match form {
            Form::Short => fields.truncate(7),
            Form::Array => fields.truncate(10),
            Form::Map => return V::Map(fields),
        }
        V::Array(fields.into_iter().map(|(_, value)| value).collect())
    }
}

pub(crate) fn removed(keys: &[u64], form: Form) -> V {
    let keys = V::Array(keys.iter().map(|key| V::Int(*key)).collect());
    let (name, medium) = (V::Text("BlockRemoved"), V::Text("GPU"));
    match form {
        Form::Short | Form::Array => V::Array(vec![name, keys, medium]),
        Form::Map => V::Map(vec![("type", name), ("block_hashes", keys), ("medium", medium)]),
    }
}

pub(crate) fn cleared(form: Form) -> V {
    match form {
        Form::Map => V::Map(vec![("type", V::Text("AllBlocksCleared"))]),
        _ => V::Array(vec![V::Text("AllBlocksCleared")]),
    }
}

/// The payload of a message.
pub(crate) fn batch(events: Vec<V>, rank: u64) -> Vec<u8> {
    V::Array(vec![V::Float(1.5e9), V::Array(events), V::Int(rank)]).bytes()
}

/// Recorded messages: sequence number and payload.
pub(crate) fn recorded(text: &str) -> Vec<(u64, Vec<u8>)> {
    let bytes = |hex: &str| -> Vec<u8> {
        let digits = hex.as_bytes().chunks_exact(2);
        digits.map(|d| u8::from_str_radix(str::from_utf8(d).unwrap(), 16).unwrap()).collect()
    };
    let lines = text.lines().map(|line| line.split_once(' ').unwrap());
    lines.map(|(seq, payload)| (u64::from_str_radix(seq, 16).unwrap(), bytes(payload))).collect()
}
