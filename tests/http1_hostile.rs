//! Hostile bytes from clients and upstreams: each has one right answer, at every split.
//!
//! A row is a name, the bytes, and the answers in order: 200 for a message accepted, the status
//! of a refusal, and `END` where the bytes ran out within a message. What the gateway answers to
//! an accepted request (404, 405, 415) is not decided here.

#[allow(dead_code)] // Each test of the wire uses its part.
#[path = "fuzz/src/targets.rs"]
mod targets;

use targets::wire::{Event, Sender, places, transcript};

/// The bytes ended within a message.
const END: u16 = 0;

type Row = (&'static str, Vec<u8>, &'static [u16]);

const BODY: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#;

/// A request head with Host and the given lines, each with its line end.
fn head(request_line: &[u8], lines: &[u8]) -> Vec<u8> {
    [request_line, b"\r\nHost: gw.test\r\nAuthorization: Bearer k\r\n", lines, b"\r\n"].concat()
}

fn get(lines: &[u8]) -> Vec<u8> {
    head(b"GET /v1/models HTTP/1.1", lines)
}

fn target(target: &[u8]) -> Vec<u8> {
    head(&[b"GET ", target, b" HTTP/1.1"].concat(), b"")
}

fn line(request_line: &[u8]) -> Vec<u8> {
    head(request_line, b"")
}

/// A request whose Host line is the given one.
fn host(lines: &[u8]) -> Vec<u8> {
    [b"GET / HTTP/1.1\r\n", lines, b"\r\n"].concat()
}

fn post(lines: &[u8], body: &[u8]) -> Vec<u8> {
    [&head(b"POST /v1/chat/completions HTTP/1.1", lines), body].concat()
}

fn length(value: &[u8]) -> Vec<u8> {
    post(&[b"Content-Length: ", value, b"\r\n"].concat(), b"hello")
}

fn coding(value: &[u8]) -> Vec<u8> {
    post(&[b"Transfer-Encoding: ", value, b"\r\n"].concat(), b"5\r\nhello\r\n0\r\n\r\n")
}

fn chunked(body: &[u8]) -> Vec<u8> {
    post(b"Transfer-Encoding: chunked\r\n", body)
}

/// A chunked body whose first size line is the given one.
fn size(line: &[u8]) -> Vec<u8> {
    chunked(&[line, b"\r\nhello\r\n0\r\n\r\n"].concat())
}

fn sound() -> Vec<Row> {
    let declared = [b"Content-Length: ", BODY.len().to_string().as_bytes(), b"\r\n"].concat();
    let upper = [b"3\r\n", &BODY[..3], b"\r\n35\r\n", &BODY[3..], b"\r\n0\r\n\r\n"].concat();
    vec![
        ("get", get(b""), &[200]),
        ("post with a length", post(&declared, BODY), &[200]),
        ("post in chunks", chunked(&upper), &[200]),
        ("post in one chunk", size(b"5"), &[200]),
        ("upper-case size", chunked(b"A\r\n0123456789\r\n0\r\n\r\n"), &[200]),
        ("upper-case coding", coding(b"CHUNKED"), &[200]),
        ("tab before a value", coding(b"\tchunked"), &[200]),
        ("space after a value", coding(b"chunked \t "), &[200]),
        ("trailer", chunked(b"5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n"), &[200]),
        ("extension", size(b"5;a=b"), &[200]),
        ("quoted extension", size(b"5;a=\"b;\\\"c\""), &[200]),
        ("empty line first", [b"\r\n", &get(b"")[..]].concat(), &[200]),
        ("pipelined", get(b"").repeat(2), &[200, 200]),
        ("http/1.0", b"GET / HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\n\r\n".to_vec(), &[200, END]),
        ("target of 8,000", target(&[b"/", &b"a".repeat(7999)[..]].concat()), &[200]),
        ("absolute form", target(b"http://gw.test/v1/models"), &[200]),
        ("asterisk", line(b"OPTIONS * HTTP/1.1"), &[200]),
        ("connect", line(b"CONNECT 10.0.0.1:22 HTTP/1.1"), &[200]),
        ("dots, slashes, escapes", target(b"//v1/../%2f%00"), &[200]),
        ("no length", post(b"", b""), &[200]),
        ("no length, yet a body", post(b"", b"hello"), &[200, END]),
        (
            "get with a body",
            [&get(b"Content-Length: 5\r\n")[..], b"hello", &get(b"")].concat(),
            &[200, 200],
        ),
        (
            "underscore is no hyphen",
            post(b"Transfer_Encoding: chunked\r\nContent-Length: 5\r\n", b"hello"),
            &[200],
        ),
        (
            "upgrade is not heeded",
            get(b"Connection: Upgrade\r\nUpgrade: websocket\r\n").repeat(2),
            &[200, 200],
        ),
        ("close", get(b"Connection: close\r\n").repeat(2), &[200, END]),
        (
            "framing field named in Connection",
            post(b"Connection: content-length\r\nContent-Length: 5\r\n", b"hello"),
            &[200],
        ),
        ("expect", post(b"Expect: 100-continue\r\nContent-Length: 5\r\n", b"hello"), &[200]),
        ("latin-1 in a value", get(b"X: \xe9\x80\xff\r\n"), &[200]),
        ("short body", length(b"6"), &[END]),
        ("no last chunk", chunked(b"5\r\nhello\r\n"), &[END]),
        ("half a head", get(b"")[..30].to_vec(), &[END]),
    ]
}

fn request_lines() -> Vec<Row> {
    vec![
        ("http/0.9", b"GET /v1/models\r\n\r\n".to_vec(), &[400]),
        ("no target", b"INVALID\r\n\r\n".to_vec(), &[400]),
        ("lower-case version", line(b"GET / http/1.1"), &[400]),
        ("version 1.2", line(b"GET / HTTP/1.2"), &[505]),
        (
            "preface of http/2",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
            &[505],
        ),
        ("version 1.10", line(b"GET / HTTP/1.10"), &[400]),
        ("version 1", line(b"GET / HTTP/1"), &[400]),
        ("version wraps", line(b"GET / HTTP/4294967297.1"), &[400]),
        ("no version", line(b"GET / "), &[400]),
        ("space after version", line(b"GET / HTTP/1.1 "), &[400]),
        ("lower-case method", line(b"get / HTTP/1.1"), &[501]),
        ("unknown method", line(b"BREW / HTTP/1.1"), &[501]),
        ("method of 10,000", line(&[&b"A".repeat(10_000)[..], b" / HTTP/1.1"].concat()), &[501]),
        ("method no token", line(b"G=\": / HTTP/1.1"), &[400]),
        ("no method", line(b" / HTTP/1.1"), &[400]),
        ("asterisk with get", target(b"*"), &[400]),
        ("connect to a path", line(b"CONNECT / HTTP/1.1"), &[400]),
        ("authority with get", target(b"gw.test:80"), &[400]),
        ("empty target", target(b""), &[400]),
        ("space in target", target(b"/v1/mod els"), &[400]),
        ("tab for space", line(b"GET\t/\tHTTP/1.1"), &[400]),
        ("tab in target", target(b"/\t"), &[400]),
        ("nul in target", target(b"/v1/\0models"), &[400]),
        ("not ascii in target", target(b"/v1/\xff"), &[400]),
        ("fragment", target(b"/v1/models#x"), &[400]),
        ("backslash", target(b"/v1\\models"), &[400]),
        ("quote", target(b"/\""), &[400]),
        ("angle", target(b"/<"), &[400]),
        ("target of 8,193", target(&[b"/", &b"a".repeat(8192)[..]].concat()), &[414]),
        ("target without end", [b"GET /", &b"a".repeat(100_000)[..]].concat(), &[414]),
        ("another authority", target(b"http://169.254.169.254/v1/models"), &[421]),
        ("other scheme", target(b"file:///etc/passwd"), &[400]),
        (
            "tls",
            [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", &b"\x11".repeat(64)[..]].concat(),
            &[400],
        ),
        ("two empty lines", [b"\r\n\r\n", &get(b"")[..]].concat(), &[400]),
        ("empty lines for ever", b"\r\n".repeat(5000), &[400]),
        ("line feed first", [b"\n", &get(b"")[..]].concat(), &[400]),
        ("nul after a request", [&get(b"")[..], b"\0"].concat(), &[200, 400]),
        ("garbage after a request", [&get(b"")[..], b"INVALID\r\n\r\n"].concat(), &[200, 400]),
    ]
}

fn fields() -> Vec<Row> {
    let many = |n: usize| get(&b"X: b\r\n".repeat(n));
    vec![
        ("no host", host(b""), &[400]),
        ("two hosts", get(b"Host: evil.test\r\n"), &[400]),
        ("the same host twice", get(b"host: gw.test\r\n"), &[400]),
        ("two hosts in http/1.0", b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n".to_vec(), &[400]),
        ("host with user", host(b"Host: a@gw.test\r\n"), &[400]),
        ("host with path", host(b"Host: gw.test/?x\r\n"), &[400]),
        ("host with fragment", host(b"Host: gw.test/#\r\n"), &[400]),
        ("host list", host(b"Host: a.test, b.test\r\n"), &[400]),
        ("empty host", host(b"Host: \r\n"), &[400]),
        ("host with letters as port", host(b"Host: a:b\r\n"), &[400]),
        ("host with open bracket", host(b"Host: [::1\r\n"), &[400]),
        ("space before colon", get(b"X-A : b\r\n"), &[400]),
        ("tab before colon", get(b"X-A\t: b\r\n"), &[400]),
        ("length, space before colon", post(b"Content-Length : 5\r\n", b"hello"), &[400]),
        ("no name", get(b": x\r\n"), &[400]),
        ("no colon", get(b"X-A\r\n"), &[400]),
        ("nul in name", get(b"X\0A: b\r\n"), &[400]),
        ("not ascii in name", get(b"X\xc3\xa9: b\r\n"), &[400]),
        ("folded first line", b"GET / HTTP/1.1\r\n X-A: b\r\nHost: a\r\n\r\n".to_vec(), &[400]),
        ("folded line", get(b"X-A: b\r\n c\r\n"), &[400]),
        ("folded by tab", get(b"X-A: b\r\n\tc\r\n"), &[400]),
        ("bare cr", get(b"X-A: b\rX-B: c\r\n"), &[400]),
        ("cr cr lf", get(b"X-A: b\r\r\n"), &[400]),
        ("bare lf", get(b"X-A: b\nX-B: c\r\n"), &[400]),
        ("nul in value", get(b"X-A: b\0c\r\n"), &[400]),
        ("del in value", get(b"X-A: b\x7fc\r\n"), &[400]),
        ("escape in value", get(b"X-A: \x1b[1m\r\n"), &[400]),
        ("lf only", b"GET / HTTP/1.1\nHost: a\n\n".to_vec(), &[400]),
        ("lf at the end", b"GET / HTTP/1.1\r\nHost: a\r\n\n".to_vec(), &[400]),
        ("value of 64 KiB", get(&[b"X: ", &b"b".repeat(65536)[..], b"\r\n"].concat()), &[431]),
        ("name of 70,000", get(&[&b"x".repeat(70_000)[..], b": b\r\n"].concat()), &[431]),
        ("100 fields", many(98), &[200]),
        ("101 fields", many(99), &[431]),
        ("300 fields", many(300), &[431]),
        (
            "head of 33 KiB",
            get(&[b"X: ", &b"b".repeat(11_000)[..], b"\r\n"].concat().repeat(3)),
            &[431],
        ),
        (
            "head without end",
            [b"GET / HTTP/1.1\r\nX: ", &b"y".repeat(1_000_000)[..]].concat(),
            &[431],
        ),
        (
            "other expectation",
            post(b"Expect: 200-maybe\r\nContent-Length: 5\r\n", b"hello"),
            &[417],
        ),
        ("two keys", get(b"Authorization: Bearer other\r\n"), &[400]),
        ("two api keys", get(b"X-Api-Key: a\r\nX-Api-Key: b\r\n"), &[400]),
        ("two types", get(b"Content-Type: a/b\r\nContent-Type: a/b\r\n"), &[400]),
    ]
}

fn lengths() -> Vec<Row> {
    const CHUNKED: &[u8] = b"Transfer-Encoding: chunked\r\n";
    const FIVE: &[u8] = b"Content-Length: 5\r\n";
    let both = |a: &[u8], b: &[u8], body: &[u8]| post(&[a, b].concat(), body);
    let smuggled = b"5c\r\nGPOST / HTTP/1.1\r\n\r\n0\r\n\r\n";
    let identity = b"Transfer-Encoding: identity\r\n";
    let mut rows: Vec<Row> = vec![
        ("cl and te", both(FIVE, CHUNKED, b"0\r\n\r\n"), &[400]),
        ("te and cl", both(CHUNKED, FIVE, b"0\r\n\r\nG"), &[400]),
        ("te.cl", both(FIVE, CHUNKED, smuggled), &[400]),
        ("two lengths", both(FIVE, b"Content-Length: 6\r\n", b"hello"), &[400]),
        ("the same length twice", both(FIVE, b"content-length: 5\r\n", b"hello"), &[400]),
        ("empty length, then another", both(b"Content-Length:\r\n", FIVE, b"hello"), &[400]),
        ("length of 2^64 - 1", length(b"18446744073709551615"), &[413]),
        ("length over 8 MiB", length(b"8388609"), &[413]),
        ("bytes after the body", [&length(b"5")[..], b"EXTRA\r\n\r\n"].concat(), &[200, 400]),
        ("te in http/1.0", head(b"POST / HTTP/1.0", CHUNKED), &[400]),
        ("folded name", both(b"Transfer-\r\nEncoding: chunked\r\n", FIVE, b""), &[400]),
        ("folded te", post(b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n"), &[400]),
        ("te twice", both(CHUNKED, CHUNKED, b"0\r\n\r\n"), &[400]),
        ("identity, then chunked", both(identity, CHUNKED, b"0\r\n\r\n"), &[400]),
        ("gzip, chunked", coding(b"gzip, chunked"), &[501]),
    ];
    rows.extend(wrong_lengths());
    rows
}

fn wrong_lengths() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for value in [
        &b"+5"[..],
        b"-5",
        b"0x5",
        b"0o5",
        b"1_0",
        b"",
        b"5Z",
        b"\xa05",
        b"5\xa0",
        b"5.0",
        b"05",
        b"00",
        b"5, 5",
        b"5,5",
        b"5 5",
        b"5;",
        b"5\x0b",
        b"\"5\"",
        b"18446744073709551616",
        b"\xef\xbc\x95",
    ] {
        rows.push(("length", length(value), &[400]));
    }
    for value in [
        &b"chunked, chunked"[..],
        b"xchunked",
        b"chunkedx",
        b",chunked",
        b"chunked,",
        b"\x0bchunked",
        b"\x0cchunked",
        b"chunked\0",
        b"\xa0chunked",
        b"",
        b"chunked;q=1",
        b"\"chunked\"",
        b"identity",
        b"gzip",
        b"chunked, gzip",
        b"chunked chunked",
        b"chunked\xa0",
        b"'chunked'",
        b"ch\xc3\xbcnked",
    ] {
        rows.push(("coding", coding(value), &[400]));
    }
    rows
}

fn chunk_lines() -> Vec<Row> {
    let mut rows: Vec<Row> = vec![
        ("size near 2^64", chunked(b"fffffffffffffffd\r\nhello"), &[413]),
        ("size over 8 MiB", chunked(b"800001\r\nhello"), &[413]),
        ("17 digits", size(&b"f".repeat(17)), &[400]),
        ("17 zeros", size(&b"0".repeat(17)), &[400]),
        ("size ended by lf", chunked(b"5\nhello\r\n0\r\n\r\n"), &[400]),
        ("extension ended by lf", chunked(b"5;\nxx\r\nhello\r\n0\r\n\r\n"), &[400]),
        ("named extension ended by lf", chunked(b"5;a\nxx\r\nhello\r\n0\r\n\r\n"), &[400]),
        ("data ended by XX", chunked(b"5\r\nhelloXX0\r\n\r\n"), &[400]),
        ("data ended by lf", chunked(b"5\r\nhello\n0\r\n\r\n"), &[400]),
        ("data too long", chunked(b"5\r\nhello!\r\n0\r\n\r\n"), &[400]),
        ("end by lf", chunked(b"5\r\nhello\r\n0\n\n"), &[400]),
        ("end by XX", [&chunked(b"5\r\nhello\r\n0\r\nXX")[..], &get(b"")].concat(), &[400]),
        ("20 KiB of extension", size(&[b"5;", &b"a".repeat(20_000)[..]].concat()), &[400]),
        ("trailers of 20 KiB", chunked(&[b"0\r\nX: ", &b"a".repeat(20_000)[..]].concat()), &[400]),
        ("byte chunks for ever", chunked(&b"1\r\nx\r\n".repeat(10_000)), &[400]),
        ("trailer without colon", chunked(b"0\r\nX\r\n\r\n"), &[400]),
        ("trailer folded", chunked(b"0\r\nX: a\r\n b\r\n\r\n"), &[400]),
        ("trailer with nul", chunked(b"0\r\nX: \0\r\n\r\n"), &[400]),
        ("nul after the body", [&size(b"5")[..], b"\0"].concat(), &[200, 400]),
        ("a request after the body", [&size(b"5")[..], &get(b"")].concat(), &[200, 200]),
    ];
    for bad in [
        &b"+5"[..],
        b"-5",
        b"0_5",
        b" 5",
        b"5 ",
        b"",
        b"5g",
        b"0x5",
        b"5;",
        b"5;[=b",
        b"5;a\0=b",
        b"5;a\r=b",
        b"5 ;a",
        b"5; a",
        b"5;a=",
        b"5;a=\"b",
        b"5\t",
        b"\xef\xbc\x95",
        b"5;=",
        b"5,5",
    ] {
        rows.push(("size line", size(bad), &[400]));
    }
    rows
}

fn reply(status_line: &[u8], rest: &[u8]) -> Vec<u8> {
    [status_line, b"\r\n", rest].concat()
}

fn responses() -> Vec<Row> {
    let ok = |rest: &[u8]| reply(b"HTTP/1.1 200 OK", rest);
    let two = [&ok(b"Content-Length: 2\r\n\r\nhi")[..], &ok(b"Content-Length: 0\r\n\r\n")].concat();
    vec![
        ("two answers", two, &[200, 200]),
        ("a stream", ok(b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"), &[200]),
        ("until close", ok(b"\r\nhello"), &[200, END]),
        (
            "interim",
            reply(
                b"HTTP/1.1 100 Continue",
                &[b"\r\n", &ok(b"Content-Length: 0\r\n\r\n")[..]].concat(),
            ),
            &[200, 200],
        ),
        ("short length", ok(b"Content-Length: 9\r\n\r\nhi"), &[END]),
        ("no last chunk", ok(b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"), &[END]),
        ("garbage", b"garbage\r\n\r\n".to_vec(), &[400]),
        ("http/0.9", b"<html>hello</html>".to_vec(), &[400]),
        ("status 99", reply(b"HTTP/1.1 99 x", b"\r\n"), &[400]),
        ("status 1000", reply(b"HTTP/1.1 1000 x", b"\r\n"), &[400]),
        ("status abc", reply(b"HTTP/1.1 abc x", b"\r\n"), &[400]),
        ("http/2", reply(b"HTTP/2.0 200 OK", b"\r\n"), &[505]),
        (
            "head over 64 KiB",
            ok(&[b"X: ", &b"a".repeat(14_000)[..], b"\r\n"].concat().repeat(5)),
            &[431],
        ),
        ("name of 70,000", ok(&[&b"a".repeat(70_000)[..], b": b\r\n\r\n"].concat()), &[431]),
        (
            "reason of 17 KiB",
            reply(&[b"HTTP/1.1 200 ", &b"a".repeat(17_000)[..]].concat(), b"\r\n"),
            &[431],
        ),
        ("101 fields", ok(&b"X: b\r\n".repeat(101)), &[431]),
        ("folded line", ok(b"X: a\r\n b\r\n\r\n"), &[400]),
        ("bare cr", ok(b"X: a\rY: b\r\n\r\n"), &[400]),
        ("bare lf", ok(b"X: a\nY: b\r\n\r\n"), &[400]),
        ("nul", ok(b"X: a\0\r\n\r\n"), &[400]),
        ("bad length", ok(b"Content-Length: 5x\r\n\r\n"), &[400]),
        ("differing lengths", ok(b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n"), &[400]),
        ("cl and te", ok(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"), &[400]),
        (
            "te in http/1.0",
            reply(b"HTTP/1.0 200 OK", b"Transfer-Encoding: chunked\r\n\r\n"),
            &[400],
        ),
        ("gzip, chunked", ok(b"Transfer-Encoding: gzip, chunked\r\n\r\n"), &[501]),
        ("bad chunk", ok(b"Transfer-Encoding: chunked\r\n\r\n2\r\nhiXX"), &[400]),
        (
            "body of 204",
            reply(b"HTTP/1.1 204 No Content", b"Content-Length: 2\r\n\r\nhi"),
            &[200, END],
        ),
        ("bytes after the end", ok(b"Content-Length: 2\r\n\r\nhi!"), &[200, 400]),
        ("empty line first", [b"\r\n", &ok(b"\r\n")[..]].concat(), &[400]),
    ]
}

/// Statuses of a transcript; bytes left unread are nothing to an answer.
fn statuses(events: &[Event]) -> Vec<u16> {
    events.iter().map(Event::status).collect()
}

fn hold(sender: Sender, rows: Vec<Row>) {
    for (name, bytes, answers) in rows {
        let whole = transcript(sender, &bytes, &[]);
        let shown = bytes[..bytes.len().min(200)].escape_ascii();
        assert_eq!(statuses(&whole), answers, "{name}: {shown}");
        for cut in places(bytes.len()) {
            assert_eq!(transcript(sender, &bytes, &[cut]), whole, "{name} cut at {cut}: {shown}");
        }
        let singly: Vec<usize> = (1..bytes.len().min(4096)).collect();
        assert_eq!(transcript(sender, &bytes, &singly), whole, "{name} byte by byte: {shown}");
    }
}

#[test]
fn sound_requests_pass() {
    hold(Sender::Client, sound());
}

#[test]
fn request_lines_have_one_form() {
    hold(Sender::Client, request_lines());
}

#[test]
fn fields_have_one_form() {
    hold(Sender::Client, fields());
}

#[test]
fn a_length_in_doubt_is_refused() {
    hold(Sender::Client, lengths());
}

#[test]
fn a_chunk_in_doubt_is_refused() {
    hold(Sender::Client, chunk_lines());
}

#[test]
fn an_upstream_is_as_hostile_as_a_client() {
    hold(Sender::Upstream { to_head: false }, responses());
}

#[test]
fn an_answer_to_head_has_no_body() {
    let bytes =
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let events = transcript(Sender::Upstream { to_head: true }, bytes, &[]);
    assert_eq!(statuses(&events), [200, 200]);
}

#[test]
fn the_payload_is_that_of_the_chunks() {
    let bytes = chunked(b"5;a=b\r\nhello\r\n1\r\n!\r\n0\r\nX: y\r\n\r\n");
    match &transcript(Sender::Client, &bytes, &[])[..] {
        [Event::Request { body, .. }] => assert_eq!(body, b"hello!"),
        other => panic!("{other:?}"),
    }
}
