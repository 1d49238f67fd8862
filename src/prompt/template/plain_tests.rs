//! The written-out loops against the engine, for random conversations.

use std::path::Path;

use super::*;
use crate::openai::Endpoint;
use crate::prompt::template::{LocalTime, RenderError, Template};

const FETCHED: [&str; 5] = ["qwen3", "llama3", "llama3_1", "deepseek_v3", "gemma3"];

/// Where texts differ in kind: white space, line ends, escapes, special texts, thinking.
const PIECES: [&str; 36] = [
    "word",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "é",
    "日本",
    "🙂",
    "e\u{301}",
    "\u{a0}",
    "\u{3000}",
    "\u{1c}",
    "\u{85}",
    "\u{200b}",
    "\\",
    "\"",
    "/",
    "\u{7f}",
    "\u{0}",
    "<think>",
    "</think>",
    "<think>\n",
    "\n</think>\n\n",
    "<tool_response>",
    "</tool_response>",
    "<",
    ">",
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "{{ x }}",
    "{% if %}",
    "a longer run of words",
    "x-anthropic-billing-header: 1",
];

fn load(name: &str) -> Template {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/tokenizers");
    Template::load(&cache.join(name), None).unwrap().unwrap()
}

/// A text in quotes, each sign escaped in one of the ways that JSON allows.
fn quoted(text: &str, rng: &mut fastrand::Rng) -> String {
    let mut out = String::from("\"");
    for char in text.chars() {
        match char {
            '\n' if rng.bool() => out.push_str("\\n"),
            '"' if rng.bool() => out.push_str("\\\""),
            '\\' if rng.bool() => out.push_str("\\\\"),
            '/' if rng.bool() => out.push_str("\\/"),
            _ if char < ' ' || matches!(char, '"' | '\\') || rng.u8(..12) == 0 => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            _ => out.push(char),
        }
    }
    out + "\""
}

fn text(rng: &mut fastrand::Rng) -> String {
    let count = rng.usize(..7);
    (0..count).map(|_| PIECES[rng.usize(..PIECES.len())]).collect()
}

fn body(rng: &mut fastrand::Rng) -> String {
    let mut messages = Vec::new();
    for place in 0..rng.usize(..7) {
        let role = match rng.u8(..10) {
            0..5 if place % 2 == 0 => "user",
            0..5 => "assistant",
            5 => "system",
            6 if place == 0 => "system",
            7 => "user",
            _ => "assistant",
        };
        let content = text(rng);
        let mut content = quoted(&content, rng);
        if rng.u8(..6) == 0 {
            content = match rng.u8(..6) {
                0 => format!(r#"[{{"text":{content},"type":"text"}},"x"]"#),
                1 => format!(r#"[{{"type":"text","text":{content},"more":1}}]"#),
                _ => format!(r#" [ {{ "type" : "text" , "text" : {content} }} ] "#),
            };
        }
        let name = if rng.u8(..20) == 0 { r#","name":"n""# } else { "" };
        let calls = if rng.u8(..20) == 0 { r#","tool_calls":null"# } else { "" };
        messages.push(format!(r#"{{"role": "{role}" ,"content":{content}{name}{calls}}}"#));
    }
    let more = match rng.u8(..8) {
        0 => r#","add_generation_prompt":false"#,
        1 => r#","chat_template_kwargs": {"enable_thinking" : false }"#,
        2 => r#","chat_template_kwargs":{"enable_thinking":true},"tools":null"#,
        3 => r#","temperature":0.5,"add_generation_prompt":true"#,
        _ => "",
    };
    format!(r#"{{"messages":[{}]{more}}}"#, messages.join(","))
}

fn both(template: &Template, body: &str) -> [Result<String, RenderError>; 2] {
    let chat = Chat::read(Endpoint::ChatCompletions, body.as_bytes()).unwrap();
    let now = LocalTime::from_unix(0);
    let (mut fast, mut slow) = (String::from("before"), String::from("before"));
    let first = template.render_chat(&chat, &now, &mut fast).map(|_| fast);
    let second = template.render_with_engine(&chat, &now, &mut slow).map(|_| slow);
    [first, second]
}

#[test]
#[ignore = "needs scripts/fetch-tokenizers"]
fn the_loops_say_what_the_engine_says() {
    for name in FETCHED {
        let template = load(name);
        let mut rng = fastrand::Rng::with_seed(11);
        let mut plain = 0;
        for _ in 0..20_000 {
            let body = body(&mut rng);
            let chat = Chat::read(Endpoint::ChatCompletions, body.as_bytes()).unwrap();
            plain += usize::from(template.is_plain(&chat));
            let [fast, slow] = both(&template, &body);
            assert_eq!(fast, slow, "{name}: {body}");
        }
        assert!(plain > 10_000, "{name}: only {plain} of 20,000 are plain");
    }
}

/// A chat of which `part` is an assistant's message or a member of the request.
fn with(message: &str, member: &str) -> String {
    let user = r#"{"role":"user","content":"x"}"#;
    format!(r#"{{"messages":[{user}{message}]{member}}}"#)
}

#[test]
fn what_is_more_than_roles_and_texts_is_left_to_the_engine() {
    let is_plain = |plain: Plain, body: &str| {
        let chat = Chat::read(Endpoint::ChatCompletions, body.as_bytes()).unwrap();
        plain.talk(&chat).is_some()
    };
    let all = KNOWN.map(|(_, plain)| plain);
    assert!(all.iter().all(|plain| is_plain(*plain, &with("", ""))));
    for message in [
        r#",{"role":"tool","content":"x"}"#,
        r#",{"role":"developer","content":"x"}"#,
        r#",{"role":"us\u0065r","content":"x"}"#,
        r#",{"role":"assistant","content":null}"#,
        r#",{"role":"assistant","content":[]}"#,
        r#",{"role":"assistant","content":["x"]}"#,
        r#",{"role":"assistant","content":[{"text":"x"}]}"#,
        r#",{"role":"assistant","content":[{"type":"text","text":"x","text":null}]}"#,
        r#",{"role":"assistant","content":[{"type":"text","text":"x","more":1}]}"#,
        r#",{"role":"assistant","content":[{"type":"text","text":"x"},{}]}"#,
        r#",{"role":"assistant"}"#,
        r#",{"role":"assistant","content":"x","tool_calls":[]}"#,
        r#",{"role":"assistant","content":"x","name":null}"#,
    ] {
        assert!(!all.iter().any(|plain| is_plain(*plain, &with(message, ""))), "{message}");
    }
    for member in [
        r#","tools":[]"#,
        r#","documents":[]"#,
        r#","reasoning_effort":"low""#,
        r#","chat_template_kwargs":{}"#,
        r#","chat_template_kwargs":{"enable_thinking":false,"x":true}"#,
        r#","add_generation_prompt":false,"continue_final_message":true"#,
    ] {
        assert!(!all.iter().any(|plain| is_plain(*plain, &with("", member))), "{member}");
    }
    let told = with(r#",{"role":"assistant","content":"x","reasoning_content":"r"}"#, "");
    assert!(!is_plain(Plain::Qwen, &told) && is_plain(Plain::Gemma, &told));
    assert!(Plain::of("{{ messages }}").is_none());
}
