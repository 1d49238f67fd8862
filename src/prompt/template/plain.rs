//! The plain loop over role and content, without the engine, for templates that are known by the
//! hash of their source. Its cost is about that of copying the text.
//!
//! Taken only where nothing but roles and texts matters; whatever else a request has goes to the
//! engine, which also words every error. `plain_tests` holds the two against each other over
//! random conversations for each template below. Pure.

use sha2::{Digest, Sha256};

use super::chat::{Chat, Message, present, slice};
use super::content::BILLING_HEADER;
use super::engine::OUTPUT_BYTES_MAX;
use super::load::Specials;
use super::python::is_space;
use crate::openai::Span;
use crate::openai::json::{self, Kind, Scanner};

/// A template whose plain loop is written out here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plain {
    /// Llama 3; `always` opens an answer whether it is asked for or not.
    Llama { always: bool },
    /// Qwen 3: thinking is cut out of the past.
    Qwen,
    /// DeepSeek V3: all system texts first.
    DeepSeek,
    /// Gemma 3: the system text goes into the first turn.
    Gemma,
}

/// SHA-256 of a template's source, its first eight bytes, and what it is.
const KNOWN: [(u64, Plain); 5] = [
    (0x87a2_728c_b8dc_9fe4, Plain::Qwen),
    (0xb48c_47f6_4438_9271, Plain::Llama { always: true }),
    (0xba03_a121_d097_859c, Plain::Llama { always: false }),
    (0x3b82_67e5_4b67_df65, Plain::DeepSeek),
    (0x7de1_c58e_208e_da46, Plain::Gemma),
];

/// Who speaks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    System,
    User,
    Assistant,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// A conversation of nothing but roles and texts.
pub(super) struct Talk<'a> {
    text: &'a str,
    turns: Vec<(Role, json::Value)>,
    generate: bool,
    thinking: bool,
}

impl Plain {
    /// The template of this source, if it is one of those below.
    pub(super) fn of(source: &str) -> Option<Plain> {
        let hash = Sha256::digest(source);
        let first = u64::from_be_bytes(hash.first_chunk::<8>().copied()?);
        KNOWN.iter().find(|(known, _)| *known == first).map(|(_, plain)| *plain)
    }

    /// The conversation of `chat`, if it has nothing but roles and texts.
    pub(super) fn talk<'a>(self, chat: &Chat<'a>) -> Option<Talk<'a>> {
        let more = [chat.tools, chat.documents, chat.reasoning_effort];
        let long = chat.text.len() > OUTPUT_BYTES_MAX;
        if long
            || chat.continue_final
            || chat.messages.is_empty()
            || more.iter().any(Option::is_some)
        {
            return None;
        }
        let thinking = match chat.kwargs {
            Some(span) if self == Plain::Qwen => thinking(slice(chat.text, span))?,
            Some(_) => return None,
            None => true,
        };
        let turn = |message: &Message| self.turn(chat.text, message);
        let turns = chat.messages.iter().map(turn).collect::<Option<_>>()?;
        Some(Talk { text: chat.text, turns, generate: chat.add_generation_prompt, thinking })
    }

    fn turn(self, text: &str, message: &Message) -> Option<(Role, json::Value)> {
        let role = match slice(text, message.role?.span) {
            "\"system\"" => Role::System,
            "\"user\"" => Role::User,
            "\"assistant\"" => Role::Assistant,
            _ => return None,
        };
        let named = message.name.is_none_or(|name| name.kind == Kind::String);
        let bare = present(message.tool_calls).is_none() && message.tool_call_id.is_none();
        let told = self == Plain::Qwen && present(message.reasoning).is_some();
        let content = match message.content? {
            content if content.kind == Kind::String => content,
            content if content.kind == Kind::Array => only_text(text, content.span)?,
            _ => return None,
        };
        (named && bare && !told).then_some((role, content))
    }

    /// Renders `talk`; appends to `out`. False, with `out` as it was, where the engine is needed
    /// after all.
    pub(super) fn render(self, talk: &Talk<'_>, specials: &Specials, out: &mut String) -> bool {
        let from = out.len();
        out.reserve(talk.text.len().saturating_add(256));
        let done = match self {
            Plain::Llama { always } => llama(talk, specials, always, out),
            Plain::Qwen => qwen(talk, out),
            Plain::DeepSeek => deepseek(talk, specials, out),
            Plain::Gemma => gemma(talk, specials, out),
        };
        if done.is_none() {
            out.truncate(from);
        }
        done.is_some()
    }
}

/// The text of `[{"type": "text", "text": ".."}]`, which is the same to every template here.
fn only_text(text: &str, list: Span) -> Option<json::Value> {
    let mut scanner = Scanner::of_text(slice(text, list)).ok()?;
    let (mut found, mut typed) = (None, false);
    let count = scanner.array(|scanner, _| {
        scanner.object(|scanner, key| {
            let mut value = scanner.value()?;
            value.span.start += list.start;
            match key.name {
                b"type" => typed = slice(text, value.span) == "\"text\"",
                b"text" if value.kind == Kind::String => found = Some(value),
                _ => return Err(More),
            }
            Ok(())
        })?;
        Ok::<_, More>(())
    });
    found.filter(|_| typed && matches!(count, Ok(1)))
}

/// There is more to it than one text.
struct More;

impl From<json::Error> for More {
    fn from(_: json::Error) -> Self {
        More
    }
}

/// `{"enable_thinking": ..}` and nothing else.
fn thinking(kwargs: &str) -> Option<bool> {
    let inner = kwargs.strip_prefix('{')?.trim_start().strip_prefix("\"enable_thinking\"")?;
    match inner.trim_start().strip_prefix(':')?.trim_start().strip_suffix('}')?.trim_end() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

impl<'a> Talk<'a> {
    /// Role and quoted content of each turn.
    fn turns(&self) -> impl ExactSizeIterator<Item = (Role, &'a str)> + DoubleEndedIterator {
        let text = self.text;
        self.turns.iter().map(move |(role, content)| (*role, slice(text, content.span)))
    }
}

/// Appends a text; `None` for one that vLLM would cut first.
fn push(out: &mut String, role: Role, quoted: &str) -> Option<()> {
    let from = out.len();
    json::push_text(quoted, out);
    let billed = role == Role::System && out.get(from..)?.starts_with(BILLING_HEADER);
    (!billed).then_some(())
}

/// The same without the white space around it.
fn push_trimmed(out: &mut String, role: Role, quoted: &str) -> Option<()> {
    let from = out.len();
    push(out, role, quoted)?;
    let text = out.get(from..)?;
    let end = text.trim_end_matches(is_space).len();
    let start = text.len() - text.trim_start_matches(is_space).len();
    out.truncate(from + end);
    if start > 0 {
        out.replace_range(from..from + start.min(end), "");
    }
    Some(())
}

fn llama(talk: &Talk<'_>, specials: &Specials, always: bool, out: &mut String) -> Option<()> {
    out.push_str(specials.get("bos_token")?);
    for (role, content) in talk.turns() {
        out.push_str("<|start_header_id|>");
        out.push_str(role.name());
        out.push_str("<|end_header_id|>\n\n");
        push_trimmed(out, role, content)?;
        out.push_str("<|eot_id|>");
    }
    if always || talk.generate {
        out.push_str("<|start_header_id|>assistant<|end_header_id|>\n\n");
    }
    Some(())
}

fn deepseek(talk: &Talk<'_>, specials: &Specials, out: &mut String) -> Option<()> {
    out.push_str(specials.get("bos_token").unwrap_or_default());
    let systems = talk.turns().filter(|(role, _)| *role == Role::System);
    for (place, (role, content)) in systems.enumerate() {
        out.push_str(if place == 0 { "" } else { "\n\n" });
        push(out, role, content)?;
    }
    for (role, content) in talk.turns() {
        let (before, after) = match role {
            Role::System => continue,
            Role::User => ("<｜User｜>", ""),
            Role::Assistant => ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
        };
        out.push_str(before);
        push(out, role, content)?;
        out.push_str(after);
    }
    if talk.generate {
        out.push_str("<｜Assistant｜>");
    }
    Some(())
}

fn gemma(talk: &Talk<'_>, specials: &Specials, out: &mut String) -> Option<()> {
    out.push_str(specials.get("bos_token").unwrap_or_default());
    let mut turns = talk.turns().peekable();
    let mut prefix = turns.next_if(|(role, _)| *role == Role::System);
    for (place, (role, content)) in turns.enumerate() {
        // Out of turn: the template refuses, in its own words.
        if (role == Role::User) != (place % 2 == 0) {
            return None;
        }
        out.push_str("<start_of_turn>");
        out.push_str(if role == Role::Assistant { "model" } else { role.name() });
        out.push('\n');
        if let Some((role, content)) = prefix.take() {
            push(out, role, content)?;
            out.push_str("\n\n");
        }
        push_trimmed(out, role, content)?;
        out.push_str("<end_of_turn>\n");
    }
    if talk.generate {
        out.push_str("<start_of_turn>model\n");
    }
    // A system text alone is looked at and not printed: the engine knows what is wrong with it.
    prefix.is_none().then_some(())
}

fn qwen(talk: &Talk<'_>, out: &mut String) -> Option<()> {
    let last = talk.turns.len().saturating_sub(1);
    let asked = talk.turns().rposition(|(role, content)| role == Role::User && is_query(content));
    let last_query = asked.unwrap_or(last);
    for (place, (role, content)) in talk.turns().enumerate() {
        out.push_str("<|im_start|>");
        out.push_str(role.name());
        out.push('\n');
        if role == Role::Assistant {
            push_answer(out, content, place > last_query, place == last)?;
        } else {
            push(out, role, content)?;
        }
        out.push_str("<|im_end|>\n");
    }
    if talk.generate {
        out.push_str("<|im_start|>assistant\n");
        out.push_str(if talk.thinking { "" } else { "<think>\n\n</think>\n\n" });
    }
    Some(())
}

/// Is this a question, and not a tool's answer in the user's name?
fn is_query(quoted: &str) -> bool {
    const OPENED: &str = "<tool_response>";
    // Only a text that begins like one, or with an escape, has to be decoded.
    if !quoted.starts_with("\"<") && !quoted.starts_with("\"\\") {
        return true;
    }
    // A byte takes at most six in an escape; a quote of any kind stands for what is cut off.
    let begin = quoted.char_indices().nth(6 * OPENED.len() + 1).map(|(end, _)| end);
    let mut text = String::new();
    if let Some(begin) = begin.and_then(|end| quoted.get(..end)) {
        json::push_text(&[begin, "\""].concat(), &mut text);
        if !text.starts_with(OPENED) {
            return true;
        }
        text.clear();
    }
    json::push_text(quoted, &mut text);
    !(text.starts_with(OPENED) && text.ends_with("</tool_response>"))
}

/// An answer of the model: its thinking is kept only behind the last question.
fn push_answer(out: &mut String, quoted: &str, recent: bool, last: bool) -> Option<()> {
    let from = out.len();
    json::push_text(quoted, out);
    let reshaped = (recent && last) || out.get(from..)?.contains("</think>");
    if !reshaped {
        return Some(());
    }
    let text = out.split_off(from);
    let (content, reasoning) = match (text.split_once("</think>"), text.rsplit_once("</think>")) {
        (Some((before, _)), Some((_, after))) => {
            let before = before.trim_end_matches('\n');
            let reasoning = before.rsplit_once("<think>").map_or(before, |(_, inner)| inner);
            (after.trim_start_matches('\n'), reasoning.trim_start_matches('\n'))
        }
        _ => (text.as_str(), ""),
    };
    if recent && (last || !reasoning.is_empty()) {
        out.push_str("<think>\n");
        out.push_str(reasoning.trim_matches('\n'));
        out.push_str("\n</think>\n\n");
        out.push_str(content.trim_start_matches('\n'));
    } else {
        out.push_str(content);
    }
    Some(())
}

#[cfg(test)]
#[path = "plain_tests.rs"]
mod tests;
