//! The index against its oracle, and what each mode promises.

use proptest::prelude::*;

use super::naive::Naive;
use super::{Index, Limits, Mode, SLOTS_MAX, Slot};
use crate::prompt::blocks::BlockHash;

/// A block of a chain: who has this parent and this number.
pub(super) fn child(parent: BlockHash, number: u64) -> BlockHash {
    xxhash_rust::xxh3::xxh3_128_with_seed(&parent.to_le_bytes(), number)
}

/// The chain with these numbers.
pub(super) fn chain(numbers: impl IntoIterator<Item = u64>) -> Vec<BlockHash> {
    let next = |parent: &mut BlockHash, number| {
        *parent = child(*parent, number);
        Some(*parent)
    };
    numbers.into_iter().scan(0, next).collect()
}

/// A chain whose head many share, by `pick` of its numbers: few forks, so that chains overlap.
fn forked(len: usize, forks: &[u8]) -> Vec<BlockHash> {
    let fork =
        |at: usize| forks.get(at / 3).filter(|_| at.is_multiple_of(3)).map_or(0, |&f| u64::from(f));
    chain((0..len).map(fork))
}

#[derive(Debug, Clone)]
enum Change {
    Dispatched(Slot, usize, Vec<u8>, u64),
    Capacity(Slot, usize),
    Mode(Slot, bool),
    Stored(Slot, usize, Vec<u8>),
    Removed(Slot, usize, Vec<u8>),
    Clear(Slot),
    Expire(u64),
}

/// Few slots of low and high numbers, so that sets of every size and width come up.
fn any_slot() -> impl Strategy<Value = Slot> {
    prop_oneof![4 => 0..12u16, 1 => Just(64), 1 => Just(200), 1 => Just(SLOTS_MAX as Slot - 1)]
}

fn any_change() -> impl Strategy<Value = Change> {
    let forks = || prop::collection::vec(0..3u8, 1..6);
    prop_oneof![
        8 => (any_slot(), 1..40usize, forks(), 0..900u64)
            .prop_map(|(slot, len, forks, ms)| Change::Dispatched(slot, len, forks, ms)),
        1 => (any_slot(), 1..120usize).prop_map(|(slot, blocks)| Change::Capacity(slot, blocks)),
        1 => (any_slot(), any::<bool>()).prop_map(|(slot, exact)| Change::Mode(slot, exact)),
        4 => (any_slot(), 1..40usize, forks())
            .prop_map(|(slot, len, forks)| Change::Stored(slot, len, forks)),
        4 => (any_slot(), 1..40usize, forks())
            .prop_map(|(slot, len, forks)| Change::Removed(slot, len, forks)),
        1 => any_slot().prop_map(Change::Clear),
        1 => (0..900u64).prop_map(Change::Expire),
    ]
}

/// Does the same to both.
fn apply(index: &Index, naive: &mut Naive, now_ms: &mut u64, change: &Change) {
    index.write(|writer| match change {
        Change::Dispatched(slot, len, forks, ms) => {
            *now_ms += ms;
            let chain = forked(*len, forks);
            writer.dispatched(*slot, &chain, *now_ms);
            naive.dispatched(*slot, &chain, *now_ms);
        }
        Change::Capacity(slot, blocks) => {
            writer.set_capacity(*slot, *blocks as u64);
            naive.set_capacity(*slot, *blocks);
        }
        Change::Mode(slot, exact) => {
            let mode = if *exact { Mode::Exact } else { Mode::Approximate };
            writer.set_mode(*slot, mode);
            naive.set_mode(*slot, mode);
        }
        // A few of a chain's last blocks, so that what is held has holes.
        Change::Stored(slot, len, forks) => {
            for &hash in forked(*len, forks).iter().rev().take(5) {
                writer.stored(*slot, hash);
                naive.stored(*slot, hash);
            }
        }
        Change::Removed(slot, len, forks) => {
            for &hash in forked(*len, forks).iter().rev().step_by(2) {
                writer.removed(*slot, hash);
                naive.removed(*slot, hash);
            }
        }
        Change::Clear(slot) => {
            writer.clear(*slot);
            naive.clear(*slot);
        }
        Change::Expire(ms) => {
            *now_ms += ms;
            writer.expire(*now_ms);
            naive.expire(*now_ms);
        }
    });
}

/// Both say the same of this chain.
fn agree(index: &Index, naive: &Naive, chain: &[BlockHash]) {
    let (mut ours, mut theirs) = (vec![7; SLOTS_MAX], vec![7; SLOTS_MAX]);
    index.depths(chain, &mut ours);
    naive.depths(chain, &mut theirs);
    assert_eq!(ours, theirs);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 80,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_index_says_what_the_plain_one_says(
        changes in prop::collection::vec(any_change(), 1..120),
        probe in prop::collection::vec((1..40usize, prop::collection::vec(0..3u8, 1..6)), 4),
    ) {
        let limits = Limits { capacity_default: 90, speculative_ms: 1000, ..Limits::default() };
        let (index, mut naive, mut now_ms) = (Index::new(limits), Naive::new(limits), 5000);
        for change in &changes {
            apply(&index, &mut naive, &mut now_ms, change);
            assert_eq!(index.blocks(), naive.blocks() as u64, "after {change:?}");
            for (len, forks) in &probe {
                agree(&index, &naive, &forked(*len, forks));
            }
        }
        // A chain of unrelated blocks asks for each block alone.
        let mixed: Vec<_> = probe.iter().flat_map(|(len, forks)| forked(*len, forks)).collect();
        agree(&index, &naive, &mixed);
    }
}

/// Depths of a chain as a list of those that are not 0.
pub(super) fn held(index: &Index, chain: &[BlockHash], slots: usize) -> Vec<(usize, u32)> {
    let mut out = vec![0; slots];
    index.depths(chain, &mut out);
    out.into_iter().enumerate().filter(|(_, depth)| *depth > 0).collect()
}

#[test]
fn the_tail_of_the_oldest_goes_first() {
    let index = Index::new(Limits::default());
    index.write(|writer| writer.set_capacity(3, 10));
    let (old, new) = (chain([1, 2, 3, 4, 5, 6]), chain([1, 2, 9, 9, 9, 9, 9]));
    index.dispatched(3, &old, 0);
    index.dispatched(3, &new, 1);
    assert_eq!(held(&index, &old, 64), [(3, 5)]);
    assert_eq!(held(&index, &new, 64), [(3, 7)]);
    assert_eq!((index.blocks(), index.counts().evicted), (10, 1));
    // Used again, the old one is the newest.
    index.dispatched(3, &old, 2);
    assert_eq!(held(&index, &new, 64), [(3, 6)]);
}

#[test]
fn a_slot_out_of_range_changes_nothing() {
    let index = Index::new(Limits::default());
    index.dispatched(SLOTS_MAX as Slot, &chain([1, 2]), 0);
    index.write(|writer| writer.removed(Slot::MAX, 1));
    assert_eq!(index.blocks(), 0);
    assert_eq!((index.counts().refused, index.counts().unknown_removals), (2, 1));
    // Nor does a reader whose list is short.
    index.dispatched(9, &chain([1, 2]), 0);
    assert_eq!(held(&index, &chain([1, 2]), 5), []);
}

#[test]
fn a_thousand_slots_share_a_head() {
    let index = Index::new(Limits::default());
    let head = 20u32;
    let of = |slot: u64| chain((0..u64::from(head)).chain([100 + slot % 7, slot]));
    for slot in 0..1000 {
        index.dispatched(slot as Slot, &of(slot), 0);
    }
    let found = held(&index, &of(500), 1000);
    assert_eq!(found.len(), 1000);
    for (slot, depth) in found {
        let deeper = if slot % 7 == 500 % 7 { 1 } else { 0 };
        assert_eq!(depth, head + if slot == 500 { 2 } else { deeper }, "slot {slot}");
    }
    // Half of them go: the others are as they were.
    index.write(|writer| (0..1000).step_by(2).for_each(|slot| writer.clear(slot)));
    for now in 0..50 {
        index.write(|writer| writer.expire(now));
    }
    let found = held(&index, &of(501), 1000);
    assert!(found.len() == 500 && found.iter().all(|(slot, _)| slot % 2 == 1));
    assert_eq!(index.blocks(), 500 * 22);
}

#[test]
fn a_copy_that_goes_leaves_the_others() {
    let index = Index::new(Limits::default());
    let chain = chain([1, 2, 3]);
    index.write(|writer| {
        writer.set_mode(5, Mode::Exact);
        for _ in 0..3 {
            chain.iter().for_each(|&hash| writer.stored(5, hash));
        }
        for _ in 0..2 {
            chain.iter().for_each(|&hash| writer.removed(5, hash));
        }
    });
    assert_eq!((held(&index, &chain, 8), index.blocks()), (vec![(5, 3)], 3));
    // The middle one goes: what is behind it is held and of no use.
    index.write(|writer| writer.removed(5, chain[1]));
    assert_eq!((held(&index, &chain, 8), index.blocks()), (vec![(5, 1)], 2));
    assert_eq!(held(&index, &chain[2..], 8), [(5, 1)]);
    index.write(|writer| writer.removed(5, chain[1]));
    assert_eq!((index.blocks(), index.counts().unknown_removals), (2, 1));
}

#[test]
fn a_dispatch_without_an_event_ages_out() {
    let index = Index::new(Limits { speculative_ms: 1000, ..Limits::default() });
    let chain = chain([1, 2, 3]);
    index.write(|writer| writer.set_mode(0, Mode::Exact));
    index.dispatched(0, &chain, 10_000);
    assert_eq!(held(&index, &chain, 1), [(0, 3)]);
    index.write(|writer| {
        writer.removed(0, chain[2]); // not this one's: nothing was stored yet
        writer.stored(0, chain[0]);
        writer.stored(0, chain[1]);
        writer.expire(10_999);
    });
    assert_eq!(held(&index, &chain, 1), [(0, 3)]);
    index.write(|writer| writer.expire(11_000));
    assert_eq!(held(&index, &chain, 1), [(0, 2)]);
    index.write(|writer| writer.expire(99_000));
    assert_eq!(held(&index, &chain, 1), [(0, 2)]);
    assert_eq!((index.counts().expired, index.counts().unknown_removals), (1, 1));
}

#[test]
fn an_event_for_a_slot_without_events_is_refused() {
    let index = Index::new(Limits::default());
    let chain = chain([1, 2]);
    index.dispatched(0, &chain, 0);
    index.write(|writer| {
        writer.stored(0, 77);
        writer.removed(0, chain[1]);
    });
    assert_eq!(held(&index, &chain, 1), [(0, 2)]);
    assert_eq!((index.counts().refused, index.counts().unknown_removals), (1, 1));
    assert_eq!(index.write(|writer| writer.blocks_of(0)), 2);
}

#[test]
fn a_change_of_mode_keeps_what_may_be_true() {
    let index = Index::new(Limits { speculative_ms: 1000, ..Limits::default() });
    let chain = chain([1, 2, 3]);
    index.dispatched(0, &chain, 500);
    index.write(|writer| writer.set_mode(0, Mode::Exact));
    assert_eq!(held(&index, &chain, 1), [(0, 3)]);
    index.write(|writer| {
        writer.stored(0, chain[0]);
        writer.expire(1500);
    });
    assert_eq!(held(&index, &chain, 1), [(0, 1)]);
    index.write(|writer| writer.set_mode(0, Mode::Approximate));
    assert_eq!((held(&index, &chain, 1), index.blocks()), (vec![], 0));
    index.dispatched(0, &chain, 2000);
    assert_eq!(held(&index, &chain, 1), [(0, 3)]);
}

#[test]
fn hashes_that_differ_in_few_bits_do_not_crowd() {
    let index = Index::new(Limits { capacity_default: 50_000, ..Limits::default() });
    for shift in [0, 13, 64, 100] {
        let chain: Vec<BlockHash> = (1..5_000).map(|at: BlockHash| at << shift).collect();
        index.dispatched(shift as Slot, &chain, 0);
        assert_eq!(held(&index, &chain, 128), [(shift, chain.len() as u32)]);
    }
    assert_eq!(index.counts().refused, 0);
}
