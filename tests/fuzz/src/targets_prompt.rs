//! What the target of prompts asserts about any body: it ends in prompts or in an error, and the
//! tokens that turns and a cache make of it are those of the whole text.

use expedite::openai::{Endpoint, read_call};
use expedite::prompt::blocks::Root;
use expedite::prompt::convert::{Server, messages_to_chat, responses_to_chat};
use expedite::prompt::harmony;
use expedite::prompt::model::{Ask, Model, Piece, Source, Text};
use expedite::prompt::segments::SegmentCache;
use expedite::prompt::template::{LocalTime, Specials, Template};
use expedite::prompt::tokenizer::Tokenizer;
use expedite::prompt::work::{Terms, Turn, Work};
use expedite::prompt::{Basis, tree};
use std::sync::OnceLock;

#[path = "../../support/tiny_tokenizer.rs"]
mod tiny_tokenizer;

/// Shows the template all that the engine would, in most ways that Jinja and Python have.
const FEATURES: &str = include_str!("../../data/templates/features.jinja");
/// Takes content as parts.
const PARTS: &str = include_str!("../../data/templates/parts.jinja");
const DATE: &str = "2026-11-30";
const BLOCK_TOKENS: u32 = 4;

const ENDPOINTS: [Endpoint; 6] = [
    Endpoint::ChatCompletions,
    Endpoint::Completions,
    Endpoint::Responses,
    Endpoint::Messages,
    Endpoint::Tokenize,
    Endpoint::Embeddings,
];

/// Two models of the tiny tokenizer, one for each template.
fn models() -> &'static [Model; 2] {
    static MODELS: OnceLock<[Model; 2]> = OnceLock::new();
    MODELS.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("expedite-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        tiny_tokenizer::write(&folder);
        let models = [FEATURES, PARTS].map(|source| {
            let template = folder.join("template.jinja");
            std::fs::write(&template, source).expect("a template");
            Model::load(&folder, Some(&template)).expect("a model")
        });
        std::fs::remove_dir_all(&folder).expect("the folder is ours");
        models
    })
}

/// Any body, as a request to each endpoint and as the text of a prompt. How many requests became
/// prompts.
pub(crate) fn prompt(bytes: &[u8]) -> usize {
    let mut read = 0;
    converted(bytes);
    for model in models() {
        for endpoint in ENDPOINTS {
            let Ok(call) = read_call(endpoint, bytes) else { continue };
            let ask = Ask { endpoint, call: &call, body: bytes, unix_s: 0 };
            let terms = Terms::new(endpoint, &call, Some(64), (root(), BLOCK_TOKENS));
            let Ok(source) = model.source(&ask) else { continue };
            read += 1;
            let again = model.source(&ask).expect("the same body");
            if terms_cut_nothing(&call.truncate, &source) {
                whole_is_sliced(model.tokenizer(), &source, terms);
            }
            turns_are_one(model, (source, again), terms);
        }
    }
    let text = String::from_utf8_lossy(bytes);
    for add_special in [false, true] {
        let text = || Text { text: text.clone().into_owned(), add_special, parts: Vec::new() };
        let (one, two) = (Source::of(text()), Source::of(text()));
        let terms = Terms::new(Endpoint::Tokenize, &Default::default(), None, (root(), 4));
        let [model, _] = models();
        whole_is_sliced(model.tokenizer(), &one, terms);
        turns_are_one(model, (one, two), terms);
    }
    in_harmony(bytes);
    read
}

fn root() -> Root {
    Root::new(None, Some("salt"))
}

fn terms_cut_nothing<T>(asked: &Option<T>, source: &Source) -> bool {
    asked.is_none() && source.truncate.is_none()
}

/// What a conversion writes is a chat that our own readers take, and rendering it twice is the
/// same.
fn converted(bytes: &[u8]) {
    static TEMPLATE: OnceLock<Template> = OnceLock::new();
    let template = TEMPLATE.get_or_init(|| {
        Template::parse(FEATURES, Specials::default()).expect("the template compiles")
    });
    let chats = [messages_to_chat(bytes, Server::default()), responses_to_chat(bytes)];
    let chats = chats.into_iter().flatten();
    for chat in chats {
        assert!(tree::read(&chat).is_ok(), "{}", chat.escape_ascii());
        let render = || {
            let mut out = String::new();
            template
                .render(&chat, &LocalTime::from_unix(0), &mut out)
                .map(|rendered| (rendered, out))
        };
        let (one, two) = (render(), render());
        assert_eq!(one, two);
        if let Ok((rendered, out)) = one {
            assert!(rendered.media_at.is_none_or(|at| out.is_char_boundary(at)));
        }
    }
}

/// In small turns through a small cache the prompts are what they are at once without one.
fn turns_are_one(model: &Model, (one, two): (Source, Source), terms: Terms) {
    let mut at_once = Work::new(Some(model.tokenizer()), one, terms);
    at_once.rest(&mut SegmentCache::new(0)).expect("it encodes");
    let mut cache = SegmentCache::new(4096);
    let mut in_turns = Work::new(Some(model.tokenizer()), two, terms);
    loop {
        match in_turns.turn(&mut cache, 24).expect("it encodes") {
            Turn::Done => break,
            Turn::More => {}
            Turn::Long => in_turns.rest(&mut cache).expect("it encodes"),
        }
    }
    let ((prompt, ids), in_turns) = (at_once.finish(), in_turns.finish());
    assert_eq!((&prompt, &ids), (&in_turns.0, &in_turns.1));
    assert!(ids.iter().flatten().all(|id| prompt.basis != Basis::Exact || *id < u32::MAX));
    let tokens: usize = ids.iter().map(Vec::len).sum();
    assert!(prompt.basis == Basis::Media || prompt.tokens == tokens as u64);
    let first = ids.first().map_or(0, Vec::len);
    assert_eq!(prompt.hashes.len(), first / BLOCK_TOKENS as usize);
}

/// Part by part a text has the ids that the library gives for all of it.
fn whole_is_sliced(tokenizer: &std::sync::Arc<Tokenizer>, source: &Source, terms: Terms) {
    for piece in &source.prompts {
        let Piece::Text(text) = piece else { continue };
        let Text { text, add_special, .. } = text;
        let copy = Text { text: text.clone(), add_special: *add_special, parts: Vec::new() };
        let mut work = Work::new(Some(tokenizer), Source::of(copy), terms);
        work.rest(&mut SegmentCache::new(1 << 16)).expect("it encodes");
        let mut ids = Vec::new();
        tokenizer.encode_whole(text, *add_special, &mut ids).expect("it encodes");
        assert_eq!(work.finish().1, [ids], "{text:?}");
    }
}

/// The parts of a harmony prompt cover it, and each is encoded for itself.
fn in_harmony(bytes: &[u8]) {
    let [model, _] = models();
    let tokenizer = model.tokenizer();
    for render in [harmony::render, harmony::render_responses] {
        let mut text = String::new();
        let Ok(harmony) = render(bytes, DATE, &mut text) else { continue };
        let (mut start, mut ids) = (0, Vec::new());
        for part in &harmony.segments {
            let piece = text.get(start..part.end).expect("parts end between characters");
            start = part.end;
            match part.trusted {
                true => tokenizer.encode_whole(piece, false, &mut ids),
                false => tokenizer.encode_ordinary(piece, &mut ids),
            }
            .expect("it encodes");
        }
        assert_eq!(start, text.len(), "parts cover the text");
        let piece = Text { text, add_special: false, parts: harmony.segments };
        let terms = Terms::new(Endpoint::ChatCompletions, &Default::default(), None, (root(), 4));
        let mut work = Work::new(Some(tokenizer), Source::of(piece), terms);
        work.rest(&mut SegmentCache::new(0)).expect("it encodes");
        assert_eq!(work.finish().1, [ids]);
    }
}
