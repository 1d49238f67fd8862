//! What the way to a replica costs: hashes of a prompt's blocks, who holds them, who gets it.

use std::hint::black_box;
use std::iter;

use expedite::engine::StepModel;
use expedite::prefix::{Index, Limits, Mode, Slot, Writer};
use expedite::prompt::blocks::{BlockHash, Root, of_tokens};
use expedite::replicas::events::decode::Decoder;
use expedite::replicas::events::map::{Map, Sink};
use expedite::routing::{Decision, Model, Picker, Policy, Rng};

use crate::kv_wire::{Form, Stored, batch, removed};
use crate::loaded::{fleet, request};
use crate::rounds::Round;

/// A prompt's tokens, and of an engine's block.
const PROMPT_TOKENS: u32 = 1_800;
const BLOCK_TOKENS: usize = 16;
const SLOTS: usize = 64;
/// Blocks of a slot: some thirty prompts.
const SLOT_BLOCKS: u64 = 2_000;

fn tokens(seed: u32) -> Vec<u32> {
    (0..PROMPT_TOKENS).map(|at| seed.wrapping_mul(7_919) ^ (at * 104_729)).collect()
}

fn chain(seed: u32) -> Vec<BlockHash> {
    let mut out = Vec::new();
    of_tokens(Root::new(None, None), &tokens(seed), BLOCK_TOKENS, &mut out);
    out
}

pub(crate) fn block_hash() -> Option<Round> {
    let (ids, mut out) = (tokens(1), Vec::new());
    Some(Box::new(move |_| {
        out.clear();
        of_tokens(Root::new(None, None), black_box(&ids), BLOCK_TOKENS, &mut out);
        assert_eq!(out.len(), ids.len() / BLOCK_TOKENS);
    }))
}

fn pick(count: usize) -> Round {
    let mut rng = Rng::with_seed(count as u64);
    let mut view = fleet(count, &mut rng);
    let step = StepModel::a100_8b();
    let mut picker = Picker::new(Policy::Cost);
    Box::new(move |round| {
        // Something moves between two picks, as in a fleet at work.
        let moved = rng.usize(..count);
        view.0[moved].requests = rng.u64(40..120);
        let model = Model { step: &step, step_tokens_max: 2048 };
        let asked = request(&mut rng);
        match picker.pick(black_box(&asked), black_box(&view), &model, round, &mut rng) {
            Decision::Pick(pick) => assert!(view.0[pick.replica].eligible),
            other => panic!("{other:?} from a fleet with room"),
        }
    })
}

pub(crate) fn pick_64() -> Option<Round> {
    Some(pick(64))
}

pub(crate) fn pick_1000() -> Option<Round> {
    Some(pick(1_000))
}

fn index() -> Index {
    let index = Index::new(Limits::default());
    index
        .write(|writer| (0..SLOTS).for_each(|slot| writer.set_capacity(slot as Slot, SLOT_BLOCKS)));
    index
}

/// Who holds how much of a prompt that one slot holds whole.
pub(crate) fn index_lookup() -> Option<Round> {
    let index = index();
    let chains: Vec<_> = (0..SLOTS as u32).map(chain).collect();
    chains.iter().enumerate().for_each(|(slot, chain)| index.dispatched(slot as Slot, chain, 0));
    let mut out = vec![0; SLOTS];
    Some(Box::new(move |round| {
        let slot = round as usize % SLOTS;
        index.depths(black_box(&chains[slot]), &mut out);
        assert_eq!(out[slot] as usize, chains[slot].len());
    }))
}

/// A prompt that nobody has seen, sent to a slot that is full: something old goes.
pub(crate) fn index_dispatch() -> Option<Round> {
    let index = index();
    let full = (SLOT_BLOCKS as usize * SLOTS).div_ceil(PROMPT_TOKENS as usize / BLOCK_TOKENS);
    let chains: Vec<_> = (0..full as u32 + 2_000).map(chain).collect();
    for (at, chain) in chains[..full + SLOTS].iter().enumerate() {
        index.dispatched((at % SLOTS) as Slot, chain, 0);
    }
    let mut next = (full + SLOTS..chains.len()).cycle();
    Some(Box::new(move |_| {
        let at = next.next().expect("a cycle");
        let before = index.counts().evicted;
        index.dispatched((at % SLOTS) as Slot, black_box(&chains[at]), 0);
        assert!(index.counts().evicted > before);
    }))
}

/// One slot of the index.
struct Into<'w>(&'w mut Writer);

impl Sink for Into<'_> {
    fn stored(&mut self, hash: BlockHash) {
        self.0.stored(0, hash);
    }
    fn removed(&mut self, hash: BlockHash) {
        self.0.removed(0, hash);
    }
    fn clear(&mut self) {
        self.0.clear(0);
    }
}

/// A message of an engine that is full: twenty blocks stored by one event and twenty removed by one
/// each; from its bytes into the index.
pub(crate) fn kv_events() -> Option<Round> {
    const EACH: u64 = 20;
    let message = |at: u64| {
        let keys = |at: u64| (0..EACH).map(move |key| 1 << 63 | at << 8 | key).collect::<Vec<_>>();
        let ids: Vec<u32> =
            tokens(at as u32).into_iter().take(EACH as usize * BLOCK_TOKENS).collect();
        let stored = Stored::new(&keys(at), 0, BLOCK_TOKENS as u64, &ids).event(Form::Map);
        let gone = at.checked_sub(SLOT_BLOCKS / EACH).map(keys).unwrap_or_default();
        let gone = gone.iter().map(|key| removed(&[*key], Form::Map));
        batch(iter::once(stored).chain(gone).collect(), 0)
    };
    let messages: Vec<_> = (0..SLOT_BLOCKS / EACH + 2_000).map(message).collect();
    let (mut decoder, mut map) =
        (Decoder::default(), Map::new(BLOCK_TOKENS as u32, 2 * SLOT_BLOCKS));
    let index = index();
    index.write(|writer| {
        writer.set_capacity(0, SLOT_BLOCKS + EACH);
        writer.set_mode(0, Mode::Exact);
    });
    let mut apply = move |payload: &[u8]| {
        let batch = decoder.read(payload).expect("a batch");
        map.expect(batch.keys);
        index.write(|writer| batch.events().for_each(|e| map.apply(&e, &mut Into(writer))));
        index.blocks()
    };
    let full = (SLOT_BLOCKS / EACH) as usize;
    messages[..full].iter().for_each(|payload| {
        apply(payload);
    });
    Some(Box::new(move |round| {
        assert_eq!(apply(black_box(&messages[full + round as usize])), SLOT_BLOCKS);
    }))
}
