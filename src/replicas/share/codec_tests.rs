//! The batch on the wire: what goes in comes out, and nothing that anyone sends does harm.

use std::sync::Arc;

use super::decode::{Batch, Refused};
use super::encode::Encoder;
use super::wire::{
    BATCH_BYTES_MAX, BLOCKS_MAX, CHAIN_BLOCKS_MAX, CHAINS_MAX, Head, LaneName, NAME_BYTES_MAX,
};
use crate::prompt::blocks::BlockHash;
use crate::replicas::ledger::Sums;

fn head() -> Head {
    Head { gateway: 7, number: 8, sent_us: 9, block_tokens: 16, pool: "p".into() }
}

fn lane(n: usize) -> LaneName {
    LaneName { replica: format!("r{n}").into(), rank: (n % 2 == 1).then_some(n as u32) }
}

/// Chains as prompts make them: a few heads, many tails, some told twice.
fn prompts(rng: &mut fastrand::Rng, count: usize) -> Vec<(usize, Vec<BlockHash>)> {
    let mut made: Vec<(usize, Vec<BlockHash>)> = Vec::new();
    for _ in 0..count {
        let mut chain = match made.len() {
            0 => Vec::new(),
            n => {
                let (_, other) = &made[rng.usize(..n)];
                other[..rng.usize(..=other.len())].to_vec()
            }
        };
        chain.extend((0..rng.usize(..40)).map(|_| rng.u128(..)));
        made.push((rng.usize(..5), chain));
    }
    made
}

fn encoded(prompts: &[(usize, Vec<BlockHash>)]) -> Vec<u8> {
    let mut encoder = Encoder::default();
    for (n, chain) in prompts {
        assert!(encoder.dispatched(*n, &lane(*n), *n as u64, chain));
    }
    encoder.finish(&head()).expect("batch")
}

fn decoded(batch: &Batch) -> Vec<(LaneName, u64, Vec<BlockHash>)> {
    let mut chain = Vec::new();
    let told = (0..batch.chains()).map(|n| {
        let (lane, adapter) = batch.chain(n, &mut chain).expect("chain");
        (batch.lanes[lane].clone(), adapter, chain.clone())
    });
    told.collect()
}

#[test]
fn what_is_told_comes_out() {
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..50 {
        let prompts = prompts(&mut rng, 60);
        let bytes = encoded(&prompts);
        let distinct: std::collections::HashSet<_> = prompts.iter().flat_map(|(_, c)| c).collect();
        let all: usize = prompts.iter().map(|(_, chain)| chain.len()).sum();
        assert!(bytes.len() < 16 * distinct.len() + 60 * 20 + 200, "shared heads go once");
        assert!(all > distinct.len());
        let batch = Batch::decode(bytes).expect("batch");
        assert_eq!(batch.head, head());
        let expected: Vec<_> = prompts.into_iter().map(|(n, c)| (lane(n), n as u64, c)).collect();
        assert_eq!(decoded(&batch), expected);
    }
}

#[test]
fn sums_come_out_and_are_bounded() {
    let mut encoder = Encoder::default();
    let sums = Sums {
        requests: 1,
        tokens: 2,
        pending_tokens: 3,
        pending_requests: 4,
        decodes: 5,
        decode_kv_tokens: 6,
        begun_ms: 0,
        held_tokens: 7,
        prefill_ms: 8.5,
    };
    encoder.sums(3, &lane(3), &sums);
    encoder.sums(4, &lane(4), &Sums { tokens: u64::MAX, prefill_ms: f64::NAN, ..sums });
    let batch = Batch::decode(encoder.finish(&head()).expect("batch")).expect("batch");
    assert_eq!(batch.lanes, [lane(3), lane(4)]);
    let large = Sums { tokens: u64::from(u32::MAX), prefill_ms: 0.0, ..sums };
    assert_eq!(batch.sums, [(0, sums), (1, large)]);
}

#[test]
fn a_full_batch_says_so_and_still_can_be_read() {
    let mut rng = fastrand::Rng::with_seed(2);
    let mut encoder = Encoder::default();
    let long: Vec<_> = (0..CHAIN_BLOCKS_MAX + 5).map(|_| rng.u128(..)).collect();
    assert!(encoder.dispatched(0, &lane(0), 0, &long));
    let mut told = 1;
    while encoder.dispatched(0, &lane(0), 0, &[rng.u128(..); 5_000]) {
        told += 1;
    }
    let bytes = encoder.finish(&head()).expect("batch");
    assert!(bytes.len() <= BATCH_BYTES_MAX && bytes.len() > BATCH_BYTES_MAX - 81_000);
    let batch = Batch::decode(bytes).expect("batch");
    assert_eq!(batch.chains(), told);
    assert_eq!(decoded(&batch)[0].2, long[..CHAIN_BLOCKS_MAX]);
    // Again and again the same long prompt: few bytes, but blocks to walk.
    let mut encoder = Encoder::default();
    let told = (0..).take_while(|_| encoder.dispatched(1, &lane(1), 1, &long)).count();
    assert_eq!(told, BLOCKS_MAX / CHAIN_BLOCKS_MAX);
    let mut encoder = Encoder::default();
    let told = (0..).take_while(|n| encoder.dispatched(1, &lane(1), 1, &long[..*n % 2])).count();
    assert_eq!(told, CHAINS_MAX);
    assert!(Batch::decode(encoder.finish(&head()).expect("batch")).is_ok());
}

#[test]
fn names_past_the_limit_are_not_told() {
    let long: Arc<str> = "x".repeat(NAME_BYTES_MAX + 1).into();
    let mut encoder = Encoder::default();
    let name = LaneName { replica: Arc::clone(&long), rank: None };
    assert!(encoder.dispatched(0, &name, 0, &[1]));
    encoder.sums(0, &name, &Sums::default());
    let batch = Batch::decode(encoder.finish(&head()).expect("batch")).expect("batch");
    assert_eq!((batch.lanes.len(), batch.sums.len(), batch.chains()), (0, 0, 0));
    assert!(Encoder::default().finish(&Head { pool: long, ..head() }).is_none());
}

/// Hashes that were made to collide at other depths must not make a batch unreadable for all.
#[test]
fn hashes_at_odd_depths_are_told_in_full() {
    let chains: [&[BlockHash]; 5] = [&[1, 2, 3], &[2, 3, 4], &[3], &[1, 1, 1, 2], &[2, 1, 3, 3]];
    let prompts: Vec<_> = chains.iter().map(|chain| (0, chain.to_vec())).collect();
    let batch = Batch::decode(encoded(&prompts)).expect("batch");
    let told: Vec<_> = decoded(&batch).into_iter().map(|(_, _, chain)| chain).collect();
    assert_eq!(told, chains);
}

#[test]
fn damaged_bytes_are_refused_or_read_within_bounds() {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut encoder = Encoder::default();
    for (n, chain) in prompts(&mut rng, 20) {
        encoder.sums(n, &lane(n), &Sums { requests: 1, ..Sums::default() });
        assert!(encoder.dispatched(n, &lane(n), n as u64, &chain));
    }
    let whole = encoder.finish(&head()).expect("batch");
    for end in 0..whole.len() {
        assert!(Batch::decode(whole[..end].to_vec()).is_err(), "cut at {end}");
    }
    let mut longer = whole.clone();
    longer.push(0);
    assert_eq!(Batch::decode(longer).err(), Some(Refused::Malformed));
    let mut newer = whole.clone();
    newer[3] = 2;
    assert_eq!(Batch::decode(newer).err(), Some(Refused::Version(2)));
    let mut read = 0;
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(4..bytes.len());
            bytes[at] = if rng.bool() { rng.u8(..) } else { 0xff };
        }
        let Ok(batch) = Batch::decode(bytes) else { continue };
        let blocks: usize = decoded(&batch).iter().map(|(_, _, chain)| chain.len()).sum();
        assert!(blocks <= BLOCKS_MAX);
        assert!(batch.sums.iter().all(|(lane, sums)| {
            *lane < batch.lanes.len() && (0.0..4e7).contains(&sums.prefill_ms)
        }));
        read += 1;
    }
    assert!(read > 1_000, "most damage hits hashes: {read}");
}

/// Each chain adds one block to the one before: as deep as chains can nest.
#[test]
fn deep_nesting_costs_one_step_a_block() {
    let prompts: Vec<_> = (1..1_000u128).map(|n| (0, (0..n).collect::<Vec<_>>())).collect();
    let batch = Batch::decode(encoded(&prompts)).expect("batch");
    assert_eq!(decoded(&batch).last().map(|(_, _, chain)| chain.len()), Some(999));
}
