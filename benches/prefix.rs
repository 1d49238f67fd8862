//! Cost of the prefix index: `cargo bench --bench prefix`, some twenty seconds.
//!
//! Prints lookups (ns, median and ninety-ninth percentile, one by one, the clock's own cost
//! included), dispatches and events of full slots (ns each), and memory a held block, for two
//! million blocks on 64 and on 1,000 slots. Prompts have 115 blocks. Asserts that sampled answers
//! are right and that memory stays within its cap; times are printed, not judged.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use expedite::prefix::{Index, Limits, Mode, Slot};
use expedite::prompt::blocks::BlockHash;

/// Blocks of a prompt, and of the head that it shares with others.
const CHAIN: usize = 115;
const HEAD: usize = 56;
/// Heads, and the blocks held in all.
const HEADS: u64 = 400;
const BLOCKS: usize = 2_000_000;
/// Timed lookups a case.
const LOOKUPS: usize = 100_000;

type Chain = Vec<BlockHash>;

fn child(parent: BlockHash, number: u64) -> BlockHash {
    xxhash_rust::xxh3::xxh3_128_with_seed(&parent.to_le_bytes(), number)
}

/// `count` blocks behind `parent`, the first by `number`.
fn run(chain: &mut Chain, number: u64, count: usize) {
    for at in 0..count as u64 {
        let parent = chain.last().copied().unwrap_or_default();
        chain.push(child(parent, if at == 0 { number } else { 0 }));
    }
}

/// A prompt: one of the heads and a tail of its own.
fn prompt(head: u64, tail: u64) -> Chain {
    let mut chain = Chain::with_capacity(CHAIN);
    run(&mut chain, head, HEAD);
    run(&mut chain, tail, CHAIN - HEAD);
    chain
}

/// A head by Zipf's law.
fn head(rng: &mut fastrand::Rng) -> u64 {
    (HEADS as f64).powf(rng.f64()) as u64 - 1
}

/// Medians of what is timed one by one.
struct Times(Vec<u64>);

impl Times {
    /// Of `each` for so many chains, which are in the cache as if just made.
    fn of<'a>(
        chains: impl Iterator<Item = &'a Chain>,
        mut each: impl FnMut(usize, &Chain),
    ) -> Times {
        let mut chain = Chain::new();
        let mut times: Vec<u64> = chains
            .enumerate()
            .map(|(at, next)| {
                chain.clone_from(next);
                let start = Instant::now();
                each(at, &chain);
                start.elapsed().as_nanos() as u64
            })
            .collect();
        times.sort_unstable();
        Times(times)
    }

    fn at(&self, share: f64) -> u64 {
        self.0[((self.0.len() - 1) as f64 * share) as usize]
    }
}

/// CPU time of this thread in ns: other work on the machine does not count.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a time")
}

fn index(slots: usize, bytes_max: usize) -> Index {
    let index = Index::new(Limits { bytes_max, ..Limits::default() });
    let each = (BLOCKS / slots) as u64;
    index.write(|writer| (0..slots).for_each(|slot| writer.set_capacity(slot as Slot, each)));
    index
}

/// An index full of prompts, and the newest of them with their slots.
fn filled(slots: usize, rng: &mut fastrand::Rng) -> (Index, Vec<(Chain, Slot)>) {
    let index = index(slots, 1 << 30);
    let mut newest = Vec::new();
    let mut tail = 0;
    while newest.len() < 10_000 {
        tail += 1;
        // In turns, so that the last 10,000 are still there whole.
        let (chain, slot) = (prompt(head(rng), 1_000 + tail), (tail % slots as u64) as Slot);
        index.dispatched(slot, &chain, 0);
        if index.counts().evicted > 2_000_000 {
            newest.push((chain, slot));
        }
    }
    (index, newest)
}

/// Times lookups of these chains, of which somebody holds `deepest` blocks and nobody more.
fn lookups(name: &str, index: &Index, slots: usize, chains: &[Chain], deepest: usize) {
    let mut out = vec![0; slots];
    for chain in chains.iter().rev().take(100) {
        index.depths(chain, &mut out);
        assert_eq!(out.iter().max(), Some(&(deepest as u32)), "{name}");
    }
    let times = Times::of(chains.iter().cycle().take(LOOKUPS), |_, chain| {
        index.depths(chain, &mut out);
        std::hint::black_box(&out);
    });
    println!("lookup, {slots} slots, {name}: {} / {} ns", times.at(0.5), times.at(0.99));
}

/// Prompts of a shared head, which many slots hold, and a tail that one holds.
fn mixed(slots: usize) {
    let mut rng = fastrand::Rng::with_seed(7);
    let (index, newest) = filled(slots, &mut rng);
    let mut out = vec![0; slots];
    for (chain, slot) in newest.iter().rev().take(100) {
        index.depths(chain, &mut out);
        assert_eq!(out[usize::from(*slot)], CHAIN as u32);
    }
    let all: Vec<Chain> = newest.into_iter().map(|(chain, _)| chain).collect();
    lookups("held to the end, any of 10,000", &index, slots, &all, CHAIN);
    lookups("held to the end, one of 50", &index, slots, &all[..50], CHAIN);
    let fresh = |at: u64| prompt(at % 50, 1 << 40 | at);
    let heads: Vec<Chain> = (0..10_000).map(fresh).collect();
    lookups("only the head held", &index, slots, &heads, HEAD);
    let cold: Vec<Chain> = (0..10_000).map(|at| prompt(1 << 41 | at, 0)).collect();
    lookups("nothing held", &index, slots, &cold, 0);
    let per = index.bytes() as f64 / index.blocks() as f64;
    let (blocks, mib) = (index.blocks(), index.bytes() >> 20);
    println!("memory, {slots} slots: {blocks} blocks, {mib} MiB, {per:.1} bytes a held block");

    let slot = |at: usize| (at % slots) as Slot;
    let prompts: Vec<Chain> = (0..20_000).map(|at| prompt(head(&mut rng), 1 << 42 | at)).collect();
    let before = index.counts().evicted;
    let times = Times::of(prompts.iter(), |at, chain| index.dispatched(slot(at), chain, 0));
    let new = (index.counts().evicted - before) as f64 / prompts.len() as f64;
    let (median, late) = (times.at(0.5), times.at(0.99));
    println!("dispatch, {slots} full slots, {new:.0} new blocks: {median} / {late} ns");
    let last = prompts.len() - 1000;
    let again = prompts[last..].iter().cycle().take(20_000);
    let times = Times::of(again, |at, chain| index.dispatched(slot(last + at % 1000), chain, 0));
    println!(
        "dispatch, {slots} full slots, nothing new: {} / {} ns",
        times.at(0.5),
        times.at(0.99)
    );
}

/// Prompts that share nothing: each block is held once.
fn unique() {
    let index = index(64, 1 << 30);
    for at in 0..BLOCKS / CHAIN * 5 / 4 {
        index.dispatched((at % 64) as Slot, &prompt(at as u64, 0), 0);
    }
    let per = index.bytes() as f64 / index.blocks() as f64;
    let (blocks, mib) = (index.blocks(), index.bytes() >> 20);
    println!("memory, each block held once: {blocks} blocks, {mib} MiB, {per:.1} bytes a block");
    assert!(per <= 40.0, "{per} bytes a block");

    let cap = 32 << 20;
    let capped = self::index(64, cap);
    let (mut most, start) = (0, Instant::now());
    for at in 0..200_000u64 {
        capped.dispatched((at % 64) as Slot, &prompt(at, 0), 0);
        most = most.max(capped.bytes());
    }
    assert!(most <= cap as u64, "{most} bytes");
    let ns = start.elapsed().as_nanos() as u64 / 200_000;
    println!("endless, cap 32 MiB: at most {} MiB, {ns} ns a prompt with its making", most >> 20);
}

/// Events of full exact slots, while another thread reads.
fn events() {
    let index = index(64, 1 << 30);
    index.write(|writer| (0..64).for_each(|slot| writer.set_mode(slot, Mode::Exact)));
    let each = BLOCKS / 64;
    let mut chains: Vec<Chain> = (0..64).map(|slot| vec![child(1, slot)]).collect();
    for (slot, chain) in chains.iter_mut().enumerate() {
        run(chain, 0, 2 * each - 1);
        for &hash in &chain[..each] {
            index.write(|writer| writer.stored(slot as Slot, hash));
        }
    }
    assert_eq!(index.blocks(), (64 * each) as u64);
    let per = index.bytes() as f64 / index.blocks() as f64;
    println!("memory, by events, each block held once: {per:.1} bytes a block");
    let done = AtomicBool::new(false);
    let (events, ns, lookups) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut out, mut count) = (vec![0; 64], 0u64);
            while !done.load(Ordering::Relaxed) {
                let chain = &chains[count as usize % 64];
                let from = count as usize % (each - CHAIN);
                index.depths(&chain[from..from + CHAIN], &mut out);
                count += 1;
            }
            count
        });
        let start = cpu_ns();
        // In batches of 32, as an engine's steps make them.
        for at in (0..each - 32).step_by(32) {
            for (slot, chain) in chains.iter().enumerate() {
                index.write(|writer| {
                    for at in at..at + 32 {
                        writer.removed(slot as Slot, chain[at]);
                        writer.stored(slot as Slot, chain[each + at]);
                    }
                });
            }
        }
        let ns = cpu_ns() - start;
        done.store(true, Ordering::Relaxed);
        (((each - 32).div_ceil(32) * 64 * 64) as u64, ns, reader.join().expect("a reader"))
    });
    let counts = index.counts();
    assert_eq!((counts.refused, counts.unknown_removals, index.blocks()), (0, 0, 64 * each as u64));
    let rate = events as f64 / ns as f64 * 1e3;
    println!("events beside a reader: {rate:.2} M/s of the writer's CPU, {lookups} lookups");
}

fn main() {
    mixed(64);
    mixed(1000);
    unique();
    events();
}
