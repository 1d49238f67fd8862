//! Hostile requests for a whole gateway: each with the statuses of its answers, and whether the
//! connection closes after the last. Kinds and reasons: RFC 9110, RFC 9112, public advisories.

/// One connection's bytes and what they deserve.
pub(crate) struct Input {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) statuses: &'static [u16],
    pub(crate) closes: bool,
    /// The client ends its direction after the bytes.
    pub(crate) fin: bool,
}

type Bytes<'a> = &'a [u8];
type Row = (&'static str, Vec<u8>, &'static [u16]);

const HOST: Bytes<'_> = b"Host: gw.test\r\n";
const KEY: Bytes<'_> = b"Authorization: Bearer sk-test\r\n";
/// The one sound body.
pub(crate) const SOUND: &str = r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#;
const BODY: Bytes<'_> = SOUND.as_bytes();
const CHUNKED: Bytes<'_> = b"Transfer-Encoding: chunked\r\n";
/// Five bytes in a chunk, and the end.
const HELLO: Bytes<'_> = b"5\r\nhello\r\n0\r\n\r\n";

/// All of them.
pub(crate) fn all() -> Vec<Input> {
    let open = [sound(), targets(), kept_fields()].concat();
    let shut = [lines(), fields(), lengths(), codings(), chunks(), last_words()].concat();
    let input = |(name, bytes, statuses): Row, closes| {
        let (name, fin) = (name.to_owned(), name.starts_with("ends early"));
        Input { name, bytes, statuses, closes, fin }
    };
    let open = open.into_iter().map(|row| input(row, false));
    open.chain(shut.into_iter().map(|row| input(row, true))).collect()
}

/// A request with exactly this line and these fields.
fn bare(line: Bytes<'_>, fields: Bytes<'_>) -> Vec<u8> {
    [line, b"\r\n", fields, b"\r\n"].concat()
}

fn line(line: Bytes<'_>) -> Vec<u8> {
    bare(line, &[HOST, KEY].concat())
}

fn method(method: Bytes<'_>) -> Vec<u8> {
    line(&[method, b" /v1/models HTTP/1.1"].concat())
}

fn version(version: Bytes<'_>) -> Vec<u8> {
    line(&[b"GET /v1/models ", version].concat())
}

fn target(target: Bytes<'_>) -> Vec<u8> {
    line(&[b"GET ", target, b" HTTP/1.1"].concat())
}

fn get(fields: Bytes<'_>) -> Vec<u8> {
    bare(b"GET /v1/models HTTP/1.1", &[HOST, KEY, fields].concat())
}

fn host(lines: Bytes<'_>) -> Vec<u8> {
    bare(b"GET /v1/models HTTP/1.1", &[lines, KEY].concat())
}

fn post(fields: Bytes<'_>, body: Bytes<'_>) -> Vec<u8> {
    let kind = b"Content-Type: application/json\r\n";
    let fields = [HOST, KEY, kind, fields].concat();
    [&bare(b"POST /v1/chat/completions HTTP/1.1", &fields), body].concat()
}

fn length(value: Bytes<'_>) -> Vec<u8> {
    [b"Content-Length: ", value, b"\r\n"].concat()
}

fn number(n: usize) -> Vec<u8> {
    length(n.to_string().as_bytes())
}

fn coding(value: Bytes<'_>) -> Vec<u8> {
    [b"Transfer-Encoding: ", value, b"\r\n"].concat()
}

fn chunk(body: Bytes<'_>) -> Vec<u8> {
    [format!("{:x}\r\n", body.len()).as_bytes(), body, b"\r\n0\r\n\r\n"].concat()
}

/// A chunked body as it stands.
fn raw(body: Bytes<'_>) -> Vec<u8> {
    post(CHUNKED, body)
}

/// [`BODY`] in one chunk, with a tail to its size line and a trailer.
fn dressed(tail: Bytes<'_>, trailer: Bytes<'_>) -> Vec<u8> {
    let size = format!("{:x}", BODY.len());
    raw(&[size.as_bytes(), tail, b"\r\n", BODY, b"\r\n0\r\n", trailer, b"\r\n"].concat())
}

fn sound() -> Vec<Row> {
    let n = number(BODY.len());
    let (upper, rest) = BODY.split_at(BODY.len() - 0x1a);
    let halves =
        [format!("{:x}\r\n", upper.len()).as_bytes(), upper, b"\r\n1A\r\n", rest, b"\r\n0\r\n\r\n"]
            .concat();
    let second = || target(b"/v1/second");
    let upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n";
    vec![
        ("get", get(b""), &[200]),
        ("post with a length", post(&n, BODY), &[200]),
        ("post in a chunk", raw(&chunk(BODY)), &[200]),
        ("post in two chunks, upper-case size", raw(&halves), &[200]),
        ("upper-case coding", post(&coding(b"CHUNKED"), &chunk(BODY)), &[200]),
        ("trailer", dressed(b"", b"X-T: 1\r\n"), &[200]),
        ("chunk extension", dressed(b";a=b", b""), &[200]),
        ("quoted chunk extension", dressed(b";a=\"b;\\\"c\"", b""), &[200]),
        ("empty line first", [b"\r\n", &get(b"")[..]].concat(), &[200]),
        ("pipelined", get(b"").repeat(2), &[200, 200]),
        ("pipelined posts", post(&n, BODY).repeat(3), &[200, 200, 200]),
        ("post, then get", [post(&n, BODY), get(b"")].concat(), &[200, 200]),
        ("expect", post(&[&n[..], b"Expect: 100-continue\r\n"].concat(), BODY), &[200]),
        ("get with a body", [get(&number(5)), b"hello".to_vec(), second()].concat(), &[200, 404]),
        ("upgrade, then another", [get(upgrade), second()].concat(), &[200, 404]),
        ("no length", post(b"", b""), &[400]),
        ("not JSON", post(&number(5), b"hello"), &[400]),
        (
            "refused early, then another",
            [post(&number(5), b"hello"), get(b"")].concat(),
            &[400, 200],
        ),
    ]
}

fn targets() -> Vec<Row> {
    vec![
        ("delete", method(b"DELETE"), &[405]),
        ("trace", method(b"TRACE"), &[405]),
        ("post where get is due", method(b"POST"), &[405]),
        ("target of 8,000", target(&[b"/v1/models?", &b"a".repeat(7900)[..]].concat()), &[200]),
        ("other path", target(b"/v1/second"), &[404]),
        ("dots", target(b"/v1/../metrics"), &[404]),
        ("double slash", target(b"//v1//models"), &[404]),
        ("encoded slash", target(b"/v1%2fmodels"), &[404]),
        ("encoded letter", target(b"/v1/model%73"), &[404]),
        ("slash at the end", target(b"/v1/models/"), &[404]),
        ("metrics", target(b"/metrics"), &[404]),
        ("options *", line(b"OPTIONS * HTTP/1.1"), &[405]),
    ]
}

fn kept_fields() -> Vec<Row> {
    let n = number(BODY.len());
    let with = |fields: Bytes<'_>| post(&[fields, &n[..]].concat(), BODY);
    vec![
        ("underscore is no hyphen", with(b"Transfer_Encoding: chunked\r\n"), &[200]),
        (
            "upgrade to h2c",
            get(b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
                  HTTP2-Settings: AAMAAABkAAQAAP__\r\n"),
            &[200],
        ),
        ("a hundred fields", get(&b"X: b\r\n".repeat(98)), &[200]),
        ("latin-1 in a value", get(b"X: \xe9\x80\xff\r\n"), &[200]),
        ("gzip body", with(b"Content-Encoding: gzip\r\n"), &[415]),
        ("no key", bare(b"GET /v1/models HTTP/1.1", HOST), &[401]),
    ]
}

/// Request lines that end the connection.
fn lines() -> Vec<Row> {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let hello = [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", &[0x11; 64][..]].concat();
    vec![
        ("http/1.0", bare(b"GET /v1/models HTTP/1.0", KEY), &[200]),
        ("http/0.9", b"GET /v1/models\r\n\r\n".to_vec(), &[400]),
        ("no target", b"INVALID\r\n\r\n".to_vec(), &[400]),
        ("lower-case version", version(b"http/1.1"), &[400]),
        ("version 1.2", version(b"HTTP/1.2"), &[505]),
        ("version 2.0", version(b"HTTP/2.0"), &[505]),
        ("preface of http/2", preface.to_vec(), &[505]),
        ("version 1.10", version(b"HTTP/1.10"), &[400]),
        ("version 1", version(b"HTTP/1"), &[400]),
        ("version wraps", version(b"HTTP/4294967297.1"), &[400]),
        ("two spaces", line(b"GET  /v1/models HTTP/1.1"), &[400]),
        ("tab for a space", line(b"GET\t/v1/models HTTP/1.1"), &[400]),
        ("space after the version", version(b"HTTP/1.1 "), &[400]),
        ("space before the method", method(b" GET"), &[400]),
        ("lower-case method", method(b"get"), &[501]),
        ("unknown method", method(b"BREW"), &[501]),
        ("method no token", method(b"G=\":"), &[400]),
        ("method of 10,000", method(&b"A".repeat(10_000)), &[501]),
        ("connect", bare(b"CONNECT 10.0.0.1:22 HTTP/1.1", b"Host: 10.0.0.1:22\r\n"), &[405]),
        ("connect with a key", line(b"CONNECT gw.test:443 HTTP/1.1"), &[405]),
        ("get *", target(b"*"), &[400]),
        ("empty target", target(b""), &[400]),
        ("space in the target", target(b"/v1/mod els"), &[400]),
        ("nul in the target", target(b"/v1/\0models"), &[400]),
        ("del in the target", target(b"/v1/\x7fmodels"), &[400]),
        ("ff in the target", target(b"/v1/\xff"), &[400]),
        ("fragment", target(b"/v1/models#x"), &[400]),
        ("backslash", target(b"/v1\\models"), &[400]),
        ("another authority", target(b"http://169.254.169.254/v1/models"), &[421]),
        ("target of 9,000", target(&[b"/", &b"a".repeat(9000)[..]].concat()), &[414]),
        ("tls", hello, &[400]),
        ("flood of empty lines", [&b"\r\n".repeat(5000)[..], &get(b"")].concat(), &[400]),
    ]
}

/// Field lines that end the connection.
fn fields() -> Vec<Row> {
    let big = |name: usize, value: usize| {
        get(&[&b"x".repeat(name)[..], b": ", &b"b".repeat(value), b"\r\n"].concat())
    };
    let n = number(BODY.len());
    let endless = [b"GET /v1/models HTTP/1.1\r\n", HOST, b"X: ", &b"y".repeat(1_000_000)];
    vec![
        ("no host", host(b""), &[400]),
        ("two hosts", host(b"Host: gw.test\r\nHost: evil.test\r\n"), &[400]),
        ("the same host twice", host(&HOST.repeat(2)), &[400]),
        ("host with a user", host(b"Host: a@gw.test\r\n"), &[400]),
        ("host with a path", host(b"Host: gw.test/?x\r\n"), &[400]),
        ("host with a fragment", host(b"Host: gw.test/#\r\n"), &[400]),
        ("two hosts in a line", host(b"Host: a.test, b.test\r\n"), &[400]),
        ("empty host", host(b"Host: \r\n"), &[400]),
        ("space before the colon", get(b"X-A : b\r\n"), &[400]),
        ("space before a length's colon", post(b"Content-Length : 56\r\n", BODY), &[400]),
        ("no name", get(b": x\r\n"), &[400]),
        ("no colon", get(b"X\r\n"), &[400]),
        ("nul in a name", get(b"X\0A: b\r\n"), &[400]),
        ("latin-1 in a name", get(b"X\xe9: b\r\n"), &[400]),
        ("space first", bare(b"GET /v1/models HTTP/1.1", b" X: b\r\nHost: gw.test\r\n"), &[400]),
        ("folded", get(b"X: a\r\n b\r\n"), &[400]),
        ("bare cr", get(b"X-A: b\rX-B: c\r\n"), &[400]),
        ("bare lf", get(b"X-A: b\nX-B: c\r\n"), &[400]),
        ("nul", get(b"X-A: b\0c\r\n"), &[400]),
        ("del", get(b"X-A: b\x7fc\r\n"), &[400]),
        ("lf only", b"GET /v1/models HTTP/1.1\nHost: gw.test\n\n".to_vec(), &[400]),
        ("two keys", get(KEY), &[400]),
        ("value of 64 KiB", big(1, 65_536), &[431]),
        ("name of 70,000", big(70_000, 1), &[431]),
        ("300 fields", get(&b"X: b\r\n".repeat(300)), &[431]),
        ("head without end", endless.concat(), &[431]),
        ("other expectation", post(&[b"Expect: 200-maybe\r\n", &n[..]].concat(), BODY), &[417]),
    ]
}

fn lengths() -> Vec<Row> {
    let te_cl = b"5c\r\nGPOST / HTTP/1.1\r\n\r\n0\r\n\r\n";
    let both = |n: usize, body: Bytes<'_>| post(&[&number(n)[..], CHUNKED].concat(), body);
    let n = number(BODY.len());
    let mut rows: Vec<Row> = vec![
        ("cl and te", both(4, &chunk(BODY)), &[400]),
        ("cl.te", both(6, b"0\r\n\r\nG"), &[400]),
        ("te.cl", both(4, te_cl), &[400]),
        ("te and cl", post(&[CHUNKED, &n[..]].concat(), &chunk(BODY)), &[400]),
        ("te in http/1.0", bare(b"POST /v1/completions HTTP/1.0", CHUNKED), &[400]),
        ("the same length twice", post(&n.repeat(2), BODY), &[400]),
        ("two lengths", post(&[&n[..], &number(5)].concat(), BODY), &[400]),
        ("no length, then one", post(&[&length(b"")[..], &n].concat(), BODY), &[400]),
        ("length with a zero first", post(&length(b"056"), BODY), &[400]),
        ("length of 2^64 - 1", post(&length(b"18446744073709551615"), b"x"), &[413]),
        ("length of 2^64", post(&length(b"18446744073709551616"), b"x"), &[400]),
        ("length over the limit", post(&length(b"8388609"), b"x"), &[413]),
        ("name folded", post(b"Transfer-\r\nEncoding: chunked\r\n", b"0\r\n\r\n"), &[400]),
        ("ends early: length", post(&number(BODY.len() + 10), BODY), &[408]),
    ];
    for value in [
        "+5", "-5", "0x5", "0o5", "1_0", "", "5Z", "\u{a0}5", "5.0", "5, 5", "5,5", "5 5", "5;",
        "\"5\"", "\u{ff15}",
    ] {
        rows.push(("length", post(&length(value.as_bytes()), b"hello"), &[400]));
    }
    rows.push(("length", post(&length(b"\xa05"), b"hello"), &[400]));
    rows
}

fn codings() -> Vec<Row> {
    let also = |fields: Bytes<'_>| post(&[fields, CHUNKED].concat(), HELLO);
    let mut rows: Vec<Row> = vec![
        ("chunked in two lines", also(CHUNKED), &[400]),
        ("identity, then chunked", also(&coding(b"identity")), &[400]),
        (
            "identity, then chunked, and a length",
            also(&[coding(b"identity"), number(4)].concat()),
            &[400],
        ),
        ("gzip, chunked", post(&coding(b"gzip, chunked"), HELLO), &[501]),
    ];
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
    ] {
        rows.push(("coding", post(&coding(value), HELLO), &[400]));
    }
    rows
}

fn chunks() -> Vec<Row> {
    let after = [b"5\r\nhello\r\n0\r\nXX", &target(b"/v1/second")[..]].concat();
    let long = [b"5;", &b"a".repeat(20_000)[..], b"\r\nhello\r\n0\r\n\r\n"].concat();
    let mut rows: Vec<Row> = vec![
        ("17 digits", raw(&[&b"f".repeat(17)[..], b"\r\nhello\r\n0\r\n\r\n"].concat()), &[400]),
        ("size near 2^64", raw(b"fffffffffffffffd\r\nhello"), &[413]),
        ("size over the limit", raw(b"800001\r\nhello"), &[413]),
        ("size ended by lf", raw(b"5\nhello\r\n0\r\n\r\n"), &[400]),
        ("extension ended by lf", raw(b"5;\nxx\r\nhello\r\n0\r\n\r\n"), &[400]),
        ("data ended by XX", raw(b"5\r\nhelloXX0\r\n\r\n"), &[400]),
        ("data ended by lf", raw(b"5\r\nhello\n0\r\n\r\n"), &[400]),
        ("data too long", raw(b"5\r\nhello!\r\n0\r\n\r\n"), &[400]),
        ("end by lf", raw(b"5\r\nhello\r\n0\n\n"), &[400]),
        ("end by XX", raw(&after), &[400]),
        ("20 KiB of extension", raw(&long), &[400]),
        ("one-byte chunks", raw(&b"1\r\nx\r\n".repeat(10_000)), &[400]),
        ("trailer without a colon", raw(b"0\r\nX\r\n\r\n"), &[400]),
        ("trailer folded", raw(b"0\r\nX: a\r\n b\r\n\r\n"), &[400]),
        ("ends early: chunk", raw(b"5\r\nhello\r\n"), &[408]),
    ];
    for size in [
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
        b"5;a=\"b",
        b"5\t",
    ] {
        rows.push(("size", raw(&[size, b"\r\nhello\r\n0\r\n\r\n"].concat()), &[400]));
    }
    rows
}

/// Answers that are followed by a close.
fn last_words() -> Vec<Row> {
    let whole = post(&number(BODY.len()), BODY);
    let gone = b"Connection: close\r\n";
    vec![
        ("bytes after a body", [&whole[..], b"EXTRA\r\n\r\n"].concat(), &[200, 400]),
        ("nul after a body", [&raw(&chunk(BODY))[..], b"\0"].concat(), &[200, 400]),
        ("good, then bad", [&get(b"")[..], b"INVALID\r\n\r\n"].concat(), &[200, 400]),
        ("close, then more", get(gone).repeat(2), &[200]),
    ]
}
