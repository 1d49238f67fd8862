//! `/v1/messages` as a chat, block by block, as vLLM 0.32's `AnthropicServingMessages` does it.
//!
//! Two things in it are the server's and not the request's; they are in [`Server`].
//!
//! Owns no state and no thread; does no I/O.

use std::borrow::Cow;

use super::ConvertError;
use super::chat::{self, Chat, Message, fragment, joined, quoted};
use super::python::push_dumped;
use crate::prompt::tree::{self, Node, Quoted};

/// How a client of this name marks a line that differs in each request; the engine drops the text.
const BILLING: &str = "x-anthropic-billing-header";

/// What a conversion depends on besides the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server {
    /// The chat template takes a system message only as the first one (the engine finds out by
    /// rendering system, user, system, user; a failure or no template at all means true): inline
    /// system messages are then joined to the first.
    pub merge_inline_system: bool,
    /// The `reasoning_effort` that `thinking: disabled` becomes: `none`, or `low` where the
    /// template refuses `none` or renders it as it renders an effort.
    pub disabled_thinking_effort: &'static str,
}

impl Default for Server {
    fn default() -> Self {
        Server { merge_inline_system: false, disabled_thinking_effort: "none" }
    }
}

/// The chat body of a `/v1/messages` (or `/v1/messages/count_tokens`) body.
///
/// # Errors
/// [`ConvertError::Shape`] for what the engine refuses; [`ConvertError::Unsupported`] for tool
/// changes inside the conversation, a call without an id, an assistant's `tool_result` of blocks,
/// and token ids in `kv_transfer_params`.
pub fn messages_to_chat(body: &[u8], server: Server) -> Result<Vec<u8>, ConvertError> {
    let body = tree::read(body)?;
    if body.get("kv_transfer_params").is_some_and(|kv| kv.given("prompt_token_ids").is_some()) {
        return Err(ConvertError::unsupported("token ids in kv_transfer_params"));
    }
    let messages = body.get("messages").and_then(Node::list);
    let messages = messages.ok_or_else(|| ConvertError::shape("messages is not a list"))?;
    let mut chat = Chat::default();
    let mut system = system_texts(&body)?;
    if server.merge_inline_system {
        for message in messages.iter().filter(|message| message.says("role", "system")) {
            system.extend(inline_system(message)?);
        }
    }
    if !system.is_empty() {
        chat.messages.push(Message::with_content("system", joined(&system, "")));
    }
    for message in messages {
        push_message(message, server, &mut chat.messages)?;
    }
    chat.tools = tools(&body)?;
    if chat.tools.as_ref().is_some_and(|tools| !tools.is_empty()) {
        chat.members.push(("tool_choice", tool_choice(&body)?));
    }
    if let Some(effort) = effort(&body, server)? {
        chat.members.push(("reasoning_effort", effort));
    }
    chat.keep(&body, &["chat_template_kwargs", "cache_salt"]);
    Ok(chat.finish())
}

/// The texts of the request's own system prompt; a text of blocks that are all empty is none.
fn system_texts<'a>(body: &Node<'a>) -> Result<Vec<Quoted<'a>>, ConvertError> {
    match body.given("system") {
        None => Ok(Vec::new()),
        Some(Node::Text(text)) if text.is_empty() => Ok(Vec::new()),
        Some(Node::Text(text)) => Ok(vec![*text]),
        Some(Node::List(blocks)) => block_texts(blocks),
        Some(_) => Err(ConvertError::shape("system is neither a string nor a list")),
    }
}

fn block_texts<'a>(blocks: &[Node<'a>]) -> Result<Vec<Quoted<'a>>, ConvertError> {
    let mut texts = Vec::new();
    for block in blocks {
        match block.text("type").as_deref() {
            Some("text") => {}
            Some("tool_addition" | "tool_removal") => {
                return Err(ConvertError::unsupported("tools that change in the conversation"));
            }
            Some(_) => continue,
            None => return Err(ConvertError::shape("a block without a type")),
        }
        let text = member_text(block, "text")?;
        texts.extend(text.filter(|text| !text.is_empty() && !is_billing(*text)));
    }
    Ok(texts)
}

fn inline_system<'a>(message: &Node<'a>) -> Result<Vec<Quoted<'a>>, ConvertError> {
    match message.get("content") {
        Some(Node::Text(text)) if text.is_empty() || is_billing(*text) => Ok(Vec::new()),
        Some(Node::Text(text)) => Ok(vec![*text]),
        Some(Node::List(blocks)) => block_texts(blocks),
        _ => Err(ConvertError::shape("content is neither a string nor a list")),
    }
}

fn is_billing(text: Quoted<'_>) -> bool {
    text.text().starts_with(BILLING)
}

/// A member that is a string or not there.
fn member_text<'a>(node: &Node<'a>, name: &str) -> Result<Option<Quoted<'a>>, ConvertError> {
    match node.given(name) {
        None => Ok(None),
        Some(Node::Text(text)) => Ok(Some(*text)),
        Some(_) => Err(ConvertError::shape(format!("{name} is not a string"))),
    }
}

fn push_message<'a>(
    message: &Node<'a>,
    server: Server,
    messages: &mut Vec<Message<'a>>,
) -> Result<(), ConvertError> {
    let role = match message.text("role").as_deref() {
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some("system") if server.merge_inline_system => return Ok(()),
        Some("system") => {
            let texts = inline_system(message)?;
            if !texts.is_empty() {
                messages.push(Message::with_content("system", joined(&texts, "")));
            }
            return Ok(());
        }
        _ => return Err(ConvertError::shape("a role that is not one of the API")),
    };
    let blocks = match message.get("content") {
        Some(Node::Text(text)) => {
            messages.push(Message::with_content(role, text.spelling()));
            return Ok(());
        }
        Some(Node::List(blocks)) => blocks,
        _ => return Err(ConvertError::shape("content is neither a string nor a list")),
    };
    let mut parts = Parts::default();
    for block in blocks {
        push_block(block, role, &mut parts, messages)?;
    }
    let mut own = Message::new(role);
    own.content = parts.content();
    own.reasoning = (!parts.reasoning.is_empty()).then(|| joined(&parts.reasoning, "").into());
    own.calls = parts.calls;
    // A user message of results only is the results.
    if role == "assistant" || own.content.is_some() {
        messages.push(own);
    }
    Ok(())
}

/// What the blocks of one message become.
#[derive(Default)]
struct Parts<'a> {
    parts: Vec<Part<'a>>,
    calls: Vec<String>,
    reasoning: Vec<Quoted<'a>>,
}

enum Part<'a> {
    Text(Cow<'a, str>),
    Image(Cow<'a, str>),
}

impl<'a> Parts<'a> {
    /// A lone text is the content itself; anything else is a list of parts.
    fn content(&self) -> Option<Cow<'a, str>> {
        match self.parts.as_slice() {
            [] => None,
            [Part::Text(text)] => Some(text.clone()),
            parts => {
                let parts: Vec<String> = parts.iter().map(Part::json).collect();
                Some(format!("[{}]", parts.join(",")).into())
            }
        }
    }
}

impl Part<'_> {
    fn json(&self) -> String {
        match self {
            Part::Text(text) => format!("{{\"type\":\"text\",\"text\":{text}}}"),
            Part::Image(url) => image(url),
        }
    }
}

fn image(url: &str) -> String {
    format!("{{\"type\":\"image_url\",\"image_url\":{{\"url\":{url}}}}}")
}

fn push_block<'a>(
    block: &Node<'a>,
    role: &str,
    own: &mut Parts<'a>,
    messages: &mut Vec<Message<'a>>,
) -> Result<(), ConvertError> {
    match block.text("type").as_deref() {
        Some("text") => {
            if let Some(text) = member_text(block, "text")?.filter(|text| !text.is_empty()) {
                own.parts.push(Part::Text(text.spelling().into()));
            }
        }
        Some("image") => match block.given("source") {
            Some(Node::Map(source)) if source.is_empty() => {}
            Some(source @ Node::Map(_)) => own.parts.push(Part::Image(image_url(source)?)),
            None => {}
            Some(_) => return Err(ConvertError::shape("source is not an object")),
        },
        Some("thinking") => own.reasoning.extend(member_text(block, "thinking")?),
        Some("tool_use") => own.calls.push(tool_use(block)?),
        Some("tool_result") if role == "user" => push_result(block, messages)?,
        Some("tool_result") => own.parts.push(Part::Text(said_result(block)?.into())),
        Some("redacted_thinking" | "tool_reference") => {}
        _ => return Err(ConvertError::shape("a block of another type")),
    }
    Ok(())
}

/// The URL of an image's source as a JSON string: its own, or a data URL.
fn image_url<'a>(source: &Node<'a>) -> Result<Cow<'a, str>, ConvertError> {
    let text = |name: &str, missing: &'static str| match source.get(name) {
        None => Ok(Cow::Borrowed(missing)),
        Some(Node::Text(text)) => Ok(Cow::Borrowed(text.inner())),
        Some(_) => Err(ConvertError::unsupported(format!("{name} of an image is not a string"))),
    };
    let url = if source.says("type", "url") {
        text("url", "")?
    } else {
        let (media, data) = (text("media_type", "image/jpeg")?, text("data", "")?);
        format!("data:{media};base64,{data}").into()
    };
    Ok(format!("\"{url}\"").into())
}

fn tool_use(block: &Node<'_>) -> Result<String, ConvertError> {
    let id = member_text(block, "id")?.filter(|id| !id.is_empty());
    // The engine makes one up from its clock.
    let id = id.ok_or_else(|| ConvertError::unsupported("a tool_use without an id"))?;
    let name = member_text(block, "name")?.map(Quoted::text).unwrap_or_default();
    let mut arguments = String::new();
    match block.given("input") {
        None => arguments.push_str("{}"),
        Some(input @ Node::Map(_)) => push_dumped(input, &mut arguments)?,
        Some(_) => return Err(ConvertError::shape("input is not an object")),
    }
    Ok(chat::call(id.spelling(), &name, &quoted(&arguments)))
}

/// A result in an assistant's message is only told.
fn said_result(block: &Node<'_>) -> Result<String, ConvertError> {
    match block.given("content") {
        None => Ok(quoted("Tool result: ")),
        Some(Node::Text(text)) => Ok(format!("\"Tool result: {}\"", text.inner())),
        Some(Node::List(items)) if items.is_empty() => Ok(quoted("Tool result: ")),
        Some(_) => Err(ConvertError::unsupported("an assistant's tool_result of blocks")),
    }
}

/// A result in a user's message is a tool message; its images follow as a user's, its tool
/// references as another tool's.
fn push_result<'a>(block: &Node<'a>, messages: &mut Vec<Message<'a>>) -> Result<(), ConvertError> {
    let id = member_text(block, "tool_use_id")?.map_or("\"\"", Quoted::spelling);
    let (mut texts, mut images, mut references) = (Vec::new(), Vec::new(), Vec::new());
    match block.given("content") {
        None => {}
        Some(Node::Text(text)) => texts.push(*text),
        Some(Node::List(items)) => {
            for item in items {
                push_result_item(item, &mut texts, &mut images, &mut references)?;
            }
        }
        Some(_) => return Err(ConvertError::shape("content is neither a string nor a list")),
    }
    let tool = |content: String| Message {
        call_id: Some(id.into()),
        ..Message::with_content("tool", content)
    };
    messages.push(tool(joined(&texts, "\\n")));
    if !images.is_empty() {
        messages.push(Message::with_content("user", format!("[{}]", images.join(","))));
    }
    if !references.is_empty() {
        messages.push(tool(format!("[{}]", references.join(","))));
    }
    Ok(())
}

fn push_result_item<'a>(
    item: &Node<'a>,
    texts: &mut Vec<Quoted<'a>>,
    images: &mut Vec<String>,
    references: &mut Vec<String>,
) -> Result<(), ConvertError> {
    if item.members().is_none() {
        return Err(ConvertError::shape("a result's block is not an object"));
    }
    match item.text("type").as_deref() {
        Some("text") => match item.get("text") {
            Some(Node::Text(text)) => texts.push(*text),
            None => texts.push(Quoted::EMPTY),
            Some(_) => return Err(ConvertError::shape("text is not a string")),
        },
        Some("image") => {
            let empty = Node::Map(Vec::new());
            let source = item.get("source").unwrap_or(&empty);
            if source.members().is_none() {
                return Err(ConvertError::shape("source is not an object"));
            }
            let url = image_url(source)?;
            if url != "\"\"" {
                images.push(image(&url));
            }
        }
        Some("tool_reference") => {
            let name = member_text(item, "tool_name")?.filter(|name| !name.is_empty());
            let name = match name {
                Some(name) => Some(name),
                None => member_text(item, "name")?.filter(|name| !name.is_empty()),
            };
            if let Some(name) = name {
                let name = name.spelling();
                references.push(format!("{{\"type\":\"tool_reference\",\"name\":{name}}}"));
            }
        }
        _ => {}
    }
    Ok(())
}

fn tools(body: &Node<'_>) -> Result<Option<Vec<String>>, ConvertError> {
    let Some(tools) = body.given("tools") else { return Ok(None) };
    let tools = tools.list().ok_or_else(|| ConvertError::shape("tools is not a list"))?;
    let written = tools.iter().map(|tool| {
        let name = tool.text("name");
        let name = name.ok_or_else(|| ConvertError::shape("a tool without a name"))?;
        let schema = tool.get("input_schema").filter(|schema| schema.members().is_some());
        let schema = schema.ok_or_else(|| ConvertError::shape("a tool without input_schema"))?;
        let mut parameters = fragment(schema).into_owned();
        if schema.get("type").is_none() {
            let comma = if schema.members().is_some_and(<[_]>::is_empty) { "" } else { "," };
            parameters.pop();
            parameters.push_str(comma);
            parameters.push_str("\"type\":\"object\"}");
        }
        chat::tool(&name, tool, Some(&parameters))
    });
    written.collect::<Result<_, _>>().map(Some)
}

fn tool_choice(body: &Node<'_>) -> Result<Cow<'static, str>, ConvertError> {
    let Some(choice) = body.given("tool_choice") else { return Ok("\"auto\"".into()) };
    match choice.text("type").as_deref() {
        Some("auto") => Ok("\"auto\"".into()),
        Some("any") => Ok("\"required\"".into()),
        Some("none") => Ok("\"none\"".into()),
        Some("tool") => {
            let name = member_text(choice, "name")?.filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| ConvertError::shape("a tool_choice without a name"))?;
            let name = name.spelling();
            Ok(format!("{{\"type\":\"function\",\"function\":{{\"name\":{name}}}}}").into())
        }
        _ => Err(ConvertError::shape("a tool_choice of another type")),
    }
}

/// The effort: what `thinking: disabled` becomes, else the output's.
fn effort(body: &Node<'_>, server: Server) -> Result<Option<Cow<'static, str>>, ConvertError> {
    if let Some(thinking) = body.given("thinking") {
        match thinking.text("type").as_deref() {
            Some("disabled") => return Ok(Some(quoted(server.disabled_thinking_effort).into())),
            Some("enabled" | "adaptive") => {}
            _ => return Err(ConvertError::shape("thinking of another type")),
        }
    }
    let effort = body.given("output_config").and_then(|config| config.given("effort"));
    match effort {
        None => Ok(None),
        Some(Node::Text(effort)) => Ok(Some(effort.spelling().to_owned().into())),
        Some(_) => Err(ConvertError::shape("effort is not a string")),
    }
}
