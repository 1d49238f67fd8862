//! The shape of a prompt, read in place: one text, one list of tokens, or a list of either.

use super::call::{Call, integer};
use super::json::{self, Kind, Scanner};
use super::{BodyError, Span};

/// Prompts in one request (`prompt` or `input` as a list).
pub const PROMPTS_MAX: usize = 4096;

/// Largest token id: the engine's ids are 32-bit.
const TOKEN_ID_MAX: u64 = u32::MAX as u64;

/// The shape of `prompt` (completions, tokenize) or `input` (embeddings, responses).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Prompt {
    /// No prompt: a chat, or `prompt_embeds`.
    #[default]
    None,
    /// One string.
    Text,
    /// One prompt as token ids.
    Tokens {
        /// Tokens in it.
        tokens: usize,
    },
    /// Strings.
    Texts {
        /// Prompts in the list.
        prompts: usize,
    },
    /// Lists of token ids.
    TokenLists {
        /// Prompts in the list.
        prompts: usize,
        /// Tokens in all of them.
        tokens: usize,
    },
    /// Objects (items of a responses `input`, multi-modal embeddings).
    Items {
        /// Items in the list.
        items: usize,
    },
}

/// Reads `prompt` or `input` and its place. With `items`, a list may hold objects.
pub(super) fn read_prompt(
    scanner: &mut Scanner<'_>,
    body: &[u8],
    field: &'static str,
    items: bool,
) -> Result<(Prompt, Span), BodyError> {
    match scanner.peek() {
        Some(Kind::Array) => {}
        kind => {
            let value = scanner.value()?;
            if kind != Some(Kind::String) {
                let message = format!("{field} must be a string or a list");
                return Err(BodyError::value(field, message, value.span));
            }
            return Ok((Prompt::Text, value.span));
        }
    }
    let start = scanner.offset();
    let mut prompt = Prompt::None;
    let count = scanner.array(|scanner, index| {
        let kind = scanner.peek();
        let fits = match (kind, prompt) {
            (Some(Kind::Number), Prompt::None | Prompt::Tokens { .. })
            | (Some(Kind::String), Prompt::None | Prompt::Texts { .. })
            | (Some(Kind::Array), Prompt::None | Prompt::TokenLists { .. }) => true,
            (Some(Kind::Object), Prompt::None | Prompt::Items { .. }) => items,
            _ => false,
        };
        if !fits {
            let message = format!("{field} must be a list of strings, of token ids or of lists");
            let value = scanner.value()?;
            return Err(BodyError::value(field, message, value.span));
        }
        if index >= PROMPTS_MAX && kind != Some(Kind::Number) {
            let message = format!("{field} may hold at most {PROMPTS_MAX} prompts");
            let value = scanner.value()?;
            return Err(BodyError::value(field, message, value.span));
        }
        let prompts = index + 1;
        prompt = match (kind, prompt) {
            (Some(Kind::Array), Prompt::TokenLists { tokens, .. }) => {
                Prompt::TokenLists { prompts, tokens: tokens + token_list(scanner, body, field)? }
            }
            (Some(Kind::Array), _) => {
                Prompt::TokenLists { prompts, tokens: token_list(scanner, body, field)? }
            }
            (Some(Kind::Number), _) => {
                token(scanner, body, field)?;
                Prompt::Tokens { tokens: prompts }
            }
            (Some(Kind::Object), _) => {
                scanner.value()?;
                Prompt::Items { items: prompts }
            }
            _ => {
                scanner.value()?;
                Prompt::Texts { prompts }
            }
        };
        Ok(())
    })?;
    let span = Span::between(start, scanner.offset());
    if count == 0 {
        return Err(BodyError::value(field, format!("{field} must not be an empty list"), span));
    }
    Ok((prompt, span))
}

/// The token ids of each prompt in `value`, the `prompt` or `input` of a call that was read. Empty
/// when it holds no token ids.
#[must_use]
pub fn token_ids(value: &[u8]) -> Vec<Vec<u32>> {
    let mut prompts = Vec::new();
    let Ok(mut scanner) = Scanner::new(value) else { return prompts };
    let mut flat = Vec::new();
    let read = scanner.array(|scanner, _| {
        if scanner.peek() != Some(Kind::Array) {
            let id = scanner.value()?;
            flat.extend(integer(id.span.of(value)).and_then(|id| u32::try_from(id).ok()));
            return Ok(());
        }
        let mut ids = Vec::new();
        scanner.array(|scanner, _| {
            let id = scanner.value()?;
            ids.extend(integer(id.span.of(value)).and_then(|id| u32::try_from(id).ok()));
            Ok::<(), json::Error>(())
        })?;
        prompts.push(ids);
        Ok(())
    });
    if !flat.is_empty() {
        prompts.push(flat);
    }
    match read {
        Ok(_) => prompts,
        Err::<_, json::Error>(_) => Vec::new(),
    }
}

impl Call {
    /// The call's own `cache_salt`; null is none.
    ///
    /// # Errors
    /// It is no text, or an empty one: the engine would refuse it too.
    pub fn cache_salt(&self, body: &[u8]) -> Result<Option<String>, BodyError> {
        let field = self.policy_fields.iter().find(|field| field.name == "cache_salt");
        let Some(value) = field.map(|field| field.value).filter(|it| it.kind != Kind::Null) else {
            return Ok(None);
        };
        let text = (value.kind == Kind::String).then(|| json::text(value.span.of(body)));
        match text.filter(|text| !text.is_empty()) {
            Some(text) => Ok(Some(text)),
            None => {
                let what = "cache_salt must be a text that is not empty.";
                Err(BodyError::value("cache_salt", what, value.span))
            }
        }
    }
}

/// The texts of each prompt in `value`, escapes decoded: one string, or those of a list.
#[must_use]
pub fn texts(value: &[u8]) -> Vec<String> {
    let Ok(mut scanner) = Scanner::new(value) else { return Vec::new() };
    if scanner.peek() == Some(Kind::String) {
        return vec![json::text(value.trim_ascii())];
    }
    let mut texts = Vec::new();
    let read = scanner.array(|scanner, _| {
        let item = scanner.value()?;
        if item.kind == Kind::String {
            texts.push(json::text(item.span.of(value)));
        }
        Ok::<(), json::Error>(())
    });
    read.map(|_| texts).unwrap_or_default()
}

fn token_list(
    scanner: &mut Scanner<'_>,
    body: &[u8],
    field: &'static str,
) -> Result<usize, BodyError> {
    let start = scanner.offset();
    let count = scanner.array(|scanner, _| token(scanner, body, field))?;
    if count == 0 {
        let span = Span::between(start, scanner.offset());
        return Err(BodyError::value(field, format!("{field} holds an empty prompt"), span));
    }
    Ok(count)
}

fn token(scanner: &mut Scanner<'_>, body: &[u8], field: &'static str) -> Result<(), BodyError> {
    let value = scanner.value()?;
    let id = (value.kind == Kind::Number).then(|| integer(value.span.of(body))).flatten();
    if id.is_none_or(|id| id > TOKEN_ID_MAX) {
        let message = format!("{field} holds something that is not a token id");
        return Err(BodyError::value(field, message, value.span));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_ids_are_read_by_prompt() {
        assert_eq!(token_ids(b"[1, 2.0,4294967295]"), [vec![1, 2, u32::MAX]]);
        assert_eq!(token_ids(b" [[1],[2 ,3]] "), [vec![1], vec![2, 3]]);
        for other in [&b"\"text\""[..], b"[\"a\"]", b"[", b"[]", b"{}", b""] {
            assert_eq!(token_ids(other), Vec::<Vec<u32>>::new(), "{other:?}");
        }
    }

    #[test]
    fn texts_are_decoded() {
        assert_eq!(texts(br#""a\u00e9\n""#), ["a\u{e9}\n"]);
        assert_eq!(texts(br#"["a","b\t"]"#), ["a", "b\t"]);
        assert_eq!(texts(b"[1,2]"), Vec::<String>::new());
        assert_eq!(texts(b""), Vec::<String>::new());
    }
}
