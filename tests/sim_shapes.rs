//! The simulator's wire against captures of a real vLLM 0.32 behind uvicorn: same fields in the
//! same order, same framing, same members in the same order.

mod common;

use std::net::SocketAddr;

use common::{Client, Response, ask, get, post, post_with};
use expedite::sim::{Fleet, SimConfig, SimHandle};

const MESSAGES: &str = r#""messages": [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Tell me a story about a gateway and its two replicas."}]"#;

fn fleet() -> SimHandle {
    Fleet::start(SimConfig {
        model: "tiny-qwen3".to_owned(),
        loras: vec![("lora-a".to_owned(), "/srv/tiny/lora-a".to_owned())],
        model_len_max: 8192,
        request_id_headers: true,
        ..SimConfig::default()
    })
    .expect("fleet")
}

fn capture(name: &str) -> Response {
    let path = format!("{}/tests/data/vllm/{name}.resp", env!("CARGO_MANIFEST_DIR"));
    Response::parse(&std::fs::read(path).expect("capture"))
}

/// Status line and names of the fields; values where they do not depend on the moment.
fn head_shape(response: &Response) -> Vec<String> {
    let varies = ["date", "x-request-id", "content-length"];
    let shape = |line: &String| match line.split_once(": ") {
        Some((name, _)) if varies.contains(&name) => name.to_owned(),
        _ => line.clone(),
    };
    response.head.iter().map(shape).collect()
}

/// A JSON text with every string and number but structural ones taken out: members, their order,
/// nulls and booleans stay.
fn skeleton(json: &str) -> String {
    let bytes = json.as_bytes();
    let (mut out, mut at) = (String::new(), 0);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                let begin = at;
                at += 1;
                while bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
                let is_name = json[at..].trim_start().starts_with(':');
                out.push_str(if is_name { &json[begin..at] } else { "S" });
            }
            b'-' | b'0'..=b'9' => {
                while at < bytes.len() && b"+-.eE0123456789".contains(&bytes[at]) {
                    at += 1;
                }
                out.push('N');
            }
            other => {
                out.push(char::from(other));
                at += 1;
            }
        }
    }
    out
}

/// One skeleton for each run of alike chunks.
fn stream_shape(response: &Response) -> Vec<String> {
    let mut shapes: Vec<String> = Vec::new();
    for piece in &response.pieces {
        let text = String::from_utf8_lossy(piece);
        let shape: String = text
            .split_inclusive('\n')
            .map(|line| match line.strip_prefix("data: ") {
                Some(json) if !json.starts_with('[') => format!("data: {}", skeleton(json)),
                _ => line.to_owned(),
            })
            .collect();
        if shapes.last() != Some(&shape) {
            shapes.push(shape);
        }
    }
    shapes
}

fn same_stream(addr: SocketAddr, name: &str, request: &[u8]) {
    let (real, ours) = (capture(name), ask(addr, request));
    assert_eq!(head_shape(&ours), head_shape(&real), "{name}");
    assert_eq!(stream_shape(&ours), stream_shape(&real), "{name}");
    assert!(ours.complete, "{name}");
}

fn same_whole(addr: SocketAddr, name: &str, request: &[u8]) {
    let (real, ours) = (capture(name), ask(addr, request));
    assert_eq!(head_shape(&ours), head_shape(&real), "{name}");
    assert_eq!(skeleton(&ours.text()), skeleton(&real.text()), "{name}");
}

fn same_bytes(addr: SocketAddr, name: &str, request: &[u8]) {
    let (real, ours) = (capture(name), ask(addr, request));
    assert_eq!(head_shape(&ours), head_shape(&real), "{name}");
    assert_eq!(ours.text(), real.text(), "{name}");
    assert_eq!(ours.field("content-length"), real.field("content-length"), "{name}");
}

#[test]
fn chat_streams_have_vllms_shape() {
    let fleet = fleet();
    let chat = |more: &str| {
        let json = format!("{{\"model\": \"tiny-qwen3\", {MESSAGES}, \"max_tokens\": 8{more}}}");
        post("/v1/chat/completions", &json)
    };
    let usage = r#", "stream": true, "stream_options": {"include_usage": true}"#;
    let each = r#", "stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true}"#;
    same_stream(fleet.addr(0), "chat_stream", &chat(", \"stream\": true"));
    same_stream(fleet.addr(0), "chat_stream_include_usage", &chat(usage));
    same_stream(fleet.addr(0), "chat_stream_continuous_usage", &chat(each));
    let two = format!("{usage}, \"n\": 2");
    same_stream(fleet.addr(0), "chat_stream_n2", &chat(&two));
    let old = String::from_utf8(chat(", \"stream\": true")).expect("text");
    let old = old.replace(" HTTP/1.1\r\n", " HTTP/1.0\r\n");
    same_stream(fleet.addr(0), "chat_stream_http10", old.as_bytes());
}

#[test]
fn tool_calls_have_vllms_shape() {
    let fleet = fleet();
    let tool = r#""tools": [{"type": "function", "function": {"name": "get_weather"}}],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}}"#;
    let json = format!("{{{MESSAGES}, {tool}, \"max_tokens\": 60}}");
    let ours = ask(fleet.addr(0), &post("/v1/chat/completions", &json));
    let real = capture("chat_tool_named");
    // The real model ended on a stop token that has a number; the simulated one has none.
    let real_text = skeleton(&real.text()).replace("\"stop_reason\":N", "\"stop_reason\":null");
    assert_eq!(skeleton(&ours.text()), real_text);
    assert_eq!(ours.json()["choices"][0]["finish_reason"], "stop");

    let more = ", \"stream\": true, \"stream_options\": {\"include_usage\": true}";
    let json = format!("{{{MESSAGES}, {tool}, \"max_tokens\": 60{more}}}");
    let ours = ask(fleet.addr(0), &post("/v1/chat/completions", &json));
    let real = stream_shape(&capture("chat_tool_named_stream"));
    let real: Vec<String> =
        real.iter().map(|s| s.replace("\"stop_reason\":N", "\"stop_reason\":null")).collect();
    assert_eq!(stream_shape(&ours), real);
}

#[test]
fn completions_have_vllms_shape() {
    let fleet = fleet();
    let ask_for = |more: &str| {
        let json = format!("{{\"prompt\": \"Once upon a time\", \"max_tokens\": 8{more}}}");
        post("/v1/completions", &json)
    };
    let usage = r#", "stream": true, "stream_options": {"include_usage": true}"#;
    same_stream(fleet.addr(0), "completion_stream", &ask_for(", \"stream\": true"));
    same_stream(fleet.addr(0), "completion_stream_include_usage", &ask_for(usage));
    same_whole(fleet.addr(0), "completion_nonstream", &ask_for(""));
    let list = r#"{"prompt": ["Once upon a time", "In the beginning"], "max_tokens": 3}"#;
    same_whole(fleet.addr(0), "completion_prompt_list", &post("/v1/completions", list));
}

#[test]
fn whole_chats_responses_and_messages_have_vllms_shape() {
    let fleet = fleet();
    let addr = fleet.addr(0);
    let json = format!("{{{MESSAGES}, \"max_tokens\": 8}}");
    same_whole(addr, "chat_nonstream", &post("/v1/chat/completions", &json));
    let close = post_with("/v1/chat/completions", "Connection: close\r\n", &json);
    same_whole(addr, "chat_connection_close", &close);
    let expect = post_with("/v1/chat/completions", "Expect: 100-continue\r\n", &json);
    same_whole(addr, "chat_expect_100", &expect);
    let input = r#""input": "Hi there", "max_output_tokens": 4, "temperature": 0"#;
    same_whole(addr, "responses_nonstream", &post("/v1/responses", &format!("{{{input}}}")));
    let streamed = format!("{{{input}, \"stream\": true}}");
    same_stream(addr, "responses_stream", &post("/v1/responses", &streamed));
    let hi = r#""max_tokens": 4, "messages": [{"role": "user", "content": "Hi there"}]"#;
    same_whole(addr, "messages_nonstream", &post("/v1/messages", &format!("{{{hi}}}")));
    let streamed = format!("{{{hi}, \"stream\": true}}");
    same_stream(addr, "messages_stream", &post("/v1/messages", &streamed));
    same_whole(
        addr,
        "messages_count_tokens",
        &post("/v1/messages/count_tokens", &format!("{{{hi}}}")),
    );
}

#[test]
fn refusals_are_vllms_byte_for_byte() {
    let fleet = fleet();
    let addr = fleet.addr(0);
    let chat = |json: &str| post("/v1/chat/completions", json);
    let of =
        |model: &str, more: &str| chat(&format!("{{\"model\": \"{model}\", {MESSAGES}{more}}}"));
    same_bytes(addr, "err_404_model_chat", &of("nope", ", \"max_tokens\": 8"));
    same_bytes(addr, "err_400_bad_json", &chat("{\"model\": \"tiny-qwen3\", \"messages\": ["));
    same_bytes(addr, "err_400_no_messages", &chat("{\"model\": \"tiny-qwen3\"}"));
    let long = of("tiny-qwen3", ", \"max_tokens\": 9000");
    same_bytes(addr, "err_400_context_length_max_tokens", &long);
    let options = of("tiny-qwen3", ", \"stream_options\": {\"include_usage\": true}");
    same_bytes(addr, "err_400_stream_options_without_stream", &options);
    same_bytes(addr, "err_400_empty_prompt", &post("/v1/completions", "{\"prompt\": \"\"}"));
    let text =
        String::from_utf8(chat("{}")).expect("text").replace("application/json", "text/plain");
    same_bytes(addr, "err_400_content_type", text.as_bytes());
    same_bytes(addr, "err_404_path", &get("/nope"));
    same_bytes(addr, "err_405_method", &get("/v1/chat/completions"));
    same_bytes(addr, "err_garbage_request", b"GARBAGE\r\n\r\n");
    let mut client = Client::connect(addr);
    client.send(b"HEAD /health HTTP/1.1\r\nHost: sim\r\n\r\n");
    assert_eq!(head_shape(&client.response()), head_shape(&capture("head_health")));
}

#[test]
fn probes_and_adapters_are_vllms() {
    let fleet = fleet();
    let addr = fleet.addr(0);
    same_bytes(addr, "get_health", &get("/health"));
    same_bytes(addr, "get_version", &get("/version"));
    let load = |name: &str, path: &str| {
        let json = format!("{{\"lora_name\": \"{name}\", \"lora_path\": \"{path}\"}}");
        post("/v1/load_lora_adapter", &json)
    };
    same_bytes(addr, "lora_load_b", &load("lora-b", "/srv/tiny/lora-b"));
    same_bytes(addr, "lora_load_b_again", &load("lora-b", "/srv/tiny/lora-b"));
    same_bytes(addr, "lora_load_missing", &load("lora-x", "/nonexistent"));
    same_whole(addr, "get_models_with_lora", &get("/v1/models"));
    let unload = post("/v1/unload_lora_adapter", "{\"lora_name\": \"lora-b\"}");
    assert_eq!(ask(addr, &unload).status(), 200);
    same_bytes(addr, "lora_unload_b_again", &unload);
    let tokenize = post("/tokenize", "{\"prompt\": \"Once upon a time\"}");
    same_whole(addr, "tokenize_completion", &tokenize);
}
