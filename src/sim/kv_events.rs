//! What a replica publishes about its prefix cache, in the words of vLLM 0.32: MessagePack maps in
//! a batch for each step of the engine.
//!
//! Remembers of each request what its events tell (tokens, adapter, salt) until the engine has said
//! its last about it. On the replica's thread; the sockets are those of `kv_sockets`.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::TcpListener;
use std::rc::Rc;

use super::cache::Part;
use super::config::SimConfig;
use super::kv_sockets::{self, BUFFER_STEPS, Publisher};
use super::{date, token};
use crate::engine::{Chain, KvEvent};
use crate::net;
use crate::prompt::blocks::BlockHash;
use crate::zmtp::Role;

/// What is told of the blocks of a request.
struct Told {
    ids: Vec<u32>,
    chain: Chain,
    /// Number and name of the adapter.
    lora: Option<(u32, String)>,
    salt: Option<String>,
}

/// See the module.
pub(super) struct KvEvents {
    pub(super) publisher: Rc<Publisher>,
    /// The answer of `/kv_event_sources`.
    pub(super) sources: String,
    block_tokens: usize,
    told: RefCell<HashMap<u64, Told>>,
    /// Requests that are over, with the engine's steps when they ended.
    over: RefCell<VecDeque<(u64, u64)>>,
}

impl KvEvents {
    /// Opens both ports.
    pub(super) fn open(
        events: TcpListener,
        replay: TcpListener,
        config: &SimConfig,
    ) -> io::Result<KvEvents> {
        let topic = "kv-events";
        let publisher = Rc::new(Publisher::new(topic));
        let sources = format!(
            "{{\"0\":{{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\
             \"endpoint\":\"tcp://*:{}\",\"replay_endpoint\":\"tcp://{}\",\
             \"buffer_steps\":{BUFFER_STEPS},\"hwm\":100000,\"max_queue_size\":100000,\
             \"topic\":\"{topic}\"}}}}",
            events.local_addr()?.port(),
            replay.local_addr()?
        );
        net::spawn(kv_sockets::keep(Rc::clone(&publisher), Role::Pub, events));
        net::spawn(kv_sockets::keep(Rc::clone(&publisher), Role::Router, replay));
        let block_tokens = config.block_tokens as usize;
        let (told, over) = (RefCell::default(), RefCell::default());
        Ok(KvEvents { publisher, sources, block_tokens, told, over })
    }

    /// A request begins whose blocks are those of `part`.
    pub(super) fn begins(
        &self,
        id: u64,
        part: &Part,
        lora: Option<(u32, &str)>,
        salt: Option<&str>,
    ) {
        let told = Told {
            ids: part.ids.clone(),
            chain: Chain::clone(&part.chain),
            lora: lora.map(|(number, name)| (number, name.to_owned())),
            salt: salt.map(str::to_owned),
        };
        self.told.borrow_mut().insert(id, told);
    }

    /// A request is over when the engine has made so many steps: what it says of it, it says with
    /// the next.
    pub(super) fn ends(&self, id: u64, steps: u64) {
        self.over.borrow_mut().push_back((steps, id));
    }

    /// Publishes what the engine has told by its step number `steps`.
    pub(super) fn publish(&self, steps: u64, events: &[KvEvent]) {
        if !events.is_empty() {
            let told = self.told.borrow();
            let mut out = Vec::with_capacity(512);
            array(&mut out, 3);
            float(&mut out, date::unix_time());
            array(&mut out, events.len());
            for event in events {
                match *event {
                    KvEvent::Stored { id, first_block, count } => match told.get(&id) {
                        Some(told) => self.stored(&mut out, told, first_block, count),
                        None => eprintln!("expedite sim: a KV event of an unknown request"),
                    },
                    KvEvent::Removed(hash) => removed(&mut out, hash),
                    KvEvent::Cleared => {
                        map(&mut out, 1);
                        pair(&mut out, "type", "AllBlocksCleared");
                    }
                }
            }
            integer(&mut out, 0);
            self.publisher.publish(out.into());
        }
        let mut over = self.over.borrow_mut();
        while let Some(&(ended, id)) = over.front()
            && ended < steps
        {
            over.pop_front();
            self.told.borrow_mut().remove(&id);
        }
    }

    /// As after a restart of the engine.
    pub(super) fn restart(&self) {
        self.told.borrow_mut().clear();
        self.over.borrow_mut().clear();
        self.publisher.restart();
    }

    /// Forgets a request that is told of no more.
    pub(super) fn forget(&self, id: u64) {
        self.told.borrow_mut().remove(&id);
    }

    fn stored(&self, out: &mut Vec<u8>, told: &Told, first: u32, count: u32) {
        let (first, count) = (first as usize, count as usize);
        let hashes = told.chain.get(first..first + count).unwrap_or_default();
        let tokens = first * self.block_tokens..(first + count) * self.block_tokens;
        let ids = told.ids.get(tokens).unwrap_or_default();
        map(out, 11);
        pair(out, "type", "BlockStored");
        text(out, "block_hashes");
        array(out, hashes.len());
        hashes.iter().for_each(|hash| integer(out, wire_hash(*hash)));
        text(out, "parent_block_hash");
        match first.checked_sub(1).and_then(|parent| told.chain.get(parent)) {
            Some(parent) => integer(out, wire_hash(*parent)),
            None => nil(out),
        }
        text(out, "token_ids");
        array(out, ids.len());
        ids.iter().for_each(|id| integer(out, u64::from(*id)));
        text(out, "block_size");
        integer(out, self.block_tokens as u64);
        text(out, "lora_id");
        match &told.lora {
            Some((number, _)) => integer(out, u64::from(*number)),
            None => nil(out),
        }
        pair(out, "medium", "GPU");
        text(out, "lora_name");
        match &told.lora {
            Some((_, name)) => text(out, name),
            None => nil(out),
        }
        text(out, "extra_keys");
        array(out, hashes.len());
        for block in first..first + hashes.len() {
            let lora = told.lora.as_ref().map(|(_, name)| name.as_str());
            let salt = told.salt.as_deref().filter(|_| block == 0);
            let keys: Vec<&str> = lora.into_iter().chain(salt).collect();
            if keys.is_empty() {
                nil(out);
            } else {
                array(out, keys.len());
                keys.iter().for_each(|key| text(out, key));
            }
        }
        text(out, "group_idx");
        integer(out, 0);
        pair(out, "kv_cache_spec_kind", "full_attention");
    }
}

fn removed(out: &mut Vec<u8>, hash: BlockHash) {
    map(out, 4);
    pair(out, "type", "BlockRemoved");
    text(out, "block_hashes");
    array(out, 1);
    integer(out, wire_hash(hash));
    pair(out, "medium", "GPU");
    text(out, "group_idx");
    integer(out, 0);
}

/// The engine's own hash of a block: as in vLLM it tells a reader nothing.
fn wire_hash(hash: BlockHash) -> u64 {
    token::mix(hash as u64, (hash >> 64) as u64 | 1)
}

fn nil(out: &mut Vec<u8>) {
    out.push(0xc0);
}

fn float(out: &mut Vec<u8>, value: f64) {
    out.push(0xcb);
    out.extend_from_slice(&value.to_be_bytes());
}

fn integer(out: &mut Vec<u8>, value: u64) {
    let bytes = value.to_be_bytes();
    match value {
        0..=0x7f => out.push(value as u8),
        0x80..=0xff => out.extend_from_slice(&[0xcc, value as u8]),
        0x100..=0xffff => {
            out.push(0xcd);
            out.extend_from_slice(&bytes[6..]);
        }
        0x1_0000..=0xffff_ffff => {
            out.push(0xce);
            out.extend_from_slice(&bytes[4..]);
        }
        _ => {
            out.push(0xcf);
            out.extend_from_slice(&bytes);
        }
    }
}

/// The head of a value of some length: in the byte, or in one, two or four behind it.
fn head(out: &mut Vec<u8>, len: usize, short: (u8, usize), one: Option<u8>, two: u8) {
    let bytes = (len as u32).to_be_bytes();
    match (len, one) {
        _ if len < short.1 => out.push(short.0 | len as u8),
        (0..=0xff, Some(one)) => out.extend_from_slice(&[one, len as u8]),
        (0..=0xffff, _) => {
            out.push(two);
            out.extend_from_slice(&bytes[2..]);
        }
        _ => {
            out.push(two + 1);
            out.extend_from_slice(&bytes);
        }
    }
}

fn text(out: &mut Vec<u8>, value: &str) {
    head(out, value.len(), (0xa0, 32), Some(0xd9), 0xda);
    out.extend_from_slice(value.as_bytes());
}

fn array(out: &mut Vec<u8>, len: usize) {
    head(out, len, (0x90, 16), None, 0xdc);
}

fn map(out: &mut Vec<u8>, len: usize) {
    head(out, len, (0x80, 16), None, 0xde);
}

fn pair(out: &mut Vec<u8>, key: &str, value: &str) {
    text(out, key);
    text(out, value);
}
