//! Function tools as gpt-oss reads them: a TypeScript namespace in the developer message.
//!
//! The form follows what oss-harmony 0.0.11 writes (the library that vLLM 0.32 renders with), its
//! peculiarities included: an enum counts only where `type` is `string`, a list of types is spelled
//! as it is but for `integer`, a `null` anywhere in a type's text stops the `| null` of `nullable`.
//! Defaults are compact JSON as that library's writer spells it, read from Python's spelling.
//!
//! Owns no state and no thread; does no I/O.

use std::collections::HashSet;

use super::RenderError;
use super::json::push_json;
use crate::prompt::tree::{Node, Quoted};

/// Longest text of a prompt while types are written. Only they can be much longer than the body
/// that they come from: each line of a deep schema is indented by its depth.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// Writes `// line` for each line of a text.
fn comment_lines(text: &str, out: &mut String) {
    for line in text.lines() {
        out.push_str("// ");
        out.push_str(line);
        out.push('\n');
    }
}

/// Appends the tools section of the developer message. `tools` are the request's: each an object
/// with a `function`, or the function itself with a `type` beside its members.
///
/// # Errors
/// A tool that is not a function, a function without a name, or a number that the engine's library
/// does not take.
pub(super) fn push_tools(tools: &[Node<'_>], out: &mut String) -> Result<(), RenderError> {
    out.push_str("# Tools\n\n## functions\n\nnamespace functions {\n\n");
    for tool in tools {
        if tool.get("type").is_some() && !tool.says("type", "function") {
            return Err(RenderError::shape("a tool that is not a function"));
        }
        let function = tool.get("function").unwrap_or(tool);
        let name = function.text("name");
        let name = name.ok_or_else(|| RenderError::shape("a function without a name"))?;
        match function.given("description") {
            None => {}
            Some(Node::Text(description)) => comment_lines(&description.text(), out),
            Some(_) => return Err(RenderError::shape("a description that is not a string")),
        }
        out.push_str("type ");
        out.push_str(&name);
        match function.given("parameters") {
            None => out.push_str(" = () => any;\n\n"),
            Some(parameters @ Node::Map(_)) => {
                out.push_str(" = (_: ");
                push_type(parameters, 0, out)?;
                out.push_str(") => any;\n\n");
            }
            Some(_) => return Err(RenderError::shape("parameters that are not an object")),
        }
    }
    out.push_str("} // namespace functions");
    Ok(())
}

/// Appends the type that a JSON schema describes; continuation lines begin with `indent` spaces.
fn push_type(schema: &Node<'_>, indent: usize, out: &mut String) -> Result<(), RenderError> {
    if let Some(variants) = schema.get("oneOf").and_then(Node::list) {
        return variants.iter().try_for_each(|variant| push_variant(variant, indent, out));
    }
    match schema.get("type") {
        Some(Node::List(types)) => push_names(types, out),
        Some(Node::Text(name)) => match name.text().as_ref() {
            "object" => push_object(schema, indent, out)?,
            "string" => push_enum(schema, out),
            "number" | "integer" => out.push_str("number"),
            "boolean" => out.push_str("boolean"),
            "array" => match schema.get("items") {
                Some(items) => {
                    push_type(items, indent, out)?;
                    out.push_str("[]");
                }
                None => out.push_str("Array<any>"),
            },
            _ => out.push_str("any"),
        },
        _ => out.push_str("any"),
    }
    Ok(())
}

/// A list of types: its names, or `any` when there are none.
fn push_names(types: &[Node<'_>], out: &mut String) {
    let mut first = true;
    for name in types.iter().filter_map(Node::quoted) {
        out.push_str(if first { "" } else { " | " });
        match name.text().as_ref() {
            "integer" => out.push_str("number"),
            other => out.push_str(other),
        }
        first = false;
    }
    if first {
        out.push_str("any");
    }
}

/// A string's type: its enum's strings, unescaped, or `string`.
fn push_enum(schema: &Node<'_>, out: &mut String) {
    let values = schema.get("enum").and_then(Node::list).unwrap_or_default();
    let mut first = true;
    for value in values.iter().filter_map(Node::quoted) {
        out.push_str(if first { "\"" } else { " | \"" });
        value.push_to(out);
        out.push('"');
        first = false;
    }
    if first {
        out.push_str("string");
    }
}

/// One variant of a `oneOf` that is not a property's, on a line of its own.
fn push_variant(variant: &Node<'_>, indent: usize, out: &mut String) -> Result<(), RenderError> {
    out.push('\n');
    pad(indent, out);
    out.push_str(" | ");
    push_nullable_type(variant, indent + 3, out)?;
    let mut comment = Comment::default();
    if let Some(description) = variant.text("description") {
        comment.begin(out);
        out.push_str(&description);
    }
    if let Some(default) = variant.get("default") {
        comment.begin(out);
        out.push_str("default: ");
        match default {
            Node::Text(text) if !has_enum(variant) => push(out, &["\"", &text.text(), "\""]),
            other => push_json(other, out)?,
        }
    }
    Ok(())
}

/// A type, with ` | null` where the schema is nullable and the type does not say so.
fn push_nullable_type(
    schema: &Node<'_>,
    indent: usize,
    out: &mut String,
) -> Result<(), RenderError> {
    let start = out.len();
    push_type(schema, indent, out)?;
    let nullable = schema.get("nullable") == Some(&Node::Bool(true));
    if nullable && !out.get(start..).unwrap_or_default().contains("null") {
        out.push_str(" | null");
    }
    Ok(())
}

fn push_object(schema: &Node<'_>, indent: usize, out: &mut String) -> Result<(), RenderError> {
    if let Some(description) = schema.text("description") {
        push_line(indent, &["// ", &description], out);
    }
    out.push_str("{\n");
    let required = schema.get("required").and_then(Node::list).unwrap_or_default();
    let required: HashSet<_> = required.iter().filter_map(Node::quoted).map(Quoted::text).collect();
    let properties = schema.get("properties").and_then(Node::members).unwrap_or_default();
    for (name, property) in properties {
        if out.len() > TEXT_BYTES_MAX {
            return Err(RenderError::unsupported("tools whose types are too long"));
        }
        let required = required.contains(name);
        let mark = if required { "" } else { "?" };
        push_property_comments(property, indent, out);
        match property.get("oneOf") {
            Some(Node::List(variants)) => {
                push_choice(name, mark, property, variants, indent, out)?;
                continue;
            }
            other => {
                pad(indent, out);
                push(out, &[name, mark, ": "]);
                push_nullable_type(property, indent + 4, out)?;
                out.push(',');
                if let (None, Some(default)) = (other, property.get("default")) {
                    out.push_str(" // ");
                    push_default(property, default, out)?;
                }
                out.push('\n');
            }
        }
    }
    pad(indent, out);
    out.push('}');
    Ok(())
}

/// Title, description (unless it is a `oneOf`'s) and examples above a property.
fn push_property_comments(property: &Node<'_>, indent: usize, out: &mut String) {
    if let Some(title) = property.text("title") {
        push_line(indent, &["// ", &title], out);
        push_line(indent, &["//"], out);
    }
    if let (None, Some(description)) = (property.get("oneOf"), property.text("description")) {
        push_line(indent, &["// ", &description], out);
    }
    let examples = property.get("examples").and_then(Node::list).unwrap_or_default();
    if !examples.is_empty() {
        push_line(indent, &["// Examples:"], out);
    }
    for example in examples.iter().filter_map(Node::quoted) {
        push_line(indent, &["// - \"", &example.text(), "\""], out);
    }
}

/// A property that is a `oneOf`: its name on one line, a line for each variant.
fn push_choice(
    name: &str,
    mark: &str,
    property: &Node<'_>,
    variants: &[Node<'_>],
    indent: usize,
    out: &mut String,
) -> Result<(), RenderError> {
    let description = property.text("description");
    let first = variants.first().and_then(|variant| variant.text("description"));
    // The description stands above the name unless the first variant says the same.
    let above = description.as_ref().filter(|text| first.as_ref() != Some(text));
    if let Some(text) = above {
        push_line(indent, &["// ", text], out);
    }
    if let Some(default) = property.get("default") {
        pad(indent, out);
        out.push_str("// ");
        push_default(property, default, out)?;
        out.push('\n');
    }
    push_line(indent, &[name, mark, ":"], out);
    for (i, variant) in variants.iter().enumerate() {
        pad(indent, out);
        out.push_str(" | ");
        push_nullable_type(variant, indent + 3, out)?;
        let mut comment = Comment::default();
        let own = variant.text("description").filter(|text| Some(text) != description.as_ref());
        if let Some(text) = own.filter(|_| i > 0 || above.is_none()) {
            comment.begin(out);
            out.push_str(&text);
        }
        if let Some(default) = variant.get("default") {
            comment.begin(out);
            push_default(variant, default, out)?;
        }
        out.push('\n');
    }
    push_line(indent, &[","], out);
    Ok(())
}

/// `default: ` and the value; an enum's string stands without quotes.
fn push_default(
    schema: &Node<'_>,
    default: &Node<'_>,
    out: &mut String,
) -> Result<(), RenderError> {
    out.push_str("default: ");
    match default {
        Node::Text(text) if has_enum(schema) => text.push_to(out),
        Node::Text(text) => push(out, &["\"", &text.text(), "\""]),
        other => push_json(other, out)?,
    }
    Ok(())
}

fn has_enum(schema: &Node<'_>) -> bool {
    schema.get("enum").and_then(Node::list).is_some_and(|values| !values.is_empty())
}

/// A comment behind a type: its parts stand in one, a space between them.
#[derive(Default)]
struct Comment {
    begun: bool,
}

impl Comment {
    fn begin(&mut self, out: &mut String) {
        out.push_str(if self.begun { " " } else { " // " });
        self.begun = true;
    }
}

fn push(out: &mut String, parts: &[&str]) {
    parts.iter().for_each(|part| out.push_str(part));
}

fn push_line(indent: usize, parts: &[&str], out: &mut String) {
    pad(indent, out);
    push(out, parts);
    out.push('\n');
}

fn pad(indent: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', indent));
}
