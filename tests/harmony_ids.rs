//! The ids of a harmony prompt equal vLLM's: each segment encoded as it says, and the whole text
//! where a prompt says that this is the same.
//!
//! Needs `scripts/fetch-tokenizers gptoss`.

use std::path::Path;

use expedite::prompt::harmony::{Harmony, RenderError, render, render_responses};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokenizers::Tokenizer;

type Render = fn(&[u8], &str, &mut String) -> Result<Harmony, RenderError>;

/// The model's tokenizer, and the same with special tokens taken for text.
fn tokenizers() -> (Tokenizer, Tokenizer) {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/tokenizers/gptoss/tokenizer.json");
    let special = Tokenizer::from_file(&file).expect("scripts/fetch-tokenizers brings the file");
    let mut ordinary = special.clone();
    ordinary.set_encode_special_tokens(true);
    (special, ordinary)
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec()
}

fn digest(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares the ids of each recorded case; answers how many there were and of how many the whole
/// text could be encoded at once.
fn compare(file: &str, render: Render, (special, ordinary): &(Tokenizer, Tokenizer)) -> [usize; 2] {
    let cases: Vec<Value> = serde_json::from_str(file).unwrap();
    let (mut compared, mut whole) = (0, 0);
    for case in cases.iter().filter(|case| case["text"].is_string()) {
        let mut text = String::new();
        let body = case["body"].as_str().unwrap();
        let Ok(harmony) = render(body.as_bytes(), "2026-11-30", &mut text) else { continue };
        let (mut ids, mut start) = (Vec::new(), 0);
        for segment in &harmony.segments {
            let tokenizer = if segment.trusted { special } else { ordinary };
            ids.extend(encode(tokenizer, &text[start..segment.end]));
            start = segment.end;
        }
        assert_eq!(ids.len() as u64, case["count"].as_u64().unwrap(), "{}", case["name"]);
        assert_eq!(digest(&ids), case["sha256"].as_str().unwrap(), "{}", case["name"]);
        if harmony.whole {
            assert_eq!(encode(special, &text), ids, "{}", case["name"]);
            whole += 1;
        }
        compared += 1;
    }
    [compared, whole]
}

#[test]
#[ignore = "needs scripts/fetch-tokenizers"]
fn ids_equal_the_engines() {
    let tokenizers = tokenizers();
    let file = include_str!("data/harmony/golden.json");
    let [chats, whole] = compare(file, render, &tokenizers);
    assert!(chats >= 130 && whole >= 100 && whole < chats, "{whole} whole of {chats}");
    let file = include_str!("data/harmony/responses.json");
    let [responses, _] = compare(file, render_responses, &tokenizers);
    assert!(responses >= 55, "{responses}");
}
