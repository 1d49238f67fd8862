//! The tree against what Python's reader makes of the same bytes.

use super::*;

fn text_of(json: &str) -> String {
    read(json.as_bytes()).unwrap().quoted().unwrap().text().into_owned()
}

#[test]
fn escapes_are_decoded_to_characters() {
    let spelled = r#""a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00\u0000é😀""#;
    assert_eq!(text_of(spelled), "a\"\\/\u{8}\u{c}\n\r\té😀\0é😀");
    assert_eq!(text_of("\"plain\""), "plain");
    assert_eq!(text_of("\"\""), "");
}

#[test]
fn a_plain_string_is_borrowed_and_keeps_its_spelling() {
    let node = read(br#"["x","\u0041"]"#).unwrap();
    let [plain, escaped] = node.list().unwrap() else { panic!("two items") };
    assert!(matches!(plain.quoted().unwrap().text(), Cow::Borrowed("x")));
    assert_eq!(escaped.quoted().unwrap().text(), "A");
    assert_eq!(escaped.quoted().unwrap().spelling(), r#""\u0041""#);
}

/// `dict(json.loads(..))`: the last value, in the place of the first key.
#[test]
fn of_equal_keys_the_last_value_wins_in_the_first_place() {
    let few = r#"{"a":1,"b":2,"\u0061":3,"c":4}"#;
    let many = (0..100).map(|n| format!("\"k{}\":{n}", n % 60)).collect::<Vec<_>>().join(",");
    let many = format!("{{{many}}}");
    let order = |json: &str| {
        let node = read(json.as_bytes()).unwrap();
        let members = node.members().unwrap().iter();
        members.map(|(k, v)| format!("{k}={v:?}")).collect::<Vec<_>>()
    };
    assert_eq!(order(few), ["a=Number(\"3\")", "b=Number(\"2\")", "c=Number(\"4\")"]);
    let read = order(&many);
    assert_eq!(read.len(), 60);
    assert_eq!(read[0], "k0=Number(\"60\")");
    assert_eq!(read[39], "k39=Number(\"99\")");
    assert_eq!(read[40], "k40=Number(\"40\")");
}

#[test]
fn a_missing_member_is_not_a_null_one() {
    let node = read(br#"{"a":null,"b":false}"#).unwrap();
    assert_eq!((node.get("a"), node.given("a")), (Some(&Node::Null), None));
    assert_eq!(node.get("c"), None);
    assert_eq!(node.given("b"), Some(&Node::Bool(false)));
}

#[test]
fn what_is_written_is_what_was_read() {
    let spelled = r#"{"a\"b":[1e+2,-0,1.50,null,true,false],"é":{"":"\u0041\/"}}"#;
    let mut out = String::new();
    read(format!(" {spelled} ").replace(',', " , ").as_bytes()).unwrap().push_json(&mut out);
    assert_eq!(out, spelled);
}

#[test]
fn a_written_string_is_read_as_the_same_text() {
    let text: String = ('\0'..'\u{100}').chain(['\u{2028}', '😀']).collect();
    let mut out = String::new();
    push_string(&text, &mut out);
    assert_eq!(text_of(&out), text);
    assert!(out.starts_with(r#""\u0000\u0001"#) && out.contains(r#"\b\t\n\u000b\f\r\u000e"#));
}

#[test]
fn what_is_not_json_is_refused() {
    for body in ["", "{", "{\"a\":1}x", "[\"\\ud800\"]", "\u{feff}1", "NaN"] {
        assert!(read(body.as_bytes()).is_err(), "{body}");
    }
    assert!(read(b"\"\xff\"").is_err());
}
