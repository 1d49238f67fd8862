//! KV events and their wire: the fuzz corpus, and what mutations make of it.

#[path = "fuzz/src/targets_kv.rs"]
mod targets;

use std::{fs, path::Path};

const MUTATIONS: usize = 4_000;

#[test]
fn events_end_and_are_counted_whatever_they_are() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus/kv_events");
    let mut paths: Vec<_> = fs::read_dir(corpus).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let inputs: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    let read = inputs.iter().map(|input| targets::kv_events(input));
    assert!(read.filter(|events| *events > 0).count() >= 6, "the corpus has payloads");
    let mut random = fastrand::Rng::with_seed(7);
    let mut still_read = 0;
    for _ in 0..MUTATIONS {
        let mut input = inputs[random.usize(..inputs.len())].clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..=input.len());
            let end = (at + random.usize(..3)).min(input.len());
            let heads = [0x00, 0x80, 0x90, 0x91, 0xa4, 0xc0, 0xc4, 0xcb, 0xcf, 0xdc, 0xdd, 0xff];
            let byte = heads[random.usize(..heads.len())];
            input.splice(at..end, std::iter::repeat_n(byte, random.usize(..3)));
        }
        match std::panic::catch_unwind(|| targets::kv_events(&input)) {
            Ok(events) => still_read += usize::from(events > 0),
            Err(_) => panic!("it fails on {}", input.escape_ascii()),
        }
    }
    assert!(still_read > MUTATIONS / 50, "mutations reach behind the batch: {still_read}");
}
