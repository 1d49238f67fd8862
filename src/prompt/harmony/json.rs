//! JSON as oss-harmony writes a default: compact, characters as they are, and numbers on their way
//! from the body through Python's reader and writer into Rust's.
//!
//! Owns no state and no thread; does no I/O.

use super::RenderError;
use crate::prompt::tree::{Node, push_string};

/// Appends `node` as compact JSON.
///
/// # Errors
/// A number that the engine's reader, or the library's, does not take.
pub(super) fn push_json(node: &Node<'_>, out: &mut String) -> Result<(), RenderError> {
    match node {
        Node::Null => out.push_str("null"),
        Node::Bool(true) => out.push_str("true"),
        Node::Bool(false) => out.push_str("false"),
        Node::Number(spelling) => push_number(spelling, out)?,
        Node::Text(text) => push_string(&text.text(), out),
        Node::List(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                push_json(item, out)?;
            }
            out.push(']');
        }
        Node::Map(members) => {
            out.push('{');
            for (i, (name, value)) in members.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                push_string(name, out);
                out.push(':');
                push_json(value, out)?;
            }
            out.push('}');
        }
    }
    Ok(())
}

/// Python keeps an integer's digits and spells a float by its shortest form; the library reads that
/// spelling and writes it in its own way. The reader is the library's, because it is not correctly
/// rounded for 17 digits and a reader that is would differ in the last one.
fn push_number(spelling: &str, out: &mut String) -> Result<(), RenderError> {
    let refused = || RenderError::unsupported("a number that the engine does not take");
    let is_float = spelling.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E'));
    let python = if is_float {
        let number: f64 = spelling.parse().map_err(|_| refused())?;
        format!("{number:?}")
    } else if spelling == "-0" {
        "0".to_owned()
    } else {
        spelling.to_owned()
    };
    let number: serde_json::Number = serde_json::from_str(&python).map_err(|_| refused())?;
    out.push_str(&number.to_string());
    Ok(())
}
