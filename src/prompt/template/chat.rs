//! The members of a chat request that reach its template, read in one pass over the body.
//!
//! Only places are kept, so that a long text is neither copied nor read twice before it is
//! rendered. vLLM 0.32: `ChatCompletionRequest` and `TokenizeChatRequest`.

use super::RenderError;
use crate::openai::json::{self, Key, Kind, Scanner, Value};
use crate::openai::{Endpoint, Span};

/// A chat request, by places in its body.
#[derive(Debug)]
pub struct Chat<'a> {
    pub(super) text: &'a str,
    /// `/v1/chat/completions`, not `/tokenize`, which knows fewer members.
    pub(super) full: bool,
    pub(super) messages: Vec<Message>,
    pub(super) tools: Option<Span>,
    pub(super) documents: Option<Span>,
    pub(super) kwargs: Option<Span>,
    pub(super) reasoning_effort: Option<Span>,
    pub(super) tool_choice_none: bool,
    pub(super) add_generation_prompt: bool,
    /// The client itself gave a true `add_generation_prompt`.
    pub(super) generation_asked: bool,
    pub(super) continue_final: bool,
}

/// One message, by places in the body.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Message {
    pub(super) role: Option<Value>,
    pub(super) content: Option<Value>,
    pub(super) name: Option<Value>,
    pub(super) reasoning: Option<Value>,
    pub(super) tool_calls: Option<Value>,
    pub(super) tool_call_id: Option<Value>,
    pub(super) tools: Option<Value>,
    pub(super) task: Option<Value>,
}

impl<'a> Chat<'a> {
    /// Reads `body`, the JSON object of a chat completion or of `/tokenize` with messages.
    ///
    /// # Errors
    /// Not JSON, not of the chat shape, or with a template of its own.
    pub fn read(endpoint: Endpoint, body: &'a [u8]) -> Result<Chat<'a>, RenderError> {
        let text = std::str::from_utf8(body).map_err(|_| RenderError::Shape("invalid UTF-8"))?;
        let mut scanner = Scanner::of_text(text)?;
        let mut chat = Chat {
            text,
            full: endpoint != Endpoint::Tokenize,
            messages: Vec::new(),
            tools: None,
            documents: None,
            kwargs: None,
            reasoning_effort: None,
            tool_choice_none: false,
            add_generation_prompt: true,
            generation_asked: false,
            continue_final: false,
        };
        let mut found = false;
        scanner.object(|scanner, key| {
            if key.name == b"messages" {
                found = true;
                return chat.read_messages(scanner);
            }
            chat.member(key, scanner.value()?)
        })?;
        scanner.finish()?;
        if !found {
            return Err(RenderError::Shape("messages are missing"));
        }
        if chat.continue_final && chat.generation_asked {
            let what = "continue_final_message and add_generation_prompt are both set";
            return Err(RenderError::Shape(what));
        }
        Ok(chat)
    }

    fn member(&mut self, key: Key<'_>, value: Value) -> Result<(), RenderError> {
        let given = (value.kind != Kind::Null).then_some(value.span);
        let list = |what| match value.kind {
            Kind::Array | Kind::Null => Ok(given),
            _ => Err(RenderError::Shape(what)),
        };
        match key.name {
            b"tools" => self.tools = list("tools are not a list")?,
            b"documents" if self.full => self.documents = list("documents are not a list")?,
            b"reasoning_effort" if self.full => self.reasoning_effort = given,
            b"chat_template_kwargs" => match value.kind {
                Kind::Object | Kind::Null => self.kwargs = given,
                _ => return Err(RenderError::Shape("chat_template_kwargs are not an object")),
            },
            b"chat_template" if given.is_some() => {
                return Err(RenderError::Unsupported("a template of the request's own"));
            }
            b"tool_choice" if self.full => {
                self.tool_choice_none = slice(self.text, value.span) == "\"none\"";
            }
            b"add_generation_prompt" => {
                self.add_generation_prompt = flag(value)?;
                self.generation_asked = self.add_generation_prompt;
            }
            b"continue_final_message" => self.continue_final = flag(value)?,
            _ => {}
        }
        Ok(())
    }

    fn read_messages(&mut self, scanner: &mut Scanner<'_>) -> Result<(), RenderError> {
        self.messages.clear();
        if scanner.peek() != Some(Kind::Array) {
            return Err(RenderError::Shape("messages are not a list"));
        }
        scanner.array(|scanner, _| {
            if scanner.peek() != Some(Kind::Object) {
                return Err(RenderError::Shape("a message is not an object"));
            }
            let message = self.read_message(scanner)?;
            self.messages.push(message);
            Ok(())
        })?;
        Ok(())
    }

    fn read_message(&self, scanner: &mut Scanner<'_>) -> Result<Message, RenderError> {
        let mut message = Message::default();
        let mut older = None;
        scanner.object(|scanner, key| {
            let value = Some(scanner.value()?);
            match key.name {
                b"role" => message.role = value,
                b"content" => message.content = value,
                b"name" => message.name = value,
                b"reasoning" => message.reasoning = value,
                b"reasoning_content" => older = value,
                b"tool_calls" => message.tool_calls = value,
                b"tool_call_id" => message.tool_call_id = value,
                b"tools" => message.tools = value,
                b"task" => message.task = value,
                b"author" | b"_prompt_embeds" => {
                    return Err(RenderError::Unsupported("a message of the harmony shape"));
                }
                _ => {}
            }
            Ok(())
        })?;
        // The older name is only known to the chat endpoint, and yields to the newer.
        if self.full && present(message.reasoning).is_none() {
            message.reasoning = older;
        }
        Ok(message)
    }
}

/// The value, unless it is null.
pub(super) fn present(value: Option<Value>) -> Option<Value> {
    value.filter(|value| value.kind != Kind::Null)
}

pub(super) fn slice(text: &str, span: Span) -> &str {
    text.get(span.start()..span.end()).unwrap_or_default()
}

fn flag(value: Value) -> Result<bool, RenderError> {
    match value.kind {
        Kind::True => Ok(true),
        Kind::False => Ok(false),
        _ => Err(RenderError::Shape("a flag is not true or false")),
    }
}

impl From<json::Error> for RenderError {
    fn from(error: json::Error) -> Self {
        RenderError::Shape(error.what)
    }
}
