//! Chat templates, rendered byte for byte as vLLM 0.32 and transformers render them.
//!
//! * `load`: a model's folder to a [`Template`]; the only part that reads files.
//! * `chat`: the members of a request that matter, read in one pass over its body.
//! * `shape`, `content`: what vLLM makes of them before the template sees them.
//! * `engine`: minijinja, set up as transformers sets up Jinja, with limits; `tojson`, `methods`,
//!   `python`, `clock` are what Python brings along, `value` the dictionaries and lists.
//! * `detect`: whether the template takes content as text or as parts.
//! * `plain`: the loop over roles and texts of known templates, without the engine.
//!
//! A [`Template`] is immutable and shared by all cores; a render runs on the core that asks and
//! keeps nothing. No clock is read: the time is an argument.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::fmt;

use minijinja::Value;
use sha2::{Digest, Sha256};

pub use chat::Chat;
pub use clock::LocalTime;
pub use detect::ContentFormat;
pub use load::Specials;

use crate::openai::{Endpoint, Span};
use content::{MARK, Media};
use engine::Engine;
use plain::{Plain, Talk};
use value::{Dict, List};

mod arguments;
mod chat;
mod clock;
mod content;
mod detect;
mod engine;
mod load;
mod methods;
mod open;
mod plain;
mod python;
mod shape;
mod tojson;
mod value;

/// A chat template, compiled, with the special tokens of its model.
pub struct Template {
    default: Source,
    /// The one for requests with tools, where the model has two.
    tool_use: Option<Source>,
    specials: Specials,
    options: Options,
    digest: u64,
}

/// What the engine was started with, as far as it changes the prompt.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `--chat-template-content-format`; `None` is `auto`.
    pub content_format: Option<ContentFormat>,
    /// `--exclude-tools-when-tool-choice-none`.
    pub exclude_tools_when_tool_choice_none: bool,
    /// `--default-chat-template-kwargs`: a JSON object, empty for none.
    pub default_kwargs: String,
}

struct Source {
    engine: Engine,
    format: ContentFormat,
    knows_developer: bool,
    plain: Option<Plain>,
}

/// What was rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rendered {
    /// Offset in `out` of the first media placeholder: the text before it is exact. `None` when
    /// there are no media.
    pub media_at: Option<usize>,
    /// Images, sounds and videos in the messages.
    pub media_parts: u32,
    /// The last message is left open for the model to go on with.
    pub continue_final: bool,
}

/// Why a template could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateError {
    /// A file could not be read; the path and the reason.
    File(String),
    /// A file is not what it should be; the path and what is wrong.
    Content(String),
    /// The template does not compile; what is wrong and where.
    Syntax(String),
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (TemplateError::File(what)
        | TemplateError::Content(what)
        | TemplateError::Syntax(what)) = self;
        f.write_str(what)
    }
}

impl std::error::Error for TemplateError {}

/// Why a request could not be rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenderError {
    /// The template refused, with its own words (`raise_exception`), or failed: vLLM answers 400.
    Template(String),
    /// A limit of ours; what is too much.
    Limit(&'static str),
    /// Not the shape of a chat request: vLLM answers 400.
    Shape(&'static str),
    /// vLLM would render it, and we do not: count by estimate.
    Unsupported(&'static str),
}

impl fmt::Display for RenderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RenderError::Template(what) => f.write_str(what),
            RenderError::Limit(what) | RenderError::Shape(what) => f.write_str(what),
            RenderError::Unsupported(what) => write!(f, "not rendered here: {what}"),
        }
    }
}

impl std::error::Error for RenderError {}

impl Template {
    /// Compiles `source`.
    ///
    /// # Errors
    /// It does not compile, or is longer than 1 MiB.
    pub fn parse(source: &str, specials: Specials) -> Result<Template, TemplateError> {
        Template::parse_both(source, None, specials)
    }

    /// Compiles the template of a model, and the one for requests with tools where there are two.
    fn parse_both(
        default: &str,
        tool_use: Option<&str>,
        specials: Specials,
    ) -> Result<Template, TemplateError> {
        let mut hash = Sha256::new();
        for part in [default, tool_use.unwrap_or_default()] {
            hash.update(part.len().to_le_bytes());
            hash.update(part.as_bytes());
        }
        for (name, token) in specials.iter() {
            hash.update(name.as_bytes());
            hash.update([0]);
            hash.update(token.as_bytes());
            hash.update([0]);
        }
        let first = hash.finalize().first_chunk::<8>().copied().unwrap_or_default();
        Ok(Template {
            default: Source::compile(default)?,
            tool_use: tool_use.map(Source::compile).transpose()?,
            specials,
            options: Options::default(),
            digest: u64::from_be_bytes(first),
        })
    }

    /// The same with what the engine was started with.
    ///
    /// # Errors
    /// The default arguments are not a JSON object.
    pub fn with_options(mut self, options: Options) -> Result<Template, TemplateError> {
        if !options.default_kwargs.is_empty() {
            let what = || TemplateError::Content("default arguments: not a JSON object".to_owned());
            let defaults = whole(&options.default_kwargs).map_err(|_| what())?;
            defaults.downcast_object_ref::<Dict>().ok_or_else(what)?;
        }
        self.options = options;
        Ok(self)
    }

    /// A hash of the template and its special tokens, the same in every process: for logs.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Does rendering `chat` cost no more than copying its text? So for requests of nothing but
    /// roles and texts, with templates that are written out here.
    #[must_use]
    pub fn is_plain(&self, chat: &Chat<'_>) -> bool {
        self.plain(chat).is_some()
    }

    fn plain<'a>(&self, chat: &Chat<'a>) -> Option<(Plain, Talk<'a>)> {
        let as_written = self.options.content_format.is_none_or(|it| it == self.default.format);
        let bare = as_written && self.options.default_kwargs.is_empty();
        let plain = self.default.plain.filter(|_| bare)?;
        plain.talk(chat).map(|talk| (plain, talk))
    }

    /// Renders `body`, the JSON object of `/v1/chat/completions`; appends to `out`.
    ///
    /// # Errors
    /// See [`RenderError`]; `out` may then hold a part.
    pub fn render(
        &self,
        body: &[u8],
        now: &LocalTime,
        out: &mut String,
    ) -> Result<Rendered, RenderError> {
        self.render_chat(&Chat::read(Endpoint::ChatCompletions, body)?, now, out)
    }

    /// The same for a request that was read before, of either endpoint.
    ///
    /// # Errors
    /// See [`RenderError`]; `out` may then hold a part.
    pub fn render_chat(
        &self,
        chat: &Chat<'_>,
        now: &LocalTime,
        out: &mut String,
    ) -> Result<Rendered, RenderError> {
        if let Some((plain, talk)) = self.plain(chat)
            && plain.render(&talk, &self.specials, out)
        {
            return Ok(Rendered::default());
        }
        self.render_with_engine(chat, now, out)
    }

    fn render_with_engine(
        &self,
        chat: &Chat<'_>,
        now: &LocalTime,
        out: &mut String,
    ) -> Result<Rendered, RenderError> {
        let mut media = Media::default();
        let from = out.len();
        self.render_once(chat, *now, out, &mut media)?;
        let mut rendered = Rendered {
            media_at: None,
            media_parts: media.parts,
            continue_final: chat.continue_final,
        };
        if media.parts > 0 {
            // Once more with a mark in the place of the first: where it comes out is the place,
            // if all before it is the same.
            let mut marked = String::new();
            let mut media = Media { parts: 0, mark: true };
            let again = self.render_once(chat, *now, &mut marked, &mut media);
            let at = again.ok().and_then(|()| marked.find(MARK)).unwrap_or(0);
            let text = out.get(from..).unwrap_or_default();
            let same = text.bytes().zip(marked.bytes()).take_while(|(a, b)| a == b).count();
            rendered.media_at = Some(from + at.min(same));
        }
        Ok(rendered)
    }

    fn render_once(
        &self,
        chat: &Chat<'_>,
        now: LocalTime,
        out: &mut String,
        media: &mut Media,
    ) -> Result<(), RenderError> {
        let mut context = self.arguments(chat)?;
        let with_tools = context.get("tools").is_some_and(|tools| !tools.is_none());
        let source = match &self.tool_use {
            Some(tool_use) if with_tools => tool_use,
            _ => &self.default,
        };
        let format = self.options.content_format.unwrap_or(source.format);
        let mut messages = shape::messages(chat, format, source.knows_developer, media)?;
        if messages.is_empty() {
            return Err(RenderError::Template("the conversation is empty".to_owned()));
        }
        let last = chat.continue_final.then(|| open::mark(&mut messages, chat)).transpose()?;
        let messages = messages.into_iter().map(Value::from_object).collect();
        context.set("messages".into(), Value::from_object(List(messages)));
        let from = out.len();
        source.engine.render(context, now, out)?;
        match last {
            Some(last) => open::cut(out, from, &last),
            None => Ok(()),
        }
    }
}

impl Source {
    fn compile(source: &str) -> Result<Source, TemplateError> {
        if source.len() > engine::SOURCE_BYTES_MAX {
            return Err(TemplateError::Content("the template is longer than 1 MiB".to_owned()));
        }
        let plain = Plain::of(source);
        let knows_developer = ["\"developer\"", "'developer'"].iter().any(|it| source.contains(it));
        let source = engine::normalise(source);
        let engine = Engine::compile(&source).map_err(TemplateError::Syntax)?;
        let format = detect::content_format(&source);
        Ok(Source { engine, format, knows_developer, plain })
    }
}

/// Reads all of `text`.
fn whole(text: &str) -> Result<Value, crate::openai::json::Error> {
    value::at(text, Span::between(0, text.len()))
}

#[cfg(test)]
#[path = "hostile_tests.rs"]
mod tests;
