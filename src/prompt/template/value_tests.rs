//! JSON to what a template prints; the right-hand sides are CPython's `str(json.loads(..))`.

use super::*;

fn parse(text: &str) -> Value {
    at(text, Span::between(0, text.len())).unwrap()
}

#[test]
fn values_print_as_in_python() {
    for (text, printed) in [
        (
            r#"{"b":1,"a":[true,false,null,1.0,-0,1e400,"it's"]}"#,
            r#"{'b': 1, 'a': [True, False, None, 1.0, 0, inf, "it's"]}"#,
        ),
        (r#"{"a":1,"b":2,"a":3}"#, "{'a': 3, 'b': 2}"),
        ("{}", "{}"),
        ("[]", "[]"),
        (
            "[9223372036854775808,-9223372036854775809]",
            "[9223372036854775808, -9223372036854775809]",
        ),
        (
            "[1606938044258990275541962092341162602522202993782792835301376]",
            "[1606938044258990275541962092341162602522202993782792835301376]",
        ),
        (r#""a\n\u00e9\ud83d\ude00\/\\""#, "a\né\u{1f600}/\\"),
        ("1E5", "100000.0"),
    ] {
        assert_eq!(parse(text).to_string(), printed, "{text}");
    }
}

#[test]
fn a_large_dictionary_finds_its_keys_and_keeps_their_order() {
    let mut dict = Dict::default();
    for n in (0..100).rev().chain(0..50) {
        dict.set(Value::from(format!("k{n}")), Value::from(n));
    }
    assert_eq!(dict.entries().len(), 100);
    assert_eq!(dict.entries()[0].0.as_str(), Some("k99"));
    assert!((0..100).all(|n| dict.get(&format!("k{n}")) == Some(&Value::from(n))));
    assert_eq!(dict.get("k100"), None);
}

#[test]
fn a_list_behind_a_list_is_not_followed_without_end() {
    let mut value = Value::from(1);
    for _ in 0..DEPTH_MAX + 2 {
        value = Value::from_object(List(vec![value]));
    }
    assert_eq!(push_repr(&mut String::new(), &value, 0), Err(Deep));
}
