//! What Python makes visible in a rendered prompt: the spelling of floats, `repr` of strings, and
//! which characters count as white space.
//!
//! Pure functions. Follows CPython's `float.__repr__`, `str.__repr__` and `str.isspace`.

/// Appends a float as `repr(x)` spells it: shortest digits that read back to the same value, in
/// exponent form below 1e-4 and from 1e16 on, otherwise with at least one digit behind the point.
pub(super) fn push_float(out: &mut String, value: f64) {
    if value.is_nan() {
        return out.push_str("nan");
    }
    if value.is_infinite() {
        return out.push_str(if value > 0.0 { "inf" } else { "-inf" });
    }
    let mut buffer = ryu::Buffer::new();
    let mut shortest = buffer.format_finite(value);
    if let Some(rest) = shortest.strip_prefix('-') {
        out.push('-');
        shortest = rest;
    }
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((shortest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let exponent = exponent.parse::<i32>().unwrap_or(0);
    let all = [whole, fraction].concat();
    let digits = all.trim_start_matches('0');
    if digits.is_empty() {
        return out.push_str("0.0");
    }
    // The value is 0.DIGITS times ten to the `point`.
    let leading = i32::try_from(all.len() - digits.len()).unwrap_or(0);
    let point = i32::try_from(whole.len()).unwrap_or(0) + exponent - leading;
    push_digits(out, digits.trim_end_matches('0'), point);
}

fn push_digits(out: &mut String, digits: &str, point: i32) {
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let zeros = |n: i32| "0".repeat(usize::try_from(n).unwrap_or(0));
    if point <= -4 || point > 16 {
        let (first, rest) = digits.split_at_checked(1).unwrap_or((digits, ""));
        out.push_str(first);
        if !rest.is_empty() {
            out.push('.');
            out.push_str(rest);
        }
        let exponent = point - 1;
        out.push_str(if exponent < 0 { "e-" } else { "e+" });
        if exponent.abs() < 10 {
            out.push('0');
        }
        out.push_str(itoa::Buffer::new().format(exponent.abs()));
    } else if point <= 0 {
        out.push_str("0.");
        out.push_str(&zeros(-point));
        out.push_str(digits);
    } else if point >= count {
        out.push_str(digits);
        out.push_str(&zeros(point - count));
        out.push_str(".0");
    } else {
        let cut = usize::try_from(point).unwrap_or(0);
        let (whole, fraction) = digits.split_at_checked(cut).unwrap_or((digits, ""));
        out.push_str(whole);
        out.push('.');
        out.push_str(fraction);
    }
}

/// Appends `repr(text)`: single quotes unless only double ones avoid an escape; what Python does
/// not hold to be printable is escaped by its code.
pub(super) fn push_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if char == quote => {
                out.push('\\');
                out.push(char);
            }
            ' '..='~' => out.push(char),
            _ if is_printable(char) => out.push(char),
            _ => push_code(out, char),
        }
    }
    out.push(quote);
}

fn push_code(out: &mut String, char: char) {
    let code = u32::from(char);
    let text = match code {
        0..=0xff => format!("\\x{code:02x}"),
        0x100..=0xffff => format!("\\u{code:04x}"),
        _ => format!("\\U{code:08x}"),
    };
    out.push_str(&text);
}

/// `str.isprintable` of one character: not of the categories C* and Z* but the space itself. The
/// standard library escapes by the same table; behind another character it leaves marks alone.
fn is_printable(char: char) -> bool {
    let mut buffer = [b'a'; 5];
    let taken = buffer.get_mut(1..).map_or(0, |rest| char.encode_utf8(rest).len());
    let text = buffer.get(..=taken).and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.is_some_and(|text| text.escape_debug().nth(1) == Some(char))
}

/// `str.isspace` of one character: Unicode white space and the four separators U+001C to U+001F.
pub(super) fn is_space(char: char) -> bool {
    char.is_whitespace() || matches!(char, '\u{1c}'..='\u{1f}')
}

/// `text.strip()`.
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

#[cfg(test)]
#[path = "python_tests.rs"]
mod tests;
