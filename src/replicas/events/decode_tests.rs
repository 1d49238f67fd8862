//! Batches as engines of all versions write them, recorded ones, and what is none.

use proptest::prelude::*;

use super::super::wire::{self, Form, V, batch, cleared, recorded, removed};
use super::*;

/// All events, in a form that can be compared, and whether the batch was whole.
fn read(payload: &[u8]) -> (Vec<String>, bool) {
    match Decoder::default().read(payload) {
        Ok(batch) => (batch.events().map(|event| show(&event)).collect(), true),
        Err(Malformed) => (Vec::new(), false),
    }
}

fn is_whole(payload: &[u8]) -> bool {
    Decoder::default().read(payload).is_ok()
}

fn show(event: &Event<'_>) -> String {
    match event {
        Event::Stored(stored) => {
            let mut extra = stored.extra;
            let all: Vec<_> = stored.keys.iter().map(|_| extra.next(stored.adapter)).collect();
            let Stored { keys, parent, tokens, adapter, .. } = stored;
            let parent = parent.unwrap_or(0);
            format!("+{keys:?}<{parent} {tokens:?} {adapter:?} {all:?} {}", place(stored.place))
        }
        Event::Removed(removed) => format!("-{:?} {}", removed.keys, place(removed.place)),
        other => format!("{other:?}"),
    }
}

fn place(place: Place<'_>) -> String {
    let kind = place.kind.map_or("?".into(), String::from_utf8_lossy);
    format!("{} {} {kind}", if place.gpu { "gpu" } else { "off" }, place.group)
}

fn one(event: V) -> String {
    let (mut seen, whole) = read(&batch(vec![event], 0));
    assert!(whole);
    assert_eq!(seen.len(), 1);
    seen.remove(0)
}

fn stored() -> wire::Stored {
    wire::Stored::new(&[u64::MAX, 1], 77, 2, &[5, 300, 70_000, 0])
}

#[test]
fn all_versions_say_the_same() {
    let said = |kind: &str, extra: &str| {
        let max = u64::MAX;
        format!("+[{max}, 1]<77 [5, 300, 70000, 0] Base [{extra}] gpu 0 {kind}")
    };
    assert_eq!(one(stored().event(Form::Map)), said("full_attention", "None, None"));
    assert_eq!(one(stored().event(Form::Array)), said("?", "None, None"));
    assert_eq!(one(stored().event(Form::Short)), said("?", "None, None"));
    for form in [Form::Short, Form::Array, Form::Map] {
        assert_eq!(one(removed(&[9, 8], form)), "-[9, 8] gpu 0 ?");
        assert_eq!(one(cleared(form)), "Cleared");
    }
}

#[test]
fn what_later_versions_add_is_read_over() {
    let V::Map(mut fields) = stored().event(Form::Map) else { unreachable!() };
    let plain = one(V::Map(fields.clone()));
    fields.insert(0, ("novel", V::Map(vec![("a", V::Array(vec![V::Float(1.0), V::Nil]))])));
    fields.push(("session_id", V::Text("s")));
    fields.reverse();
    assert_eq!(one(V::Map(fields.clone())), plain, "in any order");
    // A name that is an array with a map in it.
    let mut odd_name = V::Map(fields).bytes();
    odd_name[0] += 1;
    odd_name.extend_from_slice(b"\x92\x01\x81\xa1a\x02\xc0");
    let (seen, whole) = read(&[b"\x92\xc0\x91", &odd_name[..]].concat());
    assert_eq!((seen, whole), (vec![plain.clone()], true));
    let V::Array(mut fields) = stored().event(Form::Array) else { unreachable!() };
    let plain = one(V::Array(fields.clone()));
    fields.extend([V::Text("full_attention"), V::Nil, V::Bytes(vec![1])]);
    assert_eq!(one(V::Array(fields)), plain.replace('?', "full_attention"));
    assert_eq!(one(V::Array(vec![V::Text("BlockMigrated"), V::Nil])), "Unknown");
    assert_eq!(one(V::Map(vec![("type", V::Text("BlockMigrated"))])), "Unknown");
    // A batch with a field more, and one that tells no rank.
    let parts = |n: usize| {
        let all = [V::Float(1.0), V::Array(vec![cleared(Form::Map)]), V::Int(3), V::Text("new")];
        V::Array(all[..n].to_vec()).bytes()
    };
    for (n, rank) in [(2, None), (3, Some(3)), (4, Some(3))] {
        assert_eq!(Decoder::default().read(&parts(n)).unwrap().rank, rank);
        assert_eq!(read(&parts(n)), (vec!["Cleared".to_owned()], true));
    }
}

#[test]
fn hashes_are_opaque_integers_or_bytes() {
    let with = |key: V| {
        let mut stored = stored();
        stored.keys = vec![key, V::Int(1)];
        one(stored.event(Form::Map))
    };
    let long = vec![7; 32];
    let key = xxh3_64(&long);
    assert!(with(V::Bytes(long)).starts_with(&format!("+[{key}, 1]")));
    assert!(with(V::Int(0)).starts_with("+[0, 1]"));
    for odd in [V::Bytes(vec![7; 65]), V::Bytes(vec![7; 7]), V::Nil, V::Float(1.0)] {
        assert_eq!(with(odd), "Odd");
    }
}

#[test]
fn adapters_salts_and_images_are_told_apart() {
    let with = |lora: Option<&'static str>, keys: V| {
        let mut stored = stored();
        stored.lora = lora;
        stored.extra = V::Array(vec![keys, V::Nil]);
        let text = one(stored.event(Form::Map));
        text.split(']').nth(2).unwrap().trim().trim_start_matches("Base [").to_owned()
    };
    let list = |items: &[V]| V::Array(items.to_vec());
    let (lora, salt) = (V::Text("lora-a"), V::Text("tenant-1"));
    let named = "Named(\"lora-a\") [";
    assert_eq!(with(None, V::Nil), "None, None");
    assert_eq!(with(None, list(std::slice::from_ref(&salt))), "Salt(\"tenant-1\"), None");
    let named_with = |keys: V| with(Some("lora-a"), keys).replace(named, "");
    assert_eq!(named_with(list(std::slice::from_ref(&lora))), "None, None");
    assert_eq!(named_with(list(&[lora.clone(), salt.clone()])), "Salt(\"tenant-1\"), None");
    assert_eq!(named_with(list(&[lora.clone(), lora.clone()])), "Salt(\"lora-a\"), None");
    let tagged = [
        list(&[V::Text("lora"), lora, V::Text("a/path")]),
        list(&[V::Text("cache_salt"), salt.clone()]),
    ];
    assert_eq!(named_with(list(&tagged)), "Salt(\"tenant-1\"), None");
    let image = list(&[V::Text("mm"), V::Text("id"), V::Int(3)]);
    for foreign in [list(&[image]), list(&[salt.clone(), salt]), list(&[V::Int(3)]), V::Int(3)] {
        assert_eq!(with(None, foreign), "Foreign, None");
    }
    let mut nameless = stored();
    nameless.lora = Some("a");
    assert!(one(nameless.event(Form::Short)).contains("Nameless"));
}

#[test]
fn an_event_of_the_wrong_form_spoils_only_itself() {
    let mut short = stored();
    short.tokens.pop();
    let mut no_size = stored();
    no_size.block = 0;
    let V::Map(fields) = stored().event(Form::Map) else { unreachable!() };
    let without = |name: &str| {
        V::Map(fields.iter().filter(|(key, _)| *key != name).cloned().collect::<Vec<_>>())
    };
    let instead = |name: &str, value: V| {
        let mut fields = fields.clone();
        fields.iter_mut().filter(|(key, _)| *key == name).for_each(|f| f.1 = value.clone());
        V::Map(fields)
    };
    let odd = [
        short.event(Form::Map),
        no_size.event(Form::Map),
        without("type"),
        without("token_ids"),
        without("block_hashes"),
        instead("token_ids", V::Text("x")),
        instead("token_ids", V::Array(vec![V::Int(1 << 32); 4])),
        instead("block_hashes", V::Array(vec![V::Array(vec![]); 2])),
        instead("medium", V::Int(1)),
        instead("group_idx", V::Text("0")),
        V::Int(1),
        V::Array(vec![]),
        V::Array(vec![V::Text("BlockRemoved")]),
    ];
    for event in odd {
        let text = format!("{event:?}");
        let (seen, whole) = read(&batch(vec![event, cleared(Form::Map)], 0));
        assert_eq!((seen, whole), (vec!["Odd".into(), "Cleared".into()], true), "{text}");
    }
}

#[test]
fn what_is_not_a_whole_batch_is_refused_before_its_first_event() {
    let good = batch(vec![stored().event(Form::Map), cleared(Form::Map)], 1);
    for end in 0..good.len() {
        assert!(!is_whole(&good[..end]), "cut at {end}");
    }
    assert!(!is_whole(&[&good[..], b"\0"].concat()));
    let mut deep = vec![0x93, 0xc0];
    deep.extend_from_slice(&[0x91; 100_000]);
    deep.extend_from_slice(&[0xc0, 0xc0]);
    assert!(!is_whole(&deep), "nested without end");
    // Counts that no payload of this size can hold.
    for head in [&b"\x93\xc0\xdd\xff\xff\xff\xff"[..], b"\x93\xc0\xdf\xff\xff\xff\xff\x01"] {
        assert!(!is_whole(head));
    }
    let mut claims = V::Array(vec![V::Text("BlockStored")]).bytes();
    claims[0] = 0x92;
    claims.extend_from_slice(b"\xdd\xff\xff\xff\xff");
    assert!(!is_whole(&[b"\x92\xc0\x91", &claims[..]].concat()));
    for garbage in [&b""[..], b"\xc1", b"{\"a\": 1}", b"\x90", b"\x91\xc0", b"\x92\xc0\xc0"] {
        assert!(!is_whole(garbage), "{garbage:?}");
    }
}

#[test]
fn a_batch_of_too_many_events_is_refused() {
    let of = |events: usize| batch(vec![V::Nil; events], 0);
    assert_eq!(read(&of(EVENTS_MAX)).0.len(), EVENTS_MAX);
    assert!(!is_whole(&of(EVENTS_MAX + 1)));
}

#[test]
fn an_event_of_too_many_blocks_is_odd() {
    let keys: Vec<u64> = (0..BLOCKS_MAX as u64 + 1).collect();
    assert_eq!(one(removed(&keys, Form::Map)), "Odd");
    assert!(one(removed(&keys[1..], Form::Map)).starts_with("-[1, 2"));
}

#[test]
fn recorded_batches_are_read_whole() {
    let files = [
        (include_str!("../../../tests/data/kv_events/int.hex"), 40, 40, 95),
        (include_str!("../../../tests/data/kv_events/bytes.hex"), 12, 28, 72),
    ];
    for (text, messages, stored_events, blocks) in files {
        let all = recorded(text);
        assert_eq!(all.len(), messages);
        let (mut events, mut stored) = (0, 0);
        for (i, (seq, payload)) in all.iter().enumerate() {
            assert_eq!(*seq, i as u64);
            let mut decoder = Decoder::default();
            let batch = decoder.read(payload).unwrap();
            assert_eq!(batch.rank, Some(0));
            for event in batch.events() {
                match event {
                    Event::Stored(event) => {
                        assert_eq!(event.block_tokens, 32);
                        events += 1;
                        stored += event.keys.len();
                    }
                    Event::Removed(_) | Event::Cleared => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!((events, stored), (stored_events, blocks));
    }
}

proptest! {
    #[test]
    fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read(&bytes);
    }

    #[test]
    fn a_spoiled_batch_ends(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let events = vec![stored().event(Form::Map), removed(&[1], Form::Array)];
        let mut payload = batch(events, 0);
        let at = at.index(payload.len());
        payload[at] = byte;
        read(&payload);
    }
}
