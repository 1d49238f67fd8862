//! A simulated replica publishes what its prefix cache does, on the wire of vLLM 0.32: batches,
//! numbers, replay, and what can go wrong with them.

mod common;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use common::{ask, eventually, post};
use expedite::engine::EngineParams;
use expedite::sim::{EngineKind, Fault, Fleet, Kind, SimConfig, SimHandle};
use expedite::zmtp::{self, Connection, Incoming, Role};
use serde_json::{Value, json};

/// One ZeroMQ socket, connected.
struct Peer {
    stream: TcpStream,
    connection: Connection,
}

impl Peer {
    fn connect(addr: SocketAddr, role: Role) -> Peer {
        let stream = TcpStream::connect(addr).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let mut peer = Peer { stream, connection: Connection::new(role) };
        peer.send(&zmtp::opening(role));
        assert_eq!(peer.next(), Some(Vec::new()), "the handshake ends");
        peer
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("it takes bytes");
    }

    /// The frames of the next message; none for the handshake, `None` at the end.
    fn next(&mut self) -> Option<Vec<Vec<u8>>> {
        loop {
            if let Some(incoming) = self.connection.incoming().expect("ZMTP") {
                return Some(match incoming {
                    Incoming::Message(message) => message.frames().map(<[u8]>::to_vec).collect(),
                    Incoming::Ready | Incoming::Ping(_) => Vec::new(),
                });
            }
            let mut space = [0; 4096];
            let n = self.stream.read(&mut space).ok().filter(|n| *n > 0)?;
            self.connection.buffer().extend_from_slice(&space[..n]);
        }
    }

    /// Number and events of the next batch.
    fn batch(&mut self) -> (u64, Vec<Value>) {
        let frames = self.next().expect("a message");
        let [topic, seq, payload] = &frames[..] else { panic!("{frames:?}") };
        assert_eq!(topic, b"kv-events");
        let seq = u64::from_be_bytes(seq[..].try_into().expect("8 bytes"));
        if payload[0] == 0xc1 {
            return (seq, vec!["garbage".into()]);
        }
        let (batch, rest) = read(payload);
        assert!(rest.is_empty() && batch[0].is_f64() && batch[2] == 0, "{batch}");
        (seq, batch[1].as_array().expect("events").clone())
    }
}

/// A MessagePack value as JSON, and what is behind it.
fn read(bytes: &[u8]) -> (Value, &[u8]) {
    let number = |n: usize| bytes[1..=n].iter().fold(0, |all, b| all << 8 | u64::from(*b));
    let (kind, len, mut rest) = match bytes[0] {
        0..=0x7f => return (bytes[0].into(), &bytes[1..]),
        0x80..=0x8f => ('m', u64::from(bytes[0] & 15), &bytes[1..]),
        0x90..=0x9f => ('a', u64::from(bytes[0] & 15), &bytes[1..]),
        0xa0..=0xbf => ('s', u64::from(bytes[0] & 31), &bytes[1..]),
        0xc0 => return (Value::Null, &bytes[1..]),
        0xcb => return (f64::from_bits(number(8)).into(), &bytes[9..]),
        0xcc..=0xcf => {
            let n = 1 << (bytes[0] - 0xcc);
            return (number(n).into(), &bytes[n + 1..]);
        }
        0xd9 => ('s', number(1), &bytes[2..]),
        0xdc => ('a', number(2), &bytes[3..]),
        other => panic!("{other:#x} is not expected"),
    };
    let mut next = || {
        let (value, behind) = read(rest);
        rest = behind;
        value
    };
    let value = match kind {
        'a' => (0..len).map(|_| next()).collect(),
        'm' => (0..len).map(|_| (next().as_str().expect("a name").to_owned(), next())).collect(),
        _ => {
            let (text, behind) = rest.split_at(len as usize);
            rest = behind;
            String::from_utf8(text.to_vec()).expect("text").into()
        }
    };
    (value, rest)
}

fn engines() -> [EngineKind; 2] {
    [EngineKind::instant(), EngineKind::Modelled(EngineParams::a100_8b())]
}

fn start(engine: EngineKind, blocks: u64) -> (SimHandle, Peer) {
    let config = SimConfig {
        engine,
        blocks,
        loras: vec![("sql".to_owned(), "/srv/sql".to_owned())],
        kv_events_port: Some(0),
        ..SimConfig::default()
    };
    let fleet = Fleet::start(config).expect("a fleet");
    let mut peer = Peer::connect(fleet.kv_addrs(0).expect("events").0, Role::Sub);
    subscribe(&mut peer);
    (fleet, peer)
}

/// Subscribes, and waits until it is in force: the heartbeat behind it is answered after it.
fn subscribe(peer: &mut Peer) {
    let mut bytes = Vec::new();
    zmtp::subscribe(&mut bytes, b"kv");
    bytes.extend_from_slice(b"\x04\x07\x04PING\0\0");
    peer.send(&bytes);
    let mut pong = [0; 7];
    peer.stream.read_exact(&mut pong).expect("an answer");
    assert_eq!(&pong, b"\x04\x05\x04PONG");
}

/// Asks for an answer of one token to a prompt of ids; returns its cached tokens.
fn prompt(fleet: &SimHandle, ids: &[u32], more: &Value) -> u64 {
    let mut body = json!({"prompt": ids, "max_tokens": 1});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("more").clone());
    let answer = ask(fleet.addr(0), &post("/v1/completions", &body.to_string()));
    assert_eq!(answer.status(), 200, "{}", answer.text());
    answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
}

fn ids(from: u32, count: u32) -> Vec<u32> {
    (from..from + count).map(|i| 0x0101_0101 + i).collect()
}

#[test]
fn stored_blocks_have_their_tokens_their_parent_and_their_keys() {
    for engine in engines() {
        let (fleet, mut peer) = start(engine, 1000);
        let first = ids(0, 100);
        assert_eq!(prompt(&fleet, &first, &json!({})), 0);
        let (seq, events) = peer.batch();
        assert_eq!((seq, events.len()), (0, 1));
        let hashes = events[0]["block_hashes"].as_array().expect("hashes").clone();
        assert_eq!(hashes.len(), 6);
        let stored = json!({
            "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": null,
            "token_ids": first[..96], "block_size": 16, "lora_id": null, "medium": "GPU",
            "lora_name": null, "extra_keys": [null, null, null, null, null, null],
            "group_idx": 0, "kv_cache_spec_kind": "full_attention",
        });
        let told: HashMap<_, _> = events[0].as_object().expect("a map").iter().collect();
        let wanted: HashMap<_, _> = stored.as_object().expect("a map").iter().collect();
        assert_eq!(told, wanted);
        // What is cached is not told again.
        assert_eq!(prompt(&fleet, &first, &json!({})), 96);
        let longer = [&first[..96], &ids(5000, 40)[..]].concat();
        assert_eq!(prompt(&fleet, &longer, &json!({})), 96);
        let (seq, events) = peer.batch();
        assert_eq!((seq, &events[0]["parent_block_hash"]), (1, &hashes[5]));
        assert_eq!(events[0]["token_ids"], json!(longer[96..128]));
        let salted = json!({"model": "sql", "cache_salt": "tenant-1"});
        assert_eq!(prompt(&fleet, &first[..40], &salted), 0);
        let (_, events) = peer.batch();
        assert_eq!(events[0]["extra_keys"], json!([["sql", "tenant-1"], ["sql"]]));
        assert_eq!((&events[0]["lora_name"], &events[0]["lora_id"]), (&json!("sql"), &json!(1)));
    }
}

#[test]
fn stored_and_removed_balance_with_what_is_cached() {
    for engine in engines() {
        let (fleet, mut peer) = start(engine, 64);
        let mut rng = fastrand::Rng::with_seed(3);
        let mut live: HashMap<u64, i64> = HashMap::new();
        let (mut told, mut removed) = (0, 0);
        for _ in 0..60 {
            let family = rng.u32(..6) * 1000;
            let own = ids(10_000 + rng.u32(..100) * 100, 16 * rng.u32(1..6));
            let cached = prompt(&fleet, &[ids(family, 160), own].concat(), &json!({}));
            // Each of these has a block that is new.
            if cached >= 160 + 16 {
                continue;
            }
            let (seq, events) = peer.batch();
            assert_eq!(seq, told);
            told += 1;
            for event in events {
                let by = if event["type"] == "BlockStored" { 1 } else { -1 };
                removed += i64::from(by < 0);
                for hash in event["block_hashes"].as_array().expect("hashes") {
                    let count = live.entry(hash.as_u64().expect("a hash")).or_default();
                    *count += by;
                    assert!(*count >= 0);
                }
            }
        }
        assert!(told > 20 && removed > 50, "{told} {removed}");
        let all: i64 = live.values().sum();
        assert!((1..=64).contains(&all), "{all}");
    }
}

#[test]
fn a_reset_is_told_with_the_next_step() {
    for engine in engines() {
        let (fleet, mut peer) = start(engine.clone(), 1000);
        prompt(&fleet, &ids(0, 64), &json!({}));
        peer.batch();
        let done = ask(fleet.addr(0), &post("/reset_prefix_cache", ""));
        assert_eq!((done.status(), done.text().as_str()), (200, "{\"success\":true}"));
        assert_eq!(prompt(&fleet, &ids(0, 64), &json!({})), 0);
        let (_, mut events) = peer.batch();
        if engine == EngineKind::instant() {
            // It has no steps.
            events.extend(peer.batch().1);
        }
        let types: Vec<_> = events.iter().map(|event| event["type"].clone()).collect();
        assert_eq!(types, ["AllBlocksCleared", "BlockStored"]);
    }
}

#[test]
fn batches_can_be_replayed_from_any_on() {
    let (fleet, _peer) = start(EngineKind::instant(), 1000);
    for i in 0..5 {
        prompt(&fleet, &ids(100 * i, 32), &json!({}));
    }
    let mut dealer = Peer::connect(fleet.kv_addrs(0).expect("events").1, Role::Dealer);
    for from in [0_u64, 3, 9] {
        let mut bytes = Vec::new();
        zmtp::message(&mut bytes, &[b"", &from.to_be_bytes()]);
        dealer.send(&bytes);
        for wanted in from..5 {
            let frames = dealer.next().expect("a message");
            assert_eq!(
                (frames.len(), &frames[0][..], &frames[1][..]),
                (4, &b""[..], &b"kv-events"[..])
            );
            assert_eq!(frames[2], wanted.to_be_bytes());
            let (batch, _) = read(&frames[3]);
            assert_eq!(batch[1][0]["token_ids"], json!(ids(100 * wanted as u32, 32)));
        }
        let end = [&b""[..], b"", &[0xff; 8], b""].map(<[u8]>::to_vec);
        assert_eq!(dealer.next().expect("the end"), end);
    }
}

#[test]
fn batches_are_lost_reordered_spoiled_and_begin_anew() {
    let (fleet, mut peer) = start(EngineKind::Modelled(EngineParams::a100_8b()), 1000);
    let mut next = 0;
    let mut publish = |fleet: &SimHandle, count: u32| {
        for _ in 0..count {
            prompt(fleet, &ids(next, 32), &json!({}));
            next += 100;
        }
    };
    publish(&fleet, 1);
    assert_eq!(peer.batch().0, 0);
    fleet.fault(0, Fault::new(Kind::KvDrop).times(1));
    publish(&fleet, 2);
    assert_eq!(peer.batch().0, 2);
    fleet.fault(0, Fault::new(Kind::KvReorder).times(1));
    publish(&fleet, 3);
    assert_eq!([peer.batch().0, peer.batch().0, peer.batch().0], [4, 3, 5]);
    fleet.fault(0, Fault::new(Kind::KvGarbage).times(1));
    publish(&fleet, 2);
    assert_eq!(peer.batch(), (6, vec!["garbage".into()]));
    assert_eq!(peer.batch().0, 7);
    fleet.fault(0, Fault::new(Kind::KvRestart));
    assert_eq!(peer.next(), None, "the connection is closed");
    let mut peer = Peer::connect(fleet.kv_addrs(0).expect("events").0, Role::Sub);
    subscribe(&mut peer);
    assert_eq!(prompt(&fleet, &ids(0, 33), &json!({})), 0, "the cache is empty");
    let (seq, events) = peer.batch();
    assert_eq!((seq, &events[0]["type"]), (0, &json!("BlockStored")));
}

#[test]
fn the_sources_are_told_as_vllm_tells_them() {
    let (fleet, _peer) = start(EngineKind::instant(), 1000);
    let sources = ask(fleet.addr(0), &common::get("/kv_event_sources")).json();
    let (events, replay) = fleet.kv_addrs(0).expect("events");
    assert_eq!(sources["0"]["endpoint"], format!("tcp://*:{}", events.port()));
    assert_eq!(sources["0"]["replay_endpoint"], format!("tcp://{replay}"));
    assert_eq!(sources["0"]["topic"], "kv-events");
    eventually("nothing runs", || fleet.stats(0).running == 0);
}
