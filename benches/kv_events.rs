//! Block events a second of CPU time, from a payload's bytes into the prefix index, on one thread:
//! `cargo bench --bench kv_events`.
//!
//! 64 engines of 27,900 blocks, full: every message stores blocks and removes as many. Asserts that
//! each event arrived. Decoding alone, with the map, and with the index are told apart.

use std::collections::VecDeque;
use std::fs;

use expedite::prefix::{Index, Limits, Mode, Slot, Writer};
use expedite::prompt::blocks::BlockHash;
use expedite::replicas::events::decode::Decoder;
use expedite::replicas::events::map::{Map, Sink};
use kv_wire::{Form, Stored, batch, removed};

#[allow(dead_code)] // The tests use the rest.
#[path = "../tests/support/kv_wire.rs"]
mod kv_wire;

const ENGINES: usize = 64;
const BLOCKS: u64 = 27_900;
const BLOCK_TOKENS: u32 = 16;

/// Time that this thread has run, so that other work on the machine counts for nothing.
fn cpu_ns() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux with schedstats");
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("nanoseconds first")
}

/// Goes nowhere.
struct Nowhere(u64);

impl Sink for Nowhere {
    fn stored(&mut self, hash: BlockHash) {
        self.0 ^= hash as u64;
    }
    fn removed(&mut self, hash: BlockHash) {
        self.0 ^= hash as u64;
    }
    fn clear(&mut self) {}
}

/// One slot of the index.
struct Into<'w>(&'w mut Writer, Slot);

impl Sink for Into<'_> {
    fn stored(&mut self, hash: BlockHash) {
        self.0.stored(self.1, hash);
    }
    fn removed(&mut self, hash: BlockHash) {
        self.0.removed(self.1, hash);
    }
    fn clear(&mut self) {
        self.0.clear(self.1);
    }
}

/// What an engine's steps are like: blocks of an event, and such events of a message.
struct Shape {
    name: &'static str,
    per_event: u64,
    events: u64,
}

/// A chunk of a prompt is one event of many blocks; a step of many decodes is many events of one.
const SHAPES: [Shape; 2] = [
    Shape { name: "prefill, an event of 20 blocks a message", per_event: 20, events: 1 },
    Shape { name: "decode, 16 events of a block a message", per_event: 1, events: 16 },
];

type Messages = Vec<(usize, Vec<u8>)>;

/// Messages of engines in turn: those that fill the engines, and then `measured` block events of
/// which half remove what was stored first.
fn messages(shape: &Shape, measured: u64) -> (Messages, Messages) {
    let mut random = fastrand::Rng::with_seed(1);
    let mut held: Vec<VecDeque<Vec<u64>>> = vec![VecDeque::new(); ENGINES];
    let mut message = |engine: usize, full: bool| {
        let held = &mut held[engine];
        let mut events = Vec::new();
        for _ in 0..shape.events {
            let keys: Vec<u64> = (0..shape.per_event).map(|_| random.u64(..) | 1 << 63).collect();
            let tokens = shape.per_event * u64::from(BLOCK_TOKENS);
            let ids: Vec<u32> = (0..tokens).map(|_| random.u32(0..150_000)).collect();
            // Each sequence goes on with the next message; some twenty events long.
            let before = held.len().checked_sub(shape.events as usize);
            let parent = before.filter(|_| random.u32(..20) > 0).map(|i| held[i][0]);
            let block = u64::from(BLOCK_TOKENS);
            let stored = Stored::new(&keys, parent.unwrap_or(0), block, &ids);
            events.push(stored.event(Form::Map));
            held.push_back(keys);
            if full && let Some(oldest) = held.pop_front() {
                // As engines do: an event for each block.
                events.extend(oldest.iter().map(|key| removed(&[*key], Form::Map)));
            }
        }
        (engine, batch(events, 0))
    };
    let a_message = shape.per_event * shape.events;
    let (fill, then) = (BLOCKS / a_message, measured / a_message / 2 / ENGINES as u64);
    let fill = (0..fill).flat_map(|_| 0..ENGINES).map(|engine| message(engine, false)).collect();
    let then = (0..then).flat_map(|_| 0..ENGINES).map(|engine| message(engine, true)).collect();
    (fill, then)
}

fn main() {
    for shape in &SHAPES {
        let (fill, then) = messages(shape, 3_000_000);
        let a_message = shape.per_event * shape.events;
        let blocks = then.len() as u64 * a_message * 2;
        let mut decoder = Decoder::default();
        let rate = |name: &str, run: &mut dyn FnMut()| {
            let start = cpu_ns();
            run();
            let ns = cpu_ns() - start;
            let (rate, each) = (blocks as f64 * 1e3 / ns as f64, ns / blocks);
            println!("{}, {name}: {rate:.2} M block events/s, {each} ns each", shape.name);
        };
        rate("decode", &mut || {
            let mut events = 0_u64;
            for (_, payload) in &then {
                let batch = decoder.read(payload).unwrap();
                events += batch.events().map(std::hint::black_box).count() as u64;
            }
            assert_eq!(events, then.len() as u64 * shape.events * (1 + shape.per_event));
        });
        let maps = || (0..ENGINES).map(|_| Map::new(BLOCK_TOKENS, BLOCKS)).collect::<Vec<_>>();
        let mut plain = maps();
        let mut nowhere = Nowhere(0);
        fill.iter().for_each(|(engine, payload)| {
            apply(&mut decoder, &mut plain[*engine], payload, &mut nowhere);
        });
        rate("decode and map", &mut || {
            for (engine, payload) in &then {
                apply(&mut decoder, &mut plain[*engine], payload, &mut nowhere);
            }
        });
        let mut maps = maps();
        let index = Index::new(Limits::default());
        let mut into_index = |messages: &Messages| {
            for (engine, payload) in messages {
                index.write(|writer| {
                    let mut slot = Into(writer, *engine as Slot);
                    apply(&mut decoder, &mut maps[*engine], payload, &mut slot);
                });
            }
        };
        index.write(|writer| {
            for slot in 0..ENGINES as Slot {
                writer.set_capacity(slot, BLOCKS + 1_000);
                writer.set_mode(slot, Mode::Exact);
            }
        });
        into_index(&fill);
        rate("decode, map and index", &mut || into_index(&then));
        let live: u64 = maps.iter().map(Map::live).sum();
        let changed: u64 = maps.iter().map(|m| m.counts().stored + m.counts().removed).sum();
        assert_eq!(changed, blocks + fill.len() as u64 * a_message, "every event was mapped");
        assert_eq!(index.blocks(), live, "and is in the index");
    }
}

fn apply(decoder: &mut Decoder, map: &mut Map, payload: &[u8], sink: &mut impl Sink) {
    let batch = decoder.read(payload).unwrap();
    map.expect(batch.keys);
    batch.events().for_each(|event| map.apply(&event, sink));
}
