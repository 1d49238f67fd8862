//! Heads, read whole: what each field and target comes out as. Hostile bytes at every split are
//! in `tests/http1_hostile.rs`.

use super::*;

fn request(lines: &str) -> Result<RequestHead, HeadError> {
    parse_request(lines.replace('\n', "\r\n").as_bytes())
}

/// A request for `target` with further field lines.
fn get(target: &str, fields: &str) -> Result<RequestHead, HeadError> {
    request(&format!("GET {target} HTTP/1.1\nHost: gw.test\n{fields}\n"))
}

fn response(lines: &str) -> Result<ResponseHead, HeadError> {
    parse_response(lines.replace('\n', "\r\n").as_bytes(), false)
}

const BAD: fn(HeadError) -> bool = |error| matches!(error, HeadError::BadRequest(_));

#[test]
fn every_field_that_we_read_is_found_whatever_its_case() {
    let text = "\r\nPOST /v1/chat/completions?a=b?c HTTP/1.1\r\nhOST: gw.test:8080\r\n\
        Authorization:Bearer sk-test\r\nX-API-Key: \t k \t\r\nContent-Type: application/json\r\n\
        Content-Encoding: identity\r\nX-Request-Id: r-1\r\nTraceparent: 00-1-2-01\r\n\
        Tracestate: v=1\r\nx-request-deadline-ms: 1500\r\nX-Gateway-Policy: p2c\r\n\
        Expect: 100-Continue\r\nContent-Length: 17\r\nUser-Agent: x\r\n\r\n";
    let buf = text.as_bytes();
    assert_eq!(HeadScanner::request().advance(buf), Ok(Some(buf.len())));
    let head = parse_request(buf).unwrap();
    assert_eq!(head.method, Method::Post);
    assert_eq!(head.target.of(buf), b"/v1/chat/completions");
    assert_eq!(head.query.of(buf), b"a=b?c");
    assert_eq!(head.host.of(buf), b"gw.test:8080");
    for (span, value) in [
        (head.authorization, "Bearer sk-test"),
        (head.api_key, "k"),
        (head.content_type, "application/json"),
        (head.content_encoding, "identity"),
        (head.request_id, "r-1"),
        (head.traceparent, "00-1-2-01"),
        (head.tracestate, "v=1"),
        (head.deadline_ms, "1500"),
        (head.policy, "p2c"),
    ] {
        assert_eq!(span.unwrap().of(buf), value.as_bytes());
    }
    assert_eq!(head.body, BodyLength::Length(17));
    assert_eq!(head.version, Version::Http11);
    assert!(head.expect_continue && head.keep_alive);
    assert_eq!(head.head_bytes as usize, buf.len());
}

#[test]
fn an_absent_field_is_none_and_an_empty_one_is_empty() {
    let head = get("/", "Content-Type:\n").unwrap();
    assert_eq!(head.authorization, None);
    assert!(head.content_type.unwrap().is_empty());
    assert_eq!(head.body, BodyLength::None);
    assert!(head.query.is_empty());
}

#[test]
fn a_field_that_decides_something_is_not_given_twice() {
    for name in [
        "Host",
        "Content-Length",
        "Transfer-Encoding",
        "Authorization",
        "X-Api-Key",
        "Content-Type",
        "Content-Encoding",
        "Expect",
        "X-Request-Deadline-Ms",
    ] {
        let twice = format!("{name}: 1\n{}: 1\n", name.to_lowercase());
        assert!(get("/", &twice).is_err_and(BAD), "{name}");
    }
}

#[test]
fn a_field_that_only_advises_is_dropped_when_given_twice() {
    let head = get("/", "x-request-id: a\nx-request-id: b\ntraceparent: a\ntracestate: s\n");
    let head = head.unwrap();
    assert_eq!(head.request_id, None);
    assert!(head.traceparent.is_some() && head.tracestate.is_some());
}

#[test]
fn a_target_has_one_of_four_forms() {
    let bytes = |target: &str, method: &str| {
        let text = format!("{method} {target} HTTP/1.1\r\nHost: gw.test\r\n\r\n");
        let head = parse_request(text.as_bytes())?;
        let text = |span: Span| String::from_utf8(span.of(text.as_bytes()).to_vec()).unwrap();
        Ok((text(head.target), text(head.query)))
    };
    let ok = |path: &str, query: &str| Ok((path.to_owned(), query.to_owned()));
    assert_eq!(bytes("/v1/../x%2f//y?q", "GET"), ok("/v1/../x%2f//y", "q"));
    assert_eq!(bytes("http://gw.test/v1/models?q=1", "GET"), ok("/v1/models", "q=1"));
    assert_eq!(bytes("HTTPS://GW.TEST/", "GET"), ok("/", ""));
    assert_eq!(bytes("http://gw.test", "GET"), ok("/", ""));
    assert_eq!(bytes("*", "OPTIONS"), ok("*", ""));
    assert_eq!(bytes("gw.test:443", "CONNECT"), ok("gw.test:443", ""));
    for (target, method) in [
        ("*", "GET"),
        ("v1/models", "GET"),
        ("gw.test:443", "GET"),
        ("/v1/models", "CONNECT"),
        ("gw.test", "CONNECT"),
        ("gw.test:", "CONNECT"),
        ("http://gw.test/", "CONNECT"),
        ("ftp://gw.test/", "GET"),
        ("http:/gw.test/", "GET"),
        ("http://gw.test?q", "GET"),
        ("/a#b", "GET"),
        ("/a\\b", "GET"),
        ("/a\"b", "GET"),
        ("/<a>", "GET"),
        ("/é", "GET"),
    ] {
        assert!(bytes(target, method).is_err_and(BAD), "{method} {target}");
    }
    for target in ["http://evil.test/", "http://gw.test:80/", "http://a@gw.test/", "http:///"] {
        assert_eq!(bytes(target, "GET"), Err(HeadError::Misdirected), "{target}");
    }
}

#[test]
fn a_host_is_a_host_and_maybe_a_port() {
    let with = |host: &str| request(&format!("GET / HTTP/1.1\nHost: {host}\n\n"));
    for host in [
        "gw.test",
        "gw.test:8080",
        "gw.test:",
        "10.0.0.1",
        "[::1]",
        "[::1]:80",
        "a_b-c.d~e",
        "%41",
        "xn--bcher-kva.test",
    ] {
        assert!(with(host).is_ok(), "{host}");
    }
    for host in [
        "",
        "a@gw.test",
        "gw.test/",
        "gw.test/?x",
        "gw.test/#",
        "gw.test?x",
        "a b",
        "a,b",
        "a, b",
        "a:b",
        "a:80:80",
        "a:123456",
        ":80",
        "[::1",
        "::1",
        "[::1]x",
        "[gg::]",
        "[]",
        "%4",
        "é",
        "a\\b",
        "http://a",
        "[::1%25eth0]",
    ] {
        assert!(with(host).is_err_and(BAD), "{host:?}");
    }
    assert!(request("GET / HTTP/1.1\n\n").is_err_and(BAD));
    assert!(request("GET / HTTP/1.0\n\n").unwrap().host.is_empty());
    let absolute = "GET http://gw.test/x HTTP/1.0\r\n\r\n";
    let head = parse_request(absolute.as_bytes()).unwrap();
    assert_eq!(head.host.of(absolute.as_bytes()), b"gw.test");
    assert!(request("GET http://a@b/ HTTP/1.0\n\n").is_err_and(BAD));
}

#[test]
fn versions_and_methods_have_one_spelling() {
    let line = |line: &str| request(&format!("{line}\nHost: gw.test\n\n"));
    for version in ["HTTP/1.2", "HTTP/2.0", "HTTP/0.9", "HTTP/9.9"] {
        assert_eq!(line(&format!("GET / {version}")), Err(HeadError::VersionUnsupported));
    }
    for version in ["http/1.1", "HTTP/1.10", "HTTP/1", "HTTP/", "HTTP/1,1", "HTTP/11", "HTTPS/1.1"]
    {
        assert!(line(&format!("GET / {version}")).is_err_and(BAD), "{version}");
    }
    for method in [
        Method::Get,
        Method::Head,
        Method::Post,
        Method::Put,
        Method::Delete,
        Method::Patch,
        Method::Options,
        Method::Trace,
    ] {
        assert_eq!(line(&format!("{} / HTTP/1.1", method.as_str())).unwrap().method, method);
    }
    for method in ["get", "BREW", "PRI", "GETT", "GE"] {
        assert_eq!(line(&format!("{method} / HTTP/1.1")), Err(HeadError::MethodUnknown));
    }
    assert!(line("G=\": / HTTP/1.1").is_err_and(BAD));
    assert_eq!(request("PRI * HTTP/2.0\n\n"), Err(HeadError::VersionUnsupported));
}

#[test]
fn close_wins_and_http_1_0_closes_unless_asked() {
    let keeps = |version: &str, fields: &str| {
        request(&format!("GET / {version}\nHost: a\n{fields}\n")).unwrap().keep_alive
    };
    assert!(keeps("HTTP/1.1", ""));
    assert!(keeps("HTTP/1.1", "Connection: Upgrade, TE\n"));
    assert!(!keeps("HTTP/1.1", "Connection: te , CLOSE\n"));
    assert!(!keeps("HTTP/1.1", "Connection: close\nConnection: keep-alive\n"));
    assert!(!keeps("HTTP/1.0", ""));
    assert!(keeps("HTTP/1.0", "Connection: Keep-Alive\n"));
    assert!(!keeps("HTTP/1.0", "Connection: keep-alive, close\n"));
}

#[test]
fn only_100_continue_can_be_expected_and_only_before_a_body() {
    let expects = |version: &str, fields: &str| {
        request(&format!("POST / {version}\nHost: a\n{fields}\n")).map(|head| head.expect_continue)
    };
    assert_eq!(expects("HTTP/1.1", "Expect: 100-continue\nContent-Length: 1\n"), Ok(true));
    assert_eq!(expects("HTTP/1.1", "Expect: 100-continue\n"), Ok(false));
    assert_eq!(expects("HTTP/1.1", "Expect: 100-continue\nContent-Length: 0\n"), Ok(false));
    assert_eq!(expects("HTTP/1.0", "Expect: 100-continue\nContent-Length: 1\n"), Ok(false));
    for value in ["200-maybe", "", "100-continue, x"] {
        let refused = expects("HTTP/1.1", &format!("Expect: {value}\nContent-Length: 1\n"));
        assert_eq!(refused, Err(HeadError::ExpectationFailed), "{value:?}");
    }
}

#[test]
fn a_parser_without_a_scanner_is_as_strict() {
    for head in [
        "",
        "\r\n",
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\r\nHost: a\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        "GET / HTTP/1.1\r\nHost: a\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\r\nx",
        "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nx: \0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nx: a\rb\r\n\r\n",
    ] {
        assert!(parse_request(head.as_bytes()).is_err_and(BAD), "{head:?}");
    }
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(100));
    assert_eq!(parse_request(many.as_bytes()), Err(HeadError::HeadTooLarge));
    let method = format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", "A".repeat(33));
    assert_eq!(parse_request(method.as_bytes()), Err(HeadError::MethodUnknown));
    let target = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "t".repeat(8192));
    assert_eq!(parse_request(target.as_bytes()), Err(HeadError::TargetTooLong));
}

#[test]
fn a_stream_of_vllm_is_read() {
    let text = "HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 02:06:44 GMT\r\nserver: uvicorn\r\n\
        content-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\n\
        x-request-id: 8943aa8c10a246448da3e3ae8b33a9d2\r\ntransfer-encoding: chunked\r\n\r\n";
    let buf = text.as_bytes();
    assert_eq!(HeadScanner::response().advance(buf), Ok(Some(buf.len())));
    let head = parse_response(buf, false).unwrap();
    assert_eq!((head.status, head.body), (200, ResponseBody::Chunked));
    assert_eq!(head.content_type.unwrap().of(buf), b"text/event-stream; charset=utf-8");
    assert_eq!(head.request_id.unwrap().of(buf), b"8943aa8c10a246448da3e3ae8b33a9d2");
    assert!(head.keep_alive);
}

#[test]
fn a_response_persists_only_if_its_end_is_certain() {
    let keeps = |lines: &str| response(lines).unwrap().keep_alive;
    assert!(keeps("HTTP/1.1 200 OK\nContent-Length: 0\n\n"));
    assert!(!keeps("HTTP/1.1 200 OK\n\n"), "its end is that of the connection");
    assert!(!keeps("HTTP/1.1 200 OK\nContent-Length: 0\nConnection: close\n\n"));
    assert!(!keeps("HTTP/1.0 200 OK\nContent-Length: 0\n\n"));
    assert!(keeps("HTTP/1.0 200 OK\nContent-Length: 0\nConnection: keep-alive\n\n"));
    assert!(keeps("HTTP/1.1 204 No Content\n\n"));
    assert!(!keeps("HTTP/1.1 204 No Content\nContent-Length: 5\n\n"), "five bytes may follow");
}

#[test]
fn a_status_line_has_three_digits_from_100_to_599() {
    for line in ["HTTP/1.1 200 OK", "HTTP/1.1 200 ", "HTTP/1.1 200", "HTTP/1.1 599 \u{e9} \t?"] {
        assert!(response(&format!("{line}\nContent-Length: 0\n\n")).is_ok(), "{line:?}");
    }
    assert_eq!(response("HTTP/1.1 103 Early Hints\n\n").unwrap().body, ResponseBody::None);
    for line in [
        "HTTP/1.1 99 x",
        "HTTP/1.1 099 x",
        "HTTP/1.1 600 x",
        "HTTP/1.1 1000 x",
        "HTTP/1.1 abc x",
        "HTTP/1.1 +20 x",
        "HTTP/1.1  200 x",
        "HTTP/1.1\t200 x",
        "HTTP/1.1",
        "HTTP/1.1 200 \u{7f}",
        "ICY 200 OK",
        "http/1.1 200 OK",
        "HTTP/2.0 200 OK",
        "200 OK",
    ] {
        assert!(response(&format!("{line}\n\n")).is_err(), "{line:?}");
    }
}
