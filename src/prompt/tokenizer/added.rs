//! Added tokens in a text, found as the libraries find them, and which of them cut it.
//!
//! A library first takes the tokens that are not `normalized` out of the raw text, leftmost first
//! and the longest of those that start together; what lies between is normalized, the `normalized`
//! tokens are taken out of that, and each piece is encoded on its own. So a raw token that takes no
//! notice of its neighbours separates a text into parts that can be encoded apart. The matcher
//! holds *all* raw tokens: one that lies within a longer one is no boundary where the longer is.
//! Read-only tables, shared.

use aho_corasick::{AhoCorasick, Input, MatchKind};

use super::definition::AddedToken;

/// With more tokens than this that are not special, a vocabulary uses them for ordinary text
/// (Gemma: runs of line ends, HTML tags); cutting at each would make the parts tiny.
const PLAIN_BOUNDARIES_MAX: usize = 1024;

/// What a token in the text means for the parts around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::prompt) enum Role {
    /// Parts always end here; the token is its id.
    Boundary,
    /// Parts may end after it; it is encoded as part of one.
    Soft,
    /// Parts must not end at it: it looks at its neighbours.
    Inside,
}

/// A token in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::prompt) struct Found {
    pub(in crate::prompt) start: usize,
    pub(in crate::prompt) end: usize,
    pub(in crate::prompt) id: u32,
    pub(in crate::prompt) role: Role,
}

/// The matcher.
pub(super) struct Added {
    matcher: Option<AhoCorasick>,
    /// Id and role of each pattern.
    tokens: Vec<(u32, Role)>,
    /// Every added token is in the matcher: where it finds none, there is none.
    complete: bool,
    /// Some token looks at its neighbours.
    flags: bool,
    /// Bytes of the longest pattern.
    longest: usize,
}

impl Added {
    /// Builds the matcher of `added`. With an `identity` normalizer the second pass reads the raw
    /// text too, and its tokens join the matcher, but for those that could overlap a raw one.
    ///
    /// # Errors
    /// The patterns are too many or too long.
    pub(super) fn new(added: &[AddedToken], identity: bool) -> Result<Added, String> {
        let raw: Vec<&AddedToken> = added.iter().filter(|token| !token.normalized).collect();
        let second: Vec<&AddedToken> = added.iter().filter(|token| token.normalized).collect();
        let mut all = raw.clone();
        if identity {
            let apart = |token: &&&AddedToken| !raw.iter().any(|raw| overlap(raw, token));
            all.extend(second.iter().filter(apart));
        }
        all.retain(|token| !token.content.is_empty());
        let flags = added.iter().any(AddedToken::has_flags);
        let soft = |token: &AddedToken| !token.special;
        let many = all.iter().filter(|token| soft(token)).count() > PLAIN_BOUNDARIES_MAX;
        let role = |token: &AddedToken| match token {
            token if token.has_flags() || (flags && !edges_are_plain(token)) => Role::Inside,
            token if soft(token) && many => Role::Soft,
            token if token.content.chars().all(char::is_whitespace) => Role::Soft,
            _ => Role::Boundary,
        };
        let tokens = all.iter().map(|token| (token.id, role(token))).collect();
        let patterns: Vec<&str> = all.iter().map(|token| token.content.as_str()).collect();
        let matcher = match patterns.is_empty() {
            true => None,
            false => Some(
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    .build(&patterns)
                    .map_err(|error| error.to_string())?,
            ),
        };
        let named = added.iter().filter(|token| !token.content.is_empty()).count();
        let complete = patterns.len() == named;
        let longest = patterns.iter().map(|pattern| pattern.len()).max().unwrap_or(0);
        Ok(Added { matcher, tokens, complete, flags, longest })
    }

    /// The first token that starts in `from..until` of `text`, whichever way it goes on after that.
    pub(super) fn find(&self, text: &str, from: usize, until: usize) -> Option<Found> {
        let matcher = self.matcher.as_ref()?;
        // The longest token that starts before `until` is seen whole.
        let end = until.saturating_add(self.longest).min(text.len());
        if from >= end {
            return None;
        }
        let found = matcher.find(Input::new(text).span(from..end))?;
        let &(id, role) = self.tokens.get(found.pattern().as_usize())?;
        let found = Found { start: found.start(), end: found.end(), id, role };
        (found.start < until).then_some(found)
    }

    /// Where [`Added::find`] finds none, there is none.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether some token looks at its neighbours.
    pub(super) fn has_flags(&self) -> bool {
        self.flags
    }

    /// Bytes of the matcher.
    pub(super) fn bytes(&self) -> usize {
        self.matcher.as_ref().map_or(0, AhoCorasick::memory_usage)
    }
}

/// Whether two tokens could lie across each other in some text.
fn overlap(a: &AddedToken, b: &AddedToken) -> bool {
    let (a, b) = (a.content.as_str(), b.content.as_str());
    let meets = |left: &str, right: &str| {
        (1..=left.len().min(right.len())).any(|n| {
            left.as_bytes()
                .get(left.len() - n..)
                .is_some_and(|end| right.as_bytes().starts_with(end))
        })
    };
    a.contains(b) || b.contains(a) || meets(a, b) || meets(b, a)
}

/// Whether a token begins and ends with what neither white space nor a word is made of, so that no
/// flag of a token beside it can tell it from the end of the text.
fn edges_are_plain(token: &AddedToken) -> bool {
    let plain = |edge: Option<char>| edge.is_some_and(|c| c.is_ascii_punctuation() && c != '_');
    plain(token.content.chars().next()) && plain(token.content.chars().next_back())
}

#[cfg(test)]
#[path = "added_tests.rs"]
mod tests;
