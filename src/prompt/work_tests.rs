//! Prompts of a call in turns: the same as at once, cut as the engine cuts them, hashed in blocks.

use super::*;
use crate::openai::read_call;
use crate::prompt::model::{Ask, Model};

use crate::prompt::tokenizer::tests::tiny;

fn model() -> Model {
    let folder = tempfile::tempdir().unwrap();
    tiny::write(folder.path());
    Model::load(folder.path(), None).unwrap()
}

fn terms(endpoint: Endpoint, call: &Call, context: Option<u64>) -> Terms {
    Terms::new(endpoint, call, context, (Root::new(None, None), 4))
}

/// The prompt and its ids, encoded in turns of `bytes`.
fn run(model: &Model, endpoint: Endpoint, body: &str, bytes: usize) -> (Prompt, Vec<Vec<u32>>) {
    let call = read_call(endpoint, body.as_bytes()).unwrap();
    let ask = Ask { endpoint, call: &call, body: body.as_bytes(), unix_s: 0 };
    let source = model.source(&ask).unwrap();
    let terms = terms(endpoint, &call, Some(20));
    let mut work = Work::new(Some(model.tokenizer()), source, terms);
    let mut cache = SegmentCache::new(1 << 20);
    while work.turn(&mut cache, bytes).unwrap() == Turn::More {}
    work.rest(&mut cache).unwrap();
    work.finish()
}

fn completion(fields: &str) -> String {
    format!("{{\"model\":\"m\",{fields}}}")
}

#[test]
fn turns_of_any_size_give_the_same() {
    let model = model();
    let text = "the weather in the city is good today. ".repeat(200);
    let body = completion(&format!("\"prompt\":[\"{text}\",\"second\",\"{text} more\"]"));
    let whole = run(&model, Endpoint::Completions, &body, usize::MAX);
    assert_eq!(whole.1.len(), 3);
    assert_eq!(whole.0.tokens, whole.1.iter().map(|ids| ids.len() as u64).sum::<u64>());
    assert_eq!(whole.0.longest, whole.1[2].len() as u64);
    assert_eq!(whole.0.hashes.len(), whole.1[0].len() / 4);
    for bytes in [0, 1, 100, 5_000] {
        assert_eq!(run(&model, Endpoint::Completions, &body, bytes), whole, "{bytes}");
    }
}

#[test]
fn a_prompt_is_cut_as_the_engine_cuts_it() {
    let model = model();
    let ids: Vec<u32> = (0..30).collect();
    let cut = |fields: &str, endpoint| {
        let name = if endpoint == Endpoint::Embeddings { "input" } else { "prompt" };
        let body = completion(&format!("\"{name}\":{ids:?}{fields}"));
        run(&model, endpoint, &body, 100).1.pop().unwrap()
    };
    let completions = Endpoint::Completions;
    assert_eq!(cut("", completions), ids);
    assert_eq!(cut(r#","truncate_prompt_tokens":4"#, completions), ids[26..]);
    let right = r#","truncate_prompt_tokens":4,"truncation_side":"right""#;
    assert_eq!(cut(right, completions), ids[..4]);
    assert_eq!(cut(r#","truncate_prompt_tokens":4"#, Endpoint::Embeddings), ids[..4]);
    assert_eq!(cut(r#","truncate_prompt_tokens":30"#, completions), ids);
    assert!(cut(r#","truncate_prompt_tokens":0"#, completions).is_empty());
    // The context of 20, less one for the answer, unless none is asked for.
    assert_eq!(cut(r#","truncate_prompt_tokens":-1"#, completions), ids[11..]);
    let none = r#","truncate_prompt_tokens":-1,"max_tokens":0,"echo":true"#;
    assert_eq!(cut(none, completions), ids[10..]);
}

#[test]
fn the_tokens_around_a_text_stay_when_the_tokenizer_cuts() {
    let cut = |fields: &str, affixes| {
        let body = completion(&format!("\"prompt\":\"x\"{fields}"));
        let call = read_call(Endpoint::Completions, body.as_bytes()).unwrap();
        let mut ids = vec![100, 1, 2, 3, 4, 200];
        terms(Endpoint::Completions, &call, None).cut(&mut ids, affixes);
        ids
    };
    let three = r#","truncate_prompt_tokens":3"#;
    assert_eq!(cut(three, (1, 1)), [100, 4, 200]);
    assert_eq!(cut(three, (1, 0)), [100, 4, 200], "the end is text");
    // With a side it is the engine that cuts, and knows no difference.
    assert_eq!(cut(&format!("{three},\"truncation_side\":\"left\""), (1, 1)), [3, 4, 200]);
    assert_eq!(cut(&format!("{three},\"truncation_side\":\"right\""), (1, 1)), [100, 1, 2]);
    // Room for nothing but them: then they are cut like the rest.
    assert_eq!(cut(r#","truncate_prompt_tokens":2"#, (1, 1)), [4, 200]);
}

#[test]
fn text_before_the_first_picture_is_exact_and_hashed() {
    let model = model();
    let part = |text: &str| format!("{{\"type\":\"text\",\"text\":\"{text}\"}}");
    let before = "the user asks the assistant a question about the weather";
    let image = r#"{"type":"image_url","image_url":{"url":"data:,"}}"#;
    let body = |parts: &str| {
        let system = format!("{{\"role\":\"system\",\"content\":\"{before}\"}}");
        format!("{{\"messages\":[{system},{{\"role\":\"user\",\"content\":[{parts}]}}]}}")
    };
    let plain = body(&part(before));
    let (exact, ids) = run(&model, Endpoint::ChatCompletions, &plain, 100);
    assert_eq!(exact.basis, Basis::Exact);
    let shown = body(&format!("{},{image},{}", part(before), part("and this?")));
    let (media, _) = run(&model, Endpoint::ChatCompletions, &shown, 100);
    assert_eq!(media.basis, Basis::Media);
    assert!(media.tokens > MEDIA_TOKENS && media.longest == media.tokens);
    // All whole blocks of what both begin with, and no more: the engine puts the pictures first.
    let common = exact.hashes.iter().zip(&media.hashes).take_while(|(a, b)| a == b).count();
    assert_eq!(common, media.hashes.len());
    assert!(common >= 2 && common <= ids[0].len() / 4, "{common}");
}
