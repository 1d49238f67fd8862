//! Ids in turns and from the cache are the ids of the whole text.

use super::*;
use crate::prompt::tokenizer::tests::{Random, loaded, loaded_with};

/// The ids of `text` by turns of `budget` bytes, and how many turns it took. What a core may not
/// encode is finished as a thread beside it would.
fn turns(
    tokenizer: &Arc<Tokenizer>,
    text: &str,
    cache: &mut SegmentCache,
    budget: usize,
) -> (Vec<u32>, usize) {
    let mut job = EncodeJob::new(tokenizer, true);
    let (mut ids, mut turns) = (Vec::new(), 0);
    loop {
        turns += 1;
        match job.advance(text, cache, budget, &mut ids).unwrap() {
            Progress::More => {}
            Progress::Done => return (ids, turns),
            Progress::TooLong { bytes } => {
                assert_eq!(bytes, text.len() - job.done_bytes());
                job.finish(text, cache, &mut ids).unwrap();
            }
        }
    }
}

fn whole(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode_whole(text, true, &mut ids).unwrap();
    ids
}

#[test]
fn any_budget_gives_the_ids_of_the_whole() {
    let tokenizer = loaded();
    let mut random = Random::new(1);
    for round in 0..40 {
        let text = random.text(100 + round * 300);
        let expected = whole(&tokenizer, &text);
        for budget in [0, 1, 100, 5000, usize::MAX] {
            // A turn of no budget at all would never end.
            let budget = budget.max(1);
            let mut cache = SegmentCache::new(1 << 20);
            let (ids, turns) = turns(&tokenizer, &text, &mut cache, budget);
            assert_eq!(ids, expected, "budget {budget}, text {text:?}");
            assert!(budget < usize::MAX || turns == 1);
            assert!(budget > 100 || turns > 1 || text.len() < 200);
        }
    }
}

#[test]
fn a_turn_encodes_about_its_budget() {
    let tokenizer = loaded();
    let text = "the gateway keeps the prompt of every request ".repeat(2000);
    let mut cache = SegmentCache::new(0);
    let mut job = EncodeJob::new(&tokenizer, false);
    let (mut ids, mut before) = (Vec::new(), 0);
    while job.advance(&text, &mut cache, 8000, &mut ids).unwrap() == Progress::More {
        let done = job.done_bytes() - before;
        assert!((8000 - 4096..8000 + 4096).contains(&done), "{done}");
        before = job.done_bytes();
    }
    assert_eq!(ids, whole(&tokenizer, &text));
}

#[test]
fn cached_ids_are_those_of_the_library_while_the_cache_forgets() {
    let tokenizer = loaded();
    let mut random = Random::new(2);
    let systems: Vec<String> = (0..6).map(|_| random.text(1500)).collect();
    let mut chats = vec![String::new(); 12];
    let mut cache = SegmentCache::new(64 << 10);
    for turn in 0..200 {
        // Conversations that grow, taking turns as live traffic does.
        let i = turn % chats.len();
        let chat = &mut chats[i];
        if chat.is_empty() || chat.len() > 8000 {
            *chat = format!("<|im_start|>system\n{}<|im_end|>\n", systems[turn % systems.len()]);
        }
        chat.push_str(&format!("<|im_start|>user\n{}<|im_end|>\n", random.text(400)));
        assert_eq!(turns(&tokenizer, chat, &mut cache, 3000).0, whole(&tokenizer, chat));
    }
    let stats = cache.stats();
    assert!(stats.hits > 200 && stats.misses > 200 && stats.turns > 3, "{stats:?}");
    assert!(stats.bytes <= 64 << 10, "{stats:?}");
}

#[test]
fn a_text_that_grows_keeps_its_parts() {
    let tokenizer = loaded();
    let mut cache = SegmentCache::new(4 << 20);
    let mut text = "x".to_owned();
    let mut random = Random::new(3);
    for _ in 0..30 {
        text.push_str(&random.words(1000));
        let before = cache.stats();
        assert_eq!(turns(&tokenizer, &text, &mut cache, usize::MAX).0, whole(&tokenizer, &text));
        let after = cache.stats();
        assert!(after.misses - before.misses <= 2, "{before:?} {after:?} at {}", text.len());
    }
    assert!(text.len() > 20_000 && cache.stats().hits > 100);
}

#[test]
fn a_run_without_a_cut_is_not_for_a_core() {
    let tokenizer = loaded();
    let mut cache = SegmentCache::new(1 << 20);
    for run in ["a".repeat(5000), " ".repeat(5000), "\n".repeat(5000), "👍".repeat(2000)] {
        let text = format!("some words before it: {run}. And some words after it.");
        let (mut job, mut ids) = (EncodeJob::new(&tokenizer, false), Vec::new());
        let progress = job.advance(&text, &mut cache, usize::MAX, &mut ids).unwrap();
        assert!(matches!(progress, Progress::TooLong { .. }), "{progress:?}");
        job.finish(&text, &mut cache, &mut ids).unwrap();
        assert_eq!(ids, whole(&tokenizer, &text));
        let again = job.advance(&text, &mut cache, 1, &mut ids).unwrap();
        assert_eq!((again, ids.len()), (Progress::Done, whole(&tokenizer, &text).len()));
    }
    // A core takes what is shorter.
    let text = "a".repeat(4000);
    let (ids, turns) = turns(&tokenizer, &text, &mut cache, usize::MAX);
    assert_eq!((ids, turns), (whole(&tokenizer, &text), 1));
}

#[test]
fn a_storm_of_added_tokens_is_cut_into_turns() {
    let tokenizer = loaded();
    let text = "<|im_end|>".repeat(3000);
    let (ids, turns) = turns(&tokenizer, &text, &mut SegmentCache::new(0), 8000);
    assert_eq!(ids, whole(&tokenizer, &text));
    assert!(turns >= 6, "{turns}");
}

#[test]
fn ids_around_a_text_are_put_once() {
    let template = serde_json::json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
                   {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [7], "tokens": ["<|endoftext|>"]},
            "<|im_end|>": {"id": "<|im_end|>", "ids": [8, 9], "tokens": ["a", "b"]}}});
    let tokenizer = loaded_with(|json| json["post_processor"] = template);
    let mut cache = SegmentCache::new(1 << 20);
    for text in ["", "a b", &"some words ".repeat(1000)] {
        let ids = turns(&tokenizer, text, &mut cache, 900).0;
        assert_eq!(ids, whole(&tokenizer, text));
        assert_eq!((ids[0], &ids[ids.len() - 2..]), (7, [8, 9].as_slice()));
    }
}

#[test]
fn a_model_that_cannot_be_cut_is_encoded_whole() {
    let tokenizer = loaded_with(|json| {
        json["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true.into()
    });
    assert!(tokenizer.cuts().added.is_err());
    let mut cache = SegmentCache::new(1 << 20);
    let mut random = Random::new(4);
    for bytes in [10, 500, 3000, 9000] {
        let text = random.text(bytes);
        assert_eq!(turns(&tokenizer, &text, &mut cache, 100).0, whole(&tokenizer, &text));
    }
    let mut job = EncodeJob::new(&tokenizer, true);
    let text = "some words ".repeat(1000);
    let progress = job.advance(&text, &mut cache, usize::MAX, &mut Vec::new()).unwrap();
    assert_eq!(progress, Progress::TooLong { bytes: text.len() });
}
