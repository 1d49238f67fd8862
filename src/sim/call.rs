//! A generation request: checked as vLLM checks, with the whole answer planned before its first
//! byte.
//!
//! The prompt is rendered to bytes of which four are a token: a message takes 16 bytes (4 tokens)
//! for its place and then its text, so `usage.prompt_tokens` is `ceil(text / 4)` plus about 4 a
//! message; token ids take 4 bytes each. With a tokenizer the tokens are real ([`Exact`]).
//! Directives in the last text of a prompt steer the
//! answer: `[[tag:N]]` its words (default: a hash of the prompt), `[[len:N]]` the number of words
//! after which it stops by itself, `[[args:JSON]]` the arguments of a tool call.
//!
//! No I/O, no clock.

use super::body::{Body, Node, ToolChoice};
use super::config::SimConfig;
use super::errors::Refusal;
use super::exact::{Exact, Real};
use super::kv_transfer;
use super::token::{self, WORD_BYTES, token_text};
use crate::openai;
use crate::openai::json::Kind;
use crate::prompt::blocks::Root;

/// Which API was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    Chat,
    Completions,
    Responses,
    Messages,
}

/// Bytes before the text of a message in the rendered prompt.
const MESSAGE_MARK: &[u8; 16] = b"<|im_start|>....";

/// Words of an answer that nothing limits.
const DEFAULT_WORDS: u64 = 64;

/// Longest answer that is searched for stop strings.
const STOP_SEARCH_WORDS: u64 = 65_536;

/// vLLM's default for completions.
const COMPLETION_TOKENS_DEFAULT: u64 = 16;

/// One prompt of a request.
#[derive(Debug)]
pub(super) struct Prompt {
    /// Rendered; four bytes a token unless there are real ones.
    pub(super) text: Vec<u8>,
    pub(super) tag: u64,
    pub(super) real: Option<Real>,
}

impl Prompt {
    pub(super) fn tokens(&self) -> u64 {
        self.real.as_ref().map_or_else(|| token::count(&self.text), |real| real.ids.len() as u64)
    }

    /// Its token ids.
    pub(super) fn ids(&self) -> Vec<u32> {
        match &self.real {
            Some(real) => real.ids.clone(),
            None => token::tokens(&self.text).collect(),
        }
    }

    /// Takes `text` for its text, as if it had come so.
    pub(super) fn retell(&mut self, text: Vec<u8>) {
        self.tag = tag_of(&text, &text);
        self.text = text;
    }
}

/// How a choice ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// The limit: the last word ends it.
    Length,
    /// The end token, which has no text.
    Eos,
    /// A stop string; what is left of the text before it comes with the end.
    StopString { stop: String, tail: String },
    /// The end of a tool call.
    Tool { reason: &'static str },
}

/// A tool call that the answer makes.
#[derive(Clone, Debug)]
pub(super) struct ToolCall {
    pub(super) name: String,
    pub(super) arguments: String,
}

/// One choice of the answer.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) prompt: usize,
    tag: u64,
    /// Tokens that it generates, the end token included.
    pub(super) tokens: u64,
    words: u64,
    pub(super) finish: Finish,
}

/// What one token of a choice shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shown<'c> {
    Word([u8; WORD_BYTES]),
    Text(&'c str),
    ToolName(&'c str),
    ToolArguments(&'c str),
    /// Nothing: an end token.
    End,
    /// Nothing, and no event either: swallowed by a stop string.
    Hidden,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) api: Api,
    pub(super) model: String,
    pub(super) is_lora: bool,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
    pub(super) max_tokens: Option<u64>,
    pub(super) echo: bool,
    pub(super) temperature: Option<f64>,
    pub(super) request_id: Option<String>,
    pub(super) prompts: Vec<Prompt>,
    pub(super) choices: Vec<Choice>,
    pub(super) tool: Option<ToolCall>,
    pub(super) cache_salt: Option<String>,
    /// What it has to do with blocks of another replica.
    pub(super) leg: kv_transfer::Leg,
    /// What the blocks of its prompts start from.
    pub(super) root: Root,
}

impl Call {
    /// Reads and checks a request.
    pub(super) fn read(
        api: Api,
        json: &[u8],
        config: &SimConfig,
        exact: Option<&Exact>,
        is_lora: impl Fn(&str) -> bool,
    ) -> Result<Call, Refusal> {
        let body: Body<'_> =
            serde_json::from_slice(json).map_err(|e| Refusal::unreadable(json, &e))?;
        let model = body.model.clone().unwrap_or_else(|| config.model.clone());
        let lora = is_lora(&model);
        if !lora && model != config.model {
            return Err(Refusal::unknown_model(&model, &config.model));
        }
        let stream = body.stream.unwrap_or(false);
        if body.stream_options.is_some() && !stream && api != Api::Messages {
            return Err(Refusal::stream_options());
        }
        if let Some(below) = body.temperature.filter(|t| *t < 0.0) {
            return Err(Refusal::temperature(below));
        }
        let mut prompts = read_prompts(api, &body, json)?;
        if let Some(exact) = exact {
            exact.make_real(api, json, &mut prompts);
        }
        let max_tokens = limits(api, &body, &prompts, config)?;
        let limit = (max_tokens, is_open(&body, &prompts, max_tokens, config));
        let options = body.stream_options.as_ref();
        let include_usage = options.and_then(|o| o.include_usage).unwrap_or(false);
        let continuous = options.and_then(|o| o.continuous_usage_stats).unwrap_or(false);
        let tool = read_tool(&body, &prompts);
        let n = body.n.unwrap_or(1).clamp(1, 128) as usize;
        let width = if matches!(api, Api::Chat | Api::Completions) { n } else { 1 };
        let choices = (0..prompts.len() * width)
            .map(|c| plan(&body, &prompts[c / width], c, c / width, limit, tool.as_ref()))
            .collect();
        let cache_salt = read_salt(json);
        Ok(Call {
            api,
            root: Root::new(lora.then_some(&*model), cache_salt.as_deref()),
            cache_salt,
            model,
            is_lora: lora,
            stream,
            include_usage,
            continuous_usage: include_usage && continuous,
            max_tokens,
            echo: body.echo.unwrap_or(false) && api == Api::Completions,
            temperature: body.temperature,
            request_id: body.request_id,
            leg: body.kv_transfer_params.map(kv_transfer::Params::leg).unwrap_or_default(),
            prompts,
            choices,
            tool: tool.map(|(tool, _)| tool),
        })
    }

    /// Tokens of all prompts.
    pub(super) fn prompt_tokens(&self) -> u64 {
        self.prompts.iter().map(Prompt::tokens).sum()
    }

    /// Tokens of the longest choice: the steps of the answer.
    pub(super) fn steps(&self) -> u64 {
        self.choices.iter().map(|c| c.tokens).max().unwrap_or(1)
    }

    /// What token `step` (from 0) of a choice shows.
    pub(super) fn shown<'c>(&'c self, choice: &'c Choice, step: u64) -> Shown<'c> {
        let last = step + 1 >= choice.tokens;
        match (&choice.finish, &self.tool) {
            (Finish::Tool { .. }, Some(tool)) => match step {
                _ if last => Shown::End,
                0 => Shown::ToolName(&tool.name),
                _ => Shown::ToolArguments(piece(&tool.arguments, step - 1)),
            },
            (Finish::StopString { tail, .. }, _) if last => Shown::Text(tail),
            (Finish::Eos, _) if last => Shown::End,
            _ if step < choice.words => Shown::Word(token_text(choice.tag, step)),
            (Finish::StopString { .. }, _) => Shown::Hidden,
            _ => Shown::End,
        }
    }

    /// The text of the first `tokens` tokens of a choice.
    pub(super) fn text(&self, choice: &Choice, tokens: u64) -> Vec<u8> {
        let mut text = Vec::new();
        for step in 0..tokens.min(choice.tokens) {
            match self.shown(choice, step) {
                Shown::Word(word) => text.extend_from_slice(&word),
                Shown::Text(tail) => text.extend_from_slice(tail.as_bytes()),
                _ => {}
            }
        }
        text
    }
}

/// Four-byte pieces of the arguments, at whole characters.
fn piece(arguments: &str, index: u64) -> &str {
    let cut = |n: u64| {
        let mut at = (n as usize).saturating_mul(4).min(arguments.len());
        while !arguments.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    &arguments[cut(index)..cut(index + 1)]
}

fn read_prompts(api: Api, body: &Body<'_>, json: &[u8]) -> Result<Vec<Prompt>, Refusal> {
    let rendered = |before: &Node<'_>, node: &Node<'_>| vec![render(before, node)];
    match api {
        Api::Chat | Api::Messages => match &body.messages {
            Some(messages) if !messages.is_empty() => Ok(rendered(&body.system, messages)),
            _ => Err(Refusal::missing("messages", members(json))),
        },
        Api::Responses if body.input.is_empty() => Err(Refusal::missing("input", members(json))),
        Api::Responses => Ok(rendered(&Node::Null, &body.input)),
        Api::Completions if body.prompt.is_empty() => Err(Refusal::empty_prompt()),
        Api::Completions => match &body.prompt {
            Node::List(list) if !matches!(list.first(), Some(Node::Number(_))) => {
                Ok(list.iter().map(plain).collect())
            }
            one => Ok(vec![plain(one)]),
        },
    }
}

fn read_salt(json: &[u8]) -> Option<String> {
    memchr::memmem::find(json, b"cache_salt")?;
    let salt = openai::member(json, "cache_salt").filter(|salt| salt.kind == Kind::String)?;
    openai::texts(salt.span.of(json)).pop()
}

fn members(json: &[u8]) -> usize {
    serde_json::from_slice::<serde_json::Map<_, _>>(json).map_or(0, |map| map.len())
}

/// A prompt as given: text or token ids.
fn plain(node: &Node<'_>) -> Prompt {
    let mut text = Vec::new();
    node.append_text(&mut text);
    let tag = tag_of(&text, &text);
    Prompt { text, tag, real: None }
}

/// Messages one after the other, each behind its mark.
pub(super) fn render(before: &Node<'_>, messages: &Node<'_>) -> Prompt {
    let mut text = Vec::new();
    let mut last_at = 0;
    let mut add = |node: &Node<'_>| {
        text.extend_from_slice(MESSAGE_MARK);
        last_at = text.len();
        node.append_text(&mut text);
    };
    if !before.is_empty() {
        add(before);
    }
    match messages {
        Node::List(list) => list.iter().for_each(add),
        one => add(one),
    }
    let tag = tag_of(text.get(last_at..).unwrap_or_default(), &text);
    Prompt { text, tag, real: None }
}

fn tag_of(last: &[u8], all: &[u8]) -> u64 {
    token::number(last, "tag").unwrap_or_else(|| token::hash(0, all))
}

/// The limit of the answer, checked against the context.
fn limits(
    api: Api,
    body: &Body<'_>,
    prompts: &[Prompt],
    config: &SimConfig,
) -> Result<Option<u64>, Refusal> {
    let limit = config.model_len_max;
    let longest = prompts.iter().map(Prompt::tokens).max().unwrap_or(0);
    if longest > limit {
        return Err(Refusal::prompt_too_long(limit));
    }
    let (field, asked) = match (api, body.max_completion_tokens) {
        (Api::Responses, _) => ("max_output_tokens", body.max_output_tokens),
        (Api::Chat, Some(n)) => ("max_completion_tokens", Some(n)),
        (Api::Completions, _) => {
            ("max_tokens", Some(body.max_tokens.unwrap_or(COMPLETION_TOKENS_DEFAULT)))
        }
        _ => ("max_tokens", body.max_tokens),
    };
    match asked {
        Some(n) if n > limit => Err(Refusal::output_too_long(field, n, limit)),
        // What is over the rest of the context is cut, as vLLM 0.32 does.
        asked => Ok(asked.map(|n| n.min(limit - longest).max(n.min(1)))),
    }
}

/// Whether nobody wished for a limit: there is none, or it is so much of the context that only a
/// gateway can have filled it in, from the tokens that it counted.
fn is_open(
    body: &Body<'_>,
    prompts: &[Prompt],
    max_tokens: Option<u64>,
    config: &SimConfig,
) -> bool {
    let Some(most) = max_tokens else { return true };
    let longest = prompts.iter().map(Prompt::tokens).max().unwrap_or(0);
    let all = most >= config.model_len_max.saturating_sub(longest) / 2 && most > DEFAULT_WORDS;
    all && !body.ignore_eos.unwrap_or(false)
}

/// The tool call that the answer makes, and the reason with which it ends.
fn read_tool(body: &Body<'_>, prompts: &[Prompt]) -> Option<(ToolCall, &'static str)> {
    let first = body.tools.as_ref()?.first()?;
    let first = first.function.as_ref().map(|f| f.name.clone()).or_else(|| first.name.clone())?;
    let (name, reason) = match body.tool_choice.as_ref()? {
        ToolChoice::Word(word) if word == "none" => return None,
        ToolChoice::Function { function } => (function.name.clone(), "stop"),
        ToolChoice::Word(_) | ToolChoice::Other(_) => (first, "tool_calls"),
    };
    let prompt = prompts.first()?;
    let scripted = token::directive(&prompt.text, "args").map(String::from_utf8_lossy);
    let arguments =
        scripted.map_or_else(|| format!("{{\"tag\":{}}}", prompt.tag), |s| s.into_owned());
    Some((ToolCall { name, arguments }, reason))
}

fn plan(
    body: &Body<'_>,
    prompt: &Prompt,
    index: usize,
    prompt_index: usize,
    (max_tokens, open): (Option<u64>, bool),
    tool: Option<&(ToolCall, &'static str)>,
) -> Choice {
    let tag = prompt.tag.wrapping_add(index as u64);
    let limit = max_tokens.unwrap_or(u64::MAX);
    let choice = |tokens: u64, words, finish| Choice {
        prompt: prompt_index,
        tag,
        tokens: tokens.max(1),
        words,
        finish,
    };
    if let Some((tool, reason)) = tool {
        // The name, the arguments by four bytes, the end token.
        let tokens = 2 + tool.arguments.len().div_ceil(4) as u64;
        if tokens <= limit {
            return choice(tokens, 0, Finish::Tool { reason });
        }
    }
    let asked = token::number(&prompt.text, "len").filter(|_| !body.ignore_eos.unwrap_or(false));
    let by_itself = asked.or(open.then_some(DEFAULT_WORDS));
    let words = by_itself.unwrap_or(limit).min(limit);
    if let Some(found) = find_stop(&body.stop, tag, words) {
        return choice(found.tokens, found.words, found.finish);
    }
    match by_itself {
        Some(n) if n < limit => choice(n + 1, n, Finish::Eos),
        _ => choice(limit, limit, Finish::Length),
    }
}

struct Stopped {
    tokens: u64,
    words: u64,
    finish: Finish,
}

/// The first stop string in the text that would come, if any.
fn find_stop(stop: &Node<'_>, tag: u64, words: u64) -> Option<Stopped> {
    let stops: Vec<&str> = match stop {
        Node::Text(one) => vec![one],
        Node::List(list) => list
            .iter()
            .filter_map(|node| if let Node::Text(text) = node { Some(&**text) } else { None })
            .collect(),
        _ => return None,
    };
    let text: Vec<u8> =
        (0..words.min(STOP_SEARCH_WORDS)).flat_map(|i| token_text(tag, i)).collect();
    let hits = stops
        .iter()
        .filter(|s| !s.is_empty())
        .filter_map(|s| memchr::memmem::find(&text, s.as_bytes()).map(|at| (at + s.len(), at, *s)));
    let (end, at, stop) = hits.min()?;
    let whole = at / WORD_BYTES;
    let tail = String::from_utf8_lossy(&text[whole * WORD_BYTES..at]).into_owned();
    Some(Stopped {
        tokens: end.div_ceil(WORD_BYTES) as u64,
        words: whole as u64,
        finish: Finish::StopString { stop: stop.to_owned(), tail },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(api: Api, json: &str) -> Call {
        Call::read(api, json.as_bytes(), &SimConfig::default(), None, |_| false).expect("accepted")
    }

    #[test]
    fn the_same_text_costs_the_same_as_string_and_as_token_ids() {
        let text = "Once upon a time [[tag:5]] there was";
        let ids: Vec<u32> = token::tokens(text.as_bytes()).collect();
        let by_text = read(Api::Completions, &format!("{{\"prompt\":\"{text}\"}}"));
        let by_ids = read(Api::Completions, &format!("{{\"prompt\":{ids:?}}}"));
        assert_eq!(by_text.prompt_tokens(), by_ids.prompt_tokens());
        assert_eq!(by_text.prompts[0].tag, 5);
        assert_eq!(by_ids.prompts[0].tag, 5);
        let two = read(Api::Completions, &format!("{{\"prompt\":[{ids:?},{ids:?}],\"n\":2}}"));
        assert_eq!((two.prompts.len(), two.choices.len()), (2, 4));
    }

    #[test]
    fn an_answer_ends_where_it_is_told_to() {
        let of = |extra: &str, content: &str| {
            let message = format!("{{\"role\":\"user\",\"content\":\"[[tag:9]]{content}\"}}");
            read(Api::Chat, &format!("{{\"messages\":[{message}]{extra}}}"))
        };
        let length = of(",\"max_tokens\":3", "");
        assert_eq!((length.steps(), &length.choices[0].finish), (3, &Finish::Length));
        assert_eq!(length.shown(&length.choices[0], 2), Shown::Word(token_text(9, 2)));
        let eos = of(",\"max_tokens\":30", "[[len:3]]");
        assert_eq!((eos.steps(), &eos.choices[0].finish), (4, &Finish::Eos));
        assert_eq!(eos.shown(&eos.choices[0], 3), Shown::End);
        let forced = of(",\"max_tokens\":30,\"ignore_eos\":true", "[[len:3]]");
        assert_eq!(forced.steps(), 30);
        assert_eq!(of("", "").steps(), DEFAULT_WORDS + 1);
    }

    #[test]
    fn a_stop_string_cuts_the_text_even_between_two_words() {
        let all: Vec<u8> = (0..10).flat_map(|i| token_text(9, i)).collect();
        let all = String::from_utf8(all).expect("ASCII");
        let stop = &all[19..23];
        let json = format!("{{\"prompt\":\"[[tag:9]]\",\"max_tokens\":10,\"stop\":[\"{stop}\"]}}");
        let call = read(Api::Completions, &json);
        let choice = &call.choices[0];
        let at = all.find(stop).expect("it is there");
        assert_eq!(call.text(choice, 99), &all.as_bytes()[..at]);
        assert!(matches!(&choice.finish, Finish::StopString { stop: s, .. } if s == stop));
    }

    #[test]
    fn a_tool_call_echoes_its_script() {
        let call = read(
            Api::Chat,
            r#"{"messages":[{"role":"user",
            "content":[{"type":"text","text":"[[args:{\"é\":1}]]"}]}],
            "tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"auto"}"#,
        );
        let choice = &call.choices[0];
        let mut arguments = String::new();
        for step in 0..choice.tokens {
            if let Shown::ToolArguments(piece) = call.shown(choice, step) {
                arguments.push_str(piece);
            }
        }
        assert_eq!(arguments, "{\"é\":1}");
        assert_eq!(call.shown(choice, choice.tokens - 1), Shown::End);
    }
}
