//! The cache beside a plain one: block by block, as vLLM keeps them.

use std::collections::{HashMap, VecDeque};

use super::*;

/// A chain whose blocks have these names.
fn chain(names: &[u32]) -> Chain {
    let mut parent: BlockHash = 1;
    let link = |name: &u32| {
        let odd = BlockHash::from(*name) * 2 + 1;
        parent = (parent ^ odd).wrapping_mul(0x0123_4567_89AB_CDEF_1122_3344_5566_7789) >> 1;
        parent
    };
    names.iter().map(link).collect()
}

fn admit(cache: &mut KvCache, id: u64, chain: &Chain, blocks: u64) -> (Holding, u64) {
    let hit = cache.lookup(chain.get(..chain.len() - 1).unwrap());
    let mut holding = cache.acquire(&hit);
    assert!(cache.take(&mut holding, blocks - hit.blocks));
    cache.store(&mut holding, id, chain, blocks);
    (holding, hit.blocks)
}

fn removed(cache: &mut KvCache) -> Vec<BlockHash> {
    let events = std::mem::take(&mut cache.events).into_iter();
    events.filter_map(|e| if let KvEvent::Removed(hash) = e { Some(hash) } else { None }).collect()
}

/// vLLM's block pool, without copies.
#[derive(Default)]
struct Plain {
    fresh: u64,
    cached: HashMap<BlockHash, u32>,
    free: VecDeque<Option<BlockHash>>,
    removed: Vec<BlockHash>,
}

impl Plain {
    fn hits(&self, chain: &[BlockHash]) -> usize {
        chain.iter().take_while(|hash| self.cached.contains_key(*hash)).count()
    }

    fn hold(&mut self, hash: BlockHash) {
        let refs = self.cached.entry(hash).or_default();
        *refs += 1;
        if *refs == 1 {
            self.free.retain(|free| *free != Some(hash));
        }
    }

    fn take(&mut self, blocks: u64) {
        for _ in 0..blocks {
            if self.fresh > 0 {
                self.fresh -= 1;
            } else if let Some(hash) = self.free.pop_front().expect("a free block") {
                self.cached.remove(&hash);
                self.removed.push(hash);
            }
        }
    }

    fn release(&mut self, stored: &[BlockHash], own: u64) {
        self.free.extend((0..own).map(|_| None));
        for hash in stored.iter().rev() {
            let refs = self.cached.get_mut(hash).expect("it is held");
            *refs -= 1;
            if *refs == 0 {
                self.free.push_back(Some(*hash));
            }
        }
    }
}

struct Live {
    chain: Chain,
    holding: Holding,
    blocks: u64,
}

#[test]
fn hits_frees_and_evictions_are_those_of_a_block_by_block_cache() {
    for seed in 0..6 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let total = rng.u64(60..300);
        let mut cache = KvCache::new(total);
        cache.recording = true;
        let mut plain = Plain { fresh: total, ..Plain::default() };
        let (mut live, mut used, mut next, mut hits) = (Vec::<Live>::new(), vec![vec![0]], 1, 0);
        for id in 0..1500 {
            let roomy = plain.fresh as usize + plain.free.len() > 28;
            if roomy && rng.u8(..3) > 0 {
                // It leaves an older chain somewhere, and ends as no other does.
                let old: &Vec<u32> = &used[rng.usize(used.len().saturating_sub(30)..used.len())];
                let mut names = old[..rng.usize(..=old.len())].to_vec();
                names.truncate(20);
                names.extend((0..rng.u32(1..8)).map(|i| next + i));
                next += 8;
                let chain = chain(&names);
                let found = plain.hits(&chain);
                chain.iter().take(found).for_each(|hash| plain.hold(*hash));
                // The prompt is a part of the chain, its own end included.
                let blocks = chain.len() as u64;
                plain.take(blocks - found as u64);
                chain.iter().skip(found).for_each(|hash| plain.hold(*hash));
                let (holding, hit) = admit(&mut cache, id, &chain, blocks);
                assert_eq!(hit, found as u64);
                hits += hit;
                used.push(names);
                live.push(Live { chain, holding, blocks });
            } else if roomy && !live.is_empty() && rng.bool() {
                // A block without a hash.
                let request = rng.usize(..live.len());
                assert!(cache.take(&mut live[request].holding, 1));
                plain.take(1);
            } else if !live.is_empty() {
                let mut gone = live.swap_remove(rng.usize(..live.len()));
                assert_eq!(gone.holding.path, gone.blocks);
                plain.release(&gone.chain, gone.holding.own);
                cache.release(&mut gone.holding);
            }
            assert_eq!(cache.free(), plain.fresh + plain.free.len() as u64);
            assert_eq!(removed(&mut cache), std::mem::take(&mut plain.removed));
            cache.check(&live.iter().map(|l| &l.holding).collect::<Vec<_>>()).expect("the books");
        }
        assert!(hits > 200, "the test shares blocks: {hits}");
        assert!(used.iter().all(|names| {
            let chain = chain(names);
            cache.lookup(&chain).blocks == plain.hits(&chain) as u64
        }));
    }
}

#[test]
fn the_least_recently_released_goes_first_and_of_it_the_tail() {
    let mut cache = KvCache::new(10);
    cache.recording = true;
    let (old, young) = (chain(&[1, 2, 3, 4]), chain(&[1, 2, 5, 6]));
    let (mut first, _) = admit(&mut cache, 1, &old, 4);
    let (mut second, hit) = admit(&mut cache, 2, &young, 4);
    assert_eq!((hit, cache.free()), (2, 4));
    cache.release(&mut first);
    cache.release(&mut second);
    assert_eq!(cache.free(), 10);
    let (mut third, _) = admit(&mut cache, 3, &chain(&[7, 8, 9, 10, 11]), 5);
    assert_eq!(removed(&mut cache), [old[3]], "after the 4 that were never used");
    assert!(cache.take(&mut third, 3));
    assert_eq!(removed(&mut cache), [old[2], young[3], young[2]]);
    assert_eq!(cache.lookup(&old).blocks, 2);
    assert!(!cache.take(&mut third, 3), "two are left");
    assert_eq!(cache.free(), 2);
    cache.check(&[&third]).expect("the books");
}

#[test]
fn a_second_copy_takes_memory_and_is_reported_twice() {
    let mut cache = KvCache::new(8);
    cache.recording = true;
    let same = chain(&[1, 2, 3]);
    let (mut a, _) = admit(&mut cache, 1, &same, 3);
    // The last block is computed again, and is there already.
    let (mut b, hit) = admit(&mut cache, 2, &same, 3);
    assert_eq!((hit, cache.free(), b.path), (2, 4, 3));
    cache.check(&[&a, &b]).expect("the books");
    let stored = |id, first_block, count| KvEvent::Stored { id, first_block, count };
    assert_eq!(cache.events, [stored(1, 0, 3), stored(2, 2, 1)]);
    cache.events.clear();
    cache.release(&mut a);
    cache.release(&mut b);
    let mut all = Holding::default();
    assert!(cache.take(&mut all, 8));
    let gone = removed(&mut cache);
    assert_eq!(gone.iter().filter(|hash| **hash == same[2]).count(), 2);
    assert_eq!(gone.len(), 4);
    cache.check(&[&all]).expect("the books");
}

#[test]
fn the_books_hold_when_requests_compute_the_same_side_by_side() {
    for seed in 0..10 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut cache = KvCache::new(rng.u64(20..120));
        cache.recording = rng.bool();
        let mut live: Vec<(Chain, Holding)> = Vec::new();
        for id in 0..1000 {
            match rng.u8(..4) {
                0 => {
                    let names: Vec<u32> = (0..rng.u32(2..12)).map(|_| rng.u32(..2)).collect();
                    let chain = chain(&names);
                    let hit = cache.lookup(&chain[..rng.usize(..chain.len())]);
                    let mut holding = cache.acquire(&hit);
                    if cache.take(&mut holding, 1) {
                        cache.store(&mut holding, id, &chain, 100);
                    }
                    live.push((chain, holding));
                }
                1 | 2 if !live.is_empty() => {
                    let at = rng.usize(..live.len());
                    let (chain, holding) = &mut live[at];
                    if cache.take(holding, rng.u64(..3)) {
                        cache.store(holding, id, chain, rng.u64(..12));
                    }
                }
                _ if !live.is_empty() => {
                    let at = rng.usize(..live.len());
                    cache.release(&mut live.swap_remove(at).1);
                }
                _ => {}
            }
            cache.check(&live.iter().map(|l| &l.1).collect::<Vec<_>>()).expect("the books");
            assert_eq!(cache.reset(), live.iter().all(|l| l.1.path + l.1.own == 0), "{seed} {id}");
        }
    }
}

#[test]
fn an_answer_that_nobody_knows_is_found_by_its_own_request_only() {
    let mut cache = KvCache::new(20);
    cache.recording = true;
    let prompt = chain(&[1, 2, 3]);
    let (mine, other) = (own_chain(&prompt, 7, 6), own_chain(&prompt, 8, 6));
    assert_eq!((mine.len(), &mine[..3]), (6, &prompt[..]));
    let (mut holding, _) = admit(&mut cache, 7, &mine, 6);
    cache.release(&mut holding);
    assert_eq!(cache.lookup(&mine).blocks, 6);
    assert_eq!(cache.lookup(&other).blocks, 3);
    assert_eq!(cache.events, [KvEvent::Stored { id: 7, first_block: 0, count: 3 }]);
    assert!(cache.take(&mut holding, 18));
    assert_eq!(removed(&mut cache), [prompt[2]], "its own blocks are nobody's business");
}
