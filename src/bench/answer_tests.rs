//! Answers, right and wrong, as bytes.

use super::*;

fn words(tag: u64, index: u64) -> [u8; 7] {
    let letter = |n: u64| b'a' + (n % 26) as u8;
    [b' ', letter(tag), letter(index / 26), letter(index), b'x', b'y', b'z']
}

fn expected(tokens: u64) -> Expected {
    Expected {
        api: Api::Chat,
        stream: true,
        usage: false,
        tag: 3,
        words: Some(words),
        tokens,
        prompt_tokens: 9,
        due_ns: 1_000,
        keep: false,
        cancel_after: None,
    }
}

fn event(of: impl IntoIterator<Item = u64>, finish: &str) -> String {
    let text: String =
        of.into_iter().map(|i| String::from_utf8(words(3, i).to_vec()).unwrap()).collect();
    format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\
         \"finish_reason\":{finish}}}]}}\n\n"
    )
}

const ROLE: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\
                    \"content\":\"\"},\"finish_reason\":null}]}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"total_tokens\":11,\
                     \"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn judge(expected: Expected, stream: &str, step: usize) -> Result<Measured, Kind> {
    let tally = RefCell::default();
    let mut answer = Answer::new(expected);
    for (i, piece) in stream.as_bytes().chunks(step).enumerate() {
        answer.take(piece, 2_000 + i as u64, &tally).map_err(|failure| failure.kind)?;
    }
    answer.finish().map_err(|failure| failure.kind)
}

#[test]
fn a_right_answer_is_right_at_every_split() {
    let stream = [ROLE, &event([0], "null"), &event([1, 2], "\"length\""), DONE].concat();
    for step in 1..=stream.len() {
        let measured = judge(expected(3), &stream, step).unwrap();
        assert_eq!((measured.events, measured.output_tokens, measured.input_tokens), (2, 3, 9));
    }
    let at_once = judge(expected(3), &stream, stream.len()).unwrap();
    assert_eq!((at_once.ttft_ns, at_once.tpot_ns), (Some(1_000), Some(0)));
}

#[test]
fn each_wrong_sequence_has_its_kind() {
    let (one, end) = (|i| event([i], "null"), |i| event([i], "\"length\""));
    let cases = [
        (vec![one(0), one(2), end(1)], Kind::LostToken),
        (vec![one(0), one(0), end(1)], Kind::DoubledToken),
        (vec![one(0), one(7), end(2)], Kind::WrongToken),
        (vec![one(0), end(1)], Kind::LostToken),
        (vec![one(0), one(1), one(2), end(3)], Kind::WrongToken),
        (vec![one(0), one(1), one(2)], Kind::MissingFinish),
        (vec!["data: {\"error\":{\"message\":\"m\"}}\n\n".to_owned()], Kind::ErrorEvent),
        (vec!["data: {\"choices\"\n\n".to_owned()], Kind::Malformed),
    ];
    for (events, kind) in cases {
        let stream = [events.concat().as_str(), DONE].concat();
        assert_eq!(judge(expected(3), &stream, 64).err(), Some(kind), "{stream}");
    }
}

#[test]
fn the_end_has_to_be_whole() {
    let all = [event([0], "null"), event([1], "\"length\"")].concat();
    let kind = |stream: &[&str]| judge(expected(2), &stream.concat(), 64).err();
    assert_eq!(kind(&[&all, DONE]), None);
    assert_eq!(kind(&[&all]), Some(Kind::MissingDone));
    assert_eq!(kind(&[&all, "data: [DONE]"]), Some(Kind::Malformed));
    assert_eq!(kind(&[&all, DONE, DONE]), Some(Kind::AfterDone));
}

#[test]
fn usage_comes_when_it_was_asked_for_and_only_then() {
    let all = [event([0], "null"), event([1], "\"length\"")].concat();
    let (with, without) = ([&all, USAGE, DONE].concat(), [&all, DONE].concat());
    let asked = Expected { usage: true, ..expected(2) };
    assert_eq!(judge(expected(2), &with, 64).err(), Some(Kind::UnaskedUsage));
    assert_eq!(judge(asked, &without, 64).err(), Some(Kind::BadUsage));
    assert_eq!(judge(asked, &with, 64).unwrap().cached_tokens, 4);
    let more = Expected { tokens: 2, ..asked };
    assert_eq!(judge(more, &with.replace(":2,", ":3,"), 64).err(), Some(Kind::BadUsage));
}

#[test]
fn an_unknown_model_may_say_what_it_likes() {
    let free = Expected { words: None, ..expected(2) };
    let thought = "data: {\"choices\":[{\"delta\":{\"reasoning\":\"hm\"}}]}\n\n";
    let stream = [ROLE, thought, &event([5, 4, 4], "\"stop\""), USAGE, DONE].concat();
    let measured = judge(free, &stream, 64).unwrap();
    assert_eq!((measured.events, measured.output_tokens), (2, 2));
}

#[test]
fn the_text_is_kept_when_the_conversation_goes_on() {
    let stream = [ROLE, &event([0], "null"), &event([1, 2], "\"length\""), DONE].concat();
    for keep in [false, true] {
        let mut answer = Answer::new(Expected { keep, ..expected(3) });
        answer.take(stream.as_bytes(), 2_000, &RefCell::default()).unwrap();
        answer.finish().unwrap();
        let all = [words(3, 0), words(3, 1), words(3, 2)].concat();
        assert_eq!(answer.said(), if keep { &all[..] } else { &[] });
    }
}

#[test]
fn an_answer_is_given_up_after_the_event_that_was_told() {
    let stream = [ROLE, &event([0], "null"), &event([1], "null"), &event([2], "null")].concat();
    for (after, kind) in [(1, Some(Kind::Cancelled)), (3, Some(Kind::Cancelled)), (4, None)] {
        let tally = RefCell::default();
        let mut answer = Answer::new(Expected { cancel_after: Some(after), ..expected(9) });
        let taken = answer.take(stream.as_bytes(), 2_000, &tally);
        assert_eq!(taken.err().map(|failure| failure.kind), kind);
        assert_eq!(tally.borrow().itl.count(), after.min(3) - 1);
    }
}
