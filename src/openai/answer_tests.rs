//! Whole bodies: recorded ones, and usages that must not be believed.

use super::*;
use crate::openai::captures;

fn usage(usage: &str) -> (Option<Usage>, bool) {
    let answer = read_answer(format!(r#"{{"choices":[],"usage":{usage}}}"#).as_bytes());
    assert!(answer.valid);
    (answer.usage, answer.usage_odd)
}

fn tokens(prompt_tokens: u64, completion_tokens: u64, cached_tokens: Option<u64>) -> Usage {
    Usage { prompt_tokens, completion_tokens, cached_tokens }
}

#[test]
fn recorded_bodies_are_read_as_serde_json_reads_them() {
    let (mut usages, mut errors) = (0, 0);
    for capture in captures::all().iter().filter(|capture| !capture.stream) {
        let parsed = serde_json::from_slice::<serde_json::Value>(&capture.body).ok();
        let Some(value) = parsed.filter(serde_json::Value::is_object) else {
            assert!(!read_answer(&capture.body).valid, "{}", capture.name);
            continue;
        };
        let answer = read_answer(&capture.body);
        let name = &capture.name;
        assert!(answer.valid && !answer.usage_odd, "{name}");
        let usage = &value["usage"];
        let count = |names: [&str; 3]| names.iter().find_map(|name| usage.pointer(name)?.as_u64());
        let prompt = count(["/prompt_tokens", "/input_tokens", "/-"]).map(|prompt| {
            let apart = ["/cache_read_input_tokens", "/cache_creation_input_tokens"];
            prompt + apart.iter().filter_map(|name| usage.pointer(name)?.as_u64()).sum::<u64>()
        });
        assert_eq!(answer.usage.map(|usage| usage.prompt_tokens), prompt, "{name}");
        let completion = count(["/completion_tokens", "/output_tokens", "/-"]);
        assert_eq!(answer.usage.map(|usage| usage.completion_tokens), completion, "{name}");
        let cached = count([
            "/prompt_tokens_details/cached_tokens",
            "/input_tokens_details/cached_tokens",
            "/cache_read_input_tokens",
        ]);
        assert_eq!(answer.usage.and_then(|usage| usage.cached_tokens), cached, "{name}");
        assert_eq!(answer.abort, value["choices"][0]["finish_reason"] == "abort", "{name}");
        let error = &value["error"];
        assert_eq!(answer.error.is_some(), error.is_object(), "{name}");
        if let Some(read) = answer.error {
            assert_eq!(read.code.map(u64::from), error["code"].as_u64(), "{name}");
            let message = super::super::json::text(read.message.of(&capture.body));
            assert_eq!(Some(&*message), error["message"].as_str(), "{name}");
            let kind = super::super::json::text(read.kind.of(&capture.body));
            assert_eq!(Some(&*kind), error["type"].as_str(), "{name}");
            errors += 1;
        }
        usages += usize::from(answer.usage.is_some());
    }
    assert!(usages >= 30 && errors >= 20, "{usages} {errors}");
}

#[test]
fn the_prompt_of_a_messages_answer_has_its_cached_tokens() {
    // As vLLM 0.32 answers the same 44 tokens when they are new, and when a block is cached.
    let told = |created: u64, read: u64| {
        usage(&format!(
            r#"{{"input_tokens":12,"output_tokens":2,"cache_creation_input_tokens":{created},
            "cache_read_input_tokens":{read}}}"#
        ))
    };
    assert_eq!(told(32, 0).0, Some(tokens(44, 2, Some(0))));
    assert_eq!(told(0, 32).0, Some(tokens(44, 2, Some(32))));
    let responses = r#"{"input_tokens":44,"output_tokens":2,
        "input_tokens_details":{"cached_tokens":32}}"#;
    assert_eq!(usage(responses).0, Some(tokens(44, 2, Some(32))), "among them here");
}

#[test]
fn cached_tokens_are_told_apart_from_none_said() {
    let with = |details: &str| {
        usage(&format!(r#"{{"prompt_tokens":5,"completion_tokens":1{details}}}"#)).0.unwrap()
    };
    assert_eq!(with(r#","prompt_tokens_details":{"cached_tokens":0}"#), tokens(5, 1, Some(0)));
    for details in [
        "",
        r#","prompt_tokens_details":null"#,
        r#","prompt_tokens_details":{"cached_tokens":null}"#,
    ] {
        assert_eq!(with(details), tokens(5, 1, None));
    }
}

#[test]
fn counts_that_cannot_be_are_not_believed() {
    for bad in [
        "-1",
        "1.5",
        "1.0",
        "1e2",
        "\"5\"",
        "true",
        "[]",
        "{}",
        "1099511627777",
        "99999999999999999999",
    ] {
        for field in ["prompt_tokens", "completion_tokens"] {
            let other =
                if field == "prompt_tokens" { "completion_tokens" } else { "prompt_tokens" };
            let read = usage(&format!(r#"{{"{field}":{bad},"{other}":1}}"#));
            assert_eq!(read, (None, true), "{field} {bad}");
        }
    }
    assert_eq!(usage("7"), (None, true));
    assert_eq!(usage("null"), (None, false));
    assert_eq!(usage(r#"{"type":"duration","seconds":3}"#), (None, false));
    assert_eq!(usage(r#"{"output_tokens":3}"#), (None, true), "half of one");
    assert_eq!(usage(r#"{"prompt_tokens":1,"prompt_tokens":2}"#), (None, true));
    let twice = br#"{"usage":{"prompt_tokens":1},"usage":{"prompt_tokens":2}}"#;
    assert_eq!((read_answer(twice).usage, read_answer(twice).usage_odd), (None, true));
}

#[test]
fn what_generates_nothing_has_a_prompt_alone() {
    let pooled = r#"{"prompt_tokens":5,"total_tokens":5,"completion_tokens":0}"#;
    assert_eq!(usage(pooled), (Some(tokens(5, 0, None)), false));
    assert_eq!(usage(r#"{"total_tokens":5}"#), (Some(tokens(5, 0, None)), false));
}

#[test]
fn what_is_not_a_json_object_is_not_valid() {
    for body in ["", "<html>", "[]", "null", "{\"usage\":{}", "{} x"] {
        assert_eq!(read_answer(body.as_bytes()), Answer::default(), "{body}");
    }
}

#[test]
fn the_usage_is_read_from_the_end_of_a_body() {
    let usage = r#""usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}"#;
    let told = Some(Usage { prompt_tokens: 3, completion_tokens: 4, cached_tokens: None });
    let of = |tail: &str| usage_in_tail(tail.as_bytes());
    assert_eq!(of(&format!(r#"lo"}}],{usage}}}"#)), told);
    assert_eq!(of(&format!(r#"你"}}],{usage},"prompt_logprobs":null}}"#)), told);
    // Of an object within the body, of a text, not there, torn.
    assert_eq!(of(&format!(r#"{{"x":{{{usage}}}}}"#)), None);
    assert_eq!(of(&format!(r#"\"usage\":{{\"prompt_tokens\":9}}"}}],{usage}}}"#)), told);
    assert_eq!(of(r#"\"usage\":{\"prompt_tokens\":9}"}]}"#), None);
    assert_eq!(of(r#"lo"}]}"#), None);
    assert_eq!(of(r#""usage":{"prompt_tokens":3,"comp"#), None);
}

#[test]
fn an_error_has_a_status_by_its_code_or_its_type() {
    let status = |error: &str| {
        let json = format!("{{\"error\":{error}}}");
        read_answer(json.as_bytes()).error.expect("an error").status(json.as_bytes())
    };
    assert_eq!(status(r#"{"message":"m","code":404,"type":"BadRequestError"}"#), Some(404));
    assert_eq!(status(r#"{"message":"m","type":"invalid_request_error"}"#), Some(400));
    assert_eq!(status(r#"{"message":"m","type":"overloaded_error"}"#), None);
    assert_eq!(status(r#""m""#), None);
}
