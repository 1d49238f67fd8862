//! What a body must be, field by field.

use super::*;
use crate::openai::BodyErrorCode::{InvalidJson, InvalidValue};
use crate::openai::PROMPTS_MAX;
use Endpoint::{ChatCompletions, Completions, Embeddings, Messages, Responses};

fn chat(members: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}],{members}}}"#)
}

fn completion(members: &str) -> String {
    format!(r#"{{"model":"m","prompt":"p",{members}}}"#)
}

fn read(endpoint: Endpoint, body: &str) -> Call {
    read_call(endpoint, body.as_bytes()).unwrap_or_else(|error| panic!("{body}: {error}"))
}

#[track_caller]
fn refused(endpoint: Endpoint, body: &str, param: &str) {
    let error = read_call(endpoint, body.as_bytes()).expect_err(body);
    assert_eq!((error.code, error.param), (InvalidValue, Some(param)), "{body:.200}");
}

#[test]
fn what_is_not_a_json_object_is_refused() {
    let deep = format!("{{\"a\":{}", "[".repeat(100_000));
    let keys: String = (0..1_000_000).map(|n| format!("\"{n}\":0,")).collect();
    let keys = chat(&format!("{keys}\"z\":0"));
    for body in [
        "",
        " ",
        "[]",
        "null",
        "1",
        "\"x\"",
        "{",
        "{}x",
        "{} {}",
        "{\"a\":NaN}",
        "{\"a\":Infinity}",
        "{\"a\":-Infinity}",
        "{\"a\":1,}",
        "{,}",
        "{\"a\" 1}",
        "{'a':1}",
        "{\"a\":01}",
        "{\"a\":+1}",
        "{\"a\":\"\\ud83d\"}",
        "{\"a\":\"\\udc00\\ud83d\"}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"\n\"}",
        "\u{feff}{}",
        "{\"a\":tru}",
        &deep,
        &keys,
    ] {
        let error = read_call(ChatCompletions, body.as_bytes()).expect_err(body);
        assert_eq!((error.code, error.param), (InvalidJson, None), "{body:.80}");
    }
    let error = read_call(ChatCompletions, b"{\"a\":\"\xff\"}").unwrap_err();
    assert_eq!((error.code, error.offset), (InvalidJson, 6));
}

#[test]
fn a_field_that_we_read_is_given_once() {
    for field in ["model", "max_tokens", "stream", "n", "messages", "tools", "priority"] {
        let twice = chat(&format!("\"{field}\":null,\"{field}\":null"));
        refused(ChatCompletions, &twice, field);
    }
    refused(ChatCompletions, &chat(r#""mod\u0065l":"other""#), "model");
    let inner =
        chat(r#""stream":true,"stream_options":{"include_usage":true,"include_usage":false}"#);
    refused(ChatCompletions, &inner, "stream_options.include_usage");
    read(ChatCompletions, &chat(r#""x":1,"x":2,"best_of":"?","prompt":7,"input":{}"#));
}

#[test]
fn counts_are_whole_and_in_range() {
    for bad in ["-1", "0", "9223372036854775808", "\"5\"", "5.5", "1e2", "1e999", "true", "[5]"] {
        for field in ["max_tokens", "max_completion_tokens", "n"] {
            refused(ChatCompletions, &chat(&format!("\"{field}\":{bad}")), field);
        }
        refused(
            Responses,
            &format!("{{\"input\":\"x\",\"max_output_tokens\":{bad}}}"),
            "max_output_tokens",
        );
    }
    for field in ["n", "best_of"] {
        refused(Completions, &completion(&format!("\"{field}\":129")), field);
        assert_eq!(read(Completions, &completion(&format!("\"{field}\":128"))).sequences(), 128);
    }
    refused(Completions, &completion(r#""max_tokens":0"#), "max_tokens");
    refused(Completions, &completion(r#""max_tokens":0,"echo":false"#), "max_tokens");
    assert_eq!(
        read(Completions, &completion(r#""max_tokens":0,"echo":true"#)).output_tokens_max(),
        Some(0)
    );
    assert_eq!(read(ChatCompletions, &chat(r#""max_tokens":5.0"#)).output_tokens_max(), Some(5));
    assert_eq!(read(ChatCompletions, &chat(r#""max_tokens":null"#)).output_tokens_max(), None);
}

#[test]
fn what_changes_the_tokens_of_a_prompt_is_read() {
    let call = read(
        ChatCompletions,
        &chat(r#""add_special_tokens":true,"truncate_prompt_tokens":-1,"truncation_side":"left""#),
    );
    assert_eq!(call.add_special_tokens, Some(true));
    assert_eq!((call.truncate, call.truncate_right), (Some(Truncate::ToContext), Some(false)));
    let call = read(
        Completions,
        &completion(
            r#""truncate_prompt_tokens":7,"truncation_side":"right","add_special_tokens":null"#,
        ),
    );
    assert_eq!(call.add_special_tokens, None);
    assert_eq!((call.truncate, call.truncate_right), (Some(Truncate::To(7)), Some(true)));
    for bad in ["-2", "\"1\"", "\"-1\"", "1.5", "true", "1e3"] {
        let field = "truncate_prompt_tokens";
        refused(Completions, &completion(&format!("\"{field}\":{bad}")), field);
    }
    for bad in ["1", "\"middle\"", "\"Left\"", "[]"] {
        let field = "truncation_side";
        refused(Completions, &completion(&format!("\"{field}\":{bad}")), field);
    }
    refused(Completions, &completion(r#""add_special_tokens":"yes""#), "add_special_tokens");
    assert!(read(Completions, r#"{"prompt_embeds":"AA=="}"#).embeds);
}

#[test]
fn options_do_not_contradict_each_other() {
    refused(
        ChatCompletions,
        &chat(r#""max_tokens":5,"max_completion_tokens":6"#),
        "max_completion_tokens",
    );
    read(ChatCompletions, &chat(r#""max_tokens":5,"max_completion_tokens":5"#));
    refused(ChatCompletions, &chat(r#""min_tokens":6,"max_tokens":5"#), "min_tokens");
    read(ChatCompletions, &chat(r#""min_tokens":5,"max_tokens":5"#));
    for stream in ["\"stream\":false,", "\"stream\":null,", ""] {
        let options = chat(&format!("{stream}\"stream_options\":{{\"include_usage\":true}}"));
        refused(ChatCompletions, &options, "stream_options");
        read(ChatCompletions, &chat(&format!("{stream}\"stream_options\":null")));
    }
}

#[test]
fn flags_are_booleans() {
    for bad in ["\"true\"", "1", "[]", "{}"] {
        refused(ChatCompletions, &chat(&format!("\"stream\":{bad}")), "stream");
        refused(Completions, &completion(&format!("\"echo\":{bad}")), "echo");
        let options =
            chat(&format!("\"stream\":true,\"stream_options\":{{\"include_usage\":{bad}}}"));
        refused(ChatCompletions, &options, "stream_options.include_usage");
    }
    refused(ChatCompletions, &chat(r#""stream":true,"stream_options":[]"#), "stream_options");
}

#[test]
fn the_model_is_a_short_string_or_left_out() {
    for (model, name) in [
        ("null", None),
        (r#""a/b""#, Some("a/b")),
        (r#""a\r\n\u0000\ud83d\ude00\/""#, Some("a\r\n\0\u{1f600}/")),
    ] {
        let body = format!(r#"{{"model":{model},"prompt":"p"}}"#);
        assert_eq!(read(Completions, &body).model_name(body.as_bytes()), name);
    }
    assert_eq!(read(Completions, r#"{"prompt":"p"}"#).model, None);
    let long = format!("\"{}\"", "m".repeat(MODEL_BYTES_MAX + 1));
    for model in ["1", "[\"m\"]", "{}", "true", &long] {
        refused(Completions, &format!(r#"{{"model":{model},"prompt":"p"}}"#), "model");
    }
}

#[test]
fn messages_and_tools_are_counted_and_bounded() {
    let list = |count: usize| vec![r#"{"content":"1234"}"#; count].join(",");
    let call = read(ChatCompletions, &format!(r#"{{"messages":[{}],"x":"text"}}"#, list(4096)));
    assert_eq!((call.messages, call.text_bytes), (4096, 4 * 4096));
    refused(ChatCompletions, &format!(r#"{{"messages":[{}]}}"#, list(4097)), "messages");
    assert_eq!(read(ChatCompletions, &chat(&format!("\"tools\":[{}]", list(256)))).tools, 256);
    refused(ChatCompletions, &chat(&format!("\"tools\":[{}]", list(257))), "tools");
    for endpoint in [ChatCompletions, Messages] {
        for messages in
            ["", "\"messages\":[]", "\"messages\":null", "\"messages\":\"hi\"", "\"messages\":[1]"]
        {
            refused(endpoint, &format!("{{{messages}}}"), "messages");
        }
    }
}

#[test]
fn prompts_have_one_shape() {
    let prompt = |value: &str| read(Completions, &format!(r#"{{"prompt":{value}}}"#)).prompt;
    assert_eq!(prompt(r#""text""#), Prompt::Text);
    assert_eq!(prompt("[1, 2,3]"), Prompt::Tokens { tokens: 3 });
    assert_eq!(prompt(r#"["a","b"]"#), Prompt::Texts { prompts: 2 });
    assert_eq!(prompt("[[1,2],[3]]"), Prompt::TokenLists { prompts: 2, tokens: 3 });
    let many = vec!["\"x\""; PROMPTS_MAX + 1].join(",");
    for bad in [
        "null",
        "1",
        "{}",
        "[]",
        "[[]]",
        "[1,\"a\"]",
        "[[1],\"a\"]",
        "[[1],2]",
        "[-1]",
        "[1.5]",
        "[4294967296]",
        "[[[1]]]",
        "[null]",
        "[{}]",
        &format!("[{many}]"),
    ] {
        refused(Completions, &format!(r#"{{"prompt":{bad}}}"#), "prompt");
    }
    refused(Completions, "{}", "prompt");
    read(Completions, r#"{"prompt_embeds":"AAAA"}"#);
    let items = read(Responses, r#"{"input":[{"role":"user","content":"hi"}]}"#);
    assert_eq!(items.prompt, Prompt::Items { items: 1 });
    let texts = read(Embeddings, r#"{"input":["ab","c"]}"#);
    assert_eq!((texts.prompts(), texts.text_bytes), (2, 3));
}

#[test]
fn what_only_policy_may_allow_is_listed() {
    let body = chat(r#""priority": 5, "cache_salt":null,"vllm_xargs":{"a":1}"#);
    let call = read(ChatCompletions, &body);
    let listed: Vec<_> = call
        .policy_fields
        .iter()
        .map(|f| (f.name, std::str::from_utf8(f.member.of(body.as_bytes())).unwrap(), f.index))
        .collect();
    assert_eq!(
        listed,
        [
            ("priority", r#""priority": 5"#, 2),
            ("cache_salt", r#""cache_salt":null"#, 3),
            ("vllm_xargs", r#""vllm_xargs":{"a":1}"#, 4),
        ]
    );
    let template = read(ChatCompletions, &chat(r#""chat_template":"{{ x }}""#));
    assert_eq!(template.refuse_chat_template().unwrap_err().param, Some("chat_template"));
    let none = read(ChatCompletions, &chat(r#""chat_template":null,"chat_template_kwargs":{}"#));
    assert_eq!(none.refuse_chat_template(), Ok(()));
}
