//! Makes requests: prompts of a known length that order a known answer.
//!
//! A prompt is a shared beginning (one of K, chosen at random), the tag, and filler. A token is
//! taken as four bytes, which is exact for the simulator and near for English text elsewhere.
//! Owned by one thread; no I/O, no clock.

use std::io::Write as _;
use std::sync::Arc;

use super::answer::Expected;
use super::wire::Request;
use super::{Answers, Api, Options, Target};

/// Bytes of a token.
const TOKEN_BYTES: usize = 4;

/// Tags have at most 16 digits, so that `[[tag:N]]` always takes 24 bytes: six tokens.
const TAG_MAX: u64 = 10_000_000_000_000_000;
const TAG_BYTES: usize = 24;

const FILLER: &[u8] = b"The quick brown fox jumps over the lazy dog while it rains in the hills. ";

/// The requests of one thread.
pub(super) struct Prompts {
    options: Arc<Options>,
    rng: fastrand::Rng,
    prefixes: Vec<Vec<u8>>,
    filler: Vec<u8>,
    body: Vec<u8>,
}

impl Prompts {
    pub(super) fn new(options: &Arc<Options>, thread: usize) -> Prompts {
        let prefix_bytes = options.prefix_tokens * TOKEN_BYTES;
        let total = options.prompt_tokens * TOKEN_BYTES;
        let filler = total.saturating_sub(prefix_bytes + TAG_BYTES);
        let count = if prefix_bytes > 0 { options.prefixes.max(1) } else { 1 };
        // The same for all threads, so that they share them.
        let mut words = fastrand::Rng::with_seed(options.seed);
        let prefix = |_| {
            let letter = |_| if words.u8(..6) == 0 { b' ' } else { words.lowercase() as u8 };
            (0..prefix_bytes).map(letter).collect()
        };
        Prompts {
            options: Arc::clone(options),
            prefixes: (0..count).map(prefix).collect(),
            rng: fastrand::Rng::with_seed(options.seed.wrapping_add((thread as u64) << 32)),
            filler: FILLER.iter().copied().cycle().take(filler).collect(),
            body: Vec::new(),
        }
    }

    /// A request to `target`, due at `due_ns`. Those of one `pair` ask for the same kind of answer.
    pub(super) fn next(&mut self, target: &Target, pair: u64, due_ns: u64) -> Request {
        let options = Arc::clone(&self.options);
        let stream = match options.answers {
            Answers::Streams => true,
            Answers::Whole => false,
            Answers::MixedEvery(n) => !pair.is_multiple_of(n.max(2)),
        };
        let tag = self.rng.u64(..TAG_MAX);
        self.body(target, tag, stream);
        let mut bytes = Vec::with_capacity(self.body.len() + 256);
        let path = match options.api {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
        };
        let _ =
            write!(bytes, "POST {}{path} HTTP/1.1\r\nhost: {}\r\n", target.base, target.authority);
        if let Some(key) = &target.key {
            let _ = write!(bytes, "authorization: Bearer {}\r\n", key.expose());
        }
        let length = self.body.len();
        let _ = write!(bytes, "content-type: application/json\r\ncontent-length: {length}\r\n\r\n");
        bytes.extend_from_slice(&self.body);
        let prompt = self.prefixes.first().map_or(0, Vec::len) + TAG_BYTES + self.filler.len();
        let expected = Expected {
            api: options.api,
            stream,
            usage: options.usage && stream,
            tag,
            words: options.words,
            tokens: options.output_tokens,
            prompt_tokens: prompt.div_ceil(TOKEN_BYTES) as u64,
            due_ns,
        };
        Request { bytes, expected }
    }

    fn body(&mut self, target: &Target, tag: u64, stream: bool) {
        let model = serde_json::Value::from(target.model.as_str());
        let (before, after) = match self.options.api {
            Api::Chat => ("\"messages\":[{\"role\":\"user\",\"content\":\"", "\"}]"),
            Api::Completions => ("\"prompt\":\"", "\""),
        };
        let body = &mut self.body;
        body.clear();
        let _ = write!(body, "{{\"model\":{model},{before}");
        let prefix = prefix(&mut self.rng, self.prefixes.len(), self.options.hot);
        body.extend_from_slice(&self.prefixes[prefix]);
        let _ = write!(body, "[[tag:{tag:016}]]");
        body.extend_from_slice(&self.filler);
        let _ = write!(body, "{after},\"max_tokens\":{}", self.options.output_tokens);
        if stream {
            body.extend_from_slice(b",\"stream\":true");
            if self.options.usage {
                body.extend_from_slice(b",\"stream_options\":{\"include_usage\":true}");
            }
        }
        body.push(b'}');
    }
}

/// Which of `count` beginnings the next prompt has.
fn prefix(rng: &mut fastrand::Rng, count: usize, hot: f64) -> usize {
    match count {
        0 | 1 => 0,
        // Draws nothing more, so that a seed without hot traffic stays what it was.
        _ if hot <= 0.0 => rng.usize(..count),
        _ if rng.f64() < hot => 0,
        _ => rng.usize(1..count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
