//! Events of recorded streams, and events made to mislead.

use super::*;
use crate::openai::{captures, read_answer};
use proptest::prelude::*;
use serde_json::Value;

fn read(endpoint: Endpoint, data: &str) -> EventFacts {
    EventReader::new(endpoint).read(data.as_bytes())
}

fn chat(data: &str) -> EventFacts {
    read(Endpoint::ChatCompletions, data)
}

/// The data of each event of a recorded stream.
fn events(body: &[u8]) -> Vec<Vec<u8>> {
    let (mut scanner, mut at, mut events) = (crate::sse::EventScanner::default(), 0, Vec::new());
    while let Some(len) = scanner.next(&body[at..]).unwrap() {
        let mut scratch = Vec::new();
        events.extend(crate::sse::data(&body[at..at + len], &mut scratch).map(<[u8]>::to_vec));
        at += len;
    }
    events
}

fn endpoint_of(name: &str) -> Endpoint {
    match name.split('_').find(|part| matches!(*part, "responses" | "messages")) {
        Some("responses") => Endpoint::Responses,
        Some(_) => Endpoint::Messages,
        None => Endpoint::ChatCompletions,
    }
}

/// The usage anywhere that one may stand, as serde_json reads it.
fn usage_of(value: &Value) -> Option<Usage> {
    let usage = ["/usage", "/response/usage", "/message/usage"]
        .iter()
        .find_map(|path| value.pointer(path).filter(|usage| usage.is_object()))?;
    let count = |names: &[&str]| names.iter().find_map(|name| usage.pointer(name)?.as_u64());
    Some(Usage {
        prompt_tokens: count(&["/prompt_tokens", "/input_tokens"])?
            + count(&["/cache_read_input_tokens"]).unwrap_or(0)
            + count(&["/cache_creation_input_tokens"]).unwrap_or(0),
        completion_tokens: count(&["/completion_tokens", "/output_tokens"]).unwrap_or(0),
        cached_tokens: count(&[
            "/prompt_tokens_details/cached_tokens",
            "/input_tokens_details/cached_tokens",
            "/cache_read_input_tokens",
        ]),
    })
}

/// The same text, of those that openers are told by.
fn known(text: &str) -> &'static str {
    let mut all = OPENINGS.into_iter().chain(OPENED);
    all.find(|known| *known == text).unwrap_or_default()
}

/// What an event is, told slowly.
fn expected(endpoint: Endpoint, data: &[u8]) -> EventFacts {
    if data == b"[DONE]" {
        return EventFacts { kind: EventKind::Done, ends_stream: true, ..EventFacts::PLAIN };
    }
    let value: Value = serde_json::from_slice(data).unwrap();
    let kind = value["type"].as_str().unwrap_or_default();
    let choices = value["choices"].as_array().cloned().unwrap_or_default();
    let reasons: Vec<_> = choices.iter().filter_map(|c| c["finish_reason"].as_str()).collect();
    let usage = usage_of(&value);
    let opens = match endpoint {
        Endpoint::ChatCompletions => choices.iter().any(|c| c["delta"]["role"].is_string()),
        Endpoint::Messages => kind == "message_start" || kind == "content_block_start",
        _ => {
            kind == "response.created" || kind == "response.in_progress" || kind.ends_with(".added")
        }
    };
    let place = |at: &Value, name: &str| at[name].as_u64().unwrap_or(0) as u32;
    let first = choices.first().unwrap_or(&value);
    let opened = ["item", "content_block", "part"].map(|name| value[name]["type"].as_str());
    let opener = Opener {
        what: if choices.is_empty() { known(kind) } else { "role" },
        of: known(opened.into_iter().flatten().next().unwrap_or_default()),
        place: [
            place(first, "index").max(place(&value, "output_index")),
            place(&value, "content_index"),
        ],
    };
    EventFacts {
        kind: if value["error"].is_object() {
            EventKind::Error(read_answer(data).error.unwrap())
        } else if value["choices"].is_array() && choices.is_empty() {
            EventKind::UsageOnly
        } else if opens {
            EventKind::Role(opener)
        } else {
            EventKind::Content
        },
        usage,
        usage_odd: false,
        finish: !reasons.is_empty()
            || kind == "response.completed"
            || value["delta"]["stop_reason"].is_string(),
        abort: reasons.contains(&"abort"),
        ends_stream: kind == "response.completed" || kind == "message_stop",
    }
}

#[test]
fn recorded_streams_are_read_as_serde_json_reads_them() {
    let (mut streams, mut usages, mut errors, mut aborts) = (0, 0, 0, 0);
    for capture in captures::all().iter().filter(|capture| capture.stream) {
        // Tokens in, tokens out: not an endpoint of ours.
        if capture.name.contains("inference_generate") {
            continue;
        }
        let endpoint = endpoint_of(&capture.name);
        for data in events(&capture.body) {
            let facts = EventReader::new(endpoint).read(&data);
            let text = String::from_utf8_lossy(&data);
            assert_eq!(facts, expected(endpoint, &data), "{}: {text}", capture.name);
            usages += usize::from(facts.usage.is_some());
            errors += usize::from(matches!(facts.kind, EventKind::Error(_)));
            aborts += usize::from(facts.abort);
        }
        streams += 1;
    }
    assert!(
        streams >= 25 && usages >= 20 && errors >= 2 && aborts >= 2,
        "{streams} {usages} {errors} {aborts}"
    );
}

#[test]
fn text_that_looks_like_more_is_content() {
    for text in [
        r"[DONE]",
        r#"data: [DONE]\n\n"#,
        r#"\"error\":{\"message\":\"x\"},\"usage\":{\"prompt_tokens\":1},\"choices\":[]"#,
        r#"\\\"finish_reason\":\"abort\""#,
        "error",
        "usage",
        "role",
        "choices",
        "finish_reason",
        r"\\",
        r#"\""#,
    ] {
        let delta = format!(
            r#"{{"choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]}}"#
        );
        assert_eq!(chat(&delta), EventFacts::PLAIN, "{delta}");
        let block = format!(r#"{{"type":"content_block_delta","delta":{{"text":"{text}"}}}}"#);
        assert_eq!(read(Endpoint::Messages, &block), EventFacts::PLAIN);
        let delta = format!(r#"{{"delta":"{text}","type":"response.output_text.delta"}}"#);
        assert_eq!(read(Endpoint::Responses, &delta), EventFacts::PLAIN);
    }
    // Keys of that name, but deeper than the API's own.
    let nested =
        r#"{"choices":[{"delta":{"tool_calls":[{"usage":{"prompt_tokens":1},"error":{}}]}}]}"#;
    assert_eq!(chat(nested), EventFacts::PLAIN);
    let text = r#"{"type":"response.output_text.done","text":"x.delta"}"#;
    assert_eq!(read(Endpoint::Responses, text), EventFacts::PLAIN);
}

/// The engine repeats the client's `metadata` and `tools` before the type of the event: they must
/// not hide its end and its usage.
#[test]
fn what_a_client_has_echoed_hides_nothing() {
    for echo in [
        r#""metadata":{"type":"response.x.delta"}"#,
        r#""tools":[{"parameters":{"type":"response.x.delta"}}]"#,
        r#""metadata":{"type":"response.x.delta","usage":"","error":"","role":""}"#,
    ] {
        let usage = r#""usage":{"input_tokens":3,"output_tokens":4}"#;
        let completed = format!(r#"{{"response":{{{echo},{usage}}},"type":"response.completed"}}"#);
        let facts = read(Endpoint::Responses, &completed);
        let tokens = Usage { prompt_tokens: 3, completion_tokens: 4, cached_tokens: None };
        assert_eq!((facts.ends_stream, facts.usage), (true, Some(tokens)), "{completed}");
        let created = format!(r#"{{"response":{{{echo}}},"type":"response.created"}}"#);
        let opener = Opener { what: "response.created", of: "", place: [0, 0] };
        assert_eq!(read(Endpoint::Responses, &created).kind, EventKind::Role(opener));
    }
}

#[test]
fn spaces_and_key_order_do_not_matter() {
    let error = chat(r#" { "error" : { "code" : 503 , "type" : "T" , "message" : "m" } } "#);
    let EventKind::Error(error) = error.kind else { panic!("{error:?}") };
    assert_eq!(error.code, Some(503));
    let usage =
        chat(r#"{"usage" : { "prompt_tokens" : 3, "completion_tokens":0 } , "choices" : [ ] }"#);
    assert_eq!(usage.kind, EventKind::UsageOnly);
    let tokens = Usage { prompt_tokens: 3, completion_tokens: 0, cached_tokens: None };
    assert_eq!(usage.usage, Some(tokens));
    let finish = chat(r#"{ "choices" : [ { "finish_reason" : "abort" , "delta" : { } } ] }"#);
    assert!(finish.finish && finish.abort);
    assert_eq!(chat(" [DONE] ").kind, EventKind::Done);
    let completed = r#"{ "type" : "response.completed", "response" : { "usage" : null } }"#;
    assert!(read(Endpoint::Responses, completed).ends_stream);
}

#[test]
fn usage_beside_a_choice_is_not_an_event_of_its_own() {
    let last = chat(
        r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}],
        "usage":{"prompt_tokens":9,"completion_tokens":4,
        "prompt_tokens_details":{"cached_tokens":0}}}"#,
    );
    assert_eq!((last.kind, last.finish), (EventKind::Content, true));
    let tokens = Usage { prompt_tokens: 9, completion_tokens: 4, cached_tokens: Some(0) };
    assert_eq!(last.usage, Some(tokens));
    assert_eq!(chat(r#"{"choices":[]}"#).kind, EventKind::Content, "nothing of ours to take out");
    let odd = chat(r#"{"choices":[],"usage":{"prompt_tokens":-1,"completion_tokens":4}}"#);
    assert_eq!((odd.kind, odd.usage, odd.usage_odd), (EventKind::UsageOnly, None, true));
}

#[test]
fn only_a_bare_role_opens() {
    let delta = |delta: &str| {
        chat(&format!(r#"{{"choices":[{{"delta":{delta},"finish_reason":null}}]}}"#)).kind
    };
    for opens in
        [r#"{"role":"assistant"}"#, r#"{"role":"assistant","content":"","tool_calls":null}"#]
    {
        let opener = Opener { what: "role", of: "", place: [0, 0] };
        assert_eq!(delta(opens), EventKind::Role(opener));
    }
    for content in [
        r#"{"role":"assistant","content":"x"}"#,
        r#"{"role":"assistant","tool_calls":[{"index":0}]}"#,
        r#"{"content":""}"#,
        "{}",
    ] {
        assert_eq!(delta(content), EventKind::Content);
    }
    let ended =
        r#"{"choices":[{"finish_reason":"stop","delta":{"role":"assistant","content":""}}]}"#;
    assert_eq!(chat(ended).kind, EventKind::Content);
}

#[test]
fn openers_are_told_apart_and_a_call_of_a_tool_is_content() {
    let block = |kind: &str, index: u32| {
        let block = format!(r#"{{"type":"{kind}","id":"x"}}"#);
        let data =
            format!(r#"{{"type":"content_block_start","index":{index},"content_block":{block}}}"#);
        read(Endpoint::Messages, &data).kind
    };
    let opener =
        |of, index| EventKind::Role(Opener { what: "content_block_start", of, place: [index, 0] });
    assert_eq!(block("text", 0), opener("text", 0));
    assert_eq!(block("thinking", 2), opener("thinking", 2));
    assert_eq!(block("tool_use", 0), EventKind::Content);
    let item = r#"{"type":"response.output_item.added","output_index":1,
        "item":{"type":"function_call","name":"f"}}"#;
    assert_eq!(read(Endpoint::Responses, item).kind, EventKind::Content);
    let part = r#"{"type":"response.content_part.added","output_index":1,"content_index":2,
        "part":{"type":"output_text"}}"#;
    let opener = Opener { what: "response.content_part.added", of: "output_text", place: [1, 2] };
    assert_eq!(read(Endpoint::Responses, part).kind, EventKind::Role(opener));
}

#[test]
fn other_errors_are_errors() {
    for (endpoint, data, code) in [
        (Endpoint::ChatCompletions, r#"{"object":"error","message":"m","code":400}"#, Some(400)),
        (
            Endpoint::Messages,
            r#"{"type":"error","error":{"type":"overloaded_error","message":"m"}}"#,
            None,
        ),
        (Endpoint::Responses, r#"{"type":"error","code":"server_error","message":"m"}"#, None),
        (
            Endpoint::Responses,
            r#"{"type":"response.failed","response":{"error":{"code":"x","message":"m"}}}"#,
            None,
        ),
    ] {
        let EventKind::Error(error) = read(endpoint, data).kind else { panic!("{data}") };
        assert_eq!((error.code, error.message.of(data.as_bytes())), (code, &b"\"m\""[..]));
    }
    let failed = r#"{"type":"response.failed","response":{"error":null}}"#;
    assert!(read(Endpoint::Responses, failed).ends_stream);
}

#[test]
fn what_is_not_json_is_passed_on() {
    for data in ["", "{", "x", "[DONE", "{\"usage\":", "{\"error\":\"\\ud800\"}", "[1]"] {
        assert_eq!(chat(data), EventFacts::PLAIN, "{data}");
    }
}

const NAMES: [&str; 11] = [
    "choices",
    "delta",
    "role",
    "content",
    "finish_reason",
    "usage",
    "error",
    "object",
    "type",
    "message",
    "x",
];
const TEXTS: [&str; 7] = ["error", "usage", "role", "abort", "stop", "", "response.x.delta"];
const VALUES: [&str; 10] = [
    "null",
    "true",
    "0",
    "-1",
    "[]",
    "{}",
    "[ ]",
    r#""\"error\":{},\"choices\":[]""#,
    r#"{"prompt_tokens":1,"completion_tokens":2}"#,
    r#"{"role":"assistant"}"#,
];

/// JSON of the names that matter, at any depth, with any spacing.
fn json_text() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        prop::sample::select(&TEXTS[..]).prop_map(|text| format!("\"{text}\"")),
        prop::sample::select(&VALUES[..]).prop_map(str::to_owned),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        let member = (prop::sample::select(&NAMES[..]), "[ \n]?", inner.clone())
            .prop_map(|(name, space, value)| format!("\"{name}\"{space}:{space}{value}{space}"));
        let list = |items: Vec<String>| format!("[{}]", items.join(","));
        let object = |members: Vec<String>| format!("{{{}}}", members.join(","));
        prop_oneof![
            1 => prop::collection::vec(inner, 0..3).prop_map(list),
            3 => prop::collection::vec(member, 0..5).prop_map(object),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    /// The search for a few names misses nothing that a parse of all would have found.
    #[test]
    fn the_short_way_finds_what_the_long_way_finds(
        (choice, first, second) in (json_text(), json_text(), json_text()),
        name in prop::sample::select(&NAMES[..]),
    ) {
        let outer = format!(r#"{{"x":{first},"choices":[{choice}],"{name}":{second}}}"#);
        for data in [&first, &outer] {
            let Ok(facts) = Facts::read(data.as_bytes()) else { continue };
            prop_assert_eq!(chat(data), chunk(facts), "{}", data);
        }
        for kind in ["created", "completed", "failed", "incomplete", "output_text.done"] {
            let members = format!(r#""{name}":{first},"x":{second}"#);
            let data = format!(r#"{{"response":{{{members}}},"type":"response.{kind}"}}"#);
            let facts = response_event(Facts::read(data.as_bytes()).unwrap(), data.as_bytes());
            prop_assert_eq!(read(Endpoint::Responses, &data), facts, "{}", data);
        }
    }
}
