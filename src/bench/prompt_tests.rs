//! Requests as a server reads them.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::Value;

use super::super::Lengths;
use super::*;
use crate::plan::Trace;

fn options(change: impl FnOnce(Options) -> Options) -> Arc<Options> {
    let target = Target {
        peer: None,
        addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        authority: "h:1".to_owned(),
        base: String::new(),
        model: "m\"".to_owned(),
        key: None,
    };
    fn words(_: u64, _: u64) -> [u8; 7] {
        *b" wordsx"
    }
    Arc::new(change(Options { words: Some(words), ..Options::new(target) }))
}

/// The next request of a conversation: its body, and the text that its range names.
fn ask(prompts: &mut Prompts, talk: &mut Talk) -> (Value, String, Expected) {
    let target = prompts.options.target.clone();
    let request = prompts.next(talk, &target, 5);
    let whole = String::from_utf8(request.bytes.clone()).unwrap();
    let (head, body) = whole.split_once("\r\n\r\n").unwrap();
    assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
    let text = whole[request.text].to_owned();
    (serde_json::from_str(body).unwrap(), text, request.expected)
}

fn counts(prefixes: usize, hot: f64) -> Vec<u32> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut counts = vec![0; prefixes];
    for _ in 0..10_000 {
        counts[prefix(&mut rng, prefixes, hot)] += 1;
    }
    counts
}

#[test]
fn the_first_beginning_has_the_hot_share_and_the_others_are_alike() {
    let counts = counts(5, 0.8);
    assert!((7_800..8_200).contains(&counts[0]), "{counts:?}");
    assert!(counts[1..].iter().all(|n| (400..600).contains(n)), "{counts:?}");
}

#[test]
fn without_a_hot_one_all_are_alike_and_a_single_one_has_all() {
    assert!(counts(5, 0.0).iter().all(|n| (1_800..2_200).contains(n)));
    assert_eq!((counts(1, 0.0), counts(1, 0.8)), (vec![10_000], vec![10_000]));
}

#[test]
fn a_prompt_has_its_length_its_tag_and_its_beginning() {
    let options = options(|o| Options {
        prompt_tokens: Lengths::Fixed(100),
        output_tokens: Lengths::Fixed(9),
        prefix_tokens: 40,
        prefixes: 3,
        ..o
    });
    let mut prompts = Prompts::new(&options, 0);
    let mut talk = prompts.begin(0, 0, 0);
    let (body, text, expected) = ask(&mut prompts, &mut talk);
    assert!(!talk.goes_on() && !expected.keep);
    assert_eq!((text.len(), expected.prompt_tokens, expected.tokens), (400, 100, 9));
    assert_eq!(&text[160..184], format!("[[tag:{:016}]]", expected.tag));
    assert!(prompts.prefixes.iter().any(|prefix| text.as_bytes().starts_with(prefix)));
    assert_eq!((&body["model"], &body["max_tokens"]), (&"m\"".into(), &9.into()));
    assert_eq!(body["messages"][0]["content"].as_str(), Some(text.as_str()));
}

#[test]
fn another_model_is_asked_in_words_that_no_prompt_repeats() {
    let options = options(|o| Options { words: None, prompt_tokens: Lengths::Fixed(50), ..o });
    let mut prompts = Prompts::new(&options, 0);
    let mut seen = std::collections::HashSet::new();
    for number in 0..2000 {
        let mut talk = prompts.begin(0, number, 0);
        let (_, text, _) = ask(&mut prompts, &mut talk);
        assert!(text.len() == 200 && text.split(' ').filter(|word| word.len() == 3).count() == 50);
        assert!(seen.insert(text[..TAG_BYTES].to_owned()), "{text}");
    }
}

#[test]
fn lengths_and_models_are_drawn_and_one_in_some_is_long() {
    let options = options(|o| Options {
        prompt_tokens: Lengths::Uniform(50, 60),
        output_tokens: Lengths::Uniform(3, 4),
        models: vec!["a".to_owned(), "b".to_owned(), "c".to_owned()],
        zipf: 1.0,
        long: Some((0.1, 2000)),
        ..o
    });
    let mut prompts = Prompts::new(&options, 0);
    let (mut long, mut models) = (0, [0; 3]);
    for number in 0..2000 {
        let mut talk = prompts.begin(0, number, 0);
        let (body, text, expected) = ask(&mut prompts, &mut talk);
        long += u32::from(text.len() == 8000);
        assert!(text.len() == 8000 || (200..=240).contains(&text.len()), "{}", text.len());
        assert!((3..=4).contains(&expected.tokens));
        let model = body["model"].as_str().unwrap().as_bytes()[0];
        models[usize::from(model - b'a')] += 1;
    }
    assert!((150..250).contains(&long), "{long}");
    // 1 : 1/2 : 1/3 of 2000.
    assert!((1020..1160).contains(&models[0]) && (310..420).contains(&models[2]), "{models:?}");
}

#[test]
fn a_conversation_carries_what_was_said() {
    for api in [Api::Chat, Api::Completions] {
        let options = options(|o| Options {
            api,
            turns: 3,
            prompt_tokens: Lengths::Fixed(20),
            prefix_tokens: 8,
            ..o
        });
        let mut prompts = Prompts::new(&options, 0);
        let mut talk = prompts.begin(0, 0, 0);
        let mut all = Vec::new();
        for turn in 0..3 {
            let (body, text, expected) = ask(&mut prompts, &mut talk);
            assert_eq!((text.len(), expected.keep), ([80, 48, 48][turn], turn < 2));
            all.push(text.clone());
            match api {
                Api::Chat => {
                    let said = |m: &Value| m["content"].as_str().unwrap().to_owned();
                    let told: Vec<_> =
                        body["messages"].as_array().unwrap().iter().map(said).collect();
                    assert_eq!(told, all);
                    assert_eq!(body["messages"][turn * 2]["role"], "user");
                }
                Api::Completions => assert_eq!(body["prompt"], all.concat()),
            }
            talk.said(api, text.as_bytes(), b"a \\\"b\\\" \\n");
            all.push("a \"b\" \n".to_owned());
        }
        assert!(!talk.goes_on());
    }
}

#[test]
fn a_trace_shares_what_its_names_say() {
    let line = |input: u32, names: &str| {
        format!(
            "{{\"timestamp\":0,\"input_length\":{input},\"output_length\":7,\
             \"hash_ids\":[{names}]}}\n"
        )
    };
    let text = line(1030, "1, 2, 3") + &line(1600, "1, 2, 4, 5") + &line(90, "");
    let trace = Trace::parse(&text).unwrap();
    let workload = Arc::new(trace.workload(trace.rate(), None));
    let options = options(|o| Options { load: Load::Trace(workload), ..o });
    let mut prompts = Prompts::new(&options, 0);
    let mut texts = Vec::new();
    for place in 0..3 {
        let mut talk = prompts.begin(0, 0, place);
        let (_, text, expected) = ask(&mut prompts, &mut talk);
        assert_eq!((expected.tokens, talk.goes_on()), (7, false));
        texts.push(text);
    }
    assert_eq!(texts.iter().map(String::len).collect::<Vec<_>>(), [4120, 6400, 360]);
    assert_eq!(texts[0][..4096], texts[1][..4096]);
    assert_ne!(texts[0][4096..4120], texts[1][4096..4120]);
    assert!(texts[1].contains("[[tag:") && texts[2].starts_with("[[tag:"));
}

#[test]
fn so_many_are_given_up_in_every_phase() {
    let options = options(|o| Options { cancel: 0.2, ..o });
    let mut prompts = Prompts::new(&options, 0);
    let (mut by_time, mut by_event) = (0, [0; 2]);
    for _ in 0..5000 {
        match prompts.cancel(32, true) {
            (Some(share), None) => by_time += u32::from((0.0..1.0).contains(&share)),
            (None, Some(event)) => by_event[usize::from(event > 16)] += 1,
            (None, None) => {}
            both => panic!("{both:?}"),
        }
    }
    assert!((420..580).contains(&by_time), "{by_time}");
    assert!(by_event.iter().all(|n| (190..310).contains(n)), "{by_event:?}");
    assert!((0..50).all(|_| prompts.cancel(32, false).1.is_none()));
}
