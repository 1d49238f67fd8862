//! Event streams, JSON bodies and forms: the fuzz corpus, and what 20,000 mutations make of it.

#[path = "fuzz/src/targets_openai.rs"]
mod targets;

use std::{fs, path::Path};

const MUTATIONS: usize = 20_000;

#[test]
fn event_streams_hold() {
    hold("sse", targets::sse, &[b"\r", b"\n", b"\r\n", b"data", b": ", b"\xef\xbb\xbf"]);
}

#[test]
fn bodies_and_their_edits_hold() {
    let tokens: [&[u8]; 12] = [
        b"\"",
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"null",
        b"\"model\":",
        b"\\u0064",
        b"1e9",
    ];
    hold("body_edit", targets::body_edit, &tokens);
}

#[test]
fn forms_hold() {
    let tokens: [&[u8]; 10] = [
        b"\r\n",
        b"--XyZ",
        b"--",
        b"\"",
        b"\\",
        b";",
        b"; name=\"model\"",
        b"*0=",
        b"model",
        b"\r\n\r\n",
    ];
    hold("form", targets::form, &tokens);
}

/// Runs `target` on each input of its corpus and on mutations of them; deterministic.
fn hold(name: &str, target: fn(&[u8]), tokens: &[&[u8]]) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(name);
    let mut paths: Vec<_> = fs::read_dir(corpus).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let inputs: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    inputs.iter().for_each(|input| target(input));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..MUTATIONS {
        let mut input = inputs[random.below(inputs.len())].clone();
        for _ in 0..=random.below(4) {
            random.mutate(&mut input, tokens);
        }
        // A failure prints its input with the panic of the target.
        let shown = input.clone();
        if std::panic::catch_unwind(|| target(&input)).is_err() {
            panic!("{name} fails on {:?}", shown.escape_ascii().to_string());
        }
    }
}

struct Random(u64);

impl Random {
    /// Xorshift, a number under `bound`.
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }

    fn mutate(&mut self, input: &mut Vec<u8>, tokens: &[&[u8]]) {
        let at = self.below(input.len() + 1);
        let end = (at + self.below(8)).min(input.len());
        match self.below(4) {
            0 => drop(input.drain(at..end)),
            1 => drop(input.splice(at..end, tokens[self.below(tokens.len())].iter().copied())),
            2 => input.insert(at, self.below(256) as u8),
            _ => {
                let copy = input[at..end].to_vec();
                let to = self.below(input.len() + 1);
                drop(input.splice(to..to, copy));
            }
        }
    }
}
