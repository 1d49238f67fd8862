//! What the scanner takes and refuses, and where.

use super::*;

fn check(text: &str) -> Result<(), (usize, &'static str)> {
    let mut scanner = Scanner::new(text.as_bytes()).map_err(|e| (e.offset, e.what))?;
    scanner.value().and_then(|_| scanner.finish()).map_err(|e| (e.offset, e.what))
}

#[test]
fn faults_are_named_with_their_offset() {
    for (text, offset, what) in [
        ("", 0, "unexpected end of the JSON text"),
        ("[1,]", 3, "expected a JSON value"),
        ("{\"a\":1,}", 7, "expected a key in quotes"),
        ("[1 2]", 3, "expected a comma or the end of the object or array"),
        ("[1}", 2, "expected a comma or the end of the object or array"),
        ("\"12345678\u{1}\"", 9, "control character in a string"),
        ("\"1234567\\ud83d\\u0041\"", 8, "lone surrogate in a string"),
        ("\"\\u12g4\"", 1, "bad \\u escape in a string"),
        ("-", 1, "expected a digit"),
        ("01", 1, "unexpected bytes after the JSON value"),
        (&"1".repeat(4301), 0, "an integer of more than 4300 digits"),
        (&format!("[-{}]", "9".repeat(5000)), 2, "an integer of more than 4300 digits"),
        ("\u{feff}1", 0, "byte order mark"),
    ] {
        assert_eq!(check(text), Err((offset, what)), "{text}");
    }
}

#[test]
fn long_numbers_are_numbers() {
    let ones = "1".repeat(4300);
    for number in [ones.clone(), format!("-{ones}"), format!("{ones}1.5"), format!("{ones}1e2")] {
        assert_eq!(check(&number), Ok(()), "{number}");
    }
}

#[test]
fn depth_is_bounded_without_the_native_stack() {
    for (open, close) in [("[", "]"), ("{\"\":", "}")] {
        let nested = |depth: usize| [&open.repeat(depth), "1", &close.repeat(depth)].concat();
        assert_eq!(check(&nested(DEPTH_MAX as usize)), Ok(()));
        let what = "nested deeper than 64 levels";
        assert_eq!(check(&nested(65)), Err((64 * open.len(), what)));
        assert_eq!(check(&nested(100_000)), Err((64 * open.len(), what)));
    }
}

/// Eight bytes at a time must agree with one at a time, wherever the byte stands.
#[test]
fn a_plain_run_ends_where_it_must() {
    for byte in 0..=255 {
        for at in 0..20 {
            let mut bytes = *b"abcdefgh\x7f\xff\x80!#[]ijklm";
            bytes[at] = byte;
            let slow = bytes.iter().take_while(|b| !matches!(b, b'"' | b'\\' | 0..0x20));
            assert_eq!(plain_run(&bytes), slow.count(), "{byte} at {at}");
        }
    }
}

#[test]
fn keys_are_compared_decoded() {
    let text = br#"{"mod\u0065l":1,"model":[{"model":2}],"\ud83d\ude00":3}"#;
    let mut names = Vec::new();
    let mut scanner = Scanner::new(text).unwrap();
    let read = scanner.object(|scanner, key| {
        names.push(String::from_utf8(key.name.to_vec()).unwrap());
        scanner.value().map(drop)
    });
    assert_eq!(read.map(|span| span.end()), Ok(text.len()));
    assert_eq!(names, ["model", "model", "\u{1f600}"]);
}
