//! Cost of a prompt from its body to tokens and block hashes: `cargo bench --bench prompt`, with
//! the files that `scripts/fetch-tokenizers` brings.
//!
//! Prints medians of single prompts in microseconds with the fifth and ninety-fifth percentile,
//! one thread, in the traffic that each name says; `-- CASE` runs one. Asserts for each prompt of a
//! sample that its tokens are those of the library alone; times are printed, not judged. Its texts
//! quote this repository's code, so that instructions are counted with others: `benches/hot`.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use expedite::openai::{Call, Endpoint, read_call};
use expedite::prompt::blocks::Root;
use expedite::prompt::model::{Ask, Model, Piece};
use expedite::prompt::segments::SegmentCache;
use expedite::prompt::work::{Terms, Turn, Work};

#[allow(dead_code)] // Each user of the generator uses its part.
#[path = "../tests/support/prompts.rs"]
mod prompts;

use prompts::{Marks, Prompts};

/// As the gateway's: bytes a core keeps, bytes encoded in a step.
const CACHE_BYTES: usize = 64 << 20;
const STEP_BYTES: usize = 2 * 1024;
/// Of so many prompts one is checked against the library.
const CHECK_EVERY: usize = 50;

/// A body and what was read of it.
struct Body {
    bytes: Vec<u8>,
    call: Call,
}

fn body(messages: &[(&str, &str)]) -> Body {
    let messages: Vec<_> = messages
        .iter()
        .map(|(role, content)| serde_json::json!({"role": role, "content": content}))
        .collect();
    let bytes = serde_json::json!({"model": "m", "messages": messages, "stream": true});
    let bytes = bytes.to_string().into_bytes();
    let call = read_call(Endpoint::ChatCompletions, &bytes).expect("a call");
    Body { bytes, call }
}

fn ask(body: &Body) -> Ask<'_> {
    let (endpoint, unix_s) = (Endpoint::ChatCompletions, 1_700_000_000);
    Ask { endpoint, call: &body.call, body: &body.bytes, unix_s }
}

/// Render, tokens, hashes: what a core does, and how many turns it took.
fn run(model: &Model, cache: &mut SegmentCache, body: &Body) -> (Vec<u32>, usize) {
    let source = model.source(&ask(body)).expect("a prompt");
    let blocks = (Root::new(None, None), 16);
    let terms = Terms::new(Endpoint::ChatCompletions, &body.call, None, blocks);
    let mut work = Work::new(Some(model.tokenizer()), source, terms);
    let mut turns = 1;
    loop {
        match work.turn(cache, STEP_BYTES).expect("tokens") {
            Turn::Done => break,
            Turn::More => turns += 1,
            Turn::Long => panic!("these texts can be cut"),
        }
    }
    let (prompt, mut ids) = work.finish();
    let ids = ids.pop().unwrap_or_default();
    assert_eq!(prompt.hashes.len(), ids.len() / 16);
    (ids, turns)
}

fn check(model: &Model, body: &Body, ids: &[u32]) {
    let source = model.source(&ask(body)).expect("a prompt");
    let Some(Piece::Text(text)) = source.prompts.first() else { panic!("a text") };
    let mut whole = Vec::new();
    model.tokenizer().encode_whole(&text.text, text.add_special, &mut whole).expect("tokens");
    assert_eq!(ids, whole);
}

/// Times the later half of `bodies` after the earlier one has warmed everything.
fn measure(name: &str, model: &Model, bodies: &[Body]) {
    let mut cache = SegmentCache::new(CACHE_BYTES);
    let (mut times, mut tokens, mut turns_max) = (Vec::new(), 0, 0);
    for (i, body) in bodies.iter().enumerate() {
        let start = Instant::now();
        let (ids, turns) = black_box(run(model, &mut cache, black_box(body)));
        let took = start.elapsed().as_nanos() as f64 / 1e3;
        if i >= bodies.len() / 2 {
            times.push(took);
            tokens += ids.len();
            turns_max = turns_max.max(turns);
        }
        if i % CHECK_EVERY == 0 {
            check(model, body, &ids);
        }
    }
    times.sort_by(f64::total_cmp);
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
    let mean_tokens = tokens / times.len().max(1);
    println!(
        "{name:28} {mean_tokens:7} tokens  {:8.1} us  ({:.1} to {:.1})  {turns_max} steps at most",
        at(50),
        at(5),
        at(95)
    );
}

fn main() {
    let only = std::env::args().nth(1).filter(|arg| !arg.starts_with('-'));
    let wanted = |case: &str| only.as_deref().is_none_or(|only| only == case);
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/tokenizers");
    let mut make = Prompts::new(7, Marks { open: "", close: "" });
    let mut text = |bytes: usize| make.turn("", bytes);
    let systems: Vec<String> = (0..8).map(|_| text(4_200)).collect();
    for name in ["qwen3", "llama3_1"] {
        let model = match Model::load(&cache.join(name), None) {
            Ok(model) => model,
            Err(what) => {
                println!("{what}; see scripts/fetch-tokenizers");
                continue;
            }
        };
        model.tokenizer().warm();
        if wanted("unseen") {
            let bodies: Vec<_> = (0..1_000)
                .map(|_| body(&[("system", &text(900)), ("user", &text(4_500))]))
                .collect();
            measure(&format!("{name} unseen"), &model, &bodies);
        }
        if wanted("shared") {
            let bodies: Vec<_> = (0..1_000)
                .map(|i| body(&[("system", &systems[i % 8]), ("user", &text(800))]))
                .collect();
            measure(&format!("{name} shared system prompt"), &model, &bodies);
        }
        if wanted("turns") {
            let mut talks = vec![vec![text(1_500)]; 60];
            let mut bodies = Vec::new();
            for _ in 0..10 {
                for talk in &mut talks {
                    talk.extend([text(250), text(500)]);
                    let roles = |i: usize| match i {
                        0 => "system",
                        i if i % 2 == 1 => "user",
                        _ => "assistant",
                    };
                    let said = &talk[..talk.len() - 1];
                    let messages: Vec<_> =
                        said.iter().enumerate().map(|(i, t)| (roles(i), t.as_str())).collect();
                    bodies.push(body(&messages));
                }
            }
            measure(&format!("{name} growing talks"), &model, &bodies);
        }
        if wanted("document") {
            let document = text(360_000);
            let bodies: Vec<_> = (0..60)
                .map(|_| body(&[("user", &format!("{document}\n\n{}", text(200)))]))
                .collect();
            measure(&format!("{name} 100k document, warm"), &model, &bodies);
        }
    }
}
