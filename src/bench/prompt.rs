//! Makes requests: prompts of a known length that order a known answer.
//!
//! A conversation begins with a text that others share (one of K, or as a trace names it), then a
//! tag, which no other prompt has, and filler; each later turn is the conversation so far, a tag
//! and filler. A server of words is told the tag by name; for any other model it is words of its
//! own, of one token each, since a number would be three times as long as it was counted. Owned by
//! one thread; no I/O, no clock.

use std::io::Write as _;
use std::sync::Arc;

use super::answer::Expected;
use super::text::{self, TOKEN_BYTES};
use super::wire::Request;
use super::{Answers, Api, Load, Options, Target};
use crate::plan::random::{Zipf, mix, stream};
use crate::plan::workload::{BLOCK_TOKENS, Session, Text};

/// Tags have at most 16 digits, so that `[[tag:N]]` always takes 24 bytes: six tokens.
const TAG_MAX: u64 = 10_000_000_000_000_000;
const TAG_BYTES: usize = 24;
/// Of what is given up on purpose, the share whose moment is a time; the rest's is an event.
const BY_TIME: f64 = 0.5;

/// A conversation under way.
#[derive(Debug)]
pub(super) struct Talk {
    /// 0 the target, 1 the direct one.
    pub(super) side: usize,
    /// Its number on its side.
    pair: u64,
    /// Place among the models, when there are several.
    model: usize,
    /// Messages so far, as they stand in the next turn's body.
    history: Vec<u8>,
    turn: usize,
    turns: usize,
    opening: Opening,
}

/// How a conversation begins.
#[derive(Clone, Copy, Debug)]
enum Opening {
    /// With a shared text.
    Prefix(usize),
    /// With nothing that others have, and so many tokens.
    Long(u64),
    /// As the trace's session of this place.
    Recorded(usize),
}

impl Talk {
    /// Whether a turn is left.
    pub(super) fn goes_on(&self) -> bool {
        self.turn < self.turns
    }

    /// Keeps what was asked and what was answered for the next turn.
    pub(super) fn said(&mut self, api: Api, asked: &[u8], answered: &[u8]) {
        if !self.goes_on() {
            return;
        }
        let history = &mut self.history;
        let [before, between, after]: [&[u8]; 3] = match api {
            Api::Chat => [
                b"{\"role\":\"user\",\"content\":\"",
                b"\"},{\"role\":\"assistant\",\"content\":\"",
                b"\"},",
            ],
            Api::Completions => [b"", b"", b""],
        };
        for piece in [before, asked, between, answered, after] {
            history.extend_from_slice(piece);
        }
    }
}

/// The requests of one thread.
pub(super) struct Prompts {
    options: Arc<Options>,
    rng: fastrand::Rng,
    prefixes: Vec<Vec<u8>>,
    popularity: Zipf,
    /// Names as they stand in a body.
    models: Vec<String>,
    model_popularity: Zipf,
    filler: Vec<u8>,
    /// The new text of the request that is being made.
    text: Vec<u8>,
    body: Vec<u8>,
}

impl Prompts {
    pub(super) fn new(options: &Arc<Options>, thread: usize) -> Prompts {
        let prefix_bytes = options.prefix_tokens * TOKEN_BYTES;
        let count = if prefix_bytes > 0 { options.prefixes.max(1) } else { 1 };
        // The same for all threads, so that they share them.
        let prefix = |i: usize| {
            let mut prefix = Vec::with_capacity(prefix_bytes);
            text::append(mix(options.seed ^ mix(i as u64)), prefix_bytes, &mut prefix);
            prefix
        };
        let quoted = |name: &String| serde_json::Value::from(name.as_str()).to_string();
        Prompts {
            options: Arc::clone(options),
            prefixes: (0..count).map(prefix).collect(),
            popularity: Zipf::of(count as u32, options.zipf),
            models: options.models.iter().map(quoted).collect(),
            model_popularity: Zipf::of(options.models.len() as u32, options.zipf),
            rng: stream(mix(options.seed ^ mix(options.run)), thread as u64),
            filler: Vec::new(),
            text: Vec::new(),
            body: Vec::new(),
        }
    }

    /// Begins conversation `number` of its side: with a trace, that of this place in it.
    pub(super) fn begin(&mut self, side: usize, pair: u64, place: usize) -> Talk {
        let options = Arc::clone(&self.options);
        let mut model = 0;
        if self.models.len() > 1 {
            model = self.model_popularity.draw(&mut self.rng) as usize;
        }
        let (opening, turns) = match &options.load {
            Load::Trace(workload) => {
                let turns = workload.sessions.get(place).map_or(0, |s| s.turns.len());
                (Opening::Recorded(place), turns)
            }
            _ => match options.long {
                Some((share, tokens)) if self.rng.f64() < share => (Opening::Long(tokens), 1),
                _ => (Opening::Prefix(self.prefix()), options.turns.max(1) as usize),
            },
        };
        Talk { side, pair, model, history: Vec::new(), turn: 0, turns, opening }
    }

    /// Which of the beginnings the next conversation has.
    fn prefix(&mut self) -> usize {
        if self.options.zipf > 0.0 {
            return self.popularity.draw(&mut self.rng) as usize;
        }
        prefix(&mut self.rng, self.prefixes.len(), self.options.hot)
    }

    /// A conversation's next request to `target`, due at `due_ns`. Those of one pair ask for the
    /// same kind of answer.
    pub(super) fn next(&mut self, talk: &mut Talk, target: &Target, due_ns: u64) -> Request {
        let options = Arc::clone(&self.options);
        let stream = match options.answers {
            Answers::Streams => true,
            Answers::Whole => false,
            Answers::MixedEvery(n) => !talk.pair.is_multiple_of(n.max(2)),
        };
        let tag = self.rng.u64(..TAG_MAX);
        let tokens = self.write_text(talk, tag);
        talk.turn += 1;
        let text_at = self.write_body(talk, target, tokens, stream);
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
        let text = bytes.len() + text_at..bytes.len() + text_at + self.text.len();
        bytes.extend_from_slice(&self.body);
        let (cancel_at, cancel_after) = self.cancel(tokens, stream);
        let prompt_bytes = talk.history.len() + self.text.len();
        let expected = Expected {
            api: options.api,
            stream,
            usage: options.usage && stream,
            tag,
            words: options.words,
            tokens,
            prompt_tokens: prompt_bytes.div_ceil(TOKEN_BYTES) as u64,
            due_ns,
            keep: talk.goes_on(),
            cancel_after,
        };
        Request { bytes, text, expected, cancel_at }
    }

    /// Whether and when a request is given up: at a share of the usual time, or after an event.
    fn cancel(&mut self, tokens: u64, stream: bool) -> (Option<f64>, Option<u64>) {
        let share = self.options.cancel;
        if share <= 0.0 || self.rng.f64() >= share {
            return (None, None);
        }
        if !stream || self.rng.f64() < BY_TIME {
            return (Some(self.rng.f64()), None);
        }
        (None, Some(self.rng.u64(1..=tokens.max(1))))
    }

    /// Writes the new text of a turn, and draws how long its answer is to be.
    fn write_text(&mut self, talk: &Talk, tag: u64) -> u64 {
        let Options { prompt_tokens, output_tokens, prefix_tokens, .. } = *self.options;
        self.text.clear();
        let rng = &mut self.rng;
        let (shared, bytes, tokens) = match talk.opening {
            Opening::Recorded(place) => return self.write_recorded(talk, place, tag),
            Opening::Long(tokens) => (None, tokens, output_tokens.draw(rng)),
            Opening::Prefix(prefix) if talk.turn == 0 => {
                (self.prefixes.get(prefix), prompt_tokens.draw(rng), output_tokens.draw(rng))
            }
            Opening::Prefix(_) => {
                let own = prompt_tokens.draw(rng).saturating_sub(prefix_tokens as u64);
                (None, own, output_tokens.draw(rng))
            }
        };
        if let Some(prefix) = shared {
            self.text.extend_from_slice(prefix);
        }
        self.fill(bytes as usize * TOKEN_BYTES, tag);
        tokens.max(1)
    }

    /// The same for a turn of a trace.
    fn write_recorded(&mut self, talk: &Talk, place: usize, tag: u64) -> u64 {
        let options = Arc::clone(&self.options);
        let Load::Trace(workload) = &options.load else { return 1 };
        let Some(session) = workload.sessions.get(place) else { return 1 };
        let Some(turn) = session.turns.get(talk.turn) else { return 1 };
        let before = talk.turn.checked_sub(1).and_then(|i| session.turns.get(i));
        let before = before.map_or(0, |turn| turn.prompt_tokens + turn.output_tokens);
        let bytes = turn.prompt_tokens.saturating_sub(before) as usize * TOKEN_BYTES;
        if talk.turn == 0 {
            shared(session, bytes.saturating_sub(TAG_BYTES), &mut self.text);
        }
        self.fill(bytes, tag);
        u64::from(turn.output_tokens)
    }

    /// Adds the tag, and filler up to `bytes`.
    fn fill(&mut self, bytes: usize, tag: u64) {
        match self.options.words {
            Some(_) => drop(write!(self.text, "[[tag:{tag:016}]]")),
            None => text::append(tag, TAG_BYTES, &mut self.text),
        }
        let filler = bytes.saturating_sub(self.text.len());
        if self.filler.len() < filler {
            self.filler.clear();
            text::append(0, filler.next_power_of_two(), &mut self.filler);
        }
        self.text.extend_from_slice(self.filler.get(..filler).unwrap_or_default());
    }

    /// Writes the body; where in it the new text begins.
    fn write_body(&mut self, talk: &Talk, target: &Target, tokens: u64, stream: bool) -> usize {
        let body = &mut self.body;
        body.clear();
        match self.models.get(talk.model) {
            Some(model) => drop(write!(body, "{{\"model\":{model},")),
            None => {
                let model = serde_json::Value::from(target.model.as_str());
                drop(write!(body, "{{\"model\":{model},"));
            }
        }
        let [open, before, after]: [&[u8]; 3] = match self.options.api {
            Api::Chat => {
                [b"\"messages\":[", b"{\"role\":\"user\",\"content\":\"", b"\"}],\"max_tokens\":"]
            }
            Api::Completions => [b"\"prompt\":\"", b"", b"\",\"max_tokens\":"],
        };
        body.extend_from_slice(open);
        body.extend_from_slice(&talk.history);
        body.extend_from_slice(before);
        let text_at = body.len();
        body.extend_from_slice(&self.text);
        body.extend_from_slice(after);
        let _ = write!(body, "{tokens}");
        if self.options.ignore_eos {
            body.extend_from_slice(b",\"ignore_eos\":true");
        }
        if stream {
            body.extend_from_slice(b",\"stream\":true");
            if self.options.usage {
                body.extend_from_slice(b",\"stream_options\":{\"include_usage\":true}");
            }
        }
        body.push(b'}');
        text_at
    }
}

/// What a session's prompt shares with others, up to `bytes_max`.
fn shared(session: &Session, bytes_max: usize, out: &mut Vec<u8>) {
    let block_bytes = BLOCK_TOKENS as usize * TOKEN_BYTES;
    let mut append = |key: u64, bytes: usize| {
        let bytes = bytes.min(bytes_max.saturating_sub(out.len()));
        text::append(key, bytes, out);
    };
    match &session.text {
        Text::Shared { key, blocks, .. } => append(*key, *blocks as usize * block_bytes),
        Text::Named { names, blocks_each, .. } => {
            names.iter().for_each(|name| append(*name, *blocks_each as usize * block_bytes));
        }
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
#[path = "prompt_tests.rs"]
mod tests;
