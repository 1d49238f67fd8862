//! Merging the two files as transformers does.

use super::*;

fn file() -> Value {
    json!({
        "truncation": {"max_length": 4}, "padding": {"strategy": "BatchLongest"},
        "added_tokens": [
            {"id": 3, "content": "<a>", "single_word": false, "lstrip": false, "rstrip": false,
             "normalized": false, "special": true}
        ],
        "post_processor": null,
        "model": {"type": "BPE", "vocab": {"x": 0, "y": 1, "<v>": 2}, "merges": []}
    })
}

fn merged(config: &Value) -> Definition {
    Definition::merge(file(), Some(config)).unwrap()
}

fn ids(definition: &Definition) -> Vec<(&str, u32)> {
    definition.added.iter().map(|token| (token.content.as_str(), token.id)).collect()
}

#[test]
fn without_a_configuration_only_length_limits_go() {
    let definition = Definition::merge(file(), None).unwrap();
    assert_eq!(ids(&definition), [("<a>", 3)]);
    assert_eq!(definition.json.get("truncation"), Some(&Value::Null));
    assert_eq!(definition.json.get("padding"), Some(&Value::Null));
    assert_eq!(definition.affixes, None);
    assert_eq!(definition.vocab_size(), 4);
}

#[test]
fn tokens_of_the_configuration_are_added_with_the_ids_that_the_library_gives() {
    let definition = merged(&json!({"added_tokens_decoder": {
        "9": {"content": "<late>", "special": true},
        "4": {"content": "<b>", "special": false, "normalized": false},
        "2": {"content": "<v>", "special": true}
    }}));
    // `<v>` keeps its id in the vocabulary; the others follow the largest id without a gap.
    assert_eq!(ids(&definition), [("<a>", 3), ("<v>", 2), ("<b>", 4), ("<late>", 5)]);
    let list = definition.json.get("added_tokens").unwrap().as_array().unwrap();
    assert_eq!(list.len(), 4);
    assert_eq!(definition.vocab_size(), 6);
}

#[test]
fn flags_of_the_configuration_replace_those_of_the_file() {
    let definition = merged(&json!({"added_tokens_decoder": {
        "3": {"content": "<a>", "special": true, "rstrip": true, "normalized": false}
    }}));
    assert_eq!(definition.added.len(), 1);
    assert!(definition.added[0].rstrip && definition.added[0].has_flags());
    assert_eq!(definition.added[0].id, 3);
}

#[test]
fn named_special_tokens_are_added_once() {
    let definition = merged(&json!({
        "bos_token": "<a>", "eos_token": {"content": "<e>", "lstrip": true},
        "additional_special_tokens": ["<e>", "<f>"], "extra_special_tokens": {"image": "<img>"},
        "unk_token": null
    }));
    assert_eq!(ids(&definition), [("<a>", 3), ("<e>", 4), ("<f>", 5), ("<img>", 6)]);
    assert!(definition.added[1].lstrip && definition.added[1].special);
}

#[test]
fn a_file_without_post_processor_gets_bos_and_eos_from_the_configuration() {
    let config = json!({"bos_token": "<a>", "eos_token": "<v>", "add_bos_token": true});
    assert_eq!(merged(&config).affixes, Some((vec![3], vec![])));
    let config = json!({"eos_token": {"content": "y"}, "add_eos_token": true});
    assert_eq!(merged(&config).affixes, Some((vec![], vec![1])));
    let mut file = file();
    file["post_processor"] = json!({"type": "ByteLevel"});
    assert_eq!(Definition::merge(file, Some(&config)).unwrap().affixes, None);
}

#[test]
fn what_is_no_tokenizer_is_refused() {
    assert!(Definition::merge(json!([]), None).is_err());
    assert!(Definition::merge(json!({"added_tokens": [{"content": "a"}]}), None).is_err());
    assert!(Definition::merge(json!({"added_tokens": [{"id": 1}]}), None).is_err());
}
