//! Edits of a body in place: a few spans replaced, everything else byte for byte.
//!
//! An edited body is never written anew. [`Edits::pieces`] gives the slices to send one behind the
//! other, so unknown fields, spellings of numbers, the order of keys and doubled unknown keys reach
//! the engine as the client wrote them.

use std::borrow::Cow;

use super::Span;
use super::call::{Call, PolicyField};
use super::error::write_string;

/// Spans that one body may have replaced.
/// The builders need 13: the model, stream and its options, two limits and `min_tokens`, seven
/// policy fields.
pub const EDITS_MAX: usize = 16;

/// Slices at most: one before each edit, its text, the insertion with its comma, and the rest.
const PIECES_MAX: usize = 2 * EDITS_MAX + 4;

type Text = Cow<'static, str>;

/// A plan of edits to one body.
#[derive(Debug, Clone, Default)]
pub struct Edits {
    /// Replacements, in the body's order; they do not overlap.
    edits: [(Span, Text); EDITS_MAX],
    count: usize,
    /// Members to insert behind the opening brace, joined by commas.
    inserted: String,
    opened: usize,
    /// Members of the body that stay.
    kept: usize,
}

impl Edits {
    /// No edits yet, to the body that `call` was read from.
    #[must_use]
    pub fn new(call: &Call) -> Self {
        Edits { opened: call.opened, kept: call.members, ..Edits::default() }
    }

    /// The engine is asked for `name` instead; inserted when the body named no model. In a form, a
    /// name with a line end would change the form: the client's name then stays.
    pub fn set_model(&mut self, call: &Call, name: &str) {
        match &call.model {
            Some(model) if model.in_form => {
                if !name.contains(['\r', '\n']) {
                    self.replace(model.span, name.to_owned());
                }
            }
            Some(model) => self.replace(model.span, quoted(name)),
            None => self.insert(call, "model", quoted(name)),
        }
    }

    /// Has the engine send its usage event at the end of the stream (chat and completions).
    ///
    /// Without `include_usage` of the client's own, `continuous_usage_stats: true` would have had
    /// no effect; it is set to false so that this still holds.
    pub fn ask_for_usage(&mut self, call: &Call) {
        const WHOLE: &str = "{\"include_usage\":true}";
        let Some(options) = &call.stream_options else {
            return self.insert(call, "stream_options", WHOLE);
        };
        if options.include_usage == Some(true) {
            return;
        }
        match options.include_usage_span {
            Some(value) => self.replace(value, "true"),
            None => {
                let start = options.span.start() + 1;
                let member = "\"include_usage\":true";
                let text = if options.members == 0 { member } else { "\"include_usage\":true," };
                self.replace(Span::between(start, start), text);
            }
        }
        if let (Some(value), true) =
            (options.continuous_usage_stats_span, options.continuous_usage_stats)
        {
            self.replace(value, "false");
        }
    }

    /// Sets the most tokens to generate where the body names it, or as `field` where not.
    pub fn set_max_tokens(&mut self, call: &Call, field: &str, tokens: u64) {
        let named = [call.max_tokens, call.max_completion_tokens];
        if named.iter().all(Option::is_none) {
            return self.insert(call, field, tokens.to_string());
        }
        for count in named.into_iter().flatten() {
            self.replace(count.span, tokens.to_string());
        }
    }

    /// Has an engine do no more than the prefill, for another that decodes: one token, whatever the
    /// least was to be, and no stream. `field`: the limit's name where the body has none.
    pub fn prefill_only(&mut self, call: &Call, field: &str) {
        if let Some(stream) = call.stream_span {
            self.replace(stream, "false");
        }
        if let Some(options) = &call.stream_options {
            self.replace(options.span, "null");
        }
        if let Some(least) = call.min_tokens {
            self.replace(least.span, "0");
        }
        self.set_max_tokens(call, field, 1);
    }

    /// Adds a member with the value `json` to a body that has none of that name once it is edited,
    /// and is no form.
    pub fn add_member(&mut self, name: &str, json: &str) {
        if !self.inserted.is_empty() {
            self.inserted.push(',');
        }
        self.inserted.push('"');
        self.inserted.push_str(name);
        self.inserted.push_str("\":");
        self.inserted.push_str(json);
    }

    /// Gives a policy field the value `json`, whether the body has the field or not.
    pub fn set_policy_field(&mut self, call: &Call, name: &'static str, json: &str) {
        match call.policy_fields.iter().find(|field| field.name == name) {
            Some(field) => self.replace(field.value.span, json.to_owned()),
            None => self.insert(call, name, json.to_owned()),
        }
    }

    /// Takes out the policy fields that `which` picks, each with its comma. Call it once.
    pub fn remove(
        &mut self,
        call: &Call,
        body: &[u8],
        mut which: impl FnMut(&PolicyField) -> bool,
    ) {
        let mut removed = 0;
        for field in &call.policy_fields {
            if !which(field) {
                continue;
            }
            let (mut start, mut end) = (field.member.start(), field.member.end());
            if field.index == removed {
                // Nothing stays before it: the comma behind it goes, when there is one.
                let rest = body.get(end..).unwrap_or_default();
                let space = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
                if rest.get(space) == Some(&b',') {
                    end += space + 1;
                }
            } else {
                let before = body.get(..start).unwrap_or_default();
                start = memchr::memrchr(b',', before).unwrap_or(start);
            }
            self.replace(Span::between(start, end), "");
            removed += 1;
        }
        self.kept -= removed.min(self.kept);
    }

    /// Replaces any one span by `text`; spans must not overlap. For values that the builders do not
    /// know.
    pub fn replace(&mut self, span: Span, text: impl Into<Text>) {
        let used = self.edits.get(..self.count).unwrap_or_default();
        let at = used.partition_point(|(other, _)| other.start <= span.start);
        assert!(self.count < EDITS_MAX, "more edits than a body has fields to edit");
        if let Some(slots) = self.edits.get_mut(at..=self.count) {
            slots.rotate_right(1);
            if let Some(slot) = slots.first_mut() {
                *slot = (span, text.into());
            }
            self.count += 1;
        }
    }

    /// Gives a value to a field that the body does not have, or has as null. A form is not JSON:
    /// nothing is inserted there.
    fn insert(&mut self, call: &Call, name: &str, json: impl Into<Text>) {
        if call.model.as_ref().is_some_and(|model| model.in_form) {
            return;
        }
        if let Some((_, null)) = call.nulls.iter().find(|(field, _)| *field == name) {
            return self.replace(*null, json);
        }
        self.add_member(name, &json.into());
    }

    /// Nothing is changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.inserted.is_empty()
    }

    /// The edited body's bytes, as slices to send one behind the other; none is empty.
    pub fn pieces<'a>(&'a self, body: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + Clone {
        let mut pieces: [&[u8]; PIECES_MAX] = [&[]; PIECES_MAX];
        let mut slots = pieces.iter_mut();
        let mut push = |piece| {
            if let Some(slot) = slots.next() {
                *slot = piece;
            }
        };
        let mut at = 0;
        if !self.inserted.is_empty() {
            at = self.opened;
            push(body.get(..at).unwrap_or_default());
            push(self.inserted.as_bytes());
            push(if self.kept > 0 { b"," } else { b"" });
        }
        for (span, text) in self.edits.iter().take(self.count) {
            push(body.get(at..span.start()).unwrap_or_default());
            push(text.as_bytes());
            at = span.end();
        }
        push(body.get(at..).unwrap_or_default());
        pieces.into_iter().filter(|piece| !piece.is_empty())
    }

    /// Bytes of the edited body.
    #[must_use]
    pub fn len(&self, body: &[u8]) -> usize {
        self.pieces(body).map(<[u8]>::len).sum()
    }
}

fn quoted(text: &str) -> String {
    let mut json = Vec::with_capacity(text.len() + 2);
    write_string(&mut json, text.as_bytes());
    String::from_utf8(json).unwrap_or_default()
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
