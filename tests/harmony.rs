//! The harmony text of requests for gpt-oss equals what vLLM 0.32 gave them.
//!
//! `tests/data/harmony/golden.json` (chats) and `responses.json` were written by `generate.py`
//! beside them, which drives vLLM's own request checks and renderer over oss-harmony 0.0.11.

use expedite::prompt::harmony::{Harmony, RenderError, render, render_responses};
use serde_json::Value;

const DATE: &str = "2026-11-30";

struct Case {
    name: String,
    body: String,
    /// `None` where vLLM answers with an error.
    text: Option<String>,
}

fn read(file: &str) -> Vec<Case> {
    let cases: Vec<Value> = serde_json::from_str(file).unwrap();
    let text = |case: &Value, key: &str| case[key].as_str().map(str::to_owned);
    let read = |case: &Value| Case {
        name: text(case, "name").unwrap(),
        body: text(case, "body").unwrap(),
        text: text(case, "text"),
    };
    cases.iter().map(read).collect()
}

fn chats() -> Vec<Case> {
    read(include_str!("data/harmony/golden.json"))
}

fn responses() -> Vec<Case> {
    read(include_str!("data/harmony/responses.json"))
}

type Rendered = Result<(String, Harmony), RenderError>;

fn rendered(body: &str) -> Rendered {
    let mut out = String::new();
    render(body.as_bytes(), DATE, &mut out).map(|harmony| (out, harmony))
}

fn rendered_responses(body: &str) -> Rendered {
    let mut out = String::new();
    render_responses(body.as_bytes(), DATE, &mut out).map(|harmony| (out, harmony))
}

/// Compares all; answers how many were equal and how many were left to the engine.
fn compare(cases: &[Case], rendered: fn(&str) -> Rendered) -> (usize, usize) {
    let (mut equal, mut left, mut wrong) = (0, 0, Vec::new());
    for case in cases {
        match (rendered(&case.body), &case.text) {
            (Ok((ours, _)), Some(theirs)) if ours == *theirs => equal += 1,
            (Err(_), None) => {}
            (Err(RenderError::Unsupported(_)), Some(_)) => left += 1,
            (ours, theirs) => {
                wrong.push(format!("{}:\n ours {ours:?}\n engine {theirs:?}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    (equal, left)
}

#[test]
fn text_of_chats_equals_the_engines() {
    let (equal, left) = compare(&chats(), rendered);
    assert!(equal >= 130 && left == 0, "{equal} {left}");
}

/// What depends on what the engine keeps or runs is left to it, nothing else.
#[test]
fn text_of_responses_equals_the_engines() {
    let (equal, left) = compare(&responses(), rendered_responses);
    assert!(equal >= 55 && left <= 8, "{equal} {left}");
}

#[test]
fn segments_cover_the_text_and_only_the_formats_hold_special_tokens() {
    let all = chats().into_iter().map(|case| (rendered(&case.body), case));
    let more = responses().into_iter().map(|case| (rendered_responses(&case.body), case));
    for (rendered, case) in all.chain(more) {
        let Ok((text, harmony)) = rendered else { continue };
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
