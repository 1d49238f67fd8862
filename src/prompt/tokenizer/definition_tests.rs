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

fn read(file: &Value, config: Option<&Value>) -> Result<Definition, String> {
    Definition::read(file.to_string().as_bytes(), config)
}

fn merged(config: &Value) -> Definition {
    read(&file(), Some(config)).unwrap()
}

fn ids(definition: &Definition) -> Vec<(&str, u32)> {
    definition.added.iter().map(|token| (token.content.as_str(), token.id)).collect()
}

#[test]
fn without_a_configuration_only_length_limits_go() {
    let definition = read(&file(), None).unwrap();
    assert_eq!(ids(&definition), [("<a>", 3)]);
    assert_eq!((definition.changed, definition.affixes.clone()), (false, None));
    assert_eq!(definition.vocab_size, 4);
    let mut expected = file();
    expected["truncation"] = Value::Null;
    expected["padding"] = Value::Null;
    assert_eq!(definition.merged(file().to_string().as_bytes()).unwrap(), expected);
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
    let merged = definition.merged(file().to_string().as_bytes()).unwrap();
    assert_eq!(merged["added_tokens"].as_array().unwrap().len(), 4);
    assert_eq!((definition.changed, definition.vocab_size), (true, 6));
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
    assert_eq!(read(&file, Some(&config)).unwrap().affixes, None);
}

#[test]
fn what_is_no_tokenizer_is_refused() {
    assert!(read(&json!([]), None).is_err());
    assert!(read(&json!({}), None).is_err());
    let mut file = file();
    file["added_tokens"] = json!([{"content": "a"}]);
    assert!(read(&file, None).is_err());
    file["added_tokens"] = json!([{"id": 1}]);
    assert!(read(&file, None).is_err());
    file["added_tokens"] = json!([]);
    file["model"]["vocab"] = json!([["a", 0.1], ["b", 0.2]]);
    assert_eq!(read(&file, None).unwrap().vocab_size, 2);
    file["model"]["vocab"] = json!({"a": "b"});
    assert!(read(&file, None).is_err());
}
