//! Whatever a body holds, a prompt comes out whole or an error does: recorded bodies, mutated.

use expedite::prompt::convert::{Server, messages_to_chat, responses_to_chat};
use expedite::prompt::harmony::{render, render_responses};
use expedite::prompt::tree;
use serde_json::Value;

const MUTATIONS: usize = 20_000;

const TOKENS: [&str; 16] = [
    "null",
    "true",
    "0",
    "1e400",
    "-0.0",
    "\"\"",
    "[]",
    "{}",
    "[",
    "}",
    ",",
    ":",
    "\\ud83d",
    "\"type\"",
    "\"content\":",
    "\"text\"",
];

fn bodies() -> Vec<String> {
    let files = [
        include_str!("data/harmony/golden.json"),
        include_str!("data/convert/messages.json"),
        include_str!("data/convert/responses.json"),
    ];
    let cases = files.iter().flat_map(|file| serde_json::from_str::<Vec<Value>>(file).unwrap());
    let bodies = cases.map(|case| case["body"].as_str().unwrap().to_owned());
    bodies.filter(|body| body.len() < 4096).collect()
}

/// A value of the body replaced by a token, a stretch taken out, or a token put in.
fn mutated(body: &str, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = body.as_bytes().to_vec();
    for _ in 0..random.usize(1..4) {
        let from = random.usize(..=bytes.len());
        let stop = |&byte: &u8| matches!(byte, b',' | b'}' | b']' | b':');
        let value = bytes[from..].iter().position(stop).map_or(bytes.len(), |len| from + len);
        let to = [from, value, random.usize(from..=bytes.len())][random.usize(..3)];
        let token = TOKENS[random.usize(..TOKENS.len())].bytes();
        bytes.splice(from..to, token.take(random.usize(..2) * 64));
    }
    bytes
}

#[test]
fn mutated_bodies_end_in_a_prompt_or_an_error() {
    let bodies = bodies();
    let mut random = fastrand::Rng::with_seed(3);
    let (mut texts, mut chats) = (0, 0);
    for round in 0..MUTATIONS {
        let body = mutated(&bodies[round % bodies.len()], &mut random);
        for render in [render, render_responses] {
            let mut out = String::new();
            let Ok(harmony) = render(&body, "2026-11-30", &mut out) else { continue };
            let mut ends = harmony.segments.iter().map(|segment| segment.end);
            assert!(ends.clone().is_sorted_by(|a, b| a < b), "an empty segment");
            assert!(ends.clone().all(|end| out.is_char_boundary(end)));
            assert_eq!(ends.next_back(), Some(out.len()));
            texts += 1;
        }
        let converted = [messages_to_chat(&body, Server::default()), responses_to_chat(&body)];
        for chat in converted.into_iter().flatten() {
            assert!(tree::read(&chat).is_ok(), "{}", String::from_utf8_lossy(&chat));
            chats += 1;
        }
    }
    assert!(texts > 1_000 && chats > 1_000, "{texts} {chats}");
}

/// Work grows with the body and not with its square: each of these would take minutes otherwise.
#[test]
fn bodies_of_many_small_parts_are_rendered() {
    let list = |item: &dyn Fn(usize) -> String| (0..40_000).map(item).collect::<Vec<_>>().join(",");
    let members = list(&|n| format!("\"p{n}\":{{}}"));
    let required = list(&|n| format!("\"p{}\"", 40_000 - n));
    let schema =
        format!(r#"{{"type":"object","properties":{{{members}}},"required":[{required}]}}"#);
    let tools = format!(
        r#"{{"messages":[],"tools":[{{"function":{{"name":"f","parameters":{schema}}}}}]}}"#
    );
    let mut out = String::new();
    assert!(render(tools.as_bytes(), "2026-11-30", &mut out).is_ok());
    assert!(out.contains("\np39999: any,\n") && out.contains("\np0?: any,\n"));
    let calls = list(&|n| {
        format!(
            r#"{{"type":"function_call","call_id":"c{n}","name":"f{n}","arguments":""}},
            {{"type":"function_call_output","call_id":"c{}","output":""}}"#,
            n / 2
        )
    });
    let calls = format!(r#"{{"input":[{calls}]}}"#);
    let mut out = String::new();
    assert!(render_responses(calls.as_bytes(), "2026-11-30", &mut out).is_ok());
    assert!(out.contains("<|start|>functions.f19999<|channel|>"));
    assert!(responses_to_chat(calls.as_bytes()).is_ok());
}

/// A deep schema is indented by its depth; what would become far longer than its body is refused.
#[test]
fn a_schema_that_swells_is_refused() {
    let lines = (0..200_000).map(|n| format!("\"{n}\":0")).collect::<Vec<_>>().join(",");
    let mut schema = format!(r#"{{"type":"object","properties":{{{lines}}}}}"#);
    for _ in 0..27 {
        schema = format!(r#"{{"type":"object","properties":{{"a":{schema}}}}}"#);
    }
    let body = format!(
        r#"{{"messages":[],"tools":[{{"function":{{"name":"f","parameters":{schema}}}}}]}}"#
    );
    let mut out = String::new();
    let refused = render(body.as_bytes(), "2026-11-30", &mut out);
    assert!(refused.is_err_and(|error| error.to_string().contains("too long")));
    assert!(out.len() < 20 << 20, "{}", out.len());
}
