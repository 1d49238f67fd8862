//! A request body to a [`Call`]: what we read of it, or why it is refused.
//!
//! Everything is decided before a replica is chosen. Refused is what would make our accounting or
//! routing differ from what the engine does: a field that we read given twice or with the wrong
//! type, counts out of range, options that contradict each other. A field that we do not read may
//! hold anything, and stays byte for byte. `null` for an optional field is its absence, as it is
//! for vLLM (pydantic).

use super::json::{self, Key, Kind, Scanner, Value};
use super::prompt::{Prompt, read_prompt};
use super::{BodyError, Endpoint, Span, constraint, media};

/// Messages in one request.
pub const MESSAGES_MAX: usize = 4096;
/// Tools in one request.
pub const TOOLS_MAX: usize = 256;
/// Sequences generated for one prompt (`n`, `best_of`).
pub const SEQUENCES_MAX: u64 = 128;
/// Bytes of a model name, escapes decoded.
pub const MODEL_BYTES_MAX: usize = 1024;
/// Any count of tokens that a body may name; far above every context length.
pub const TOKENS_MAX: u64 = 1 << 40;
/// Object keys in one body, at all depths.
pub const KEYS_MAX: u32 = 1 << 18;

/// What we read of a request body. Spans are places in that body.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// The `model` value; `None` when absent or null.
    pub model: Option<Model>,
    /// `stream` is true.
    pub stream: bool,
    /// The value of `stream`, unless that is null.
    pub stream_span: Option<Span>,
    /// `stream_options` of chat and completions; `None` when absent or null.
    pub stream_options: Option<StreamOptions>,
    /// `max_tokens`.
    pub max_tokens: Option<Count>,
    /// `max_completion_tokens` (chat), `max_output_tokens` (responses).
    pub max_completion_tokens: Option<Count>,
    /// `min_tokens`.
    pub min_tokens: Option<Count>,
    /// `n`.
    pub n: Option<Count>,
    /// `best_of`.
    pub best_of: Option<Count>,
    /// `echo` is true (completions).
    pub echo: bool,
    /// Messages of a chat, or items of a responses `input`.
    pub messages: usize,
    /// The `messages` value.
    pub messages_span: Option<Span>,
    /// Tools offered.
    pub tools: usize,
    /// The `tools` value.
    pub tools_span: Option<Span>,
    /// The `system` value (messages) or `instructions` (responses).
    pub system_span: Option<Span>,
    /// What `prompt` or `input` holds.
    pub prompt: Prompt,
    /// The `prompt` or `input` value.
    pub prompt_span: Option<Span>,
    /// `add_special_tokens`: whether the tokenizer adds its own around the text; `None` = as the
    /// endpoint does by itself.
    pub add_special_tokens: Option<bool>,
    /// `truncate_prompt_tokens`: the most tokens of the prompt that the engine keeps.
    pub truncate: Option<Truncate>,
    /// `truncation_side` is `"right"` or `"left"`: which end is cut off; `None` = the tokenizer's.
    pub truncate_right: Option<bool>,
    /// `prompt_embeds` stands in for a prompt or beside it: its tokens cannot be counted.
    pub embeds: bool,
    /// Bytes of the string values in messages, prompt and the like: four make about one token.
    pub text_bytes: usize,
    /// URLs in messages or input that the engine would fetch: JSON strings.
    pub media: Vec<Span>,
    /// `chat_template`, when it is not null: see [`Call::refuse_chat_template`].
    pub chat_template: Option<Span>,
    /// Fields that steer the engine or other tenants' work, in the body's order: for policy.
    pub policy_fields: Vec<PolicyField>,
    /// Fields that we read and that hold null: an edit must replace it, since the engine would take
    /// the later of two members.
    pub(super) nulls: Vec<(&'static str, Span)>,
    /// Behind the opening brace, where a member may be inserted.
    pub(super) opened: usize,
    /// Members of the outermost object.
    pub(super) members: usize,
}

/// The model that a body names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// The JSON string, quotes included; in a form, the bare text.
    pub span: Span,
    /// Its text, when it has escapes.
    pub decoded: Option<String>,
    /// It stands in a form, where a value has no quotes and no escapes.
    pub in_form: bool,
}

/// A count of tokens or sequences, and where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// The number.
    pub value: u64,
    /// Its digits in the body.
    pub span: Span,
}

/// How many tokens of a prompt the engine keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncate {
    /// What fits into the context (`-1`).
    ToContext,
    /// So many.
    To(u64),
}

/// `stream_options` that is an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// The object.
    pub span: Span,
    /// Its members.
    pub members: usize,
    /// `include_usage`; `None` when absent or null.
    pub include_usage: Option<bool>,
    /// The value of `include_usage`, null or not.
    pub include_usage_span: Option<Span>,
    /// `continuous_usage_stats` is true.
    pub continuous_usage_stats: bool,
    /// The value of `continuous_usage_stats`, null or not.
    pub continuous_usage_stats_span: Option<Span>,
}

/// A field that only policy may let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyField {
    /// Its name in the API.
    pub name: &'static str,
    /// The member, from its key to the end of its value.
    pub member: Span,
    /// Its value.
    pub value: Value,
    /// Members before it in the outermost object.
    pub index: usize,
}

/// Fields listed in [`Call::policy_fields`].
pub const POLICY_FIELDS: [&str; 7] = [
    "api_base",
    "base_url",
    "kv_transfer_params",
    "priority",
    "cache_salt",
    "request_id",
    "vllm_xargs",
];

/// Reads a JSON body sent to `endpoint`.
///
/// # Errors
/// `invalid_json` with the offset, or `invalid_value` with the field.
pub fn read_call(endpoint: Endpoint, body: &[u8]) -> Result<Call, BodyError> {
    let mut scanner = Scanner::new(body)?.keys_max(KEYS_MAX);
    if !matches!(scanner.peek(), Some(Kind::Object)) {
        scanner.value()?;
        scanner.finish()?;
        return Err(BodyError::json("the body must be a JSON object", 0));
    }
    let mut reader = Reader { endpoint, body, call: Call::default(), seen: 0 };
    let span = scanner.object(|scanner, key| reader.member(scanner, key))?;
    scanner.finish()?;
    reader.call.opened = span.start() + 1;
    reader.check()?;
    media::note(&mut reader.call, endpoint, body)?;
    Ok(reader.call)
}

/// The value of the member `name` of a body that was read, the last when it is there twice.
#[must_use]
pub fn member(body: &[u8], name: &str) -> Option<Value> {
    let mut found = None;
    let mut scanner = Scanner::new(body).ok()?;
    let read = scanner.object(|scanner, key| {
        let named = key.name == name.as_bytes();
        let value = scanner.value()?;
        found = if named { Some(value) } else { found };
        Ok::<(), json::Error>(())
    });
    read.ok().and(found)
}

impl Call {
    /// The name of the model that was asked for.
    #[must_use]
    pub fn model_name<'a>(&'a self, body: &'a [u8]) -> Option<&'a str> {
        let model = self.model.as_ref()?;
        match &model.decoded {
            Some(text) => Some(text),
            None if model.in_form => std::str::from_utf8(model.span.of(body)).ok(),
            None => std::str::from_utf8(json::inner(model.span.of(body))).ok(),
        }
    }

    /// The most tokens that one sequence may take, when the body says so.
    #[must_use]
    pub fn output_tokens_max(&self) -> Option<u64> {
        self.max_completion_tokens.or(self.max_tokens).map(|count| count.value)
    }

    /// Sequences generated for each prompt: the larger of `n` and `best_of`.
    #[must_use]
    pub fn sequences(&self) -> u64 {
        let value = |count: Option<Count>| count.map_or(1, |count| count.value);
        value(self.n).max(value(self.best_of))
    }

    /// Prompts that the engine runs for this call.
    #[must_use]
    pub fn prompts(&self) -> usize {
        match self.prompt {
            Prompt::Texts { prompts } | Prompt::TokenLists { prompts, .. } => prompts,
            _ => 1,
        }
    }

    /// The client itself asked for the usage event, so it is not ours to take out.
    #[must_use]
    pub fn client_asked_for_usage(&self) -> bool {
        self.stream_options.is_some_and(|options| options.include_usage == Some(true))
    }

    /// Refuses a template of the caller's; to be called unless the model's pool allows one. (A
    /// template is a program that the engine runs.)
    ///
    /// # Errors
    /// `invalid_value` when the body has a `chat_template`.
    pub fn refuse_chat_template(&self) -> Result<(), BodyError> {
        match self.chat_template {
            None => Ok(()),
            Some(span) => {
                Err(BodyError::value("chat_template", "chat_template is not allowed here", span))
            }
        }
    }
}

struct Reader<'a> {
    endpoint: Endpoint,
    body: &'a [u8],
    call: Call,
    /// A bit for each field read so far, to refuse a second one.
    seen: u32,
}

/// The fields that we read, by endpoint. The position is the field's bit in [`Reader::seen`].
const FIELDS: [&str; 21] = [
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "min_tokens",
    "n",
    "best_of",
    "echo",
    "messages",
    "tools",
    "prompt",
    "input",
    "prompt_embeds",
    "chat_template",
    "system",
    "add_special_tokens",
    "truncate_prompt_tokens",
    "truncation_side",
    "instructions",
];

/// Fields whose strings are text for the model.
const TEXTS: [&str; 6] = ["messages", "prompt", "input", "tools", "system", "instructions"];

fn reads(endpoint: Endpoint, field: &str) -> bool {
    use Endpoint::{
        AudioSpeech, ChatCompletions, Completions, CountTokens, Embeddings, Messages, Responses,
        Tokenize,
    };
    match field {
        "model" => true,
        "stream" => endpoint.streams(),
        "stream_options" | "n" | "min_tokens" => matches!(endpoint, ChatCompletions | Completions),
        "max_tokens" => matches!(endpoint, ChatCompletions | Completions | Messages),
        "max_completion_tokens" => endpoint == ChatCompletions,
        "max_output_tokens" => endpoint == Responses,
        "best_of" | "echo" | "prompt_embeds" => endpoint == Completions,
        "messages" => {
            matches!(endpoint, ChatCompletions | Messages | CountTokens | Tokenize | Embeddings)
        }
        "tools" => {
            matches!(endpoint, ChatCompletions | Messages | CountTokens | Tokenize | Responses)
        }
        "prompt" => matches!(endpoint, Completions | Tokenize),
        "input" => matches!(endpoint, Embeddings | Responses | AudioSpeech),
        "chat_template" => matches!(endpoint, ChatCompletions | Tokenize | Embeddings),
        "system" => matches!(endpoint, Messages | CountTokens),
        "instructions" => endpoint == Responses,
        "add_special_tokens" => {
            matches!(endpoint, ChatCompletions | Completions | Embeddings | Tokenize)
        }
        "truncate_prompt_tokens" | "truncation_side" => {
            matches!(endpoint, ChatCompletions | Completions | Embeddings)
        }
        _ => false,
    }
}

impl Reader<'_> {
    fn member(&mut self, scanner: &mut Scanner<'_>, key: Key<'_>) -> Result<(), BodyError> {
        self.call.members = key.index + 1;
        let named = |field: &&str| field.as_bytes() == key.name;
        if let Some(bit) = FIELDS.iter().position(named) {
            let field = FIELDS.get(bit).copied().unwrap_or_default();
            if reads(self.endpoint, field) {
                self.once(field, bit, key.span)?;
                if scanner.peek() == Some(Kind::Null) {
                    self.call.nulls.push((field, scanner.value()?.span));
                    return Ok(());
                }
                return self.field(scanner, field);
            }
        } else if let Some(bit) = POLICY_FIELDS.iter().position(named) {
            let name = POLICY_FIELDS.get(bit).copied().unwrap_or_default();
            self.once(name, FIELDS.len() + bit, key.span)?;
            let value = scanner.value()?;
            let member = Span::between(key.span.start(), value.span.end());
            let index = key.index;
            self.call.policy_fields.push(PolicyField { name, member, value, index });
            return Ok(());
        } else if let Some(field) = constraint::named(self.endpoint, key.name) {
            let span = scanner.value()?.span;
            return constraint::check(field, span.of(self.body), span);
        }
        scanner.value()?;
        Ok(())
    }

    fn once(&mut self, field: &'static str, bit: usize, key: Span) -> Result<(), BodyError> {
        if self.seen >> bit & 1 == 1 {
            return Err(BodyError::value(field, format!("{field} is given twice"), key));
        }
        self.seen |= 1 << bit;
        Ok(())
    }

    fn field(&mut self, scanner: &mut Scanner<'_>, field: &'static str) -> Result<(), BodyError> {
        let before = scanner.string_bytes();
        match field {
            "messages" => {
                let span = self.list(scanner, field, MESSAGES_MAX, |call| &mut call.messages)?;
                self.call.messages_span = Some(span);
            }
            "tools" => {
                let span = self.list(scanner, field, TOOLS_MAX, |call| &mut call.tools)?;
                self.call.tools_span = Some(span);
            }
            "prompt" | "input" => {
                let items = self.endpoint != Endpoint::Completions;
                let (prompt, span) = read_prompt(scanner, self.body, field, items)?;
                (self.call.prompt, self.call.prompt_span) = (prompt, Some(span));
            }
            "stream_options" => self.stream_options(scanner)?,
            "model" => self.model(scanner)?,
            "stream" => {
                let value = scanner.value()?;
                self.call.stream = self.flag(field, value)?.unwrap_or(false);
                self.call.stream_span = Some(value.span);
            }
            "echo" => self.call.echo = self.flag(field, scanner.value()?)?.unwrap_or(false),
            "prompt_embeds" => {
                scanner.value()?;
                self.call.embeds = true;
            }
            "add_special_tokens" => {
                self.call.add_special_tokens = self.flag(field, scanner.value()?)?;
            }
            "truncate_prompt_tokens" => self.truncate(scanner.value()?)?,
            "truncation_side" => self.side(scanner.value()?)?,
            "chat_template" => self.call.chat_template = Some(scanner.value()?.span),
            "system" | "instructions" => self.call.system_span = Some(scanner.value()?.span),
            _ => self.number(field, scanner.value()?)?,
        }
        if TEXTS.contains(&field) {
            self.call.text_bytes += scanner.string_bytes() - before;
        }
        Ok(())
    }

    fn model(&mut self, scanner: &mut Scanner<'_>) -> Result<(), BodyError> {
        let value = scanner.value()?;
        if value.kind != Kind::String {
            return Err(BodyError::value("model", "model must be a string", value.span));
        }
        let quoted = value.span.of(self.body);
        let decoded = memchr::memchr(b'\\', quoted).map(|_| json::text(quoted));
        if decoded.as_ref().map_or(quoted.len() - 2, String::len) > MODEL_BYTES_MAX {
            let message = "model must be a string of at most 1024 bytes";
            return Err(BodyError::value("model", message, value.span));
        }
        self.call.model = Some(Model { span: value.span, decoded, in_form: false });
        Ok(())
    }

    fn number(&mut self, field: &'static str, value: Value) -> Result<(), BodyError> {
        let (least, most) = match field {
            "n" | "best_of" => (1, SEQUENCES_MAX),
            "min_tokens" => (0, TOKENS_MAX),
            // Zero only scores the prompt: checked against `echo` when both were read.
            "max_tokens" if self.endpoint == Endpoint::Completions => (0, TOKENS_MAX),
            _ => (1, TOKENS_MAX),
        };
        let read = (value.kind == Kind::Number)
            .then(|| integer(value.span.of(self.body)))
            .flatten()
            .filter(|number| (least..=most).contains(number));
        let Some(number) = read else {
            let message = format!("{field} must be an integer from {least} to {most}");
            return Err(BodyError::value(field, message, value.span));
        };
        let count = Some(Count { value: number, span: value.span });
        match field {
            "max_tokens" => self.call.max_tokens = count,
            "max_completion_tokens" | "max_output_tokens" => {
                self.call.max_completion_tokens = count;
            }
            "min_tokens" => self.call.min_tokens = count,
            "n" => self.call.n = count,
            _ => self.call.best_of = count,
        }
        Ok(())
    }

    fn truncate(&mut self, value: Value) -> Result<(), BodyError> {
        let number = value.span.of(self.body);
        self.call.truncate = match integer(number).filter(|number| *number <= TOKENS_MAX) {
            _ if number == b"-1" => Some(Truncate::ToContext),
            Some(tokens) if value.kind == Kind::Number => Some(Truncate::To(tokens)),
            _ => {
                let message = "truncate_prompt_tokens must be -1 or a number of tokens";
                return Err(BodyError::value("truncate_prompt_tokens", message, value.span));
            }
        };
        Ok(())
    }

    fn side(&mut self, value: Value) -> Result<(), BodyError> {
        self.call.truncate_right = match value.span.of(self.body) {
            b"\"right\"" => Some(true),
            b"\"left\"" => Some(false),
            _ => {
                let message = "truncation_side must be \"left\" or \"right\"";
                return Err(BodyError::value("truncation_side", message, value.span));
            }
        };
        Ok(())
    }

    fn flag(&self, field: &'static str, value: Value) -> Result<Option<bool>, BodyError> {
        match value.kind {
            Kind::True => Ok(Some(true)),
            Kind::False => Ok(Some(false)),
            Kind::Null => Ok(None),
            _ => Err(BodyError::value(field, format!("{field} must be true or false"), value.span)),
        }
    }

    /// Reads a list of objects and counts them.
    fn list(
        &mut self,
        scanner: &mut Scanner<'_>,
        field: &'static str,
        most: usize,
        count: impl Fn(&mut Call) -> &mut usize,
    ) -> Result<Span, BodyError> {
        if scanner.peek() != Some(Kind::Array) {
            let value = scanner.value()?;
            return Err(BodyError::value(field, format!("{field} must be a list"), value.span));
        }
        let start = scanner.offset();
        *count(&mut self.call) = scanner.array(|scanner, index| {
            let value = scanner.value()?;
            if value.kind != Kind::Object {
                let message = format!("{field}[{index}] must be an object");
                return Err(BodyError::value(field, message, value.span));
            }
            if index >= most {
                let message = format!("{field} may have at most {most} entries");
                return Err(BodyError::value(field, message, value.span));
            }
            Ok(())
        })?;
        Ok(Span::between(start, scanner.offset()))
    }

    fn stream_options(&mut self, scanner: &mut Scanner<'_>) -> Result<(), BodyError> {
        if scanner.peek() != Some(Kind::Object) {
            let value = scanner.value()?;
            let message = "stream_options must be an object";
            return Err(BodyError::value("stream_options", message, value.span));
        }
        let mut options = StreamOptions::default();
        options.span = scanner.object(|scanner, key| {
            options.members = key.index + 1;
            let (field, place) = match key.name {
                b"include_usage" => {
                    ("stream_options.include_usage", &mut options.include_usage_span)
                }
                b"continuous_usage_stats" => (
                    "stream_options.continuous_usage_stats",
                    &mut options.continuous_usage_stats_span,
                ),
                _ => return scanner.value().map(|_| ()).map_err(BodyError::from),
            };
            let value = scanner.value()?;
            if place.replace(value.span).is_some() {
                return Err(BodyError::value(field, format!("{field} is given twice"), key.span));
            }
            let flag = self.flag(field, value)?;
            if key.name == b"include_usage" {
                options.include_usage = flag;
            } else {
                options.continuous_usage_stats = flag == Some(true);
            }
            Ok(())
        })?;
        self.call.stream_options = Some(options);
        Ok(())
    }
    /// What only the whole body shows.
    fn check(&self) -> Result<(), BodyError> {
        let call = &self.call;
        let chat = matches!(
            self.endpoint,
            Endpoint::ChatCompletions | Endpoint::Messages | Endpoint::CountTokens
        );
        if chat && call.messages == 0 {
            let span = call.messages_span.unwrap_or_default();
            return Err(BodyError::value("messages", "messages must be a non-empty list", span));
        }
        if self.endpoint == Endpoint::Completions && call.prompt == Prompt::None && !call.embeds {
            return Err(BodyError::value("prompt", "prompt is missing", Span::default()));
        }
        if let (Some(options), false) = (call.stream_options, call.stream) {
            let message = "stream_options may only be given when stream is true";
            return Err(BodyError::value("stream_options", message, options.span));
        }
        if let (Some(old), Some(new)) = (call.max_tokens, call.max_completion_tokens)
            && old.value != new.value
        {
            let message = "max_tokens and max_completion_tokens differ; give one of them";
            return Err(BodyError::value("max_completion_tokens", message, new.span));
        }
        if let Some(count) = call.max_tokens
            && count.value == 0
            && !call.echo
        {
            let message = "max_tokens must be at least 1 (0 only with echo)";
            return Err(BodyError::value("max_tokens", message, count.span));
        }
        if let (Some(least), Some(most)) = (call.min_tokens, call.output_tokens_max())
            && least.value > most
        {
            let message = "min_tokens is above the most tokens allowed";
            return Err(BodyError::value("min_tokens", message, least.span));
        }
        Ok(())
    }
}

/// The value of a JSON number that is a whole one written without an exponent: `5`, `5.0` (which
/// the engine takes for 5 too). `None` for any other, or past 64 bits.
pub(super) fn integer(number: &[u8]) -> Option<u64> {
    let number = std::str::from_utf8(number).ok()?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if !fraction.bytes().all(|digit| digit == b'0') {
        return None;
    }
    whole.parse().ok()
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
