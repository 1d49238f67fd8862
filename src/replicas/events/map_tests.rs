//! From an engine's keys to our hashes: chains, roots, copies, and what cannot be named.

use std::collections::HashMap;

use super::super::decode::Decoder;
use super::super::wire::{self, Form, V, batch, cleared, recorded, removed};
use super::*;

const BLOCK: u32 = 4;

/// Copies held by hash; panics at a removal of what is not held.
#[derive(Default)]
struct Held(HashMap<BlockHash, u64>);

impl Sink for Held {
    fn stored(&mut self, hash: BlockHash) {
        *self.0.entry(hash).or_default() += 1;
    }
    fn removed(&mut self, hash: BlockHash) {
        let copies = self.0.get_mut(&hash).expect("it is held");
        *copies -= 1;
        if *copies == 0 {
            self.0.remove(&hash);
        }
    }
    fn clear(&mut self) {
        self.0.clear();
    }
}

struct Engine {
    map: Map,
    held: Held,
}

impl Engine {
    fn new(block_tokens: u32, blocks: u64) -> Engine {
        Engine { map: Map::new(block_tokens, blocks), held: Held::default() }
    }

    fn tells(&mut self, events: Vec<V>) {
        self.payload(&batch(events, 0));
    }

    fn payload(&mut self, payload: &[u8]) {
        let mut decoder = Decoder::default();
        let batch = decoder.read(payload).unwrap();
        self.map.expect(batch.keys);
        for event in batch.events() {
            self.map.apply(&event, &mut self.held);
        }
        let copies: u64 = self.held.0.values().sum();
        assert_eq!(copies, self.map.live(), "the index holds what the map knows");
    }

    fn depth(&self, root: Root, tokens: &[u32]) -> usize {
        let chain = chain(root, tokens);
        chain.iter().take_while(|hash| self.held.0.contains_key(hash)).count()
    }
}

fn chain(root: Root, tokens: &[u32]) -> Vec<BlockHash> {
    let mut out = Vec::new();
    blocks::of_tokens(root, tokens, BLOCK as usize, &mut out);
    out
}

fn ids(blocks: std::ops::Range<u32>) -> Vec<u32> {
    (blocks.start * BLOCK..blocks.end * BLOCK).map(|id| id * 7 + 1).collect()
}

fn stored(keys: &[u64], parent: u64, blocks: std::ops::Range<u32>) -> wire::Stored {
    wire::Stored::new(keys, parent, u64::from(BLOCK), &ids(blocks))
}

fn event(keys: &[u64], parent: u64, blocks: std::ops::Range<u32>) -> V {
    stored(keys, parent, blocks).event(Form::Map)
}

#[test]
fn a_chain_continues_from_the_parent_it_names() {
    for form in [Form::Short, Form::Array, Form::Map] {
        let mut engine = Engine::new(BLOCK, 0);
        engine.tells(vec![stored(&[11, 12], 0, 0..2).event(form)]);
        engine
            .tells(vec![stored(&[13], 12, 2..3).event(form), stored(&[14], 13, 3..4).event(form)]);
        assert_eq!(engine.depth(Root::new(None, None), &ids(0..4)), 4);
        engine.tells(vec![removed(&[14, 13], form)]);
        assert_eq!(engine.depth(Root::new(None, None), &ids(0..4)), 2);
        engine.tells(vec![cleared(form)]);
        assert_eq!((engine.map.live(), engine.held.0.len()), (0, 0));
    }
}

#[test]
fn other_algorithms_and_seeds_name_the_same_blocks() {
    let mut bytes = stored(&[0, 0], 0, 0..2);
    bytes.keys = vec![V::Bytes(vec![1; 32]), V::Bytes(vec![2; 32])];
    let mut more = stored(&[0], 0, 2..3);
    more.keys = vec![V::Bytes(vec![3; 32])];
    more.parent = V::Bytes(vec![2; 32]);
    let mut engine = Engine::new(BLOCK, 0);
    engine.tells(vec![bytes.event(Form::Map), more.event(Form::Map)]);
    let mut other = Engine::new(BLOCK, 0);
    other.tells(vec![event(&[901, 902], 0, 0..2), event(&[903], 902, 2..3)]);
    assert_eq!(engine.held.0, other.held.0);
    assert_eq!(engine.map.live(), 3);
}

#[test]
fn adapters_and_salts_have_chains_of_their_own() {
    let mut engine = Engine::new(BLOCK, 0);
    let with = |keys: [u64; 2], lora: Option<&'static str>, items: Vec<V>| {
        let mut stored = stored(&keys, 0, 0..2);
        stored.lora = lora;
        let rest = lora.map_or(V::Nil, |name| V::Array(vec![V::Text(name)]));
        stored.extra = V::Array(vec![V::Array(items), rest]);
        stored.event(Form::Map)
    };
    let (lora, salt) = (V::Text("lora-a"), V::Text("tenant-1"));
    engine.tells(vec![with([1, 2], Some("lora-a"), vec![lora.clone()])]);
    engine.tells(vec![with([3, 4], None, vec![salt.clone()])]);
    let tokens = ids(0..2);
    assert_eq!(engine.depth(Root::new(None, None), &tokens), 0);
    assert_eq!(engine.depth(Root::new(Some("lora-a"), None), &tokens), 2);
    assert_eq!(engine.depth(Root::new(None, Some("tenant-1")), &tokens), 2);
    assert_eq!(engine.depth(Root::new(Some("lora-a"), Some("tenant-1")), &tokens), 0);
    engine.tells(vec![with([5, 6], Some("lora-a"), vec![lora, salt])]);
    assert_eq!(engine.depth(Root::new(Some("lora-a"), Some("tenant-1")), &tokens), 2);
}

#[test]
fn copies_of_a_block_are_counted() {
    let mut engine = Engine::new(BLOCK, 0);
    engine.tells(vec![event(&[1, 2], 0, 0..2), event(&[1, 2], 0, 0..2), event(&[1], 0, 0..1)]);
    assert_eq!((engine.map.live(), engine.map.keys()), (5, 2));
    engine.tells(vec![removed(&[1], Form::Map), removed(&[2, 1], Form::Map)]);
    assert_eq!(engine.depth(Root::new(None, None), &ids(0..2)), 2);
    engine.tells(vec![removed(&[1], Form::Map)]);
    assert_eq!(engine.depth(Root::new(None, None), &ids(0..2)), 0);
    engine.tells(vec![removed(&[1, 77], Form::Map)]);
    assert_eq!(engine.map.counts().removed_unknown, 2);
    assert_eq!((engine.map.live(), engine.map.keys()), (1, 1));
}

#[test]
fn what_cannot_be_named_is_left_out_with_what_follows_it() {
    let mut engine = Engine::new(BLOCK, 0);
    engine.tells(vec![event(&[5], 4, 1..2), event(&[6], 5, 2..3)]);
    assert_eq!(engine.map.counts().orphans, 2);

    let mut image = stored(&[1, 2, 3], 0, 0..3);
    let picture = V::Array(vec![V::Array(vec![V::Text("mm"), V::Text("id"), V::Int(0)])]);
    image.extra = V::Array(vec![V::Nil, picture, V::Nil]);
    engine.tells(vec![image.event(Form::Map), event(&[4], 3, 3..4)]);
    assert_eq!(engine.depth(Root::new(None, None), &ids(0..3)), 1);
    let counts = engine.map.counts();
    assert_eq!((counts.foreign, counts.orphans, counts.stored), (2, 3, 1));

    // A text that is not at the start of a sequence is no salt.
    let mut later = stored(&[7], 1, 1..2);
    later.extra = V::Array(vec![V::Array(vec![V::Text("x")])]);
    let mut nameless = stored(&[8], 0, 0..1);
    nameless.lora = Some("a");
    engine.tells(vec![later.event(Form::Map), nameless.event(Form::Short)]);
    assert_eq!((engine.map.counts().foreign, engine.map.live()), (4, 1));
}

#[test]
fn other_memory_other_layers_and_other_sizes_are_left_out() {
    let mut engine = Engine::new(BLOCK, 0);
    let mut offloaded = stored(&[1], 0, 0..1);
    offloaded.medium = V::Text("CPU");
    let mut window = stored(&[1], 0, 0..1);
    window.kind = "sliding_window";
    let mut full = stored(&[1], 0, 0..1);
    full.group = 1;
    let mut other = stored(&[1], 0, 0..1);
    other.group = 2;
    let mut unnamed = stored(&[2], 0, 1..2);
    unnamed.medium = V::Nil;
    unnamed.group = 1;
    let all = [offloaded, window, full, other, unnamed];
    engine.tells(all.iter().map(|stored| stored.event(Form::Map)).collect());
    let counts = engine.map.counts();
    assert_eq!((counts.stored, counts.elsewhere), (2, 3), "the group with full attention");
    // Its removals name the group, of which they tell no kind.
    engine.tells(vec![removed(&[1], Form::Map)]);
    assert_eq!(engine.map.live(), 2);
    let V::Map(mut fields) = removed(&[1], Form::Map) else { unreachable!() };
    fields.push(("group_idx", V::Int(1)));
    engine.tells(vec![V::Map(fields)]);
    assert_eq!(engine.map.live(), 1);

    let sized = wire::Stored::new(&[9], 0, 2, &[1, 2]).event(Form::Map);
    engine.tells(vec![sized, removed(&[9], Form::Map)]);
    assert_eq!((engine.map.counts().other_size, engine.map.live()), (1, 1));
}

#[test]
fn an_engine_without_end_stays_within_its_block_count() {
    let mut engine = Engine::new(BLOCK, 10_000);
    for batch in 0..200 {
        let one = |key: u64| {
            let mut one = stored(&[key], 0, 0..1);
            one.tokens = vec![key as u32; BLOCK as usize];
            one.event(Form::Map)
        };
        engine.tells((batch * 500..(batch + 1) * 500).map(one).collect());
        assert!(engine.map.keys() <= 12_500);
    }
    assert_eq!(engine.map.counts().overflows, 7);
    assert!(engine.map.known.capacity() <= 1 << 15);
}

#[test]
fn recorded_int_hashes_end_as_the_engine_did() {
    // Counted from the recording by another decoder: 82 copies of 68 blocks, with an adapter twice,
    // a salt once, and a clearing.
    let mut engine = Engine::new(32, 0);
    let text = include_str!("../../../tests/data/kv_events/int.hex");
    for (_, payload) in recorded(text) {
        engine.payload(&payload);
    }
    assert_eq!((engine.map.keys(), engine.map.live()), (68, 82));
    let counts = engine.map.counts();
    assert_eq!((counts.stored, counts.cleared), (95, 1));
    assert_eq!((counts.orphans, counts.foreign, counts.odd, counts.removed_unknown), (0, 0, 0, 0));
    assert_eq!(engine.held.0.len(), 68, "different keys are different blocks of ours");
}

#[test]
fn recorded_run_b_ends_with_the_158_blocks_that_the_engine_held() {
    let mut engine = Engine::new(32, 159);
    let text = include_str!("../../../tests/data/kv_events/run_b.txt");
    for line in text.lines() {
        let events = line.split("; ").map(|event| {
            let (sign, numbers) = event.split_once(' ').unwrap();
            let mut keys: Vec<u64> = numbers.split(' ').map(|n| n.parse().unwrap()).collect();
            if sign == "-" {
                return removed(&keys, Form::Map);
            }
            let parent = keys.remove(0);
            // Tokens are not in the reduced file: any do that are a function of the block.
            let ids: Vec<u32> = keys.iter().flat_map(|key| [*key as u32; 32]).collect();
            wire::Stored::new(&keys, parent, 32, &ids).event(Form::Map)
        });
        engine.tells(events.collect());
    }
    assert_eq!((engine.map.keys(), engine.map.live(), engine.held.0.len()), (158, 158, 158));
    let counts = engine.map.counts();
    assert_eq!((counts.stored, counts.removed), (1_276, 1_118));
    assert_eq!((counts.removed_unknown, counts.orphans), (0, 0));
}
