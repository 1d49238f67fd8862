//! One model's way from a request body to the tokens of its prompts.
//!
//! [`Model::source`] reads a body and renders its text, or its token ids as they came; what is left
//! is to encode, in turns ([`super::work`]). Tables are immutable and shared by all cores; nothing
//! here reads a clock or does I/O but [`Model::load`].

use std::path::Path;
use std::sync::Arc;

use super::convert;
use super::harmony;
use super::template::{Chat, LocalTime, RenderError, Template};
use super::tokenizer::{Engine, Tokenizer};
use crate::openai::{self, Call, Endpoint, Truncate, read_call};

/// Efforts of thinking that `/v1/messages` knows.
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// Why chats of [`Chats::Tekken`] are not known.
const TEKKEN_CHATS: &str = "the engine renders chats of tekken.json without a template";

/// Tokenizer and template of one model.
pub struct Model {
    tokenizer: Arc<Tokenizer>,
    chats: Chats,
    /// How the engine turns bodies of `/v1/messages` into chats for this template.
    server: convert::Server,
}

/// How the model's chats become text.
enum Chats {
    Template(Box<Template>),
    /// gpt-oss.
    Harmony,
    /// The folder has no template: chats are estimated.
    Unknown,
    /// Code of mistral-common and no template makes them of messages: chats are estimated.
    Tekken,
}

/// A call whose prompts are asked for.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// Where it was sent.
    pub endpoint: Endpoint,
    /// What was read of its body.
    pub call: &'a Call,
    /// The body.
    pub body: &'a [u8],
    /// Seconds since 1970: templates may print the date.
    pub unix_s: i64,
}

/// Prompts on their way to tokens.
pub struct Source {
    /// One for each prompt of the call.
    pub prompts: Vec<Piece>,
    /// Pictures, sounds and films. With any, the prompts are two parts of one: the text before the
    /// first of them, and the rest.
    pub media_parts: u32,
    /// How the engine cuts a prompt that the caller did not ask it to cut.
    pub truncate: Option<Truncate>,
}

/// One prompt.
pub enum Piece {
    /// As token ids.
    Ids(Vec<u32>),
    /// As text.
    Text(Text),
}

/// The text of one prompt.
pub struct Text {
    /// All of it.
    pub text: String,
    /// The tokenizer adds its own tokens around it.
    pub add_special: bool,
    /// Parts in which the names of special tokens are no more than text, by where each part ends;
    /// empty = they are special everywhere.
    pub parts: Vec<harmony::Segment>,
}

/// Why the tokens of a call are not known exactly; it is then estimated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unknown {
    /// The engine renders this otherwise, or we do not render it.
    Unsupported(String),
    /// The engine will refuse it, or a limit of ours was met.
    Refused(String),
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Unknown::Unsupported(what) | Unknown::Refused(what)) = self;
        f.write_str(what)
    }
}

impl std::error::Error for Unknown {}

impl From<RenderError> for Unknown {
    fn from(error: RenderError) -> Unknown {
        match error {
            RenderError::Unsupported(what) => Unknown::Unsupported(what.to_owned()),
            other => Unknown::Refused(other.to_string()),
        }
    }
}

impl From<harmony::RenderError> for Unknown {
    fn from(error: harmony::RenderError) -> Unknown {
        match error {
            harmony::RenderError::Unsupported(what) => Unknown::Unsupported(what),
            harmony::RenderError::Shape(what) => Unknown::Refused(what),
        }
    }
}

impl From<convert::ConvertError> for Unknown {
    fn from(error: convert::ConvertError) -> Unknown {
        Unknown::Unsupported(error.to_string())
    }
}

impl Model {
    /// Loads tokenizer and template from a model's folder; `template` is a file that stands in for
    /// the folder's own.
    ///
    /// # Errors
    /// A file cannot be read or understood, in words for the operator.
    pub fn load(folder: &Path, template: Option<&Path>) -> Result<Model, String> {
        let told = |what: &dyn std::fmt::Display| format!("{}: {what}", folder.display());
        let tokenizer = Tokenizer::load(folder).map_err(|e| told(&e))?;
        // The engine uses no template with a tekken.json, whether there is one or not.
        let template = match tokenizer.is_tekken() {
            true => None,
            false => Template::load(folder, template).map_err(|e| told(&e))?,
        };
        let chats = match template {
            Some(template) => Chats::Template(Box::new(template)),
            None if tokenizer.is_tekken() => Chats::Tekken,
            None if tokenizer.has_token("<|channel|>") && tokenizer.has_token("<|start|>") => {
                Chats::Harmony
            }
            None => Chats::Unknown,
        };
        let server = match &chats {
            Chats::Template(template) => server(template),
            // The engine has no template to find out with, and gpt-oss refuses the effort `none`.
            Chats::Harmony | Chats::Unknown | Chats::Tekken => {
                convert::Server { merge_inline_system: true, disabled_thinking_effort: "low" }
            }
        };
        Ok(Model { tokenizer: Arc::new(tokenizer), chats, server })
    }

    /// Its tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// How its chats become text: `template`, `harmony`, or `none`.
    #[must_use]
    pub fn chats(&self) -> &'static str {
        match self.chats {
            Chats::Template(_) => "template",
            Chats::Harmony => "harmony",
            Chats::Unknown | Chats::Tekken => "none",
        }
    }

    /// What its operator should know: slow ways that it takes, and what is estimated.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Engine::Tokenizers(why) = self.tokenizer.engine() {
            remarks.push(format!("encoded by the slow library: {why}"));
        }
        let cuts = self.tokenizer.cuts();
        for (what, cut) in [
            ("no parts of prompts are kept", &cuts.added),
            ("long texts are encoded beside the cores", &cuts.letter_space),
        ] {
            if let Err(why) = cut {
                remarks.push(format!("{what}: {why}"));
            }
        }
        let estimated = match self.chats {
            Chats::Template(_) | Chats::Harmony => None,
            Chats::Unknown => Some("no chat template"),
            Chats::Tekken => Some(TEKKEN_CHATS),
        };
        if let Some(why) = estimated {
            remarks.push(format!("{why}: the tokens of chats are estimated"));
        }
        remarks
    }

    /// Is a long body of this kind rendered at the speed of a copy?
    #[must_use]
    pub fn is_quick(&self, ask: &Ask<'_>) -> bool {
        match (&self.chats, ask.call.messages_span) {
            (_, None) | (Chats::Unknown | Chats::Tekken | Chats::Harmony, _) => true,
            (Chats::Template(template), Some(_)) => {
                let chat = Chat::read(ask.endpoint, ask.body);
                chat.is_ok_and(|chat| template.is_plain(&chat))
            }
        }
    }

    /// A hash of its chat template, for logs; 0 without one.
    #[must_use]
    pub fn template_digest(&self) -> u64 {
        match &self.chats {
            Chats::Template(template) => template.digest(),
            _ => 0,
        }
    }

    /// The prompts of a call as text or ids.
    ///
    /// # Errors
    /// They are not known exactly.
    pub fn source(&self, ask: &Ask<'_>) -> Result<Source, Unknown> {
        if ask.call.embeds {
            return Err(Unknown::Unsupported("prompt_embeds".to_owned()));
        }
        match ask.endpoint {
            Endpoint::ChatCompletions => self.chat(ask, ask.body),
            Endpoint::Tokenize | Endpoint::Embeddings if ask.call.messages_span.is_some() => {
                self.chat(ask, ask.body)
            }
            Endpoint::Completions | Endpoint::Tokenize | Endpoint::Embeddings => plain(ask),
            Endpoint::Messages => {
                self.chat(ask, &convert::messages_to_chat(ask.body, self.server)?)
            }
            // gpt-oss: its own way from the body itself.
            Endpoint::Responses if matches!(self.chats, Chats::Harmony) => self.chat(ask, ask.body),
            Endpoint::Responses => self.chat(ask, &convert::responses_to_chat(ask.body)?),
            _ => Err(Unknown::Unsupported(ask.endpoint.name().to_owned())),
        }
    }

    fn chat(&self, ask: &Ask<'_>, body: &[u8]) -> Result<Source, Unknown> {
        let mut source = Source::new();
        // Of a chat the template writes the special tokens itself; a converted body says what the
        // engine makes of it.
        let converted = matches!(ask.endpoint, Endpoint::Messages | Endpoint::Responses);
        let mut add_special = ask.call.add_special_tokens.unwrap_or(false);
        if converted && !matches!(self.chats, Chats::Harmony) {
            let call = read_call(Endpoint::ChatCompletions, body);
            let call = call.map_err(|error| Unknown::Refused(error.to_string()))?;
            add_special = call.add_special_tokens.unwrap_or(false);
            source.truncate = call.truncate;
        }
        let mut text = String::with_capacity(body.len().saturating_add(256));
        let mut parts = Vec::new();
        let now = LocalTime::from_unix(ask.unix_s);
        match &self.chats {
            Chats::Unknown => {
                return Err(Unknown::Unsupported("the model has no chat template".to_owned()));
            }
            Chats::Tekken => {
                return Err(Unknown::Unsupported(TEKKEN_CHATS.to_owned()));
            }
            Chats::Harmony => {
                let date = now.format("%Y-%m-%d");
                let harmony = match ask.endpoint {
                    Endpoint::Responses => harmony::render_responses(body, &date, &mut text)?,
                    _ => harmony::render(body, &date, &mut text)?,
                };
                if !harmony.whole {
                    parts = harmony.segments;
                }
            }
            Chats::Template(template) => {
                let chat = match ask.endpoint {
                    Endpoint::Tokenize => Chat::read(Endpoint::Tokenize, body)?,
                    _ => Chat::read(Endpoint::ChatCompletions, body)?,
                };
                let rendered = template.render_chat(&chat, &now, &mut text)?;
                source.media_parts = rendered.media_parts;
                if let Some(at) = rendered.media_at {
                    let rest = text.split_off(at);
                    let before = Text { text, add_special, parts: Vec::new() };
                    source.prompts.push(Piece::Text(before));
                    text = rest;
                }
            }
        }
        source.prompts.push(Piece::Text(Text { text, add_special, parts }));
        Ok(source)
    }
}

/// What vLLM 0.32 finds out about a template by rendering with it, for its `/v1/messages`.
fn server(template: &Template) -> convert::Server {
    let render = |body: &str| {
        let mut text = String::new();
        let rendered = template.render(body.as_bytes(), &LocalTime::from_unix(0), &mut text);
        rendered.ok().map(|_| text)
    };
    let ordered = r#"{"messages":[{"role":"system","content":"t"},{"role":"user","content":"t"},
        {"role":"system","content":"t"},{"role":"user","content":"t"}],
        "add_generation_prompt":false}"#;
    let with_effort = |effort: &str| {
        let message = r#"{"role":"user","content":"Hi"}"#;
        render(&format!(r#"{{"messages":[{message}],"reasoning_effort":"{effort}"}}"#))
    };
    let none = with_effort("none");
    let ignored = none.is_none() || EFFORTS.iter().any(|effort| with_effort(effort) == none);
    convert::Server {
        merge_inline_system: render(ordered).is_none(),
        disabled_thinking_effort: if ignored { "low" } else { "none" },
    }
}

/// Prompts that stand in the body as they are.
fn plain(ask: &Ask<'_>) -> Result<Source, Unknown> {
    let mut source = Source::new();
    let value = ask.call.prompt_span.map(|span| span.of(ask.body)).unwrap_or_default();
    match ask.call.prompt {
        openai::Prompt::Tokens { .. } | openai::Prompt::TokenLists { .. } => {
            source.prompts.extend(openai::token_ids(value).into_iter().map(Piece::Ids));
        }
        openai::Prompt::Text | openai::Prompt::Texts { .. } => {
            let add_special = ask.call.add_special_tokens.unwrap_or(true);
            let piece = |text| Piece::Text(Text { text, add_special, parts: Vec::new() });
            source.prompts.extend(openai::texts(value).into_iter().map(piece));
        }
        openai::Prompt::Items { .. } | openai::Prompt::None => {
            return Err(Unknown::Unsupported("no text prompt".to_owned()));
        }
    }
    Ok(source)
}

/// A call whose prompts came as token ids needs no model.
#[must_use]
pub fn of_ids(ask: &Ask<'_>) -> Option<Source> {
    has_ids(ask.call).then(|| plain(ask).ok()).flatten()
}

/// Did the prompts of a call come as token ids?
#[must_use]
pub fn has_ids(call: &Call) -> bool {
    let ids =
        matches!(call.prompt, openai::Prompt::Tokens { .. } | openai::Prompt::TokenLists { .. });
    ids && !call.embeds
}

impl Source {
    /// One text.
    #[must_use]
    pub fn of(text: Text) -> Source {
        Source { prompts: vec![Piece::Text(text)], ..Source::new() }
    }

    fn new() -> Source {
        Source { prompts: Vec::new(), media_parts: 0, truncate: None }
    }
}
