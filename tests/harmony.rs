//! The harmony text of chats for gpt-oss equals what vLLM 0.32 gave them.
//!
//! `tests/data/harmony/golden.json` was written by `generate.py` beside it, which drives vLLM's own
//! request checks and renderer over oss-harmony 0.0.11.

use expedite::prompt::harmony::{Harmony, RenderError, render};
use serde_json::Value;

const DATE: &str = "2026-11-30";

struct Case {
    name: String,
    body: String,
    /// `None` where vLLM answers with an error.
    text: Option<String>,
}

fn golden() -> Vec<Case> {
    let file = include_str!("data/harmony/golden.json");
    let cases: Vec<Value> = serde_json::from_str(file).unwrap();
    let text = |case: &Value, key: &str| case[key].as_str().map(str::to_owned);
    let read = |case: &Value| Case {
        name: text(case, "name").unwrap(),
        body: text(case, "body").unwrap(),
        text: text(case, "text"),
    };
    cases.iter().map(read).collect()
}

fn rendered(body: &str) -> Result<(String, Harmony), RenderError> {
    let mut out = String::new();
    render(body.as_bytes(), DATE, &mut out).map(|harmony| (out, harmony))
}

#[test]
fn text_equals_the_engines() {
    let cases = golden();
    let accepted = cases.iter().filter(|case| case.text.is_some()).count();
    assert!(accepted >= 100 && accepted < cases.len(), "{accepted} of {}", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        match (rendered(&case.body), &case.text) {
            (Ok((ours, _)), Some(theirs)) if ours == *theirs => {}
            (Err(_), None) => {}
            (ours, theirs) => {
                wrong.push(format!("{}:\n ours {ours:?}\n engine {theirs:?}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn segments_cover_the_text_and_only_the_formats_hold_special_tokens() {
    for case in golden().iter().filter(|case| case.text.is_some()) {
        let (text, harmony) = rendered(&case.body).unwrap();
        let mut start = 0;
        let (mut touching, mut hostile) = (false, false);
        let mut before_trusted = true;
        for segment in &harmony.segments {
            let piece = &text[start..segment.end];
            assert!(!piece.is_empty(), "{}", case.name);
            touching |= !segment.trusted && !before_trusted;
            hostile |= !segment.trusted && piece.contains("<|");
            (start, before_trusted) = (segment.end, segment.trusted);
        }
        assert_eq!(start, text.len(), "{}", case.name);
        assert_eq!(harmony.whole, !touching && !hostile, "{}", case.name);
    }
}

#[test]
fn the_date_is_the_callers_and_what_out_held_stays() {
    let mut out = String::from("before");
    let body = br#"{"messages":[{"role":"user","content":"x"}]}"#;
    let harmony = render(body, "1999-12-31", &mut out).unwrap();
    assert!(out.starts_with("before<|start|>system<|message|>You are"), "{out}");
    assert!(out.contains("\nCurrent date: 1999-12-31\n"), "{out}");
    assert_eq!(harmony.segments.last().unwrap().end, out.len());
}

#[test]
fn an_empty_list_of_tools_is_no_tools() {
    let with = rendered(r#"{"messages":[],"tools":[]}"#).unwrap();
    assert_eq!(with, rendered(r#"{"messages":[]}"#).unwrap());
}

#[test]
fn what_has_no_known_text_is_refused() {
    let shape = |body: &str| matches!(rendered(body), Err(RenderError::Shape(_)));
    let unsupported = |body: &str| matches!(rendered(body), Err(RenderError::Unsupported(_)));
    for body in [
        "",
        "[]",
        "{}",
        r#"{"messages":{}}"#,
        r#"{"messages":["x"]}"#,
        r#"{"messages":[{"role":"user","content":3}]}"#,
        r#"{"messages":[{"role":"user","content":["x"]}]}"#,
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":null}]}]}"#,
        r#"{"messages":[],"tools":[{"type":"retrieval","function":{"name":"f"}}]}"#,
        r#"{"messages":[],"tools":[{"type":"function"}]}"#,
        r#"{"messages":[],"tools":[{"type":"function","function":{}}]}"#,
        r#"{"messages":[],"tools":[{"function":{"name":"f","parameters":[]}}]}"#,
        r#"{"messages":[],"tools":{}}"#,
        r#"{"messages":[],"reasoning_effort":1}"#,
    ] {
        assert!(shape(body), "{body}: {:?}", rendered(body));
    }
    let ids = r#"{"messages":[],"kv_transfer_params":{"prompt_token_ids":[1]}}"#;
    assert!(unsupported(ids));
    assert!(rendered(r#"{"messages":[],"kv_transfer_params":{"x":[1]}}"#).is_ok());
}
