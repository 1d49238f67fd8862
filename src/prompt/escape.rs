//! Text to JSON strings as Python writes them, the one way for all that is rendered here. Pure.

/// Appends `text` as a JSON string, as Python's `json.dumps` escapes it: what JSON demands, and
/// with `ascii` all outside ASCII. Runs of plain characters are copied whole.
pub(super) fn push_string(text: &str, out: &mut String, ascii: bool) {
    out.push('"');
    let mut plain = 0;
    let escaped = |byte: u8| byte < b' ' || matches!(byte, b'"' | b'\\') || (ascii && byte > b'~');
    let bytes = text.as_bytes();
    while let Some(at) = bytes.get(plain..).and_then(|rest| rest.iter().position(|b| escaped(*b))) {
        let rest = text.get(plain..).unwrap_or_default();
        let (before, from) = rest.split_at_checked(at).unwrap_or((rest, ""));
        out.push_str(before);
        let char = from.chars().next().unwrap_or_default();
        push_escape(out, char);
        plain += at + char.len_utf8();
    }
    out.push_str(text.get(plain..).unwrap_or_default());
    out.push('"');
}

fn push_escape(out: &mut String, char: char) {
    match char {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        _ => {
            for unit in char.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
}
