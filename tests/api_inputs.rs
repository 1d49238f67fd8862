//! Calls that the API does not allow: each is refused before any engine is asked, in the OpenAI
//! shape, with the field at fault, on a connection that goes on.

mod common;

use common::engine::{Engine, adapter, json};
use common::gateway::{AUTH, Bed, Settings};
use common::{Client, Response, ask, eventually, post_with};
use expedite::config::KeyDigest;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A path, a body, and the answer's status, code and param.
#[derive(Clone)]
struct Row {
    path: &'static str,
    body: Vec<u8>,
    status: u16,
    code: &'static str,
    param: Option<&'static str>,
}

fn not_json(body: impl Into<Vec<u8>>) -> Row {
    Row { path: CHAT, body: body.into(), status: 400, code: "invalid_json", param: None }
}

fn bad(path: &'static str, param: &'static str, body: impl Into<Vec<u8>>) -> Row {
    Row { path, body: body.into(), status: 400, code: "invalid_value", param: Some(param) }
}

/// A chat with these members behind its messages.
fn chat(param: &'static str, members: &str) -> Row {
    bad(CHAT, param, format!(r#"{{"model":"m","messages":[{{"role":"user"}}],{members}}}"#))
}

/// A completion with these members behind its prompt.
fn completion(param: &'static str, members: &str) -> Row {
    bad(COMPLETIONS, param, format!(r#"{{"model":"m","prompt":"p",{members}}}"#))
}

fn no_model(path: &'static str, name: &str) -> Row {
    let body = json!({"model": name, "messages": [{}], "prompt": "p", "input": "i"}).to_string();
    Row { path, body: body.into(), status: 404, code: "model_not_found", param: Some("model") }
}

fn texts() -> Vec<Row> {
    let keys: String = (0..300_000).map(|n| format!("\"{n}\":0,")).collect();
    let mut rows: Vec<_> = [
        "",
        " \r\n",
        "[]",
        "null",
        "true",
        "7",
        "\"{}\"",
        "{",
        "{}}",
        "{} {}",
        "{}\0",
        "\u{feff}{}",
        "{\"a\":1,}",
        "{\"a\":[1,]}",
        "{\"a\" 1}",
        "{a:1}",
        "{'a':1}",
        "{\"a\":NaN}",
        "{\"a\":Infinity}",
        "{\"a\":-Infinity}",
        "{\"a\":01}",
        "{\"a\":+1}",
        "{\"a\":1.}",
        "{\"a\":.5}",
        "{\"a\":0x1}",
        "{\"a\":1e}",
        "{\"a\":tru}",
        "{\"a\":\"\n\"}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"\\u12g4\"}",
        "{\"a\":\"\\ud83d\"}",
        "{\"a\":\"\\udc00\\ud83d\"}",
        "{\"a\":\"open",
        "{/**/\"a\":1}",
    ]
    .map(not_json)
    .into();
    rows.extend([
        not_json(*b"{\"a\":\"\xff\"}"),
        not_json(*b"{\"a\":\"\xc0\x80\"}"),
        not_json(*b"{\"a\":\"\xed\xa0\x80\"}"),
        not_json(*b"{\"\xff\":1}"),
        not_json(*b"\xff\xfe{\0}\0"),
        not_json("[".repeat(100_000)),
        not_json(format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000))),
        not_json(format!("{}1{}", "{\"a\":".repeat(65), "}".repeat(65))),
        not_json(format!("{{{keys}\"z\":0}}")),
    ]);
    rows
}

/// Case 187: what the engine would fetch from its own network. More forms are beside the code.
fn urls() -> Vec<Row> {
    ["http://169.254.169.254/", "file:///etc/passwd", "http://[::1]:8000/reset_prefix_cache"]
        .iter()
        .flat_map(|url| {
            let chat = json!({"model": "m", "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
            ]});
            let response = json!({"model": "m", "input": [
                {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
            ]});
            [
                bad(CHAT, "messages", chat.to_string()),
                bad("/v1/responses", "input", response.to_string()),
            ]
        })
        .collect()
}

fn counts() -> Vec<Row> {
    let mut rows = Vec::new();
    let numbers = [
        "-1",
        "0",
        "-0",
        "5.5",
        "1e2",
        "1e999",
        "9223372036854775808",
        "18446744073709551616",
        "\"5\"",
        "true",
        "[5]",
        "{}",
    ];
    for number in numbers {
        for field in ["max_tokens", "max_completion_tokens", "n"] {
            rows.push(chat(field, &format!("\"{field}\":{number}")));
        }
        let path = "/v1/responses";
        let body = format!(r#"{{"model":"m","input":"i","max_output_tokens":{number}}}"#);
        rows.push(bad(path, "max_output_tokens", body));
        let body = format!(r#"{{"model":"m","messages":[{{}}],"max_tokens":{number}}}"#);
        rows.push(bad("/v1/messages", "max_tokens", body));
    }
    rows.extend([
        chat("n", r#""n":1000000000"#),
        chat("n", r#""n":129"#),
        completion("best_of", r#""best_of":1000000000"#),
        completion("n", r#""n":129,"best_of":129"#),
        completion("max_tokens", r#""max_tokens":0"#),
        chat("max_completion_tokens", r#""max_tokens":5,"max_completion_tokens":6"#),
        chat("min_tokens", r#""min_tokens":6,"max_tokens":5"#),
        completion("min_tokens", r#""min_tokens":-1"#),
    ]);
    rows
}

fn flags() -> Vec<Row> {
    let mut rows = Vec::new();
    for flag in ["\"true\"", "\"\"", "1", "0", "[]", "{}"] {
        rows.push(chat("stream", &format!("\"stream\":{flag}")));
        rows.push(completion("echo", &format!("\"echo\":{flag}")));
        let options = format!(r#""stream":true,"stream_options":{{"include_usage":{flag}}}"#);
        rows.push(chat("stream_options.include_usage", &options));
    }
    let asks = r#""stream_options":{"include_usage":true}"#;
    rows.extend([
        chat("stream_options", asks),
        chat("stream_options", &format!(r#"{asks},"stream":false"#)),
        completion("stream_options", &format!(r#""stream":null,{asks}"#)),
        chat("stream_options", r#""stream":true,"stream_options":[]"#),
        chat("stream_options", r#""stream":true,"stream_options":true"#),
    ]);
    rows
}

/// Parsers differ in which of two wins, so a field that we read stands once, however it is spelt.
fn doubles() -> Vec<Row> {
    let mut rows = Vec::new();
    for field in [
        "model",
        "messages",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "n",
        "tools",
        "priority",
        "cache_salt",
        "request_id",
        "kv_transfer_params",
    ] {
        let body = format!(r#"{{"model":"m","messages":[{{}}],"{field}":null,"{field}":null}}"#);
        rows.push(bad(CHAT, field, body));
    }
    rows.extend([
        bad(CHAT, "model", r#"{"model":"m","messages":[{}],"mod\u0065l":"other"}"#),
        bad(CHAT, "model", r#"{"\u006dodel":"other","messages":[{}],"model":"m"}"#),
        chat(
            "stream_options.include_usage",
            r#""stream":true,"stream_options":{"include_usage":true,"include_usage":false}"#,
        ),
    ]);
    rows
}

fn lists() -> Vec<Row> {
    let mut rows = Vec::new();
    for list in ["null", "[]", "{}", "\"x\"", "7", "[1]", "[\"x\"]", "[[]]", "[{},null]"] {
        rows.push(bad(CHAT, "messages", format!(r#"{{"model":"m","messages":{list}}}"#)));
    }
    for path in [CHAT, "/v1/messages", "/v1/messages/count_tokens"] {
        rows.push(bad(path, "messages", r#"{"model":"m"}"#));
    }
    for tools in ["{}", "\"x\"", "[1]", "[{},[]]"] {
        rows.push(chat("tools", &format!("\"tools\":{tools}")));
    }
    let many = |n: usize, item: &str| vec![item; n].join(",");
    rows.extend([
        bad(CHAT, "messages", format!(r#"{{"messages":[{}]}}"#, many(4_097, "{}"))),
        chat("tools", &format!("\"tools\":[{}]", many(10_000, "{}"))),
        chat("chat_template", r#""chat_template":"{{ cycler.__init__.__globals__ }}""#),
        bad("/tokenize", "chat_template", r#"{"messages":[{}],"chat_template":"x"}"#),
    ]);
    rows
}

fn prompts() -> Vec<Row> {
    let prompt =
        |prompt: &str| bad(COMPLETIONS, "prompt", format!(r#"{{"model":"m","prompt":{prompt}}}"#));
    let mut rows: Vec<_> = [
        "null",
        "7",
        "true",
        "{}",
        "[]",
        "[[]]",
        "[null]",
        "[{}]",
        "[-1]",
        "[1.5]",
        "[4294967296]",
        "[1e3]",
        "[\"a\",1]",
        "[1,\"a\"]",
        "[[1],\"a\"]",
        "[[1],[\"a\"]]",
        "[[1],[]]",
        "[[[1]]]",
    ]
    .map(prompt)
    .into();
    rows.extend([
        bad(COMPLETIONS, "prompt", r#"{"model":"m"}"#),
        prompt(&format!("[{}]", vec!["\"a\""; 100_000].join(","))),
        prompt(&format!("[{}]", vec!["[1]"; 4_097].join(","))),
        bad("/v1/embeddings", "input", r#"{"model":"m","input":[1,"a"]}"#),
        bad("/v1/embeddings", "input", r#"{"model":"m","input":[]}"#),
        bad("/v1/responses", "input", r#"{"model":"m","input":7}"#),
    ]);
    rows
}

fn models() -> Vec<Row> {
    let mut rows = Vec::new();
    for name in ["", "M", "m ", " m", "m\r\nX: y", "m\0", "../m", "m/../m", "m\u{e9}", "%6d", "*"] {
        rows.push(no_model(CHAT, name));
    }
    for path in [COMPLETIONS, "/v1/embeddings", "/v1/responses", "/v1/messages", "/tokenize"] {
        rows.push(no_model(path, "nobody's"));
    }
    for model in ["7", "true", "[\"m\"]", "{}"] {
        rows.push(bad(CHAT, "model", format!(r#"{{"model":{model},"messages":[{{}}]}}"#)));
    }
    let body = |bytes: usize| format!(r#"{{"model":"{}","messages":[{{}}]}}"#, "m".repeat(bytes));
    rows.extend([no_model(CHAT, &"n".repeat(1024)), bad(CHAT, "model", body(1 << 20))]);
    // Another tenant's pool answers as if it were not there.
    rows.extend([no_model(CHAT, "hidden"), no_model(CHAT, "q"), no_model(CHAT, "hidden-alias")]);
    rows
}

const OTHER: &str = "Authorization: Bearer sk-other\r\n";

/// One engine for the tenant's pool, one for a pool of another tenant.
fn bed() -> (Bed, [Engine; 2]) {
    let engine = || Engine::always(json(200, "{\"choices\":[]}"));
    let engines = [engine(), engine()];
    let more = format!(
        "pools = [\"p\"]\n[[pool]]\nname = \"q\"\nmodel = \"hidden\"\n\
         aliases = [\"hidden-alias\"]\nreplicas = [\"http://{}\"]\n\
         [[tenant]]\nid = \"other\"\nkeys = [\"{}\"]\n",
        engines[1].addr,
        KeyDigest::of(b"sk-other").to_text()
    );
    let bed = Bed::start(&[engines[0].addr], Settings { more, ..Settings::default() });
    // A name that an engine may yet turn out to serve is not unknown.
    eventually("the other pool's models are known", || {
        ask(bed.addr, &list(OTHER)).text().contains(&adapter(engines[1].addr))
    });
    (bed, engines)
}

fn list(credential: &str) -> Vec<u8> {
    format!("GET /v1/models HTTP/1.1\r\nHost: gw.test\r\n{credential}\r\n").into_bytes()
}

fn request(path: &str, kind: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: gw.test\r\n{AUTH}Content-Type: {kind}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Puts the request, then a sound one on the same connection.
fn refusal(bed: &Bed, request: &[u8]) -> Response {
    let mut client = Client::connect(bed.addr);
    client.send(request);
    let refused = client.response();
    client.send(&list(AUTH));
    let shown = request[..request.len().min(300)].escape_ascii();
    assert_eq!(client.response().status(), 200, "the connection goes on: {shown}");
    refused
}

/// `{"error":{message,type,param,code}}` and no more.
fn check(row: &Row, got: &Response) {
    let shown = format!("{} {:.200}", row.path, String::from_utf8_lossy(&row.body));
    assert_eq!(got.status(), row.status, "{shown}: {}", got.text());
    assert_eq!(got.field("content-type"), Some("application/json"), "{shown}");
    let mut body = got.json();
    let message = body["error"]["message"].take();
    assert!(message.as_str().is_some_and(|m| !m.is_empty() && m.len() < 600), "{shown}: {message}");
    let wanted = json!({"error": {
        "message": null, "type": "invalid_request_error", "param": row.param, "code": row.code,
    }});
    assert_eq!(body, wanted, "{shown}: {message}");
}

#[test]
fn what_the_api_does_not_allow_is_refused_here() {
    let (bed, engines) = bed();
    let rows =
        [texts(), counts(), flags(), doubles(), lists(), prompts(), models(), urls()].concat();
    for row in &rows {
        check(row, &refusal(&bed, &request(row.path, "application/json", &row.body)));
    }
    println!("{} inputs", rows.len());
    assert!(engines.iter().all(|engine| engine.count() == 0), "an engine was asked");
    assert_eq!(bed.metric("expedite_panics_total", ""), 0.0);
    // Each passed the key check, so each has its record, in order of the answers.
    for (row, record) in rows.iter().zip(bed.records(rows.len())) {
        assert_eq!(record["outcome"], "rejected_invalid", "{record}");
        assert_eq!(record["status"], row.status, "{record}");
        assert_eq!(
            (&record["attempts"], &record["replica"]),
            (&json!(0), &Value::Null),
            "{record}"
        );
    }
}

/// A pool of others and one that does not exist cannot be told apart.
#[test]
fn a_forbidden_model_looks_like_an_unknown_one() {
    let (bed, engines) = bed();
    let answer = |name: &str| {
        let row = no_model(CHAT, name);
        let got = refusal(&bed, &request(CHAT, "application/json", &row.body));
        let same = |line: &&String| !line.starts_with("x-request-id") && !line.starts_with("date");
        let head: Vec<_> = got.head.iter().filter(same).cloned().collect();
        (head, got.text())
    };
    let (head, text) = answer("hidden");
    let (other_head, other) = answer("nobody");
    assert_eq!((head, text.replace("hidden", "nobody")), (other_head, other));
    assert!(!ask(bed.addr, &list(AUTH)).text().contains("hidden"));
    // It is there for the one whose it is.
    let body = r#"{"model":"hidden-alias","messages":[{}]}"#;
    assert_eq!(ask(bed.addr, &post_with(CHAT, OTHER, body)).status(), 200);
    assert_eq!((engines[0].count(), engines[1].count()), (0, 1));
}

/// A form with these parts (head, content), each behind a boundary.
fn form(parts: &[(&str, &str)]) -> Vec<u8> {
    let mut form = String::new();
    for (head, content) in parts {
        form += &format!("--b\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n");
    }
    (form + "--b--\r\n").into_bytes()
}

/// What is no form, or one that parsers read differently.
#[test]
fn a_form_is_read_strictly() {
    let (bed, engines) = bed();
    let kind = "multipart/form-data; boundary=b";
    let (file, model) = (("name=\"file\"; filename=\"a\"", "RIFF"), ("name=\"model\"", "m"));
    let sound = form(&[file, model]);
    let many: Vec<_> = vec![file; 64].into_iter().chain([model]).collect();
    let text = |form: &[u8]| String::from_utf8(form.to_vec()).expect("UTF-8");
    let edited = |from: &str, to: &str| text(&sound).replacen(from, to, 1).into_bytes();
    let long = "n".repeat(1025);
    let rows: Vec<(&str, Vec<u8>, &str)> = vec![
        ("application/json", sound.clone(), "content-type"),
        ("multipart/form-data", sound.clone(), "content-type"),
        ("multipart/form-data; boundary=", sound.clone(), "content-type"),
        ("multipart/form-data; boundary=\"b", sound.clone(), "content-type"),
        ("multipart/form-data; boundary=b; boundary=c", sound.clone(), "content-type"),
        ("multipart/mixed; boundary=b", sound.clone(), "content-type"),
        ("multipart/form-data; boundary=c", sound.clone(), "body"),
        (kind, Vec::new(), "body"),
        (kind, b"{\"model\":\"m\"}".to_vec(), "body"),
        (kind, [b"preamble\r\n", &sound[..]].concat(), "body"),
        (kind, [&sound[..], b"epilogue"].concat(), "body"),
        (kind, sound[..sound.len() - 8].to_vec(), "body"),
        (kind, edited("--b--", "--b-"), "body"),
        (kind, edited("--b\r\n", "--b\n"), "body"),
        (kind, edited("; filename", ";\r\n filename"), "body"),
        (kind, edited("; name=\"model\"", "; name=\"model\"; name=\"x\""), "body"),
        (kind, edited("; name=\"model\"", "; name*=utf-8''model"), "body"),
        (kind, edited("; name=\"model\"", ""), "body"),
        (kind, edited("Content-Disposition: form-data; name=\"model\"", "X: y"), "body"),
        (kind, form(&many), "body"),
        (kind, form(&[file]), "model"),
        (kind, form(&[file, model, model]), "model"),
        (kind, form(&[file, ("name=\"model\"", &long)]), "model"),
        (kind, form(&[model, ("name=\"stream\"", "maybe"), file]), "stream"),
        (kind, form(&[model, file, ("name=\"priority\"", "-9")]), "priority"),
        (kind, form(&[("name=\"vllm_xargs\"", "{\"a\":1}"), model, file]), "vllm_xargs"),
        (kind, form(&[("name=\"request_id\"", "x"), model, file]), "request_id"),
        (kind, form(&[model, ("name=\"stream\"", "1"), ("name=\"stream\"", "0")]), "stream"),
    ];
    for path in ["/v1/audio/transcriptions", "/v1/audio/translations"] {
        for (kind, body, param) in &rows {
            let row = bad(path, param, body.clone());
            check(&row, &refusal(&bed, &request(path, kind, body)));
        }
        let unknown = form(&[file, ("name=\"model\"", "nobody's")]);
        let row = Row { path, body: unknown.clone(), ..no_model(path, "") };
        check(&row, &refusal(&bed, &request(path, kind, &unknown)));
    }
    assert_eq!(engines[0].count(), 0, "an engine was asked");
    let got = refusal(&bed, &request("/v1/audio/translations", kind, &sound));
    assert_eq!((got.status(), engines[0].count()), (200, 1));
}

/// vLLM's other routes are not there, with a key or without one; nor is any spelling of ours.
#[test]
fn what_is_not_on_the_list_is_not_served() {
    let (bed, engines) = bed();
    for path in [
        "/metrics",
        "/reset_prefix_cache",
        "/sleep",
        "/wake_up",
        "/is_sleeping",
        "/collective_rpc",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/adapters",
        "/load",
        "/version",
        "/server_info",
        "/invocations",
        "/ping",
        "/pooling",
        "/classify",
        "/rerank",
        "/score",
        "/v2/rerank",
        "/docs",
        "/openapi.json",
        "/inference/v1/generate",
        "/ready",
        "/status",
        "/v1/chat/completions/",
        "/v1//completions",
        "/v1/./completions",
        "/v1/completions%20",
        "/V1/completions",
        "/v1%2fcompletions",
        "/v1/../metrics",
        "/v1/completions;a=b",
        "/",
        "/v1",
    ] {
        for credential in [AUTH, ""] {
            let body = r#"{"model":"m","prompt":"p"}"#;
            let got = refusal(&bed, &post_with(path, credential, body));
            assert_eq!(got.status(), 404, "{path}");
            assert_eq!(got.json()["error"]["code"], "not_found", "{path}");
            let get = format!("GET {path} HTTP/1.1\r\nHost: gw.test\r\n{credential}\r\n");
            assert_eq!(refusal(&bed, get.as_bytes()).status(), 404, "{path}");
        }
    }
    for (method, path, allow) in [
        ("GET", CHAT, "POST"),
        ("PUT", COMPLETIONS, "POST"),
        ("DELETE", "/v1/models/m", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("PATCH", "/tokenize", "POST"),
    ] {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: gw.test\r\n{AUTH}\r\n");
        let got = refusal(&bed, request.as_bytes());
        assert_eq!((got.status(), got.field("allow")), (405, Some(allow)), "{method} {path}");
        assert_eq!(got.json()["error"]["code"], "method_not_allowed");
    }
    assert!(engines.iter().all(|engine| engine.count() == 0), "an engine was asked");
}

/// No key, no look at the body: what it holds changes no answer.
#[test]
fn without_a_key_nothing_is_read() {
    let (bed, engines) = bed();
    for credential in [
        "",
        "Authorization: Bearer wrong\r\n",
        "Authorization: Bearer \r\n",
        "Authorization: sk-test\r\n",
        "Authorization: Basic sk-test\r\n",
        "Authorization: Bearer sk-test2\r\n",
        "Authorization: Bearer sk-tes\r\n",
        "X-Api-Key: wrong\r\n",
    ] {
        for body in [r#"{"model":"m","messages":[{}]}"#, r#"{"model":"nobody's"}"#, "no JSON"] {
            let got = refusal(&bed, &post_with(CHAT, credential, body));
            assert_eq!((got.status(), got.field("www-authenticate")), (401, Some("Bearer")));
            assert_eq!(got.json()["error"]["code"], "invalid_api_key", "{credential}");
            assert_eq!(got.json()["error"]["type"], "authentication_error");
            assert!(!got.text().contains("wrong") && !got.text().contains("sk-"));
        }
    }
    assert!(engines.iter().all(|engine| engine.count() == 0), "an engine was asked");
    // No tenant, no record: the one of a sound request behind them all is alone.
    let sound = post_with(CHAT, AUTH, r#"{"model":"m","messages":[{}]}"#);
    assert_eq!(ask(bed.addr, &sound).status(), 200);
    assert_eq!(bed.records(1)[0]["outcome"], "ok");
}

/// SDKs escape the slash of an id; a path with it bare is the same model's.
#[test]
fn a_model_is_found_by_its_id_however_it_is_escaped() {
    let engine = Engine::always(json(200, "{}"));
    let bed = Bed::of(&[engine.addr]);
    let alias = |text: &str| text.replace("[\"m\"]", "[\"m\", \"org/Name-8B\"]");
    assert_eq!(bed.reload(alias).0, 200);
    let found = |id: &str| {
        let line = format!("GET /v1/models/{id} HTTP/1.1\r\nHost: gw.test\r\n{AUTH}\r\n");
        ask(bed.addr, line.as_bytes())
    };
    for id in ["org/Name-8B", "org%2FName-8B", "org%2fName%2D8B"] {
        eventually("it is listed", || found(id).status() == 200);
        assert_eq!(found(id).json()["id"], "org/Name-8B", "{id}");
    }
    for (id, shown) in [("org%252FName-8B", "org%2FName-8B"), ("%22%0a", "\"\n")] {
        let got = found(id);
        assert_eq!((got.status(), &got.json()["error"]["code"]), (404, &"model_not_found".into()));
        let message = got.json()["error"]["message"].as_str().expect("text").to_owned();
        assert!(message.contains(&format!("`{shown}`")), "{message}");
    }
}
