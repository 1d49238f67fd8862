//! `/v1/messages` and `/v1/responses` bodies become the chat that vLLM 0.32 makes of them.
//!
//! The recorded chats were written by `tests/data/convert/generate.py`, which drives vLLM's own
//! request models and conversions.

use expedite::prompt::convert::{ConvertError, Server, messages_to_chat, responses_to_chat};
use expedite::prompt::harmony::render;
use serde_json::Value;

type Convert = fn(&str, Server) -> Result<Vec<u8>, ConvertError>;

fn golden(file: &str) -> Vec<Value> {
    serde_json::from_str(file).unwrap()
}

fn server(case: &Value) -> Server {
    let told = &case["server"];
    let low = told["disabled_thinking_effort"] == "low";
    Server {
        merge_inline_system: told["merge_inline_system"] == true,
        disabled_thinking_effort: if low { "low" } else { "none" },
    }
}

fn check(file: &str, convert: Convert) {
    let (mut equal, mut refused, mut left, mut wrong) = (0, 0, 0, Vec::new());
    for case in golden(file) {
        let ours = convert(case["body"].as_str().unwrap(), server(&case));
        let theirs = &case["chat"];
        match &ours {
            Ok(chat) if is_equal(chat, theirs) && case["unsupported"].is_null() => equal += 1,
            Err(ConvertError::Unsupported(_)) if case["unsupported"] == true => left += 1,
            Err(_) if theirs.is_null() => refused += 1,
            _ => {
                let ours = ours.map(|chat| String::from_utf8(chat).unwrap());
                wrong.push(format!("{}:\n ours {ours:?}\n engine {theirs}", case["name"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(equal >= 45 && refused >= 4 && left >= 4, "{equal} {refused} {left}");
}

/// As values, and the tools also in the order of their members, which a template shows.
fn is_equal(ours: &[u8], theirs: &Value) -> bool {
    let ours: Value = serde_json::from_slice(ours).unwrap();
    let tools = |chat: &Value| chat["tools"].to_string();
    ours == *theirs && tools(&ours) == tools(theirs)
}

#[test]
fn messages_are_converted_as_the_engine_does() {
    let file = include_str!("data/convert/messages.json");
    check(file, |body, server| messages_to_chat(body.as_bytes(), server));
}

#[test]
fn responses_are_converted_as_the_engine_does() {
    let file = include_str!("data/convert/responses.json");
    check(file, |body, _| responses_to_chat(body.as_bytes()));
}

/// What is converted can be rendered: an empty list of tools, too, which no chat may hold.
#[test]
fn converted_messages_have_a_harmony_text() {
    let mut rendered = 0;
    for case in golden(include_str!("data/convert/messages.json")) {
        let body = case["body"].as_str().unwrap().as_bytes();
        let Ok(chat) = messages_to_chat(body, Server::default()) else { continue };
        if case["chat"]["reasoning_effort"].as_str().is_none_or(|effort| effort == "high") {
            let out = &mut String::new();
            assert!(render(&chat, "2026-11-30", out).is_ok(), "{}", case["name"]);
            rendered += 1;
        }
    }
    assert!(rendered >= 40, "{rendered}");
}
