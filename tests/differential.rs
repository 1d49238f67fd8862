//! Whatever we accept, the readers behind us frame the same or refuse: h11 and httptools, one of
//! which uvicorn, and so vLLM, uses. Asked of the bytes as they came and as we send them on.
//!
//! Needs `scripts/venv`. Without it the test is skipped and says so, unless `CI=true` or
//! `EXPEDITE_FULL=1`. `EXPEDITE_DIFFERENTIAL_CASES` sets the number of generated requests.

#[path = "support/mutations.rs"]
mod mutations;
#[path = "support/python.rs"]
mod python;
#[allow(dead_code)] // Each test of the wire uses its part.
#[path = "fuzz/src/targets.rs"]
mod targets;

use std::env;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use expedite::http1::{Method, write};
use targets::wire::{Event, Sender, transcript};

const CASES: usize = 20_000;

/// Bytes that we hold to be whole requests with these bodies.
struct Case {
    bytes: Vec<u8>,
    bodies: Vec<Vec<u8>>,
}

#[test]
fn readers_behind_us_frame_what_we_accept_the_same() {
    let Some(python) = python::interpreter() else { return };
    let count = env::var("EXPEDITE_DIFFERENTIAL_CASES").ok();
    let count = count.map_or(CASES, |count| count.parse().expect("a number of cases"));

    let cases = accepted(count);
    assert!(cases.len() * 20 > count, "too few accepted to tell: {} of {count}", cases.len());
    let lines = cases.iter().map(|case| python::hex(&case.bytes) + "\n").collect();
    let verdicts = python::ask(&python, "tests/differential/verdicts.py", lines);
    assert_eq!(verdicts.len(), cases.len());

    let mut read_whole = 0;
    for (case, verdict) in cases.iter().zip(&verdicts) {
        let words: Vec<&str> = verdict.split(' ').collect();
        for reader in words.chunks(3) {
            let [name, end, bodies] = reader else { panic!("{verdict}") };
            let shown = case.bytes.escape_ascii();
            let ours: Vec<String> = case.bodies.iter().map(|body| python::hex(body)).collect();
            let theirs: Vec<String> = bodies
                .split(',')
                .filter_map(|body| body.strip_prefix('='))
                .map(str::to_owned)
                .collect();
            match *end {
                "whole" => {
                    assert_eq!(theirs, ours, "{name}: {shown}");
                    read_whole += 1;
                }
                "refused" | "closed" => {
                    assert!(ours.starts_with(&theirs), "{name} {theirs:?}: {shown}");
                }
                _ => panic!("{name} waits for more: {shown}"),
            }
        }
    }
    let refused = 2 * cases.len() - read_whole;
    println!(
        "{count} inputs, {} asked of two readers: {read_whole} same, {refused} refused, 0 differ",
        cases.len()
    );
}

/// What we accept of generated requests: as it came, and as we send it on.
fn accepted(count: usize) -> Vec<Case> {
    let mut runner = TestRunner::deterministic();
    let strategy = mutations::requests();
    let mut cases = Vec::new();
    for _ in 0..count {
        let bytes = strategy.new_tree(&mut runner).expect("a request").current();
        let (mut raw_bytes, mut sent_on, mut bodies) = (Vec::new(), Vec::new(), Vec::new());
        for event in transcript(Sender::Client, &bytes, &[]) {
            if let Event::Request { raw, body, .. } = event {
                raw_bytes.extend_from_slice(&raw);
                sent_on.extend_from_slice(&rewritten(&body));
                bodies.push(body);
            }
        }
        if !bodies.is_empty() {
            cases.push(Case { bytes: raw_bytes, bodies: bodies.clone() });
            cases.push(Case { bytes: sent_on, bodies });
        }
    }
    cases
}

/// The request that goes upstream: a head of our own, the body by length.
fn rewritten(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(write::request_line(&mut out, Method::Post, b"/v1/completions"));
    assert!(write::field(&mut out, "host", b"10.0.0.1:8000"));
    write::number_field(&mut out, "content-length", body.len() as u64);
    out.extend_from_slice(write::CRLF);
    out.extend_from_slice(body);
    out
}
