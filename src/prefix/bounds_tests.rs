//! The index's bounds: bytes, blocks, the queue, numbers that run out; and readers beside a writer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::set::IDS_MAX;
use super::tests::{chain, held};
use super::{Index, Limits, Mode, Slot};

/// A prompt of 115 blocks that shares nothing.
fn unique(number: u64) -> Vec<u128> {
    chain([number << 8].into_iter().chain(1..115))
}

#[test]
fn endless_prompts_stay_within_the_bytes() {
    let bytes_max = 4 << 20;
    let index = Index::new(Limits { bytes_max, capacity_default: 1 << 40, ..Limits::default() });
    let mut most = 0;
    for number in 0..6_000 {
        index.dispatched((number % 64) as Slot, &unique(number), 0);
        most = most.max(index.bytes());
    }
    assert!(most <= bytes_max as u64, "{most} bytes");
    assert!(index.blocks() > 100_000, "only {} blocks in {most} bytes", index.blocks());
    let counts = index.counts();
    assert_eq!(counts.evicted + index.blocks(), 6_000 * 115);
    assert_eq!(counts.refused, 0);
    // The newest of each slot is there whole, the oldest is gone.
    for number in 6_000 - 64..6_000 {
        assert_eq!(held(&index, &unique(number), 64), [((number % 64) as usize, 115)]);
    }
    assert_eq!(held(&index, &unique(0), 64), []);
}

#[test]
fn short_prompts_stay_within_the_bytes() {
    let bytes_max = 2 << 20;
    let index = Index::new(Limits { bytes_max, capacity_default: 1 << 40, ..Limits::default() });
    let mut most = 0;
    for number in 0..60_000u64 {
        index.dispatched((number % 3) as Slot, &chain([number]), 0);
        most = most.max(index.bytes());
    }
    // Then long ones: the room that lists of short ones took comes back.
    for number in 0..3_000 {
        index.dispatched((number % 3) as Slot, &unique(1 << 20 | number), 0);
        most = most.max(index.bytes());
    }
    assert!(most <= bytes_max as u64, "{most} bytes");
    assert!(index.blocks() > 15_000, "only {} blocks", index.blocks());
    assert_eq!(held(&index, &unique(1 << 20 | 2_999), 3), [((2_999 % 3) as usize, 115)]);
}

#[test]
fn endless_events_stay_within_bytes_and_blocks() {
    let bytes_max = 1 << 20;
    let index = Index::new(Limits { bytes_max, capacity_default: 1 << 40, ..Limits::default() });
    index.write(|writer| {
        writer.set_mode(0, Mode::Exact);
        writer.set_mode(1, Mode::Exact);
        writer.set_capacity(1, 100);
        for hash in 1..=100_000 {
            writer.stored(0, hash << 64 | hash);
            writer.stored(1, hash << 64 | 1);
        }
    });
    let (bytes, blocks) = (index.bytes(), index.blocks());
    assert!(bytes <= bytes_max as u64, "{bytes} bytes");
    assert!(blocks > 20_000, "only {blocks} blocks");
    assert_eq!(index.counts().refused, 200_000 - blocks);
    // What was taken in is right, and what the engine lets go makes room again.
    index.write(|writer| {
        assert_eq!(writer.blocks_of(1), 100);
        (1..=100).for_each(|hash| writer.removed(0, hash << 64 | hash));
        (1..=50).for_each(|hash| writer.stored(0, hash << 64 | hash));
    });
    assert_eq!(index.counts().unknown_removals, 0);
    assert_eq!(index.blocks(), blocks - 50);
}

#[test]
fn copies_of_a_block_count_as_blocks() {
    let index = Index::new(Limits::default());
    index.write(|writer| {
        writer.set_mode(0, Mode::Exact);
        writer.set_capacity(0, 10);
        (0..1000).for_each(|_| writer.stored(0, 7));
        (0..1000).for_each(|_| writer.removed(0, 7));
    });
    assert_eq!((index.counts().refused, index.counts().unknown_removals), (990, 990));
    assert_eq!(index.blocks(), 0);
}

#[test]
fn a_busy_writer_is_not_waited_for() {
    let index = Index::new(Limits { queue_max: 3, ..Limits::default() });
    index.write(|_| {
        std::thread::scope(|scope| {
            let dispatches = scope.spawn(|| {
                (0..5).for_each(|number| index.dispatched(number as Slot, &unique(number), 0));
            });
            // Ends although the writer is held.
            dispatches.join().unwrap();
        });
    });
    assert_eq!((index.blocks(), index.counts().overflowed), (0, 2));
    index.dispatched(9, &unique(9), 0);
    assert_eq!(index.blocks(), 4 * 115);
    assert_eq!(held(&index, &unique(2), 16), [(2, 115)]);
}

#[test]
fn a_replica_may_restart_without_end() {
    let index = Index::new(Limits::default());
    let stays = unique(1);
    index.dispatched(100, &stays, 0);
    for round in 0..3 * IDS_MAX as u64 {
        let slot = (round % 7) as Slot;
        index.dispatched(slot, &unique(1000 + round)[..3], round);
        index.write(|writer| writer.clear(slot));
    }
    assert_eq!((index.blocks(), index.counts().refused), (115, 0));
    assert_eq!(held(&index, &stays, 128), [(100, 115)]);
    for round in 0..3 {
        index.write(|writer| writer.expire(round));
    }
    assert!(index.bytes() < 256 << 10, "{} bytes", index.bytes());
}

#[test]
fn a_fleet_that_has_left_leaves_no_memory() {
    let index = Index::new(Limits { capacity_default: 1 << 40, ..Limits::default() });
    for number in 0..2_000 {
        index.dispatched((number % 64) as Slot, &unique(number), 0);
    }
    let full = index.bytes();
    index.write(|writer| (0..64).for_each(|slot| writer.clear(slot)));
    assert_eq!(index.blocks(), 0);
    for now in 0..20 {
        index.write(|writer| writer.expire(now));
    }
    assert!(index.bytes() < full / 50, "{} of {full} bytes", index.bytes());
}

/// Writes of all kinds on slots from 20 on; slots 0 to 8 keep `shared`, slot 3 also `own`.
fn churn(index: &Index, own: &[u128], shared: &[u128], rounds: u64) {
    for round in 0..rounds {
        let slot = (20 + round % 50) as Slot;
        index.dispatched(slot, &unique(1000 + round), round);
        index.dispatched(slot, &chain((0..40).chain([round % 9])), round);
        index.dispatched((round % 9) as Slot, shared, round);
        index.dispatched(3, own, round);
        index.write(|writer| match round % 40 {
            0 => writer.clear(slot),
            10 => writer.set_mode(slot, Mode::Exact),
            20 => writer.set_mode(slot, Mode::Approximate),
            _ => {
                let far = unique(1000 + round.saturating_sub(50));
                far.iter().step_by(3).for_each(|&hash| writer.removed(slot, hash));
                far.iter().step_by(2).for_each(|&hash| writer.stored(slot, hash));
            }
        });
        if round % 16 == 0 {
            index.write(|writer| writer.expire(round));
        }
    }
}

#[test]
fn readers_beside_a_writer_see_nothing_that_never_was() {
    let index = Index::new(Limits { bytes_max: 3 << 20, ..Limits::default() });
    let (own, shared, never) = (unique(1), unique(2), unique(3));
    (0..9).for_each(|slot| index.dispatched(slot, &shared, 0));
    index.dispatched(3, &own, 0);
    let (done, looks, whole) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let look = || {
        let mut out = vec![0; 80];
        while !done.load(Ordering::Relaxed) {
            index.depths(&never, &mut out);
            assert!(out.iter().all(|&depth| depth == 0), "{out:?}");
            index.depths(&own, &mut out);
            let others = out.iter().enumerate().filter(|(slot, _)| *slot != 3);
            assert!(others.map(|(_, &depth)| depth).sum::<u32>() == 0, "{out:?}");
            assert!(out[3] <= 115);
            whole.fetch_add(u64::from(out[3] == 115), Ordering::Relaxed);
            index.depths(&shared, &mut out);
            assert!(out[9..].iter().all(|&depth| depth == 0), "{out:?}");
            looks.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let readers = [scope.spawn(look), scope.spawn(look)];
        churn(&index, &own, &shared, 2_000);
        done.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    // What was there all the time was missed by few, if any, of those who looked.
    let (looks, whole) = (looks.into_inner(), whole.into_inner());
    assert!(looks > 0 && whole * 10 >= looks * 9, "{whole} of {looks}");
    assert_eq!(held(&index, &own, 80), [(3, 115)]);
    assert_eq!(held(&index, &shared, 80).len(), 9);
}

/// Blocks that are expected make the table large from the beginning, and change nothing else; what
/// would take more than the cap is not believed.
#[test]
fn a_hint_spares_growth_and_holds_nothing_else() {
    let bytes_max = 16 << 20;
    let indexes = [0, 200_000, u64::MAX].map(|blocks_expected| {
        Index::new(Limits { bytes_max, blocks_expected, ..Limits::default() })
    });
    let homes = indexes.each_ref().map(|index| index.published.load().new.homes);
    assert!(homes[1] > 1_000 * homes[0] && homes[2] == homes[0], "{homes:?}");
    for index in &indexes {
        (0..1_000).for_each(|n| index.dispatched((n % 64) as Slot, &unique(n), 0));
        assert_eq!((index.blocks(), index.counts().refused), (115_000, 0));
        assert!((0..1_000).all(|n| held(index, &unique(n), 64) == [((n % 64) as usize, 115)]));
        assert!(index.bytes() <= bytes_max as u64, "{}", index.bytes());
    }
    assert_eq!(indexes[1].published.load().new.homes, homes[1], "neither grown nor shrunk");
}
