//! What a prompt costs on a core: template, tokens, block hashes; of a tiny tokenizer that is made
//! here, and of Qwen 3's where `scripts/fetch-tokenizers` has brought it.
//!
//! The texts are of this file alone, so that a count changes with the code and nothing else.

use std::fmt::Write;
use std::hint::black_box;
use std::path::Path;

use expedite::openai::{Call, Endpoint, read_call};
use expedite::prompt::blocks::Root;
use expedite::prompt::model::{Ask, Model};
use expedite::prompt::segments::SegmentCache;
use expedite::prompt::work::{Terms, Turn, Work};

use crate::rounds::Round;
use crate::tiny_tokenizer;

/// As the gateway's: bytes a core keeps, bytes encoded in a step.
const CACHE_BYTES: usize = 64 << 20;
const STEP_BYTES: usize = 2 * 1024;

const WORDS: &str = "the gateway keeps every prompt as an engine will see it and when a system \
    prompt is what it was before there is no reason to count its tokens again While Users ask \
    Questions, answers (sometimes long; often short) follow: 12 or 4096 of them, 3.5 % in all. let \
    mut total = 0; for value in values { total += value; } Straße déjà größer naïve — \
    \u{201c}quoted\u{201d} https://example.org/a?b=c&d={x} {\"city\": \"Paris\", \"days\": 3} \
    今天 天气 很好 日本語 👍 it's they'd don't ... \t snake_case camelCase HTTP/1.1 0x7f -- == != \
    <br/> #include \\n end.";

/// The same sequence everywhere.
struct Texts(u64);

impl Texts {
    fn below(&mut self, count: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }

    /// About so many bytes of words, some of them made of two.
    fn text(&mut self, bytes: usize) -> String {
        let words: Vec<&str> = WORDS.split_whitespace().collect();
        let mut out = String::new();
        while out.len() < bytes {
            out.push_str(words[self.below(words.len())]);
            if self.below(8) > 0 {
                out.push_str([" ", " ", " ", " ", "\n", ", "][self.below(6)]);
            }
            if self.below(16) == 0 {
                let _ = write!(out, "{} ", self.below(100_000));
            }
        }
        out
    }
}

struct Body {
    bytes: Vec<u8>,
    call: Call,
}

fn body(system: &str, user: &str) -> Body {
    let messages = serde_json::json!([{"role": "system", "content": system},
        {"role": "user", "content": user}]);
    let bytes = serde_json::json!({"model": "m", "messages": messages, "stream": true});
    let bytes = bytes.to_string().into_bytes();
    let call = read_call(Endpoint::ChatCompletions, &bytes).expect("a call");
    Body { bytes, call }
}

/// Blocks of a prompt, from its body.
fn blocks(model: &Model, cache: &mut SegmentCache, body: &Body) -> usize {
    let (endpoint, unix_s) = (Endpoint::ChatCompletions, 1_700_000_000);
    let ask = Ask { endpoint, call: &body.call, body: &body.bytes, unix_s };
    let source = model.source(&ask).expect("a prompt");
    let terms = Terms::new(endpoint, &body.call, None, (Root::new(None, None), 16));
    let mut work = Work::new(Some(model.tokenizer()), source, terms);
    while !matches!(work.turn(cache, STEP_BYTES).expect("tokens"), Turn::Done) {}
    let (prompt, ids) = work.finish();
    assert_eq!(prompt.hashes.len(), ids.first().map_or(0, Vec::len) / 16);
    prompt.hashes.len()
}

/// Prompts of some 5,400 bytes that `of` makes, one a round.
fn rounds(model: Model, count: usize, of: impl Fn(&mut Texts) -> Body) -> Round {
    let mut texts = Texts(7);
    let bodies: Vec<Body> = (0..count).map(|_| of(&mut texts)).collect();
    let mut cache = SegmentCache::new(CACHE_BYTES);
    model.tokenizer().warm();
    Box::new(move |round| {
        assert!(blocks(&model, &mut cache, black_box(&bodies[round as usize])) > 50);
    })
}

/// Nothing of it was seen before, but for its words.
fn unseen(model: Model, count: usize) -> Round {
    rounds(model, count, |texts| body(&texts.text(900), &texts.text(4_500)))
}

/// Its system prompt was.
fn shared(model: Model, count: usize) -> Round {
    let mut texts = Texts(11);
    let systems: Vec<String> = (0..8).map(|_| texts.text(4_500)).collect();
    rounds(model, count, move |texts| body(&systems[texts.below(8)], &texts.text(900)))
}

fn tiny() -> Model {
    let folder = tempfile::tempdir().expect("a folder");
    tiny_tokenizer::write(folder.path());
    Model::load(folder.path(), None).expect("a tokenizer")
}

fn qwen3() -> Option<Model> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/tokenizers/qwen3");
    folder.is_dir().then(|| Model::load(&folder, None).expect("a tokenizer"))
}

pub(crate) const ROUNDS: u64 = 100;

pub(crate) fn new() -> Option<Round> {
    Some(unseen(tiny(), 2 * ROUNDS as usize))
}

pub(crate) fn known() -> Option<Round> {
    Some(shared(tiny(), 2 * ROUNDS as usize))
}

pub(crate) fn qwen3_new() -> Option<Round> {
    Some(unseen(qwen3()?, 2 * ROUNDS as usize))
}

pub(crate) fn qwen3_known() -> Option<Round> {
    Some(shared(qwen3()?, 2 * ROUNDS as usize))
}
