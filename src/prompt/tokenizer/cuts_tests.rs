//! Which definitions may be cut, and between which characters.

use serde_json::json;

use super::*;

/// A definition as Qwen 3 has it, with `change` merged over it.
fn definition(change: Value) -> Value {
    let mut json = json!({
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "behavior": "Isolated", "invert": false,
             "pattern": {"Regex": PATTERNS[1][0].join("|")}},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}
        ]},
        "model": {"type": "BPE", "dropout": null}
    });
    if let (Value::Object(json), Value::Object(change)) = (&mut json, change) {
        json.extend(change);
    }
    json
}

fn judged(change: Value) -> Cuts {
    Cuts::judge(&definition(change), true, false)
}

#[test]
fn a_byte_level_model_with_a_known_pattern_is_cut_everywhere() {
    let cuts = judged(json!({}));
    assert_eq!(cuts, Cuts { added: Ok(()), letter_space: Ok(()), line_start: true });
    let cuts = judged(json!({"normalizer": {"type": "Sequence", "normalizers": []}}));
    assert!(cuts.letter_space.is_ok());
    let gpt2 = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true});
    let cuts = judged(json!({ "pre_tokenizer": gpt2 }));
    assert_eq!((cuts.letter_space, cuts.line_start), (Ok(()), false));
}

#[test]
fn what_depends_on_the_place_in_the_text_is_not_cut_at_all() {
    let off = |change: Value, why: &str| {
        let cuts = judged(change);
        let reason = cuts.added.unwrap_err();
        assert!(reason.contains(why), "{reason}");
        assert!(cuts.letter_space.is_err() && !cuts.line_start);
    };
    off(json!({"model": {"type": "Unigram"}}), "Unigram");
    off(json!({"model": {"type": "BPE", "dropout": 0.1}}), "random");
    off(json!({"normalizer": {"type": "Prepend", "prepend": "▁"}}), "Prepend");
    off(json!({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first"}}), "Metaspace");
    off(json!({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true}}), "space before");
    off(json!({"pre_tokenizer": {"type": "ByteLevel"}}), "space before");
}

#[test]
fn an_unknown_pattern_is_cut_at_added_tokens_only() {
    let split = |split: Value| {
        let cuts = judged(json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            split, {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}
        ]}}));
        (cuts.added.is_ok(), cuts.letter_space.is_ok())
    };
    let known = json!({"Regex": PATTERNS[0][0].join("|")});
    let of = |pattern: &Value, behavior: &str, invert: bool| {
        split(json!({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}))
    };
    assert_eq!(of(&known, "Isolated", false), (true, true));
    assert_eq!(of(&known, "Removed", true), (true, false));
    assert_eq!(of(&known, "Isolated", true), (true, false));
    assert_eq!(of(&json!({"Regex": r"\w+"}), "Isolated", false), (true, false));
    assert!(judged(json!({"normalizer": {"type": "Lowercase"}})).letter_space.is_err());
    assert!(judged(json!({"pre_tokenizer": null})).letter_space.is_err());
    for (complete, flags) in [(false, false), (true, true)] {
        let cuts = Cuts::judge(&definition(json!({})), complete, flags);
        assert_eq!((cuts.added.is_ok(), cuts.letter_space.is_ok()), (true, false));
    }
}

#[test]
fn a_cut_is_between_a_word_and_what_ends_it() {
    let cuts = judged(json!({}));
    for (text, places) in [
        ("ab cd", vec![2]),
        ("ab  cd", vec![2]),
        ("a, b", vec![1, 2]),
        ("don't", vec![]),
        ("x\ny\n\n\tz", vec![2]),
        ("\n9", vec![1]),
        ("日本、東", vec![6]),
        ("नी\"", vec![]),
        ("é\"", vec![2]),
        ("×\"", vec![]),
        ("\u{3000} a", vec![]),
        (" a", vec![]),
        ("", vec![]),
    ] {
        let mut found = Vec::new();
        while let Some(at) =
            cuts.find(text, found.last().map_or(0, |at: &usize| *at + 1), text.len())
        {
            found.push(at);
        }
        assert_eq!(found, places, "{text:?}");
    }
    assert_eq!(cuts.find("ab cd", 0, 1), None);
    assert_eq!(cuts.find("ab cd", 0, 2), Some(2));
    assert_eq!(cuts.find("éé é", 3, 9), Some(4));
    let gpt2 = Cuts { line_start: false, ..cuts.clone() };
    assert_eq!(gpt2.find("x\ny", 0, 3), None);
    assert_eq!(Cuts { letter_space: Err(String::new()), ..cuts }.find("ab cd", 0, 5), None);
}
