//! minijinja set up as transformers sets up Jinja: a sandbox without auto-escape, blocks trimmed,
//! loop controls, Python's methods and spellings, `raise_exception`, `strftime_now`, `tojson`.
//!
//! Owns one compiled template, immutable. A render is bounded in fuel, depth and output.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Object, ObjectRepr, StringInput, ValueKind};
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value,
};

use super::clock::LocalTime;
use super::value::{Deep, Dict, push_repr};
use super::{RenderError, methods, python, tojson};

/// Instructions of one render, with 64 bytes of data counted as one. What we accept at most (4,096
/// messages, 16 MiB of text) takes about 1,300,000 with the templates in use; a template that never
/// ends is stopped after 60 to 300 ms (`cargo bench --bench template`).
pub(super) const FUEL: u64 = 2_000_000;

/// Bytes of one rendered prompt: a context of a million tokens at up to 16 bytes each.
pub(super) const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// Calls and frames within each other; a macro call counts as four. Each takes about 1 KiB of the
/// native stack.
const RECURSION_MAX: usize = 200;

/// Bytes of a template's source; the longest in use have 25 KiB.
pub(super) const SOURCE_BYTES_MAX: usize = 1 << 20;

/// The name under which `raise_exception` marks its error, so that its text is told apart.
const RAISED: &str = "raised by the template: ";

const NAME: &str = "chat_template";
const CLOCK: &str = "strftime_now";

/// A template, compiled.
pub(super) struct Engine {
    env: Environment<'static>,
}

impl Engine {
    /// Compiles `source`, which [`normalise`] has been over.
    ///
    /// # Errors
    /// A syntax error, as a sentence with the line.
    pub(super) fn compile(source: &str) -> Result<Engine, String> {
        let mut env = Environment::new();
        env.set_syntax(syntax());
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_unknown_method_callback(methods::call);
        env.set_formatter(format_value);
        env.set_recursion_limit(RECURSION_MAX);
        env.set_fuel(Some(FUEL));
        env.remove_global("debug");
        env.add_filter("tojson", tojson::filter);
        env.add_filter("trim", trim);
        env.add_filter("string", |value: &Value| printed(value).map(Value::from));
        env.add_test("sequence", |value: &Value| {
            matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
        });
        env.add_test("iterable", |value: &Value| {
            value.kind() == ValueKind::String || value.try_iter().is_ok()
        });
        env.add_function("raise_exception", raise);
        env.add_template(NAME, intern(source)).map_err(|error| describe(&error))?;
        Ok(Engine { env })
    }

    /// Renders with the variables of `context`; appends to `out`.
    ///
    /// # Errors
    /// What the template raises, or a limit.
    pub(super) fn render(
        &self,
        mut context: Dict,
        now: LocalTime,
        out: &mut String,
    ) -> Result<(), RenderError> {
        if context.get(CLOCK).is_none() {
            context.set(Value::from(CLOCK), Value::from_object(Clock(now)));
        }
        let template = self.env.get_template(NAME).map_err(|error| failure(&error))?;
        let text = template.render(Value::from_object(context)).map_err(|error| failure(&error))?;
        if text.len() > OUTPUT_BYTES_MAX {
            return Err(RenderError::Limit("the prompt is longer than 16 MiB"));
        }
        out.push_str(&text);
        Ok(())
    }
}

/// How Jinja is set up in transformers.
pub(super) fn syntax() -> SyntaxConfig {
    let mut builder = SyntaxConfig::builder();
    builder.trim_blocks(true).lstrip_blocks(true);
    builder.build().unwrap_or_default()
}

/// Line ends as Jinja reads them, and `{% generation %}`, which only marks what the assistant
/// wrote, as a block with a scope of its own.
pub(super) fn normalise(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some((before, tag)) = rest.split_once("{%") {
        out.push_str(before);
        out.push_str("{%");
        rest = tag;
        let body = tag.trim_start_matches(['-', '+']);
        let word = body.trim_start();
        for (name, instead) in [("generation", "with"), ("endgeneration", "endwith")] {
            let closed = |end: &str| end.trim_start_matches(['-', '+']).starts_with("%}");
            if let Some(end) = word.strip_prefix(name)
                && closed(end.trim_start())
            {
                out.push_str(tag.strip_suffix(word).unwrap_or_default());
                out.push_str(instead);
                rest = end;
            }
        }
    }
    out.push_str(rest);
    out
}

/// Keeps each distinct source for as long as the process lives: a template in use is looked up on
/// a core without a lock, and a reload brings the same few sources again.
fn intern(source: &str) -> &'static str {
    static SOURCES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut sources = SOURCES.lock().unwrap_or_else(PoisonError::into_inner);
    let sources = sources.get_or_insert_default();
    match sources.get(source) {
        Some(kept) => kept,
        None => {
            let kept: &'static str = Box::leak(source.into());
            sources.insert(kept);
            kept
        }
    }
}

/// `strftime_now`, with the time of this render.
#[derive(Debug)]
struct Clock(LocalTime);

impl Object for Clock {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let (format,): (&str,) = minijinja::value::from_args(args)?;
        Ok(Value::from(self.0.format(format)))
    }
}

fn raise(message: &Value, _rest: Kwargs) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
}

fn trim(value: StringInput<'_>, chars: Option<&str>) -> Value {
    Value::from(match chars {
        Some(chars) => value.as_str().trim_matches(|char| chars.contains(char)),
        None => python::strip(value.as_str()),
    })
}

/// `str(value)`.
fn printed(value: &Value) -> Result<String, Error> {
    if value.is_undefined() {
        return Ok(String::new());
    }
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let mut out = String::new();
    push_repr(&mut out, value, 0)
        .map_err(|Deep| Error::new(ErrorKind::InvalidOperation, "nested too deep"))?;
    Ok(out)
}

fn format_value(
    out: &mut Output<'_>,
    _state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text).map_err(Error::from),
        None => out.write_str(&printed(value)?).map_err(Error::from),
    }
}

fn failure(error: &Error) -> RenderError {
    match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => RenderError::Limit("the template takes too long"),
        (_, Some(detail)) if detail.starts_with(RAISED) => {
            RenderError::Template(detail.trim_start_matches(RAISED).to_owned())
        }
        _ => RenderError::Template(describe(error)),
    }
}

fn describe(error: &Error) -> String {
    let line = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
    match error.detail() {
        Some(detail) => format!("{}: {detail}{line}", error.kind()),
        None => format!("{}{line}", error.kind()),
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
