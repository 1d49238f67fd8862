//! What reaches an engine: the client's body but for the few edits, and a head of our own.

mod common;

use std::collections::BTreeSet;

use common::engine::{Engine, Received, json};
use common::gateway::{AUTH, Bed, KEY, Settings};
use common::{ask, post_with};

const CHAT: &str = "/v1/chat/completions";
const SOUND: &str = r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#;

/// A gateway with one engine that answers everything.
struct Pair {
    engine: Engine,
    bed: Bed,
}

impl Pair {
    fn new(pool: &str) -> Pair {
        let engine = Engine::always(json(200, "{\"choices\":[]}"));
        let settings = Settings { pool: pool.into(), ..Settings::default() };
        let bed = Bed::start(&[engine.addr], settings);
        Pair { engine, bed }
    }

    /// What the engine gets for this request.
    fn passes(&self, request: &[u8]) -> Received {
        let before = self.engine.count();
        let response = ask(self.bed.addr, request);
        let shown = request.escape_ascii();
        assert_eq!(response.status(), 200, "{shown}: {}", response.text());
        let requests = self.engine.requests();
        assert_eq!(requests.len(), before + 1, "{shown}");
        requests.into_iter().next_back().expect("request")
    }

    /// What the engine gets for this chat with more field lines.
    fn chat_with(&self, fields: &str) -> Received {
        self.passes(&post_with(CHAT, &format!("{AUTH}{fields}"), SOUND))
    }

    /// The body that the engine gets for this one.
    fn body(&self, path: &str, body: &str) -> String {
        let got = self.passes(&post_with(path, AUTH, body));
        assert_eq!(got.path(), path);
        String::from_utf8(got.body).expect("UTF-8")
    }
}

/// `$` stands for the model's value.
#[test]
fn a_body_arrives_as_it_was_sent_but_for_the_model() {
    let pair = Pair::new("");
    for body in [
        r#"{"model":$,"messages":[{"role":"user","content":"x"}]}"#,
        // Unknown fields in any order; the same name at other depths.
        r#"{"zz":1,"messages":[{"model":"m"}],"aa":{"model":"m"},"model":$}"#,
        r#"{"messages":[{"content":"\"model\":\"m\""}],"model":$,"text":"model"}"#,
        // Numbers that no double holds, and spellings that a rewrite would lose.
        r#"{"model":$,"messages":[{}],"big":1e400,"id":9007199254740993,"f":1.10,"e":-0.0E+00}"#,
        r#"{"model":$,"messages":[{}],"i":18446744073709551615,"j":-9223372036854775808}"#,
        r#"{"model":$,"messages":[{}],"max_tokens":5.0,"n":1,"stream":false,"top_p":0.70}"#,
        // A key that we do not read may stand twice.
        r#"{"model":$,"messages":[{}],"x":1,"x":2,"x":{"x":3,"x":4}}"#,
        "\t{\r\n  \"messages\" : [ { } ] ,\n  \"model\"\t:\r$ , \"x\" : [ ] }\n ",
        // Escapes stay escapes, characters stay characters.
        r#"{"model":$,"messages":[{"content":"\u4f60 你好 \ud83e\udd80 🦀 \/ / \u0000 \\n"}]}"#,
    ] {
        let wanted = body.replace('$', "\"base\"");
        assert_eq!(pair.body(CHAT, &body.replace('$', "\"m\"")), wanted);
        assert_eq!(pair.body(CHAT, &body.replace('$', r#""\u006d""#)), wanted);
        // The engine's own name stays as it is, however it is spelt.
        for own in [r#""base""#, r#""b\u0061se""#] {
            let own = body.replace('$', own);
            assert_eq!(pair.body(CHAT, &own), own);
        }
    }
    let unnamed = r#"{"messages":[{}]}"#;
    assert_eq!(pair.body(CHAT, unnamed), unnamed);
    let (first, rest) = SOUND.split_at(5);
    let chunked = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: gw.test\r\n{AUTH}Transfer-Encoding: chunked\r\n\r\n\
         5;x=y\r\n{first}\r\n{:x}\r\n{rest}\r\n0\r\nX-Trailer: t\r\n\r\n",
        rest.len()
    );
    let got = pair.passes(chunked.as_bytes());
    assert_eq!(String::from_utf8_lossy(&got.body), SOUND.replace("\"m\"", "\"base\""));
    assert_eq!(got.fields("transfer-encoding"), Vec::<&str>::new());
    assert_eq!(got.fields("x-trailer"), Vec::<&str>::new());
}

/// The usage event is asked for where a stream has one, and nowhere else. `$`: the fields before.
#[test]
fn a_stream_is_asked_for_its_usage() {
    let pair = Pair::new("");
    let added = r#""stream_options":{"include_usage":true},$"stream":true"#;
    let asked = r#"$"stream":true,"stream_options":{"include_usage":true}"#;
    for (path, sent, wanted) in [
        (CHAT, r#""stream":true"#, added),
        ("/v1/completions", r#""stream":true"#, added),
        (CHAT, r#""stream":true,"stream_options":null"#, asked),
        (CHAT, r#""stream":true,"stream_options":{}"#, asked),
        (CHAT, r#""stream":true,"stream_options":{"include_usage":null}"#, asked),
        (CHAT, r#""stream":true,"stream_options":{"include_usage":false}"#, asked),
        (
            CHAT,
            r#""stream":true,"stream_options":{"x":[1],"continuous_usage_stats":true}"#,
            concat!(
                r#"$"stream":true,"stream_options":{"include_usage":true,"x":[1],"#,
                r#""continuous_usage_stats":false}"#
            ),
        ),
        // Asked for by the client: nothing of ours.
        (
            CHAT,
            concat!(
                r#""stream":true,"stream_options":{"include_usage":true,"#,
                r#""continuous_usage_stats":true}"#
            ),
            concat!(
                r#"$"stream":true,"stream_options":{"include_usage":true,"#,
                r#""continuous_usage_stats":true}"#
            ),
        ),
        (CHAT, r#""stream":false"#, r#"$"stream":false"#),
        (CHAT, r#""stream":null"#, r#"$"stream":null"#),
        ("/v1/messages", r#""stream":true"#, r#"$"stream":true"#),
        ("/v1/responses", r#""stream":true"#, r#"$"stream":true"#),
    ] {
        let body = |model: &str| {
            format!(r#""model":"{model}","messages":[{{}}],"prompt":"p","input":"i","#)
        };
        let (sent, wanted) = (body("m") + sent, wanted.replace('$', &body("base")));
        assert_eq!(pair.body(path, &format!("{{{sent}}}")), format!("{{{wanted}}}"), "{path}");
    }
}

/// What would steer the engine past us is taken out, at whatever place it stands.
#[test]
fn fields_that_steer_the_engine_stay_here() {
    let pair = Pair::new("");
    let policy = [
        r#""priority":-1000"#,
        r#""kv_transfer_params":{"do_remote_prefill":true,"remote_host":"10.0.0.9"}"#,
        r#""vllm_xargs":{"a":[1,{"b":2}]}"#,
        r#""request_id":"someone-else's""#,
        r#""api_base":"http://10.0.0.9""#,
        r#""base_url":null"#,
        r#""pri\u006frity":1"#,
    ];
    for field in policy {
        for (sent, wanted) in [
            (r#"{$,"model":"m","messages":[{}]}"#, r#"{"model":"base","messages":[{}]}"#),
            (r#"{"model":"m",$,"messages":[{}]}"#, r#"{"model":"base","messages":[{}]}"#),
            (r#"{"model":"m","messages":[{}],$}"#, r#"{"model":"base","messages":[{}]}"#),
            (r#"{"messages":[{}], $ }"#, r#"{"messages":[{}] }"#),
        ] {
            assert_eq!(pair.body(CHAT, &sent.replace('$', field)), wanted, "{field}");
        }
        let stream = r#"{$,"messages":[{}],"stream":true,"model":"m"}"#.replace('$', field);
        let wanted = concat!(
            r#"{"stream_options":{"include_usage":true},"#,
            r#""messages":[{}],"stream":true,"model":"base"}"#
        );
        assert_eq!(pair.body(CHAT, &stream), wanted, "{field}");
    }
    let all = format!(r#"{{{},"messages":[{{}}]}}"#, policy[..6].join(","));
    assert_eq!(pair.body(CHAT, &all), r#"{"messages":[{}]}"#);
    // Only the outermost object steers.
    let inner = r#"{"messages":[{"priority":1}],"metadata":{"request_id":"r"}}"#;
    assert_eq!(pair.body(CHAT, inner), inner);
}

/// An allow-list: the head is the gateway's own, whatever the client's had.
#[test]
fn the_head_is_our_own() {
    let pair = Pair::new("");
    let got = pair.chat_with(concat!(
        "X-Api-Key: sk-test\r\nCookie: a=b\r\nProxy-Authorization: Basic eA==\r\n",
        "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n",
        "TE: trailers\r\nTrailer: X-T\r\nUpgrade: h2c\r\nProxy-Connection: keep-alive\r\n",
        "Via: 1.1 x\r\nForwarded: for=10.0.0.9\r\nX-Forwarded-For: 10.0.0.9\r\n",
        "X-Forwarded-Host: x\r\nX-Data-Parallel-Rank: 1\r\nX-Vllm-Priority: -1000\r\n",
        "X-Session-ID: s\r\nX-Custom: c\r\nAccept-Encoding: gzip\r\nTransfer_Encoding: chunked\r\n",
        "User-Agent: u\r\nExpect: 100-continue\r\n",
    ));
    let lines = got.head.split("\r\n").skip(1).filter(|line| !line.is_empty());
    let mut names: Vec<_> = lines.map(|line| line.split_once(':').expect("a field").0).collect();
    names.sort_unstable();
    let allowed = ["accept-encoding", "content-length", "content-type", "host", "x-request-id"];
    assert_eq!(names, allowed, "{}", got.head);
    assert!(got.head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"));
    assert_eq!(got.fields("host"), [pair.engine.addr.to_string()]);
    assert_eq!(got.fields("accept-encoding"), ["identity"]);
    assert_eq!(got.fields("content-type"), ["application/json"]);
    assert_eq!(got.fields("content-length"), [got.body.len().to_string()]);
}

/// The path goes on without its query: vLLM reads none, and one could only mislead.
#[test]
fn the_target_is_our_own() {
    let pair = Pair::new("");
    let got = pair.passes(&post_with("/v1/completions?a=b&model=x", AUTH, r#"{"prompt":"p"}"#));
    assert_eq!(got.path(), "/v1/completions");
    let absolute = post_with(&format!("http://sim{CHAT}?x"), AUTH, SOUND);
    assert_eq!(pair.passes(&absolute).path(), CHAT);
}

#[test]
fn a_request_id_is_kept_when_it_is_fit_and_made_otherwise() {
    let pair = Pair::new("");
    let longest = "i".repeat(64);
    for kept in ["a", "req-1_2.3:4/5+6=7@8", "00000000-0000-4000-8000-000000000000", &longest] {
        let request = post_with(CHAT, &format!("{AUTH}X-Request-ID: {kept}\r\n"), SOUND);
        assert_eq!(pair.passes(&request).fields("x-request-id"), [kept]);
        assert_eq!(ask(pair.bed.addr, &request).field("x-request-id"), Some(kept));
    }
    let mut made = BTreeSet::new();
    let too_long = format!("X-Request-ID: {longest}i\r\n");
    for fields in [
        "",
        "X-Request-ID: \r\n",
        "X-Request-ID: a b\r\n",
        "X-Request-ID: a\"b\r\n",
        "X-Request-ID: <script>\r\n",
        "X-Request-ID: \u{e9}\r\n",
        "X-Request-ID: a,b\r\n",
        "X-Request-ID: a\r\nX-Request-ID: b\r\n",
        &too_long,
    ] {
        let got = pair.chat_with(fields);
        let [id] = got.fields("x-request-id")[..] else { panic!("one id: {}", got.head) };
        assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{fields}: {id}");
        assert!(made.insert(id.to_owned()), "an id of its own");
    }
}

#[test]
fn trace_context_is_passed_on() {
    let pair = Pair::new("");
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let lines = format!("TraceParent: {parent}\r\nTraceState: a=1,b=2\r\n");
    let got = pair.chat_with(&lines);
    assert_eq!(got.fields("traceparent"), [parent]);
    assert_eq!(got.fields("tracestate"), ["a=1,b=2"]);
    // Without its parent a state means nothing (W3C Trace Context, 3.3).
    assert_eq!(pair.chat_with("TraceState: a=1\r\n").fields("tracestate"), Vec::<&str>::new());
    let twice = pair.chat_with(&lines.repeat(2));
    assert_eq!(twice.fields("traceparent"), Vec::<&str>::new());
}

/// The pool's own key and none but it, wherever a request may go.
#[test]
fn the_configured_key_goes_to_every_endpoint() {
    let pair = Pair::new("api_key = \"up-secret\"");
    let form = concat!(
        "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n",
        "RIFF\0\r\n--\r\n--x\r\n--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n",
        "m\r\n--b--\r\n"
    );
    let json = "application/json";
    for (path, kind, body) in [
        (CHAT, json, SOUND),
        ("/v1/completions", json, r#"{"model":"m","prompt":"p"}"#),
        ("/v1/embeddings", json, r#"{"model":"m","input":"i"}"#),
        ("/v1/responses", json, r#"{"model":"m","input":"i"}"#),
        ("/v1/messages", json, SOUND),
        ("/v1/messages/count_tokens", json, SOUND),
        ("/v1/rerank", json, r#"{"model":"m","query":"q","documents":["d"]}"#),
        ("/v1/score", json, r#"{"model":"m","text_1":"a","text_2":"b"}"#),
        ("/tokenize", json, r#"{"model":"m","prompt":"p"}"#),
        ("/detokenize", json, r#"{"model":"m","tokens":[1]}"#),
        ("/v1/audio/speech", json, r#"{"model":"m","input":"i","voice":"v"}"#),
        ("/v1/audio/transcriptions", "multipart/form-data; boundary=b", form),
        ("/v1/audio/translations", "multipart/form-data; boundary=\"b\"", form),
    ] {
        for credential in [AUTH, "X-Api-Key: sk-test\r\n"] {
            let request = format!(
                "POST {path} HTTP/1.1\r\nHost: gw.test\r\n{credential}Content-Type: {kind}\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                body.len()
            );
            let got = pair.passes(request.as_bytes());
            assert_eq!(got.path(), path);
            assert_eq!(got.fields("authorization"), ["Bearer up-secret"], "{path}");
            assert_eq!(got.fields("content-type"), [kind], "{path}");
            let wanted = match kind == json {
                true => body.replace("\"m\"", "\"base\""),
                false => body.replace("\r\nm\r\n", "\r\nbase\r\n"),
            };
            assert_eq!(String::from_utf8_lossy(&got.body), wanted, "{path}");
            assert!(!got.head.contains(KEY), "{path}: {}", got.head);
        }
    }
}

/// A tenant's key is for the gateway alone, also where the pool has no key.
#[test]
fn a_tenants_key_goes_nowhere() {
    let pair = Pair::new("");
    for credential in [AUTH, "authorization:bearer sk-test\r\n", "X-Api-Key: sk-test\r\n"] {
        let got = pair.passes(&post_with(CHAT, credential, SOUND));
        assert_eq!(got.fields("authorization"), Vec::<&str>::new());
        assert!(!got.head.contains(KEY), "{}", got.head);
    }
    let record = pair.bed.records(3)[2].to_string();
    assert!(!record.contains(KEY), "{record}");
}
