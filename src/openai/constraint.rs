//! What a call asks its answer to look like: schemas, regular expressions, grammars. The engine
//! compiles them, for every caller on the same processor, so that their size is bounded here.

use super::error::BodyError;
use super::json::{self, Key, Kind, Scanner};
use super::{Endpoint, Span};

/// Most bytes of one field that constrains an answer. OpenAI allows a schema 120,000 characters.
pub const CONSTRAINT_BYTES_MAX: usize = 128 * 1024;
/// Most bytes of a regular expression.
pub const REGEX_BYTES_MAX: usize = 4 * 1024;
/// Most atoms that a regular expression has once what it counts is written out.
pub const REGEX_ATOMS_MAX: u64 = 10_000;

/// Fields of chat, completions and responses (`text`) that the engine compiles.
const FIELDS: [&str; 8] = [
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structural_tag",
    "text",
];

/// The name of a field that constrains the answer of a call of `endpoint`.
pub(super) fn named(endpoint: Endpoint, key: &[u8]) -> Option<&'static str> {
    let reads = match endpoint {
        Endpoint::ChatCompletions | Endpoint::Completions => key != b"text",
        Endpoint::Responses => key == b"text" || key == b"structured_outputs",
        _ => false,
    };
    FIELDS.into_iter().find(|field| reads && field.as_bytes() == key)
}

/// Refuses what would hold the engine up: `value`, of the member `field`, which stands at `at`.
///
/// # Errors
/// It is too long, or a regular expression in it is or counts too far.
pub(super) fn check(field: &'static str, value: &[u8], at: Span) -> Result<(), BodyError> {
    if value.len() > CONSTRAINT_BYTES_MAX {
        let message = format!("{field} must have at most {CONSTRAINT_BYTES_MAX} bytes");
        return Err(BodyError::value(field, message, at));
    }
    if field == "guided_regex" && value.first() == Some(&b'"') {
        return regex(field, value, at);
    }
    Walk { field, value, at }.value(&mut Scanner::new(value)?)
}

struct Walk<'v> {
    field: &'static str,
    value: &'v [u8],
    at: Span,
}

impl Walk<'_> {
    /// The scanner bounds how deep this goes.
    fn value(&self, scanner: &mut Scanner<'_>) -> Result<(), BodyError> {
        match scanner.peek() {
            Some(Kind::Array) => scanner.array(|scanner, _| self.value(scanner)).map(drop),
            Some(Kind::Object) => {
                scanner.object(|scanner, key| self.member(scanner, key)).map(drop)
            }
            _ => scanner.value().map(drop).map_err(BodyError::from),
        }
    }

    fn member(&self, scanner: &mut Scanner<'_>, key: Key<'_>) -> Result<(), BodyError> {
        if !matches!(key.name, b"pattern" | b"regex") || scanner.peek() != Some(Kind::String) {
            return self.value(scanner);
        }
        let quoted = scanner.value()?.span.of(self.value);
        regex(self.field, quoted, self.at)
    }
}

fn regex(field: &'static str, quoted: &[u8], at: Span) -> Result<(), BodyError> {
    let text = json::text(quoted);
    if text.len() > REGEX_BYTES_MAX {
        let message = format!("a regular expression has over {REGEX_BYTES_MAX} bytes: {field}");
        return Err(BodyError::value(field, message, at));
    }
    if atoms(&text) > REGEX_ATOMS_MAX {
        let message =
            format!("a regular expression counts to over {REGEX_ATOMS_MAX} atoms: {field}");
        return Err(BodyError::value(field, message, at));
    }
    Ok(())
}

/// Atoms of a regular expression when what it counts (`a{3}`, `(ab){2,5}`) is written out. Exact
/// for what is well formed; the engine refuses the rest.
fn atoms(text: &str) -> u64 {
    // Of each open group what it has so far, and its last item.
    let mut groups = vec![(0_u64, 0_u64)];
    let mut bytes = text.bytes().enumerate().peekable();
    while let Some((at, byte)) = bytes.next() {
        let item = match byte {
            b'(' => {
                groups.push((0, 0));
                continue;
            }
            b')' if groups.len() > 1 => groups.pop().map_or(0, |(all, _)| all),
            b'{' => match counted(text.get(at + 1..).unwrap_or_default()) {
                Some((most, end)) => {
                    if let Some((all, last)) = groups.last_mut() {
                        let more = last.saturating_mul(most.saturating_sub(1));
                        *all = all.saturating_add(more);
                        *last = last.saturating_add(more);
                    }
                    while bytes.next_if(|(next, _)| *next <= at + end).is_some() {}
                    continue;
                }
                None => 1,
            },
            b'\\' => {
                bytes.next();
                1
            }
            b'[' => {
                // A bracket that stands first is one of the class.
                let mut first = true;
                while let Some((_, byte)) = bytes.next() {
                    match byte {
                        b'\\' => drop(bytes.next()),
                        b'^' if first => continue,
                        b']' if !first => break,
                        _ => {}
                    }
                    first = false;
                }
                1
            }
            _ => 1,
        };
        if let Some((all, last)) = groups.last_mut() {
            (*all, *last) = (all.saturating_add(item), item);
        }
    }
    groups.into_iter().fold(0, |sum, (all, _)| sum.saturating_add(all))
}

/// `3}`, `3,}` or `3,5}`: the most that is counted to, and the bytes up to the brace with it.
fn counted(rest: &str) -> Option<(u64, usize)> {
    let end = rest.find('}')?;
    let (least, most) = rest.get(..end)?.split_once(',').unwrap_or((rest.get(..end)?, ""));
    let number = |digits: &str| -> Option<u64> {
        let all = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        all.then(|| digits.parse().unwrap_or(u64::MAX))
    };
    // Nothing but a count that is written so is one: `{` may be a brace.
    let least = if least.is_empty() && !most.is_empty() { Some(0) } else { number(least) }?;
    let most = if most.is_empty() { Some(least) } else { number(most) }?;
    Some((most.max(least), end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::read_call;

    #[test]
    fn what_is_counted_is_written_out() {
        for (text, expected) in [
            ("", 0),
            ("abc", 3),
            ("a{3}", 3),
            ("a{3,}b", 4),
            ("a{2,5}", 5),
            ("a{,5}", 5),
            ("(ab){3}c", 7),
            ("((a{10}){10}){10}", 1_000),
            ("a{2}{3}", 6),
            ("[a-z{9}]{4}", 4),
            ("[]x]{4}[^]x]{2}", 6),
            ("[\\]x]{4}", 4),
            ("\\d{4}-\\{9}", 8),
            ("{\"a\":{}}", 8),
            ("a{1000}b{1000}", 2_000),
            (")a{3}", 4),
            ("(a{3}", 3),
            ("é{3}", 4),
            ("a{99999999999999999999}", u64::MAX),
        ] {
            assert_eq!(atoms(text), expected, "{text}");
        }
    }

    #[test]
    fn constraints_have_their_limits() {
        let long = "x".repeat(CONSTRAINT_BYTES_MAX);
        let pattern = "a".repeat(REGEX_BYTES_MAX + 1);
        let nested = "((a{100}){100}){100}";
        let schema = |pattern: &str| {
            format!(r#"{{"properties":{{"x":[{{"type":"string","patt\u0065rn":"{pattern}"}}]}}}}"#)
        };
        let format = |pattern: &str| {
            let schema = schema(pattern);
            format!(r#"{{"type":"json_schema","json_schema":{{"name":"n","schema":{schema}}}}}"#)
        };
        let mut refused = 0;
        for (field, value, right) in [
            ("response_format", format("^[a-z]{1,64}$"), true),
            ("response_format", format(nested), false),
            ("response_format", format(&pattern), false),
            ("response_format", format!("{{\"x\":\"{long}\"}}"), false),
            ("guided_json", schema(nested), false),
            ("guided_json", "{\"pattern\":{\"pattern\":7}}".to_owned(), true),
            ("guided_regex", format!("\"{nested}\""), false),
            ("guided_regex", "\"\\\\d{3}-\\\\d{4}\"".to_owned(), true),
            ("guided_grammar", format!("\"{long}\""), false),
            ("guided_choice", format!("[\"{long}\"]"), false),
            ("structured_outputs", format!("{{\"regex\":\"{nested}\"}}"), false),
            ("structured_outputs", format!("{{\"json\":{}}}", schema("a{9}")), true),
            ("response_format", "null".to_owned(), true),
        ] {
            let body = format!(r#"{{"model":"m","messages":[{{}}],"{field}":{value}}}"#);
            let read = read_call(Endpoint::ChatCompletions, body.as_bytes());
            assert_eq!(read.is_ok(), right, "{field}: {value:.80}");
            if let Err(why) = read {
                assert_eq!(why.param, Some(field));
                refused += 1;
            }
        }
        assert_eq!(refused, 8);
        let body = format!(r#"{{"model":"m","input":"i","text":{{"format":{}}}}}"#, schema(nested));
        let why = read_call(Endpoint::Responses, body.as_bytes()).expect_err("it counts too far");
        assert_eq!(why.param, Some("text"));
    }
}
