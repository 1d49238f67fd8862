//! What the target of gateways' batches asserts about any bytes: they are refused or read within
//! the limits, and what was read is the same after it is written and read once more.

use std::collections::HashMap;

use expedite::prompt::blocks::BlockHash;
use expedite::replicas::share::{
    BATCH_BYTES_MAX, BLOCKS_MAX, Batch, CHAIN_BLOCKS_MAX, CHAINS_MAX, Encoder, LANES_MAX,
};

/// The lane's index, the hash of its adapter, its blocks.
type Told = (usize, u64, Vec<BlockHash>);

/// Any bytes.
pub(crate) fn share(bytes: &[u8]) {
    let Ok(batch) = Batch::decode(bytes.to_vec()) else { return };
    assert!(bytes.len() <= BATCH_BYTES_MAX && batch.bytes() == bytes.len());
    assert!(batch.lanes.len() <= LANES_MAX && batch.sums.len() <= LANES_MAX);
    for (lane, sums) in &batch.sums {
        assert!(*lane < batch.lanes.len() && (0.0..4e7).contains(&sums.prefill_ms));
    }
    let chains = told(&batch);
    let blocks: usize = chains.iter().map(|(_, _, chain)| chain.len()).sum();
    assert!(chains.len() <= CHAINS_MAX && blocks <= BLOCKS_MAX);
    again(&batch, &chains);
}

fn told(batch: &Batch) -> Vec<Told> {
    let mut chain = vec![7; 3];
    let one = |n| {
        let (lane, adapter) = batch.chain(n, &mut chain).expect("a batch has all its chains");
        assert!(lane < batch.lanes.len() && chain.len() <= CHAIN_BLOCKS_MAX);
        (lane, adapter, chain.clone())
    };
    let all = (0..batch.chains()).map(one).collect();
    assert_eq!(batch.chain(batch.chains(), &mut chain), None);
    all
}

/// Writes what was read, as far as a batch has room for it, and reads it.
fn again(batch: &Batch, chains: &[Told]) {
    let mut encoder = Encoder::default();
    let mut written = 0;
    for (lane, adapter, chain) in chains {
        if !encoder.dispatched(*lane, &batch.lanes[*lane], *adapter, chain) {
            break;
        }
        written += 1;
    }
    let bytes = encoder.finish(&batch.head).expect("its names fit");
    let second = Batch::decode(bytes).expect("what we write can be read");
    assert_eq!(second.head, batch.head);
    let is_chained = stand_for_their_heads(chains);
    for ((lane, adapter, chain), (first_lane, first_adapter, first)) in
        told(&second).iter().zip(&chains[..written])
    {
        assert_eq!((adapter, chain.len()), (first_adapter, first.len()));
        assert!(chain == first || !is_chained, "{chain:x?} {first:x?}");
        assert_eq!(second.lanes[*lane], batch.lanes[*first_lane]);
    }
    assert_eq!(second.chains(), written);
}

/// Whether each hash comes after the same one wherever it is, as hashes of a prompt's blocks do:
/// what is written relies on it.
fn stand_for_their_heads(chains: &[Told]) -> bool {
    let mut before: HashMap<BlockHash, (usize, BlockHash)> = HashMap::new();
    chains.iter().all(|(_, _, chain)| {
        let mut last = 0;
        chain.iter().enumerate().all(|(depth, hash)| {
            let place = (depth, std::mem::replace(&mut last, *hash));
            *before.entry(*hash).or_insert(place) == place
        })
    })
}
