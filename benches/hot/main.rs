//! Each hot function of a request's path alone: `cargo bench --bench hot`, or `-- CASE` for one.
//!
//! Prints the median time of a round with the fifth and ninety-fifth percentile, one thread, warm.
//! Each round asserts its result; times are printed, not judged. What is judged is the number of
//! instructions of a round, which no other work on the machine changes: `scripts/instructions`.
//! Heads, chunks and events are the bytes that clients and engines send; `chunks`, `sse_framing`
//! and `sse_events` are of one whole short stream; `kv_events` is a message of 40 block events.

use std::hint::black_box;
use std::time::Instant;

mod books;
mod fleet;
#[allow(dead_code)] // The tests use the rest.
#[path = "../../tests/support/kv_wire.rs"]
mod kv_wire;
#[path = "../support/fleet.rs"]
mod loaded;
mod prompts;
#[path = "../support/rounds.rs"]
mod rounds;
#[allow(dead_code)] // The tests use the rest.
#[path = "../../tests/support/tiny_tokenizer.rs"]
mod tiny_tokenizer;
mod wire;

use rounds::{Case, Round, run};

const CASES: [Case; 21] = [
    Case { name: "head_request", rounds: 2_000, make: wire::head_request },
    Case { name: "head_response", rounds: 2_000, make: wire::head_response },
    Case { name: "chunks", rounds: 2_000, make: wire::chunks },
    Case { name: "sse_framing", rounds: 2_000, make: wire::sse_framing },
    Case { name: "sse_events", rounds: 1_000, make: wire::sse_events },
    Case { name: "body_read", rounds: 1_000, make: wire::body_read },
    Case { name: "body_edit", rounds: 2_000, make: wire::body_edit },
    Case { name: "prompt_new", rounds: prompts::ROUNDS, make: prompts::new },
    Case { name: "prompt_known", rounds: prompts::ROUNDS, make: prompts::known },
    Case { name: "qwen3_new", rounds: prompts::ROUNDS, make: prompts::qwen3_new },
    Case { name: "qwen3_known", rounds: prompts::ROUNDS, make: prompts::qwen3_known },
    Case { name: "block_hash", rounds: 500, make: fleet::block_hash },
    Case { name: "index_lookup", rounds: 1_000, make: fleet::index_lookup },
    Case { name: "index_dispatch", rounds: 1_000, make: fleet::index_dispatch },
    Case { name: "kv_events", rounds: 1_000, make: fleet::kv_events },
    Case { name: "pick_64", rounds: 500, make: fleet::pick_64 },
    Case { name: "pick_1000", rounds: 50, make: fleet::pick_1000 },
    Case { name: "quota", rounds: 5_000, make: books::quota },
    Case { name: "histogram", rounds: 5_000, make: books::histogram },
    Case { name: "admission", rounds: 5_000, make: books::admission },
    Case { name: "usage_record", rounds: 1_000, make: books::usage_record },
];

/// Samples of a case, and how long one is at least: many rounds of a short one.
const SAMPLES: u64 = 200;
const SAMPLE_NS: u64 = 20_000;

fn measure(name: &str, rounds: u64, mut round: Round) {
    // A case has work for its warm-up and as many rounds more; only endless ones go on for longer.
    let start = Instant::now();
    run(&mut round, 0, rounds);
    let each = (start.elapsed().as_nanos() as u64 / rounds).max(1);
    let batch = (SAMPLE_NS / each).clamp(1, rounds / SAMPLES.min(rounds)).max(1);
    let mut times: Vec<f64> = (0..rounds / batch)
        .map(|at| {
            let start = Instant::now();
            run(black_box(&mut round), rounds + at * batch, batch);
            start.elapsed().as_nanos() as f64 / batch as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
    println!("{name:16} {:10.1} ns  ({:.1} to {:.1})", at(50), at(5), at(95));
}

fn main() {
    if rounds::answered(&CASES) {
        return;
    }
    let only = std::env::args().nth(1).filter(|arg| !arg.starts_with('-'));
    for case in CASES.iter().filter(|case| only.as_deref().is_none_or(|only| only == case.name)) {
        if let Some(round) = (case.make)() {
            measure(case.name, case.rounds, round);
        }
    }
}
