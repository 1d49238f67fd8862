//! `json.dumps` of the engine's Python: how a tool call's arguments become a string.
//!
//! Owns no state and no thread; does no I/O.

use super::ConvertError;
use crate::prompt::escape::push_string;
use crate::prompt::tree::Node;

/// Appends `node` as Python's `json.dumps` writes it: `", "` and `": "` between, everything outside
/// ASCII escaped, floats by their shortest form.
///
/// # Errors
/// A number that Python reads as infinite or not at all.
pub(super) fn push_dumped(node: &Node<'_>, out: &mut String) -> Result<(), ConvertError> {
    match node {
        Node::Null => out.push_str("null"),
        Node::Bool(true) => out.push_str("true"),
        Node::Bool(false) => out.push_str("false"),
        Node::Number(spelling) => push_number(spelling, out)?,
        Node::Text(text) => push_string(&text.text(), out, true),
        Node::List(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                push_dumped(item, out)?;
            }
            out.push(']');
        }
        Node::Map(members) => {
            out.push('{');
            for (i, (name, value)) in members.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                push_string(name, out, true);
                out.push_str(": ");
                push_dumped(value, out)?;
            }
            out.push('}');
        }
    }
    Ok(())
}

fn push_number(spelling: &str, out: &mut String) -> Result<(), ConvertError> {
    let refused = || ConvertError::unsupported("a number that the engine does not take");
    if !spelling.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')) {
        out.push_str(if spelling == "-0" { "0" } else { spelling });
        return Ok(());
    }
    let number: f64 = spelling.parse().map_err(|_| refused())?;
    if !number.is_finite() {
        return Err(refused());
    }
    // `repr`: the shortest digits that read back, in positional form from 1e-4 up to 1e16.
    let magnitude = number.abs();
    if magnitude == 0.0 || (1e-4..1e16).contains(&magnitude) {
        out.push_str(&format!("{number:?}"));
        return Ok(());
    }
    let spelled = format!("{number:e}");
    let (digits, exponent) = spelled.split_once('e').unwrap_or((&spelled, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    out.push_str(&format!("{digits}e{sign}{exponent:0>2}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::tree;

    fn dumped(json: &str) -> Result<String, ConvertError> {
        let mut out = String::new();
        push_dumped(&tree::read(json.as_bytes()).unwrap(), &mut out).map(|()| out)
    }

    /// Each was printed by CPython 3.11.
    #[test]
    fn values_are_spelled_as_python_spells_them() {
        for (json, python) in [
            (r#"{"a":[1,true,null],"b":{}}"#, r#"{"a": [1, true, null], "b": {}}"#),
            (r#""é\/\u001f😀\u007f""#, "\"\\u00e9/\\u001f\\ud83d\\ude00\\u007f\""),
            ("[1.50,1E2,-0,-0.0,0e5]", "[1.5, 100.0, 0, -0.0, 0.0]"),
            ("[1e15,1e16,1e22,1.5e300]", "[1000000000000000.0, 1e+16, 1e+22, 1.5e+300]"),
            ("[0.0001,0.00001,1.5e-7,5e-324]", "[0.0001, 1e-05, 1.5e-07, 5e-324]"),
            ("[123456789012345678901234567890]", "[123456789012345678901234567890]"),
            ("[0.30000000000000004]", "[0.30000000000000004]"),
        ] {
            assert_eq!(dumped(json).as_deref(), Ok(python), "{json}");
        }
        assert!(dumped("1e400").is_err());
        assert!(tree::read("1".repeat(4301).as_bytes()).is_err(), "no number to Python");
    }
}
