//! Bodies on their way to prompts: the fuzz corpus, and what mutations make of it.

#[path = "fuzz/src/targets_prompt.rs"]
mod targets;

use std::{fs, path::Path};

const MUTATIONS: usize = 1_500;

const TOKENS: [&[u8]; 20] = [
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"null",
    b"true",
    b"-0.0",
    b"1e400",
    b"\\ud83d\\ude00",
    b"<|im_start|>",
    b"</think>",
    b"\"type\":\"text\"",
    b"\"content\":",
    b" \n",
    b"e\xcc\x81",
    b"                                ",
];

#[test]
fn bodies_end_in_the_same_prompts_however_they_are_cut() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus/prompt");
    let mut paths: Vec<_> = fs::read_dir(corpus).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let inputs: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    let read: Vec<usize> = inputs.iter().map(|input| targets::prompt(input)).collect();
    assert!(read.iter().filter(|read| **read > 0).count() > 10, "{read:?}");
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..MUTATIONS {
        let mut input = inputs[random.usize(..inputs.len())].clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..=input.len());
            let end = (at + random.usize(..8)).min(input.len());
            let token = TOKENS[random.usize(..TOKENS.len())];
            input.splice(at..end, token[..token.len() * random.usize(..2)].iter().copied());
        }
        if std::panic::catch_unwind(|| targets::prompt(&input)).is_err() {
            panic!("it fails on {}", input.escape_ascii());
        }
    }
}
