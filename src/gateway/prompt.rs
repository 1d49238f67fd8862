//! The stage that knows a call's prompts: their tokens, whether they fit, and the hashes of their
//! blocks, before any replica has seen them.
//!
//! Never holds its core for long: a long text is encoded in turns, and what cannot be cut goes to
//! a thread beside the cores ([`super::side`]). While it waits the client is watched.

use super::body::Body;
use super::connection::Client;
use super::reply::Failure;
use crate::openai::{self, Call, Endpoint, Truncate};
use crate::prompt::blocks::{self, Root};
use crate::prompt::{Basis, Prompt};
use crate::replicas::{Pool, Served};

/// Output tokens of a completion that names no limit: the API's default, and vLLM's.
const COMPLETION_TOKENS_DEFAULT: u64 = 16;

/// A call and what it is for.
pub(super) struct Asked<'a> {
    pub endpoint: Endpoint,
    pub call: &'a Call,
    pub served: &'a Served,
    pub pool: &'a Pool,
}

impl Asked<'_> {
    fn root(&self, body: &[u8]) -> Root {
        let salt = self.call.policy_fields.iter().find(|field| field.name == "cache_salt");
        let salt = salt.and_then(|field| openai::texts(field.value.span.of(body)).pop());
        Root::new(self.served.adapter.as_deref(), salt.as_deref())
    }
}

/// Knows the prompts of a call.
///
/// # Errors
/// They do not fit into the context.
pub(super) fn read(asked: &Asked<'_>, client: &Client, body: &Body) -> Result<Prompt, Failure> {
    let bytes = body.bytes(client);
    let prompt = token_lists(asked, bytes).unwrap_or_else(|| estimate(asked, bytes));
    fits(asked, &prompt)?;
    Ok(prompt)
}

/// Prompts that came as token ids need no tokenizer.
fn token_lists(asked: &Asked<'_>, body: &[u8]) -> Option<Prompt> {
    let lists = match asked.call.prompt {
        openai::Prompt::Tokens { .. } | openai::Prompt::TokenLists { .. } => {
            openai::token_ids(asked.call.prompt_span?.of(body))
        }
        _ => return None,
    };
    let lists: Vec<_> = lists.into_iter().map(|ids| truncated(asked, ids)).collect();
    let mut hashes = Vec::new();
    let block_tokens = asked.pool.block_tokens();
    let first = lists.first().map(Vec::as_slice).unwrap_or_default();
    blocks::of_tokens(asked.root(body), first, block_tokens as usize, &mut hashes);
    Some(Prompt {
        tokens: lists.iter().map(|ids| ids.len() as u64).sum(),
        longest: lists.iter().map(Vec::len).max().unwrap_or(0) as u64,
        basis: if asked.call.embeds { Basis::Estimate } else { Basis::Exact },
        hashes,
        block_tokens,
    })
}

/// What is left of a prompt once the engine has cut it to `truncate_prompt_tokens`: its end, or
/// its start with `truncation_side` right.
fn truncated(asked: &Asked<'_>, mut ids: Vec<u32>) -> Vec<u32> {
    let context = asked.served.context_tokens;
    let most = match asked.call.truncate {
        None => return ids,
        Some(Truncate::To(most)) => most,
        // A token of the context is left for the answer, where there is one (vLLM 0.32).
        Some(Truncate::ToContext) => match context {
            Some(context) => context.saturating_sub(u64::from(asked.endpoint.generates())),
            None => return ids,
        },
    };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    if ids.len() > most {
        match asked.call.truncate_right {
            Some(true) => ids.truncate(most),
            _ => drop(ids.drain(..ids.len() - most)),
        }
    }
    ids
}

/// Without a tokenizer: tokens by the bytes of the text, and chunks of the text itself.
fn estimate(asked: &Asked<'_>, body: &[u8]) -> Prompt {
    let call = asked.call;
    let tokens = asked.pool.prompts.estimate(call.text_bytes as u64);
    let mut root = asked.root(body);
    for whole in [call.tools_span, call.system_span].into_iter().flatten() {
        root = root.behind(whole.of(body));
    }
    let text = call.messages_span.or(call.prompt_span).map(|span| span.of(body));
    let text = text.and_then(|text| std::str::from_utf8(text).ok()).unwrap_or_default();
    let mut hashes = Vec::new();
    blocks::of_text(root, text, &mut hashes);
    let prompts = call.prompts().max(1) as u64;
    let longest = if prompts == 1 { tokens } else { tokens.div_ceil(prompts) };
    Prompt { tokens, longest, basis: Basis::Estimate, hashes, block_tokens: 0 }
}

/// Refuses what no replica could serve. An estimate refuses nothing; a limit that alone is beyond
/// the context does.
fn fits(asked: &Asked<'_>, prompt: &Prompt) -> Result<(), Failure> {
    let Some(context) = asked.served.context_tokens else { return Ok(()) };
    let (tokens, output) = match prompt.basis {
        Basis::Exact => (prompt.longest, output_tokens(asked)),
        _ => (0, asked.call.output_tokens_max()),
    };
    // Whatever generates needs room for one token.
    let least = match output {
        Some(output) => output,
        None => u64::from(asked.endpoint.generates() && prompt.basis == Basis::Exact),
    };
    if tokens.saturating_add(least) <= context {
        return Ok(());
    }
    let param = match asked.endpoint {
        Endpoint::Completions => "prompt",
        Endpoint::Embeddings | Endpoint::Responses => "input",
        _ => "messages",
    };
    Err(Failure::ContextLength { context, tokens, output, param })
}

/// Output tokens of a sequence, as the engine will take the call.
fn output_tokens(asked: &Asked<'_>) -> Option<u64> {
    let missing = asked.endpoint == Endpoint::Completions && !asked.call.is_null("max_tokens");
    let default = missing.then_some(COMPLETION_TOKENS_DEFAULT);
    asked.call.output_tokens_max().or(default)
}

/// The most that a call without a limit may generate: what its prompt leaves of the context.
pub(super) fn room(asked: &Asked<'_>, prompt: &Prompt) -> Option<u64> {
    let open = asked.endpoint == Endpoint::ChatCompletions
        || asked.endpoint == Endpoint::Completions && output_tokens(asked).is_none();
    let open = open && asked.call.output_tokens_max().is_none() && prompt.basis == Basis::Exact;
    let context = asked.served.context_tokens.filter(|_| open)?;
    Some(context.saturating_sub(prompt.longest))
}
