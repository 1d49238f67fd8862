//! Token ids of real models, against `tokenizers` as the oracle: 0 wrong.
//!
//! Needs the files of `scripts/fetch-tokenizers`, so plain `cargo test` leaves it out; run
//! `cargo test --test exact_tokens`. `EXPEDITE_EXACT=full` tries all that is to be tried (1,000
//! prompts, every code point, ...), without it a sample of that takes some minutes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use expedite::prompt::encode::{EncodeJob, Progress};
use expedite::prompt::segments::SegmentCache;
use expedite::prompt::tokenizer::{Engine, Tokenizer};
use fastrand::Rng;

#[path = "support/hostile.rs"]
mod hostile;
#[path = "support/prompts.rs"]
mod prompts;

use prompts::{Marks, Prompts};

/// A model's tokenizer, ours and the oracle's.
struct Model {
    name: &'static str,
    ours: Arc<Tokenizer>,
    oracle: tokenizers::Tokenizer,
    marks: Marks,
}

/// `full` of what there is to try, or a share of it.
fn count(full: usize, share: usize) -> usize {
    match std::env::var("EXPEDITE_EXACT").as_deref() {
        Ok("full") => full,
        _ => full / share,
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(".cache/tokenizers").join(name);
    assert!(folder.is_dir(), "{name} is not there: run scripts/fetch-tokenizers {name}");
    folder
}

impl Model {
    fn load(name: &'static str, open: &'static str, close: &'static str) -> Model {
        let folder = folder(name);
        let ours = Tokenizer::load(&folder).unwrap();
        assert_eq!(ours.engine(), Engine::Fastokens);
        assert_eq!(ours.cuts().added, Ok(()));
        ours.warm();
        let oracle = tokenizers::Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
        Model { name, ours: Arc::new(ours), oracle, marks: Marks { open, close } }
    }

    fn expected(&self, text: &str, add_special: bool) -> Vec<u32> {
        self.oracle.encode_fast(text, add_special).unwrap().get_ids().to_vec()
    }

    fn whole(&self, text: &str, add_special: bool) -> Vec<u32> {
        let mut ids = Vec::new();
        self.ours.encode_whole(text, add_special, &mut ids).unwrap();
        ids
    }

    /// The ids in turns of `budget` bytes, with a cache.
    fn turns(&self, text: &str, cache: &mut SegmentCache, budget: usize) -> Vec<u32> {
        let (mut job, mut ids) = (EncodeJob::new(&self.ours, false), Vec::new());
        loop {
            match job.advance(text, cache, budget, &mut ids).unwrap() {
                Progress::More => {}
                Progress::Done => return ids,
                Progress::TooLong { .. } => job.finish(text, cache, &mut ids).unwrap(),
            }
        }
    }

    /// Prompts of about 1,800 tokens: whole, in turns, and again from the cache.
    fn chat_prompts(&self) {
        let mut prompts = Prompts::new(1, self.marks);
        let mut cache = SegmentCache::new(1 << 20);
        let (mut tokens, prompts_max) = (0, count(1000, 5));
        for i in 0..prompts_max {
            let text = prompts.chat(6400);
            let add_special = i % 2 == 0;
            let expected = self.expected(&text, add_special);
            self.same(&self.whole(&text, add_special), &expected, &text);
            let expected = if add_special { self.expected_plain(&expected) } else { expected };
            let budget = prompts.random.usize(1..9000);
            self.same(&self.turns(&text, &mut cache, budget), &expected, &text);
            self.same(&self.turns(&text, &mut cache, 40_000), &expected, &text);
            tokens += expected.len();
        }
        let stats = cache.stats();
        println!("{}: {} tokens a prompt, {stats:?}", self.name, tokens / prompts_max);
        assert!((1400..2400).contains(&(tokens / prompts_max)), "{}", tokens / prompts_max);
        assert!(stats.hits > 0 && stats.turns > 0, "{stats:?}");
    }

    /// The same ids without those around the text.
    fn expected_plain(&self, ids: &[u32]) -> Vec<u32> {
        let (around, ids) = (self.expected("", true), ids.to_vec());
        assert!(around.len() <= 1, "at most BOS");
        ids[around.len()..].to_vec()
    }

    /// A shared system prompt, and conversations that grow in turns, as in live traffic, with a
    /// cache far too small for them.
    fn growing_chats(&self) {
        let mut prompts = Prompts::new(2, self.marks);
        let systems: Vec<String> = (0..8).map(|_| prompts.turn("system", 5000)).collect();
        let mut chats = vec![String::new(); 20];
        let mut cache = SegmentCache::new(192 << 10);
        for turn in 0..count(600, 3) {
            let i = prompts.random.usize(0..chats.len());
            if chats[i].is_empty() || chats[i].len() > 14_000 {
                chats[i] = systems[turn % systems.len()].clone();
            }
            let said = prompts.turn(if turn % 2 == 0 { "user" } else { "assistant" }, 900);
            chats[i].push_str(&said);
            let expected = self.expected(&chats[i], false);
            self.same(&self.turns(&chats[i], &mut cache, 32_000), &expected, &chats[i]);
        }
        let stats = cache.stats();
        println!("{}: growing chats, {stats:?}", self.name);
        assert!(stats.hits > 100 && stats.turns > 3, "{stats:?}");
        assert!(stats.bytes <= 192 << 10);
    }

    /// Short strings of what trips splitters and normalizers.
    fn hostile_strings(&self) {
        let mut random = Rng::with_seed(3);
        let mut cache = SegmentCache::new(1 << 20);
        for _ in 0..count(4000, 1) {
            let text = hostile::text(&mut random, self.marks);
            let expected = self.expected(&text, false);
            self.same(&self.whole(&text, false), &expected, &text);
            self.same(&self.turns(&text, &mut cache, 50), &expected, &text);
        }
    }

    /// Every code point alone and after a letter.
    fn code_points(&self) {
        let step = count(64, 8) as u32;
        for c in (0..=0x10_FFFF).filter_map(char::from_u32) {
            // Planes without a single character, or only private ones, are all alike.
            let plain = u32::from(c) >= 0x4_0000 && !(0xE_0000..0xE_0200).contains(&u32::from(c));
            if plain && u32::from(c) % 64 >= step {
                continue;
            }
            for text in [c.to_string(), format!("a{c}")] {
                self.same(&self.whole(&text, false), &self.expected(&text, false), &text);
            }
        }
    }

    /// Random places where a text may be cut.
    fn cuts(&self) {
        let mut prompts = Prompts::new(4, self.marks);
        let cuts = self.ours.cuts();
        assert_eq!(cuts.letter_space, Ok(()));
        let (mut spaces, mut others, wanted) = (0, 0, count(6000, 3));
        while spaces < wanted || others < wanted {
            let text = match prompts.random.bool() {
                true => prompts.turn("user", 300),
                false => hostile::text(&mut prompts.random, Marks { open: "", close: "" }),
            };
            // Between added tokens, where the gateway cuts.
            let text = text.replace(['<', '>', '|', '[', ']'], "");
            let expected = self.expected(&text, false);
            let places: Vec<(usize, char)> = text
                .char_indices()
                .skip(1)
                .zip(text.chars())
                .filter(|&((_, after), before)| cuts.between(before, after))
                .map(|(place, _)| place)
                .collect();
            for _ in 0..8.min(places.len()) {
                let (at, after) = places[prompts.random.usize(0..places.len())];
                let mut ids = self.whole(&text[..at], false);
                ids.extend(self.whole(&text[at..], false));
                self.same(&ids, &expected, &text);
                *(if after == ' ' { &mut spaces } else { &mut others }) += 1;
            }
        }
    }

    /// Ids to text and to tokens.
    fn decoding(&self) {
        let mut random = Rng::with_seed(5);
        let size = self.oracle.get_vocab_size(true) as u32;
        for id in (0..size + 300).filter(|id| id % 7 == 0 || *id > size - 300) {
            assert_eq!(self.ours.id_to_token(id), self.oracle.id_to_token(id), "{id}");
        }
        for _ in 0..500 {
            let ids: Vec<u32> = (0..random.usize(1..40)).map(|_| random.u32(0..size)).collect();
            for skip in [false, true] {
                let expected = self.oracle.decode(&ids, skip).unwrap();
                assert_eq!(self.ours.decode(&ids, skip).unwrap(), expected, "{ids:?}");
            }
        }
        assert!(self.ours.vocab_size() >= size);
    }

    #[track_caller]
    fn same(&self, ids: &[u32], expected: &[u32], text: &str) {
        if ids == expected || self.is_known(text) {
            return;
        }
        let at = ids.iter().zip(expected).take_while(|(a, b)| a == b).count();
        let tail = |ids: &[u32]| ids[at..ids.len().min(at + 8)].to_vec();
        let (ours, theirs) = (tail(ids), tail(expected));
        panic!("{}: after {at} ids {ours:?} for {theirs:?} in {text:?}", self.name);
    }

    /// The one known difference: o200k's `(?i:'s)` also takes an apostrophe and a long s (U+017F)
    /// along with the word before, as that folds to s; fastokens does not, and takes an apostrophe
    /// that follows for the end of the same word.
    fn is_known(&self, text: &str) -> bool {
        self.name == "gptoss" && text.contains("'\u{17f}'")
    }
}

/// The tests of one model; `true` if it can be cut between characters.
macro_rules! model {
    ($name:ident, $open:literal, $close:literal, $cut:literal) => {
        mod $name {
            use super::*;

            static MODEL: LazyLock<Model> =
                LazyLock::new(|| Model::load(stringify!($name), $open, $close));

            #[test]
            fn chat_prompts() {
                MODEL.chat_prompts();
            }

            #[test]
            fn growing_chats() {
                MODEL.growing_chats();
            }

            #[test]
            fn hostile_strings() {
                MODEL.hostile_strings();
            }

            #[test]
            fn code_points() {
                MODEL.code_points();
            }

            #[test]
            fn cuts() {
                if $cut {
                    MODEL.cuts();
                } else {
                    assert!(MODEL.ours.cuts().letter_space.is_err());
                }
            }

            #[test]
            fn decoding() {
                MODEL.decoding();
            }
        }
    };
}

model!(qwen3, "<|im_start|>ROLE\n", "<|im_end|>\n", true);
model!(llama3_1, "<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>", true);
model!(deepseek_v3, "<｜User｜>", "<｜end▁of▁sentence｜>", true);
model!(gptoss, "<|start|>ROLE<|channel|>final<|message|>", "<|end|>", true);
model!(gemma3, "<start_of_turn>ROLE\n", "<end_of_turn>\n", false);

#[test]
fn the_known_difference_is_still_there() {
    let model = Model::load("gptoss", "", "");
    let text = "x'\u{17f}'tt";
    assert_ne!(model.whole(text, false), model.expected(text, false), "then is_known can go");
}
