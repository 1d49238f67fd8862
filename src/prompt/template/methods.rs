//! Python's methods of strings, and of the lists and dictionaries that a template builds itself.
//!
//! Pure. White space is Python's. What grows a string pays its fuel before it grows.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::python::is_space;

/// Bytes that one unit of fuel pays for, as the engine reckons.
const BYTES_PER_FUEL: usize = 64;

/// Calls `value.method(*args)` where the value has no such method of its own.
///
/// # Errors
/// No such method, or its arguments are wrong.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => string(state, value.as_str().unwrap_or_default(), method, args),
        ValueKind::Map => map(value, method, args),
        ValueKind::Seq | ValueKind::Iterable => sequence(value, method, args),
        _ => Err(unknown()),
    }
}

fn unknown() -> Error {
    Error::from(ErrorKind::UnknownMethod)
}

fn invalid(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

fn string(
    state: &mut State<'_, '_>,
    text: &str,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match method {
        "strip" | "lstrip" | "rstrip" => strip(text, method, args),
        "split" | "rsplit" => split(text, method == "rsplit", args),
        "startswith" | "endswith" => affix(text, method == "startswith", args),
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" | "rpartition" => partition(text, method == "partition", args),
        "replace" => replace(state, text, args),
        "join" => join(text, args),
        "splitlines" => splitlines(text, args),
        "find" | "rfind" | "index" | "rindex" => find(text, method, args),
        "count" => {
            let (what,): (&str,) = from_args(args)?;
            Ok(Value::from(text.matches(what).count()))
        }
        "format" => {
            minijinja::formatting::format(minijinja::formatting::FormatStyle::StrFormat, text, args)
                .map(Value::from)
        }
        _ => {
            let () = from_args(args)?;
            bare(text, method)
        }
    }
}

/// The methods without an argument.
fn bare(text: &str, method: &str) -> Result<Value, Error> {
    let all = |test: fn(char) -> bool| Value::from(!text.is_empty() && text.chars().all(test));
    let cased = |want: fn(char) -> bool, other: fn(char) -> bool| {
        Value::from(text.chars().any(want) && !text.chars().any(other))
    };
    Ok(match method {
        "upper" => Value::from(text.to_uppercase()),
        "lower" | "casefold" => Value::from(text.to_lowercase()),
        "title" => Value::from(title(text)),
        "capitalize" => {
            let mut chars = text.chars();
            let first = chars.next().map(|char| char.to_uppercase().to_string());
            Value::from(first.unwrap_or_default() + &chars.as_str().to_lowercase())
        }
        "isspace" => all(is_space),
        "isdigit" | "isdecimal" | "isnumeric" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isascii" => Value::from(text.is_ascii()),
        "islower" => cased(char::is_lowercase, char::is_uppercase),
        "isupper" => cased(char::is_uppercase, char::is_lowercase),
        _ => return Err(unknown()),
    })
}

/// `str.title`: the first letter of each run of letters is raised, the others are lowered.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for char in text.chars() {
        if inside {
            out.extend(char.to_lowercase());
        } else {
            out.extend(char.to_uppercase());
        }
        inside = char.is_lowercase() || char.is_uppercase();
    }
    out
}

fn strip(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (given,): (Option<&str>,) = from_args(args)?;
    let gone = |char: char| given.map_or_else(|| is_space(char), |given| given.contains(char));
    Ok(Value::from(match method {
        "strip" => text.trim_matches(gone),
        "lstrip" => text.trim_start_matches(gone),
        _ => text.trim_end_matches(gone),
    }))
}

fn split(text: &str, from_end: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator, most, kwargs): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = match separator {
        Some(separator) => Some(separator),
        None => kwargs.get::<Option<&str>>("sep")?,
    };
    let most = most.or(kwargs.get::<Option<i64>>("maxsplit")?);
    kwargs.assert_all_used()?;
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let pieces = most.saturating_add(1);
    let mut parts: Vec<&str> = match separator {
        Some("") => return Err(invalid("empty separator")),
        Some(separator) if from_end => text.rsplitn(pieces, separator).collect(),
        Some(separator) => text.splitn(pieces, separator).collect(),
        None if from_end => words_from_end(text, most),
        None => words(text, most),
    };
    if from_end {
        parts.reverse();
    }
    Ok(Value::from(parts.into_iter().map(Value::from).collect::<Vec<_>>()))
}

/// Runs between white space, at most `most` of them cut off from the front.
fn words(text: &str, most: usize) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while found.len() < most
        && let Some((word, tail)) = rest.split_once(is_space)
    {
        found.push(word);
        rest = tail.trim_start_matches(is_space);
    }
    if !rest.is_empty() {
        found.push(rest);
    }
    found
}

fn words_from_end(text: &str, most: usize) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while found.len() < most
        && let Some((head, word)) = rest.rsplit_once(is_space)
    {
        found.push(word);
        rest = head.trim_end_matches(is_space);
    }
    if !rest.is_empty() {
        found.push(rest);
    }
    found
}

fn affix(text: &str, at_start: bool, args: &[Value]) -> Result<Value, Error> {
    let (affix,): (&Value,) = from_args(args)?;
    let has = |affix: &str| if at_start { text.starts_with(affix) } else { text.ends_with(affix) };
    if let Some(affix) = affix.as_str() {
        return Ok(Value::from(has(affix)));
    }
    if affix.kind() != ValueKind::Seq {
        return Err(invalid("the first argument must be str or a tuple of str"));
    }
    for one in affix.try_iter()?.checked() {
        let one = one?;
        if has(one.as_str().ok_or_else(|| invalid("the tuple must contain only str"))?) {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

fn partition(text: &str, first: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    let cut = if first { text.split_once(separator) } else { text.rsplit_once(separator) };
    let parts = match cut {
        Some((before, after)) => [before, separator, after],
        None if first => [text, "", ""],
        None => ["", "", text],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from).to_vec())))
}

fn replace(state: &mut State<'_, '_>, text: &str, args: &[Value]) -> Result<Value, Error> {
    let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
    let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    let most = (text.len() / old.len().max(1) + 1).min(count);
    let growth = most.saturating_mul(new.len().saturating_sub(old.len()));
    state.consume_fuel(u64::try_from(growth / BYTES_PER_FUEL).unwrap_or(u64::MAX))?;
    Ok(Value::from(text.replacen(old, new, count)))
}

fn join(separator: &str, args: &[Value]) -> Result<Value, Error> {
    let (items,): (&Value,) = from_args(args)?;
    let mut out = String::new();
    for (place, item) in items.try_iter()?.checked().enumerate() {
        out.push_str(if place == 0 { "" } else { separator });
        let item = item?;
        out.push_str(item.as_str().ok_or_else(|| invalid("join: expected str instances"))?);
    }
    Ok(Value::from(out))
}

/// `str.splitlines`: breaks at everything that Unicode holds to end a line, CR LF as one.
fn splitlines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
    let keep = keep.or(kwargs.get("keepends")?).unwrap_or(false);
    let mut lines = Vec::new();
    let mut rest = text;
    let ends = |char: char| {
        matches!(char, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}')
            || matches!(char, '\u{2028}' | '\u{2029}')
    };
    while let Some(at) = rest.find(ends) {
        let tail = rest.get(at..).unwrap_or_default();
        let width = match tail.strip_prefix("\r\n") {
            Some(_) => 2,
            None => tail.chars().next().map_or(1, char::len_utf8),
        };
        lines.push(Value::from(rest.get(..if keep { at + width } else { at }).unwrap_or_default()));
        rest = rest.get(at + width..).unwrap_or_default();
    }
    if !rest.is_empty() {
        lines.push(Value::from(rest));
    }
    Ok(Value::from(lines))
}

fn find(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (what,): (&str,) = from_args(args)?;
    let found = if method.starts_with('r') { text.rfind(what) } else { text.find(what) };
    match found {
        Some(at) => Ok(Value::from(text.get(..at).unwrap_or_default().chars().count())),
        None if method.ends_with("index") => Err(invalid("substring not found")),
        None => Ok(Value::from(-1)),
    }
}

fn map(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if method == "get" {
        let (key, default): (&Value, Option<Value>) = from_args(args)?;
        let found = value.get_item(key)?;
        let found = (!found.is_undefined()).then_some(found);
        return Ok(found.or(default).unwrap_or_else(|| Value::from(())));
    }
    if !["keys", "values", "items"].contains(&method) {
        return Err(unknown());
    }
    let () = from_args(args)?;
    let mut all = Vec::new();
    for key in value.try_iter()?.checked() {
        let key = key?;
        all.push(match method {
            "keys" => key,
            "values" => value.get_item(&key)?,
            _ => Value::from(Tuple::from([key.clone(), value.get_item(&key)?])),
        });
    }
    Ok(Value::from(all))
}

fn sequence(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (what,): (&Value,) = from_args(args)?;
    let (mut count, mut first) = (0, None);
    for (place, item) in value.try_iter()?.checked().enumerate() {
        if item? == *what {
            count += 1;
            first.get_or_insert(place);
        }
    }
    match method {
        "count" => Ok(Value::from(count)),
        "index" => first.map(Value::from).ok_or_else(|| invalid("the value is not in the list")),
        _ => Err(unknown()),
    }
}

#[cfg(test)]
#[path = "methods_tests.rs"]
mod tests;
