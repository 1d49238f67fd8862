//! What an engine may fetch, in every form in which an address can be written.

use super::*;
use crate::openai::{Endpoint, read_call};

fn refused(url: &str, hosts: Option<&[String]>) -> bool {
    judge(url, hosts).is_err()
}

#[test]
fn what_only_the_engines_network_reaches_is_refused_in_every_form() {
    for url in [
        "http://169.254.169.254/latest/meta-data",
        "http://169.254.169.254:80/",
        "http://2852039166/",
        "http://0xA9FEA9FE/",
        "http://0251.0376.0251.0376/",
        "http://169.254.43518/",
        "http://[::ffff:169.254.169.254]/",
        "http://[::ffff:a9fe:a9fe]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[2002:a9fe:a9fe::1]/",
        "http://[fe80::1]/",
        "http://[fd00:ec2::254]/",
        "http://[::1]/",
        "http://[::]/",
        "http://127.1/",
        "http://127.0.0.1./",
        "http://0/",
        "http://0.0.0.0:8000/v1/load_lora_adapter",
        "http://１２７.0.0.1/",
        "http://127。0。0。1/",
        "http://10.1.2.3/x.png",
        "http://172.31.255.1/",
        "http://192.168.0.1/",
        "http://100.100.100.200/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        "HTTP://LOCALHOST/",
        "http://localhost./",
        "http://a.localhost/",
        "http://metadata.google.internal/",
        "http://metadata/",
        "http://printer.local/",
        "http://vllm-8b.llm.svc.cluster.local:8000/",
        "http://good.example@169.254.169.254/",
        "http://good.example:x@169.254.169.254/",
        "http://169.254.169.254\\@good.example/",
        "http://good.example\\@169.254.169.254/",
        "http://%31%36%39.254.169.254/",
        "http://good.example%00.internal/",
        "http:169.254.169.254/",
        "http:///169.254.169.254/",
        "http:/\\169.254.169.254/",
        "http://good.example /",
        " http://good.example/",
        "ht\ttp://169.254.169.254/",
        "http://good.example/\n",
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "ftp://good.example/",
        "gopher://good.example/",
        "s3://bucket/x",
        "unix:///run/x",
        "//good.example/x.png",
        "/etc/passwd",
        "x.png",
        "",
    ] {
        assert!(refused(url, None), "{url}");
    }
}

#[test]
fn what_anybody_reaches_is_passed() {
    for url in [
        "https://images.example.com/a%20b.png?x=http://10.0.0.1/#y@z",
        "http://images.example.com:8080/x.png",
        "https://8.8.8.8/x.png",
        "https://[2606:4700::1111]/x.png",
        "https://xn--bcher-kva.example/x",
        "https://bücher.example/x",
        "https://internal.example.com/",
        "https://localhost.example.com/",
        "data:image/png;base64,iVBORw0KGgo=",
        "DATA:,x",
    ] {
        assert!(!refused(url, None), "{url}");
    }
}

#[test]
fn where_hosts_are_told_only_they_pass() {
    let hosts = ["images.example.com", "*.cdn.example", "10.0.0.7", "minio.internal", "[fd00::1]"];
    let hosts = hosts.map(str::to_owned);
    for url in [
        "https://images.example.com/x",
        "https://IMAGES.example.com./x",
        "https://a.cdn.example/x",
        "https://a.b.cdn.example/x",
        "http://10.0.0.7:9000/x",
        "http://minio.internal/x",
        "http://[fd00::1]/x",
        "data:,x",
    ] {
        assert!(!refused(url, Some(&hosts)), "{url}");
    }
    for url in [
        "https://example.com/x",
        "https://cdn.example/x",
        "https://xcdn.example/x",
        "https://images.example.com.evil.example/x",
        "https://images.example.com@evil.example/x",
        "http://10.0.0.8/x",
        "file:///x",
    ] {
        assert!(refused(url, Some(&hosts)), "{url}");
    }
    assert!(refused("https://images.example.com/x", Some(&[])) && !refused("data:,x", Some(&[])));
}

#[test]
fn urls_are_found_wherever_a_part_may_have_one() {
    let inner = "http://10.0.0.1/x";
    for (endpoint, part) in [
        (Endpoint::ChatCompletions, r#"{"type":"image_url","image_url":{"url":"URL"}}"#),
        (Endpoint::ChatCompletions, r#"{"type":"image_url","image_url":"URL"}"#),
        (Endpoint::ChatCompletions, r#"{"image_url":{"detail":"low","url":"URL"}}"#),
        (Endpoint::ChatCompletions, r#"{"type":"audio_url","audio_url":{"url":"URL"}}"#),
        (Endpoint::ChatCompletions, r#"{"type":"video_url","video_url":{"url":"URL"}}"#),
        (Endpoint::ChatCompletions, r#"{"image\u005furl":{"\u0075rl":"http:\/\/10.0.0.1"}}"#),
        (Endpoint::ChatCompletions, r#"{"image_url":{"url":"data:,x"}},{"image_url":"URL"}"#),
        (Endpoint::Messages, r#"{"type":"image","source":{"type":"url","url":"URL"}}"#),
        (
            Endpoint::Messages,
            r#"{"type":"tool_result","content":[{"type":"image","source":{"url":"URL"}}]}"#,
        ),
        (Endpoint::Responses, r#"{"type":"input_image","image_url":"URL"}"#),
        (Endpoint::Responses, r#"{"type":"input_file","file_url":"URL"}"#),
    ] {
        let part = part.replace("URL", inner);
        let field = if endpoint == Endpoint::Responses { "input" } else { "messages" };
        let body = format!(
            r#"{{"model":"m","max_tokens":9,"{field}":[{{"role":"user","content":[{part}]}}]}}"#
        );
        let call = read_call(endpoint, body.as_bytes()).expect(&body);
        let why = check(&call, body.as_bytes(), None).expect_err(&body);
        assert_eq!(why.param, Some(field), "{body}");
        let hosts = ["10.0.0.1".to_owned()];
        check(&call, body.as_bytes(), Some(&hosts)).expect("a host that is told");
    }
}

#[test]
fn what_is_no_url_is_left_alone() {
    for content in [
        r#""http://10.0.0.1/ [and] \"image_url\": {\"url\": \"file:///x\"}""#,
        r#"[{"type":"text","text":"http://10.0.0.1/"}]"#,
        r#"[{"type":"text","text":"x","annotations":[{"url":"http://10.0.0.1/"}]}]"#,
        r#"[{"type":"search_result","source":"http://10.0.0.1/","content":[]}]"#,
        r#"[{"type":"image_url","image_url":null},{"type":"image_url","image_url":{"url":7}}]"#,
    ] {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}"#);
        let call = read_call(Endpoint::ChatCompletions, body.as_bytes()).expect(&body);
        check(&call, body.as_bytes(), None).expect(&body);
    }
    let part = r#"{"image_url":"data:,x"}"#;
    let many = vec![part; URLS_MAX + 1].join(",");
    let body = format!(r#"{{"model":"m","messages":[{{"content":[{many}]}}]}}"#);
    let why = read_call(Endpoint::ChatCompletions, body.as_bytes()).expect_err("too many");
    assert_eq!(why.param, Some("messages"));
}
