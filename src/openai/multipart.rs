//! The form of an audio upload (`multipart/form-data`, RFC 7578 over RFC 2046), read in place.
//!
//! Only the `model` and `stream` parts are read, and a form with a part that steers the engine is
//! refused, since a part cannot be taken out in place; the audio is passed over by a search for the
//! boundary and never copied. Strict, so that the engine's parser cannot see another form than we
//! do: no preamble, CRLF everywhere, no folded lines, each part one plain `name`, the fields that
//! we read at most once, a closing boundary and nothing behind it.

use std::borrow::Cow;

use memchr::memmem::{self, Finder};

use super::call::{Call, MODEL_BYTES_MAX, Model, POLICY_FIELDS};
use super::{BodyError, Span};

/// Parts in one form.
pub const PARTS_MAX: usize = 64;
/// Bytes of one part's head.
pub const PART_HEAD_BYTES_MAX: usize = 8192;
/// Bytes of a boundary (RFC 2046, 5.1.1).
pub const BOUNDARY_BYTES_MAX: usize = 70;

/// Reads a form, whose boundary the value of the `content-type` field names, to a [`Call`] with
/// its `model` and `stream`; the model may be edited like that of a JSON body.
///
/// # Errors
/// `invalid_value` with `param` for a field (a form without a model is refused, and one with any of
/// [`POLICY_FIELDS`] but for the salt), or `content-type`
/// or `body` for the form itself.
pub fn read_call(content_type: &[u8], body: &[u8]) -> Result<Call, BodyError> {
    if u32::try_from(body.len()).is_err() {
        return Err(form_error("a body of over 4 GiB", 0));
    }
    let boundary = boundary(content_type).ok_or_else(|| {
        let message = "content-type must be multipart/form-data with a boundary, in UTF-8";
        BodyError::value("content-type", message, Span::default())
    })?;
    let delimiter = [b"\r\n--", &boundary[..]].concat();
    let finder = Finder::new(&delimiter);
    let opening = delimiter.strip_prefix(b"\r\n").unwrap_or_default();
    if !body.starts_with(opening) {
        return Err(form_error("the form does not begin with its boundary", 0));
    }
    let mut form = Form::default();
    let mut parts = 0;
    let mut at = opening.len();
    loop {
        let rest = body.get(at..).unwrap_or_default();
        if let Some(end) = rest.strip_prefix(b"--") {
            return match end {
                b"" | b"\r\n" => form.call(),
                _ => Err(form_error("something follows the form", at)),
            };
        }
        let Some(part) = rest.strip_prefix(b"\r\n") else {
            return Err(form_error("a boundary without its line end", at));
        };
        parts += 1;
        if parts > PARTS_MAX {
            return Err(form_error("the form has more than 64 parts", at));
        }
        let start = at + 2;
        let (name, head) = part_name(part).map_err(|what| form_error(what, start))?;
        let content = part.get(head..).unwrap_or_default();
        let Some(len) = finder.find(content) else {
            return Err(form_error("the form has no closing boundary", start));
        };
        let span = Span::between(start + head, start + head + len);
        form.field(&name, span, content.get(..len).unwrap_or_default())?;
        at = span.end() + delimiter.len();
    }
}

/// The fields that we read.
#[derive(Default)]
struct Form {
    model: Option<Span>,
    stream: Option<bool>,
}

impl Form {
    fn call(self) -> Result<Call, BodyError> {
        let Some(span) = self.model else {
            return Err(BodyError::value("model", "the form has no model", Span::default()));
        };
        let model = Some(Model { span, decoded: None, in_form: true });
        Ok(Call { model, stream: self.stream.unwrap_or(false), ..Call::default() })
    }

    fn field(&mut self, name: &[u8], span: Span, value: &[u8]) -> Result<(), BodyError> {
        match name {
            b"model" => {
                if self.model.replace(span).is_some() {
                    return Err(BodyError::value("model", "model is given twice", span));
                }
                if value.len() > MODEL_BYTES_MAX || std::str::from_utf8(value).is_err() {
                    let message = "model must be UTF-8 of at most 1024 bytes";
                    return Err(BodyError::value("model", message, span));
                }
            }
            b"stream" => {
                // The spellings that pydantic takes for a boolean in a form.
                let flag = match value.to_ascii_lowercase().as_slice() {
                    b"true" | b"1" | b"yes" | b"on" | b"t" | b"y" => true,
                    b"false" | b"0" | b"no" | b"off" | b"f" | b"n" => false,
                    _ => {
                        let message = "stream must be true or false";
                        return Err(BodyError::value("stream", message, span));
                    }
                };
                if self.stream.replace(flag).is_some() {
                    return Err(BodyError::value("stream", "stream is given twice", span));
                }
            }
            // The salt only separates, as in JSON.
            b"cache_salt" => {}
            _ => {
                let steers = POLICY_FIELDS.into_iter().find(|field| field.as_bytes() == name);
                if let Some(field) = steers {
                    return Err(BodyError::value(field, "this field is not allowed here", span));
                }
            }
        }
        Ok(())
    }
}

fn form_error(message: &str, offset: usize) -> BodyError {
    BodyError::value("body", message, Span::between(offset, offset))
}

/// The boundary that a `content-type` value names, unquoted.
fn boundary(content_type: &[u8]) -> Option<Cow<'_, [u8]>> {
    let (kind, parameters) = split_at_byte(content_type, b';');
    if !kind.trim_ascii().eq_ignore_ascii_case(b"multipart/form-data") {
        return None;
    }
    let parameters = parameters?;
    // The engine decodes names and values by it: under UTF-7 other parts would be called `model`.
    let charset = parameter(parameters, b"charset").ok()?;
    if charset.is_some_and(|charset| !charset.eq_ignore_ascii_case(b"utf-8")) {
        return None;
    }
    let boundary = parameter(parameters, b"boundary").ok()??;
    let legal = |byte: &u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(byte);
    let fits = (1..=BOUNDARY_BYTES_MAX).contains(&boundary.len())
        && boundary.iter().all(legal)
        && boundary.last() != Some(&b' ');
    fits.then_some(boundary)
}

/// The name in a part's head, and where its content begins.
fn part_name(part: &[u8]) -> Result<(Cow<'_, [u8]>, usize), &'static str> {
    let window = part.get(..PART_HEAD_BYTES_MAX.min(part.len())).unwrap_or_default();
    let end = memmem::find(window, b"\r\n\r\n").ok_or("a part's head does not end")?;
    let head = window.get(..end).unwrap_or_default();
    let mut name = None;
    let mut rest = Some(head);
    while let Some(lines) = rest {
        let line = match memmem::find(lines, b"\r\n") {
            Some(at) => {
                rest = lines.get(at + 2..);
                lines.get(..at).unwrap_or_default()
            }
            None => {
                rest = None;
                lines
            }
        };
        if line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
            return Err("a bare line end or another control character in a part's head");
        }
        let (field, value) = split_at_byte(line, b':');
        let value = value.ok_or("a part's head has a line without a colon")?;
        if field.is_empty() || field.iter().any(u8::is_ascii_whitespace) {
            return Err("a part's head has a folded line or a bad field name");
        }
        if !field.eq_ignore_ascii_case(b"content-disposition") {
            continue;
        }
        let (kind, parameters) = split_at_byte(value, b';');
        if name.is_some() || !kind.trim_ascii().eq_ignore_ascii_case(b"form-data") {
            return Err("a part must have one content-disposition of form-data");
        }
        name = parameter(parameters.unwrap_or_default(), b"name")?;
        if name.is_none() {
            return Err("a part has no name");
        }
    }
    name.map(|name| (name, end + 4)).ok_or("a part has no content-disposition")
}

/// Finds the parameter `name` in `; a=b; c="d"`.
///
/// The engine's parser (python-multipart) splits at semicolons by counting quotes, passes over what
/// it cannot read and lets the later of two win. Accepted is only what it and we read alike: keys
/// are tokens, `name` comes once and without the extensions of RFC 2231.
fn parameter<'a>(parameters: &'a [u8], name: &[u8]) -> Result<Option<Cow<'a, [u8]>>, &'static str> {
    const BROKEN: &str = "a broken parameter";
    let mut found = None;
    let mut rest = parameters.trim_ascii();
    while !rest.is_empty() {
        let (key, after) = split_at_byte(rest, b'=');
        let (key, after) = (key.trim_ascii_end(), after.ok_or(BROKEN)?.trim_ascii_start());
        if key.is_empty() || !key.iter().all(is_token) {
            return Err(BROKEN);
        }
        let value;
        (value, rest) = match after.strip_prefix(b"\"") {
            Some(quoted) => unquote(quoted).ok_or(BROKEN)?,
            None => {
                let (bare, next) = split_at_byte(after, b';');
                let bare = bare.trim_ascii_end();
                let fits = |byte: &u8| byte.is_ascii_graphic() && !b"\"\\".contains(byte);
                if bare.is_empty() || !bare.iter().all(fits) {
                    return Err(BROKEN);
                }
                (Cow::Borrowed(bare), next.unwrap_or_default().trim_ascii_start())
            }
        };
        let (bare, extension) = split_at_byte(key, b'*');
        if bare.eq_ignore_ascii_case(name) {
            if extension.is_some() || found.is_some() {
                return Err("a name given twice or in an extended form");
            }
            found = Some(value);
        }
    }
    Ok(found)
}

/// A character of a token (RFC 9110, 5.6.2).
fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

/// Reads a quoted string behind its opening quote; answers it and what follows its semicolon.
///
/// `\"` is a quote, as in every parser. A backslash before anything else is one, as for the engine
/// (browsers once sent paths), but two in a row are refused: where such a string ends is read in
/// two ways.
fn unquote(quoted: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let mut text = Vec::new();
    let mut bytes = quoted.iter().enumerate().peekable();
    let end = loop {
        match bytes.next()? {
            (at, b'"') => break at,
            (_, b'\\') => match bytes.peek()?.1 {
                b'"' => text.push(*bytes.next()?.1),
                b'\\' => return None,
                _ => text.push(b'\\'),
            },
            (_, byte) => text.push(*byte),
        }
    };
    let rest = quoted.get(end + 1..)?.trim_ascii_start();
    match rest.split_first() {
        None => Some((Cow::Owned(text), rest)),
        Some((b';', next)) => Some((Cow::Owned(text), next.trim_ascii_start())),
        Some(_) => None,
    }
}

/// `bytes` before the first `byte`, and after it when there is one.
fn split_at_byte(bytes: &[u8], byte: u8) -> (&[u8], Option<&[u8]>) {
    match memchr::memchr(byte, bytes) {
        Some(at) => (bytes.get(..at).unwrap_or_default(), bytes.get(at + 1..)),
        None => (bytes, None),
    }
}

#[cfg(test)]
#[path = "multipart_tests.rs"]
mod tests;
