//! Edits change what they name and not a byte more.

use super::*;
use crate::openai::{Endpoint, read_call};
use proptest::prelude::*;
use serde_json::{Value, json};

fn edited(body: &str, edit: impl Fn(&mut Edits, &Call)) -> String {
    let call = read_call(Endpoint::Completions, body.as_bytes()).unwrap();
    let mut edits = Edits::new(&call);
    edit(&mut edits, &call);
    let bytes: Vec<u8> = edits.pieces(body.as_bytes()).flatten().copied().collect();
    assert_eq!(edits.len(body.as_bytes()), bytes.len());
    String::from_utf8(bytes).unwrap()
}

#[test]
fn usage_is_asked_for_in_every_form_of_stream_options() {
    let usage = r#"{"include_usage":true}"#;
    for (before, after) in [
        (r#""a":1"#, format!(r#""a":1,"stream_options":{usage}"#)),
        (r#""stream_options": null"#, format!(r#""stream_options": {usage}"#)),
        (r#""stream_options":{}"#, format!(r#""stream_options":{usage}"#)),
        (
            r#""stream_options": { "x" : 1 }"#,
            r#""stream_options": {"include_usage":true, "x" : 1 }"#.to_owned(),
        ),
        (
            r#""stream_options":{"include_usage": false}"#,
            r#""stream_options":{"include_usage": true}"#.to_owned(),
        ),
        (
            r#""stream_options":{"include_usage":null,"continuous_usage_stats":true}"#,
            r#""stream_options":{"include_usage":true,"continuous_usage_stats":false}"#.to_owned(),
        ),
        (
            r#""stream_options":{"continuous_usage_stats":true}"#,
            r#""stream_options":{"include_usage":true,"continuous_usage_stats":false}"#.to_owned(),
        ),
        (
            r#""stream_options":{"include_usage":true,"continuous_usage_stats":true}"#,
            r#""stream_options":{"include_usage":true,"continuous_usage_stats":true}"#.to_owned(),
        ),
    ] {
        let body = |member: &str| format!(r#"{{"prompt":"p","stream":true,{member}}}"#);
        let result = edited(&body(before), |edits, call| edits.ask_for_usage(call));
        if before == r#""a":1"# {
            let expected =
                format!(r#"{{"stream_options":{usage},"prompt":"p","stream":true,"a":1}}"#);
            assert_eq!(result, expected, "inserted behind the brace");
        } else {
            assert_eq!(result, body(&after));
        }
    }
}

#[test]
fn all_else_stays_byte_for_byte() {
    let body = concat!(
        "{ \"x\" :1e400,\"model\" : \"fast\\u0021\",\"x\":18446744073709551617,\t\"top_k\": -0.0,",
        "\"prompt\":\"\\u00e9\u{e9}\\/\",",
        "\"chat_template_kwargs\":{\"a\":[ ]},\"seed\":9223372036854775807 }\n"
    );
    let result = edited(body, |edits, call| edits.set_model(call, "meta/L \"3\""));
    assert_eq!(result, body.replace("\"fast\\u0021\"", "\"meta/L \\\"3\\\"\""));
    assert_eq!(edited(body, |_, _| ()), body);
}

#[test]
fn limits_are_set_where_they_are_named() {
    let set = |body: &str| edited(body, |edits, call| edits.set_max_tokens(call, "max_tokens", 7));
    assert_eq!(set(r#"{"prompt":"p","max_tokens":16}"#), r#"{"prompt":"p","max_tokens":7}"#);
    assert_eq!(set(r#"{"prompt":"p"}"#), r#"{"max_tokens":7,"prompt":"p"}"#);
}

/// The engine takes the later of two members: an inserted one must not stand before a null.
#[test]
fn null_is_replaced_never_doubled() {
    let result = edited(
        r#"{"prompt":"p","max_tokens":null,"mod\u0065l": null,"stream_options":null }"#,
        |edits, call| {
            edits.set_max_tokens(call, "max_tokens", 7);
            edits.set_model(call, "m");
            edits.ask_for_usage(call);
        },
    );
    let usage = r#"{"include_usage":true}"#;
    let expected =
        format!(r#"{{"prompt":"p","max_tokens":7,"mod\u0065l": "m","stream_options":{usage} }}"#);
    assert_eq!(result, expected);
}

#[test]
fn policy_fields_are_set_or_inserted() {
    let set =
        |body: &str| edited(body, |edits, call| edits.set_policy_field(call, "priority", "-1"));
    assert_eq!(set(r#"{"prompt":"p","priority": 5}"#), r#"{"prompt":"p","priority": -1}"#);
    assert_eq!(set(r#"{"prompt":"p"}"#), r#"{"priority":-1,"prompt":"p"}"#);
}

/// Members of a body in which every field that edits know may stand anywhere.
fn members() -> impl Strategy<Value = Vec<String>> {
    let value = prop_oneof![
        Just("1e400".to_owned()),
        Just("\"a,\\\"b\\\"}\"".to_owned()),
        Just("[1 , {\"model\":\"x\"}]".to_owned()),
        Just("{ }".to_owned()),
        Just("null".to_owned()),
        any::<i64>().prop_map(|n| n.to_string()),
        any::<String>().prop_map(|s| json!(s).to_string()),
    ];
    let policy = prop::sample::subsequence(&POLICY[..], 0..=POLICY.len());
    let known = prop::sample::subsequence(&KNOWN[..], 0..=KNOWN.len());
    let unknown = prop::collection::vec("[a-z]{1,3}[0-9]", 0..4);
    (policy, known, unknown, prop::collection::vec(value, 16), "[ \n\t]{0,2}")
        .prop_map(|(policy, known, unknown, values, space)| {
            let mut members: Vec<String> = known.into_iter().map(str::to_owned).collect();
            let keys = policy.into_iter().map(str::to_owned).chain(unknown);
            for (key, value) in keys.zip(values) {
                members.push(format!("{space}\"{key}\"{space}:{space}{value}{space}"));
            }
            members
        })
        .prop_shuffle()
}

const POLICY: [&str; 7] = crate::openai::call::POLICY_FIELDS;
const KNOWN: [&str; 3] =
    [r#" "model":"\u006d" "#, r#""stream_options":{"continuous_usage_stats":true}"#, "\"n\": 2"];

/// A number as text, so that 1e400 compares too.
fn comparable(body: &str) -> Value {
    serde_json::from_str(&body.replace("1e400", "\"1e400\"")).unwrap()
}

proptest! {
    /// The edited body parses to the same value but for the fields that were edited, and with them
    /// cut out the bytes of each member are the client's.
    #[test]
    fn edits_change_what_they_name(members in members(), keep in any::<[bool; 7]>()) {
        let body = format!("{{{}}}", members.join(","));
        let endpoint = Endpoint::Responses;
        let call = read_call(endpoint, body.as_bytes()).unwrap();
        let keeps = |name: &str| keep[POLICY.iter().position(|field| *field == name).unwrap()];
        let mut edits = Edits::new(&call);
        edits.set_model(&call, "new");
        edits.remove(&call, body.as_bytes(), |field| !keeps(field.name));
        let result: Vec<u8> = edits.pieces(body.as_bytes()).flatten().copied().collect();
        let result = String::from_utf8(result).unwrap();

        let mut expected = comparable(&body);
        let fields = expected.as_object_mut().unwrap();
        fields.insert("model".to_owned(), "new".into());
        fields.retain(|name, _| !POLICY.contains(&name.as_str()) || keeps(name));
        prop_assert_eq!(comparable(&result), expected, "{} -> {}", body, result);

        let removed = |member: &String| POLICY.iter().any(|name| {
            member.trim_start().starts_with(&format!("\"{name}\"")) && !keeps(name)
        });
        let stay = members.iter().filter(|member| !removed(member) && !member.contains("model"));
        let mut rest = &result[..];
        for member in stay {
            let at = rest.find(member.trim());
            prop_assert!(at.is_some(), "{:?} is not in {:?}", member, rest);
            rest = &rest[at.unwrap() + member.trim().len()..];
        }
    }
}

#[test]
fn a_prefill_is_one_token_of_the_same_prompt() {
    let prefill = |edits: &mut Edits, call: &Call| {
        edits.prefill_only(call, "max_tokens");
        edits.add_member("kv_transfer_params", "{\"do_remote_decode\":true}");
    };
    let added = "\"kv_transfer_params\":{\"do_remote_decode\":true}";
    let body = concat!(
        "{\"prompt\" : \"p\", \"stream\":true,\"stream_options\":{\"include_usage\":true},",
        "\"min_tokens\":5,\"max_tokens\": 9,\"x\":-0.0}"
    );
    let expected = format!(
        "{{{added},\"prompt\" : \"p\", \"stream\":false,\"stream_options\":null,\
         \"min_tokens\":0,\"max_tokens\": 1,\"x\":-0.0}}"
    );
    assert_eq!(edited(body, prefill), expected);
    let expected = format!("{{\"max_tokens\":1,{added},\"prompt\":\"p\",\"stream\":null}}");
    assert_eq!(edited("{\"prompt\":\"p\",\"stream\":null}", prefill), expected);
    // What a client has sent of its own never stays.
    let own =
        "{\"kv_transfer_params\":{\"remote_host\":\"evil\"},\"prompt\":\"p\",\"max_tokens\":2}";
    let both = |edits: &mut Edits, call: &Call| {
        edits.remove(call, own.as_bytes(), |_| true);
        prefill(edits, call);
    };
    assert_eq!(edited(own, both), format!("{{{added},\"prompt\":\"p\",\"max_tokens\":1}}"));
}
