//! What an engine's whole JSON body says: usage, an error, an end by abort.
//!
//! A hostile or broken engine must not make us charge nonsense: counts that are negative, not
//! whole or absurd are left out and flagged, and the caller's own count stands.

use super::Span;
use super::call::TOKENS_MAX;
use super::json::{Error, Kind, Scanner, Value, inner};

/// Tokens as the engine counted them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, cached ones included.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
    /// Prompt tokens found in the prefix cache: `Some(0)` is none, `None` is not said (absent or
    /// null).
    pub cached_tokens: Option<u64>,
}

/// An error that the engine reports. Spans are JSON strings with their quotes; empty when absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineError {
    /// The status as the engine would have sent it: vLLM's `code`.
    pub code: Option<u16>,
    /// Its `message`.
    pub message: Span,
    /// Its `type`.
    pub kind: Span,
}

impl EngineError {
    /// The status as the engine gave it, or as its type has it.
    #[must_use]
    pub fn status(&self, json: &[u8]) -> Option<u16> {
        let at_fault =
            matches!(inner(self.kind.of(json)), b"invalid_request_error" | b"BadRequestError");
        self.code.or(at_fault.then_some(400))
    }
}

/// What a whole body says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answer {
    /// The body is JSON, an object.
    pub valid: bool,
    /// Its usage, when present and sound.
    pub usage: Option<Usage>,
    /// A usage was present but not sound (negative, a fraction, absurd, doubled, incomplete).
    pub usage_odd: bool,
    /// Some choice ended with `finish_reason: "abort"`: the engine was stopped.
    pub abort: bool,
    /// It is an error.
    pub error: Option<EngineError>,
}

/// Reads a whole JSON body of any endpoint.
#[must_use]
pub fn read_answer(json: &[u8]) -> Answer {
    let Ok(facts) = Facts::read(json) else { return Answer::default() };
    let Facts { usage, usage_odd, abort, error, .. } = facts;
    Answer { valid: true, usage, usage_odd, abort, error }
}

/// Bytes of what was generated in a whole answer of chat, completions, messages or responses: its
/// text, thoughts, and arguments of calls, escapes as they stand.
#[must_use]
pub fn text_bytes(json: &[u8]) -> u64 {
    Scanner::new(json).ok().and_then(|mut scanner| texts(&mut scanner, json).ok()).unwrap_or(0)
}

/// The scanner bounds how deep this goes.
fn texts(scanner: &mut Scanner<'_>, json: &[u8]) -> Result<u64, Error> {
    const KEYS: [&[u8]; 7] = [
        b"content",
        b"text",
        b"reasoning",
        b"reasoning_content",
        b"thinking",
        b"refusal",
        b"arguments",
    ];
    let mut bytes: u64 = 0;
    match scanner.peek() {
        Some(Kind::Array) => {
            scanner.array(|scanner, _| {
                bytes = bytes.saturating_add(texts(scanner, json)?);
                Ok::<(), Error>(())
            })?;
        }
        Some(Kind::Object) => {
            scanner.object(|scanner, key| {
                let is_text = scanner.peek() == Some(Kind::String) && KEYS.contains(&key.name);
                bytes = bytes.saturating_add(if is_text {
                    super::json::inner(scanner.value()?.span.of(json)).len() as u64
                } else {
                    texts(scanner, json)?
                });
                Ok::<(), Error>(())
            })?;
        }
        _ => drop(scanner.value()?),
    }
    Ok(bytes)
}

/// The usage in the end of a body whose beginning is gone: an object's last members.
///
/// Text cannot fake it: the quotes of a key are bare, and within a string they would not be.
#[must_use]
pub fn usage_in_tail(tail: &[u8]) -> Option<Usage> {
    let at = memchr::memmem::rfind(tail, b"\"usage\"")?;
    let members = tail.get(at..)?;
    read_answer(&[b"{", members].concat()).usage
}

/// The last usage in the end of a text whose beginning is gone, however deep it lies in it.
pub(super) fn last_usage(tail: &[u8]) -> Option<Usage> {
    const KEY: &[u8] = b"\"usage\"";
    let at = memchr::memmem::rfind(tail, KEY)?;
    let value = tail.get(at + KEY.len()..)?.trim_ascii_start().strip_prefix(b":")?;
    let usage = Scanner::new(value).ok()?.value().ok()?.span;
    read_answer(&[b"{\"usage\":", usage.of(value), b"}"].concat()).usage
}

/// What one JSON object from the engine says, a whole body or one event's data.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) usage: Option<Usage>,
    pub(super) usage_odd: bool,
    pub(super) abort: bool,
    pub(super) finish: bool,
    pub(super) error: Option<EngineError>,
    /// Entries of `choices`; `None` without one.
    pub(super) choices: Option<usize>,
    /// Each choice has a delta with a role and nothing else in it.
    pub(super) role_only: bool,
    /// The outermost `type`, with its quotes.
    pub(super) kind: Span,
    pub(super) flat: EngineError,
    pub(super) object: Span,
    /// The indices of what it is about: of the choice, item or block, and of the part in it.
    pub(super) place: [u32; 2],
    /// The type of the `item`, `content_block` or `part` that it opens, with its quotes.
    pub(super) opened: Span,
}

impl Facts {
    pub(super) fn read(json: &[u8]) -> Result<Facts, Error> {
        let mut scanner = Scanner::new(json)?;
        let mut facts = Facts::default();
        scanner.object(|scanner, key| facts.member(scanner, key.name, json))?;
        scanner.finish()?;
        // vLLM before 0.10: {"object":"error","message":...}; responses: {"type":"error",...}.
        let flat = facts.object.of(json) == b"\"error\""
            || facts.kind.of(json) == b"\"error\"" && facts.flat.message.len > 0;
        if flat && facts.error.is_none() {
            facts.error = Some(EngineError { kind: facts.kind, ..facts.flat });
        }
        Ok(facts)
    }

    fn member(&mut self, scanner: &mut Scanner<'_>, key: &[u8], json: &[u8]) -> Result<(), Error> {
        match key {
            b"usage" => return self.usage(scanner, json),
            b"choices" if scanner.peek() == Some(Kind::Array) => {
                self.role_only = true;
                let count = scanner.array(|scanner, _| self.choice(scanner, json))?;
                self.choices = Some(count);
                self.role_only &= count > 0;
                return Ok(());
            }
            // messages: message_start and message_delta; responses: response.completed and so on.
            b"message" | b"response" | b"delta" if scanner.peek() == Some(Kind::Object) => {
                scanner.object(|scanner, key| match key.name {
                    b"usage" => self.usage(scanner, json),
                    b"error" => self.error(scanner, json),
                    b"stop_reason" => scanner.value().map(|value| self.finish(value, json)),
                    _ => scanner.value().map(drop),
                })?;
                return Ok(());
            }
            b"error" => return self.error(scanner, json),
            b"item" | b"content_block" | b"part" if scanner.peek() == Some(Kind::Object) => {
                scanner.object(|scanner, key| {
                    let value = scanner.value()?;
                    if key.name == b"type" {
                        self.opened = value.span;
                    }
                    Ok::<(), Error>(())
                })?;
                return Ok(());
            }
            _ => {}
        }
        let value = scanner.value()?;
        match key {
            b"index" | b"output_index" => self.place[0] = place(value, json),
            b"content_index" => self.place[1] = place(value, json),
            b"type" => self.kind = value.span,
            b"object" => self.object = value.span,
            b"message" if value.kind == Kind::String => self.flat.message = value.span,
            b"code" => self.flat.code = status(value, json),
            b"stop_reason" => self.finish(value, json),
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, reason: Value, json: &[u8]) {
        if reason.kind != Kind::Null {
            self.finish = true;
            self.abort |= inner(reason.span.of(json)) == b"abort";
        }
    }

    fn choice(&mut self, scanner: &mut Scanner<'_>, json: &[u8]) -> Result<(), Error> {
        if scanner.peek() != Some(Kind::Object) {
            self.role_only = false;
            return scanner.value().map(drop);
        }
        let mut role = false;
        scanner.object(|scanner, key| match key.name {
            b"delta" if scanner.peek() == Some(Kind::Object) => {
                let mut other = false;
                scanner.object(|scanner, key| {
                    let value = scanner.value()?;
                    role |= key.name == b"role";
                    other |= key.name != b"role"
                        && value.kind != Kind::Null
                        && value.span.of(json) != b"\"\"";
                    Ok::<(), Error>(())
                })?;
                role &= !other;
                Ok(())
            }
            b"finish_reason" => scanner.value().map(|value| self.finish(value, json)),
            b"index" => scanner.value().map(|value| self.place[0] = place(value, json)),
            _ => scanner.value().map(drop),
        })?;
        self.role_only &= role && !self.finish;
        Ok(())
    }

    fn error(&mut self, scanner: &mut Scanner<'_>, json: &[u8]) -> Result<(), Error> {
        if scanner.peek() != Some(Kind::Object) {
            let value = scanner.value()?;
            if value.kind != Kind::Null {
                self.error = Some(EngineError { message: value.span, ..EngineError::default() });
            }
            return Ok(());
        }
        let mut error = EngineError::default();
        scanner.object(|scanner, key| {
            let value = scanner.value()?;
            match (key.name, value.kind) {
                (b"code", _) => error.code = status(value, json),
                (b"message", Kind::String) => error.message = value.span,
                (b"type", Kind::String) => error.kind = value.span,
                _ => {}
            }
            Ok::<(), Error>(())
        })?;
        self.error = Some(error);
        Ok(())
    }

    fn usage(&mut self, scanner: &mut Scanner<'_>, json: &[u8]) -> Result<(), Error> {
        if scanner.peek() != Some(Kind::Object) {
            self.usage_odd |= scanner.value()?.kind != Kind::Null;
            return Ok(());
        }
        let mut read = Counts::default();
        scanner.object(|scanner, key| match key.name {
            b"prompt_tokens_details" | b"input_tokens_details"
                if scanner.peek() == Some(Kind::Object) =>
            {
                scanner.object(|scanner, key| {
                    let value = scanner.value()?;
                    if key.name == b"cached_tokens" {
                        read.count(|read| &mut read.cached, value, json);
                    }
                    Ok::<(), Error>(())
                })?;
                Ok(())
            }
            name => {
                let value = scanner.value()?;
                match name {
                    b"prompt_tokens" | b"input_tokens" => {
                        read.count(|read| &mut read.prompt, value, json);
                    }
                    b"completion_tokens" | b"output_tokens" => {
                        read.count(|read| &mut read.completion, value, json);
                    }
                    b"total_tokens" => read.count(|read| &mut read.total, value, json),
                    // Anthropic's `input_tokens` leaves out what its cache had and what it took in.
                    b"cache_read_input_tokens" => {
                        read.count(|read| &mut read.cached, value, json);
                        read.apart = true;
                    }
                    b"cache_creation_input_tokens" => {
                        read.count(|read| &mut read.created, value, json);
                    }
                    _ => {}
                }
                Ok::<(), Error>(())
            }
        })?;
        let usage = read.usage();
        // A second usage contradicts the first, and one with counts but no prompt is incomplete.
        self.usage_odd |=
            read.odd || self.usage.is_some() || usage.is_none() && read.completion.is_some();
        self.usage = if self.usage_odd { None } else { usage };
        Ok(())
    }
}

#[derive(Default)]
struct Counts {
    prompt: Option<u64>,
    completion: Option<u64>,
    total: Option<u64>,
    cached: Option<u64>,
    /// `cached` is not among `prompt`.
    apart: bool,
    created: Option<u64>,
    odd: bool,
}

impl Counts {
    fn count(&mut self, place: impl Fn(&mut Self) -> &mut Option<u64>, value: Value, json: &[u8]) {
        if value.kind == Kind::Null {
            return;
        }
        let digits = std::str::from_utf8(value.span.of(json)).unwrap_or_default();
        let number = digits.parse().ok().filter(|number| *number <= TOKENS_MAX);
        self.odd |= number.is_none() || place(self).is_some();
        *place(self) = number;
    }

    /// Embeddings and reranking generate nothing, and some give only a total.
    fn usage(&self) -> Option<Usage> {
        let completion_tokens = self.completion.unwrap_or(0);
        let total = self.total.filter(|_| self.completion.is_none());
        let apart = self.cached.filter(|_| self.apart).unwrap_or(0) + self.created.unwrap_or(0);
        let prompt_tokens = self.prompt.or(total)? + apart;
        Some(Usage { prompt_tokens, completion_tokens, cached_tokens: self.cached })
    }
}

/// An index; one that is none is told from the first few.
fn place(value: Value, json: &[u8]) -> u32 {
    let digits = std::str::from_utf8(value.span.of(json)).unwrap_or_default();
    digits.parse().unwrap_or(u32::MAX)
}

fn status(code: Value, json: &[u8]) -> Option<u16> {
    let digits = std::str::from_utf8(code.span.of(json)).ok()?;
    digits.parse().ok().filter(|status| (100..600).contains(status))
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
