//! Requests whose Transfer-Encoding and Content-Length are bent in the ways that have set parsers
//! apart, and chunked bodies likewise. About a fifth are legal.

use proptest::prelude::*;
use proptest::sample::select;

/// A request, or two in a row, framed in a way that may be ambiguous.
pub(crate) fn requests() -> impl Strategy<Value = Vec<u8>> {
    let one = (start_line(), prop::collection::vec(line(), 0..4), body());
    prop::collection::vec(one, 1..3).prop_map(|requests| {
        requests
            .into_iter()
            .flat_map(|(start, lines, body)| {
                [start, &b"Host: gw.test\r\n"[..], &lines.concat(), b"\r\n", &body].concat()
            })
            .collect()
    })
}

fn start_line() -> impl Strategy<Value = &'static [u8]> {
    prop_oneof![
        8 => Just(&b"POST /v1/completions HTTP/1.1\r\n"[..]),
        1 => Just(&b"GET / HTTP/1.1\r\n"[..]),
        1 => Just(&b"POST / HTTP/1.0\r\n"[..]),
        1 => Just(&b"\r\nHEAD /?q HTTP/1.1\r\n"[..]),
    ]
}

fn line() -> impl Strategy<Value = Vec<u8>> {
    let end = prop_oneof![
        12 => Just(&b"\r\n"[..]),
        1 => select(LINE_ENDS),
    ];
    (name(), separator(), value(), end)
        .prop_map(|(name, separator, value, end)| [&name[..], separator, &value, end].concat())
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let plain = prop_oneof![
        4 => Just("Content-Length"),
        4 => Just("Transfer-Encoding"),
        1 => Just("Connection"),
        1 => Just("TE"),
        1 => Just("X-Other"),
    ];
    let bent: fn(&str) -> Vec<Vec<u8>> = |name| {
        let [first, .., last] = name.as_bytes() else { return Vec::new() };
        vec![
            name.to_uppercase().into(),
            name.replace('-', "_").into(),
            name.replace('-', "-\r\n").into(),
            name.replace('-', " ").into(),
            [b" ", name.as_bytes()].concat(),
            [b"\t", name.as_bytes()].concat(),
            [b"\0", name.as_bytes()].concat(),
            [b"X", name.as_bytes()].concat(),
            [&[first | 0x80], &name.as_bytes()[1..]].concat(),
            [name.as_bytes(), &[*last]].concat(),
            Vec::new(),
        ]
    };
    plain.prop_flat_map(
        move |name| prop_oneof![6 => Just(name.as_bytes().to_vec()), 1 => select(bent(name))],
    )
}

fn separator() -> impl Strategy<Value = &'static [u8]> {
    prop_oneof![
        10 => Just(&b": "[..]),
        2 => select(vec![&b":"[..], b":\t", b": \t "]),
        1 => select(SEPARATORS),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let plain = select(vec!["chunked", "5", "0", "5", "chunked", "close", "16", "identity"]);
    let bent: fn(&str) -> Vec<Vec<u8>> = |value| {
        let around = |before: &[u8], after: &[u8]| [before, value.as_bytes(), after].concat();
        vec![
            value.to_uppercase().into(),
            around(b"", b" \t"),
            around(b"", b", chunked"),
            around(b"gzip, ", b""),
            around(b"", &[b", ", value.as_bytes()].concat()),
            around(b",", b""),
            around(b"", b","),
            around(b"+", b""),
            around(b"-", b""),
            around(b"0", b""),
            around(b"0x", b""),
            around(b"\"", b"\""),
            around(b"", b";q=1"),
            around(b"\xa0", b""),
            around(b"\x0b", b""),
            around(b"", b"\0"),
            around(b"", b" x"),
            around(b"", b"_0"),
            around(b"", b".0"),
            around(b"1844674407370955161", b""),
            around(b"", b"\r\n 5"),
            around(b"", b"\r\nTransfer-Encoding: chunked"),
            around(b"", b"\nContent-Length: 0"),
            around(b"x", b""),
            Vec::new(),
        ]
    };
    plain.prop_flat_map(
        move |value| prop_oneof![3 => Just(value.as_bytes().to_vec()), 1 => select(bent(value))],
    )
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        2 => Just(Vec::new()),
        2 => Just(b"hello".to_vec()),
        1 => Just(b"0\r\n\r\nGET / HTTP".to_vec()),
        4 => chunked_body(),
    ]
}

/// A chunked body, legal in about half of the cases.
pub(crate) fn chunked_body() -> impl Strategy<Value = Vec<u8>> {
    let size_end = prop_oneof![
        12 => Just(&b"\r\n"[..]),
        2 => select(vec![&b";a\r\n"[..], b";a=b\r\n", b";a=\"b;\\\"\"\r\n"]),
        1 => select(SIZE_ENDS),
    ];
    let data_end = prop_oneof![
        20 => Just(&b"\r\n"[..]),
        1 => select(vec![&b"\n"[..], b"XX", b"\r", b"", b" \r\n", b"\r\n\r\n"]),
    ];
    let data = prop::collection::vec(any::<u8>(), 1..20);
    let prefix =
        prop_oneof![30 => Just(""), 2 => Just("00"), 1 => select(vec!["+", "-", " ", "0x", "\0"])];
    let chunk =
        (prefix, data, size_end, data_end).prop_map(|(prefix, data, size_end, data_end)| {
            [format!("{prefix}{:x}", data.len()).as_bytes(), size_end, &data, data_end].concat()
        });
    let end = prop_oneof![
        8 => Just(&b"0\r\n\r\n"[..]),
        2 => select(LEGAL_BODY_ENDS),
        2 => select(BODY_ENDS),
    ];
    (prop::collection::vec(chunk, 0..4), end)
        .prop_map(|(chunks, end)| [&chunks.concat()[..], end].concat())
}

const LINE_ENDS: &[&[u8]] = &[b"\n", b"\r", b"\r\r\n", b"\r\n ", b"\r\n\t", b"\0\r\n", b"\x0b\r\n"];

const SEPARATORS: &[&[u8]] =
    &[b" :", b"\t:", b"\0:", b"", b"::", b":\r\n ", b":\x0b", b":\x0c", b"=", b";"];

const SIZE_ENDS: &[&[u8]] =
    &[b"\n", b"\r", b" \r\n", b"\t\r\n", b";\r\n", b";a\n\r\n", b";a=\"\r\n", b"g\r\n", b"\r\n "];

const LEGAL_BODY_ENDS: &[&[u8]] =
    &[b"000\r\n\r\n", b"0;a\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"0\r\nContent-Length: 5\r\n\r\n"];

const BODY_ENDS: &[&[u8]] =
    &[b"", b"0\r\n", b"0\n\n", b"0\r\n\n", b"0\r\nXX\r\n\r\n", b"\r\n\r\n", b"0\r\n: \r\n\r\n"];
