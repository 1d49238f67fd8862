//! The JSON of a request as far as a simulated engine reads it.
//!
//! Unknown fields are ignored, as vLLM does. No I/O.

use std::borrow::Cow;
use std::fmt;

use super::kv_transfer::Params;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A value of which only texts, numbers and their nesting matter: a prompt, an input, messages,
/// stop strings.
#[derive(Debug, Default)]
pub(super) enum Node<'a> {
    #[default]
    Null,
    Text(Cow<'a, str>),
    Number(u64),
    List(Vec<Node<'a>>),
    /// A message or a part of one: its `content` or `text`.
    Part(Box<Node<'a>>),
}

impl<'de: 'a, 'a> Deserialize<'de> for Node<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Node<'a>, D::Error> {
        from.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text, numbers or a list of them")
    }
    fn visit_unit<E>(self) -> Result<Node<'de>, E> {
        Ok(Node::Null)
    }
    fn visit_bool<E>(self, _: bool) -> Result<Node<'de>, E> {
        Ok(Node::Null)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Node<'de>, E> {
        Ok(Node::Null)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Node<'de>, E> {
        Ok(Node::Null)
    }
    fn visit_u64<E>(self, number: u64) -> Result<Node<'de>, E> {
        Ok(Node::Number(number))
    }
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Node<'de>, E> {
        Ok(Node::Text(Cow::Borrowed(text)))
    }
    fn visit_str<E>(self, text: &str) -> Result<Node<'de>, E> {
        Ok(Node::Text(Cow::Owned(text.to_owned())))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = seq.next_element()? {
            list.push(node);
        }
        Ok(Node::List(list))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node<'de>, A::Error> {
        let mut content = Node::Null;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            match &*key {
                "content" | "text" => content = map.next_value()?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Node::Part(Box::new(content)))
    }
}

impl Node<'_> {
    /// Whether there is nothing in it.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Node::Null => true,
            Node::Text(text) => text.is_empty(),
            Node::List(list) => list.is_empty(),
            Node::Number(_) | Node::Part(_) => false,
        }
    }

    /// Adds all its text, one part after the other; numbers count as pseudo tokens.
    pub(super) fn append_text(&self, out: &mut Vec<u8>) {
        match self {
            Node::Null => {}
            Node::Text(text) => out.extend_from_slice(text.as_bytes()),
            Node::Number(id) => out.extend_from_slice(&(*id as u32).to_le_bytes()),
            Node::List(list) => list.iter().for_each(|node| node.append_text(out)),
            Node::Part(content) => content.append_text(out),
        }
    }
}

/// The fields that are read.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Body<'a> {
    #[serde(default)]
    pub(super) model: Option<String>,
    #[serde(default, borrow)]
    pub(super) messages: Option<Node<'a>>,
    #[serde(default, borrow)]
    pub(super) system: Node<'a>,
    #[serde(default, borrow)]
    pub(super) prompt: Node<'a>,
    #[serde(default, borrow)]
    pub(super) input: Node<'a>,
    #[serde(default, borrow)]
    pub(super) stop: Node<'a>,
    #[serde(default)]
    pub(super) stream: Option<bool>,
    #[serde(default)]
    pub(super) stream_options: Option<StreamOptions>,
    #[serde(default)]
    pub(super) max_tokens: Option<u64>,
    #[serde(default)]
    pub(super) max_completion_tokens: Option<u64>,
    #[serde(default)]
    pub(super) max_output_tokens: Option<u64>,
    #[serde(default)]
    pub(super) n: Option<u64>,
    #[serde(default)]
    pub(super) temperature: Option<f64>,
    #[serde(default)]
    pub(super) echo: Option<bool>,
    #[serde(default)]
    pub(super) ignore_eos: Option<bool>,
    #[serde(default)]
    pub(super) tools: Option<Vec<Tool>>,
    #[serde(default)]
    pub(super) tool_choice: Option<ToolChoice>,
    #[serde(default)]
    pub(super) request_id: Option<String>,
    #[serde(default)]
    pub(super) kv_transfer_params: Option<Params>,
    #[serde(default)]
    pub(super) tokens: Option<Vec<u32>>,
    #[serde(default)]
    pub(super) return_token_strs: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct StreamOptions {
    #[serde(default)]
    pub(super) include_usage: Option<bool>,
    #[serde(default)]
    pub(super) continuous_usage_stats: Option<bool>,
}

/// A tool of either API: the name in `function` or beside it.
#[derive(Debug, Deserialize)]
pub(super) struct Tool {
    #[serde(default)]
    pub(super) function: Option<Named>,
    #[serde(default)]
    pub(super) name: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Named {
    pub(super) name: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum ToolChoice {
    Word(String),
    Function { function: Named },
    Other(IgnoredAny),
}
