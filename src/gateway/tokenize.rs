//! `/tokenize` and `/detokenize`, answered here in vLLM's shape when the pool's tokenizer is
//! loaded; without one, or for what only the engine can say (errors among it), it is asked.

use std::io::Write as _;
use std::rc::Rc;
use std::sync::Arc;

use super::beside::short_here;
use super::body::Body;
use super::connection::{Client, Next};
use super::core::Core;
use super::local;
use super::prompt::{self, Asked};
use super::reply::Failure;
use super::ticket::Ticket;
use crate::http1::RequestHead;
use crate::openai::error::write_string;
use crate::openai::{self, Endpoint, json};
use crate::prompt::Basis;
use crate::prompt::model::Model;

/// A core writes a list of so many tokens and their texts in half a millisecond.
const IDS_HERE: usize = 4096;
/// A list of ids that is not longer is read and decoded as quickly.
const IDS_BYTES_HERE: usize = 16 * 1024;

/// Answers `asked` if it can be answered here; `None`: the engine is to be asked.
///
/// # Errors
/// The client goes, too many long prompts wait, or the usage log cannot be written.
pub(super) async fn answer(
    core: &Rc<Core>,
    client: &mut Client,
    head: &RequestHead,
    (asked, body): (&Asked<'_>, &Body),
    ticket: &mut Ticket<'_>,
) -> Result<Option<Next>, Failure> {
    let Some(model) = asked.pool.model() else { return Ok(None) };
    let answer = match asked.endpoint {
        Endpoint::Tokenize => tokens(core, client, asked, body, model).await?,
        Endpoint::Detokenize => {
            let short = body.bytes(client).len() <= IDS_BYTES_HERE;
            let (body, model) = (body.share(client), Arc::clone(model));
            short_here(core, client, short, move || text(body.bytes(), &model)).await?.flatten()
        }
        _ => None,
    };
    let Some(answer) = answer else { return Ok(None) };
    ticket.reserve()?;
    let next = local::reply(core, client, head, &answer, ticket).await?;
    ticket.answered_here();
    Ok(Some(next))
}

/// The answer to `/tokenize`.
async fn tokens(
    core: &Rc<Core>,
    client: &mut Client,
    asked: &Asked<'_>,
    body: &Body,
    model: &Arc<Model>,
) -> Result<Option<Vec<u8>>, Failure> {
    let Some(context) = asked.served.context_tokens else { return Ok(None) };
    // A list of prompts the engine refuses.
    if asked.call.prompt != openai::Prompt::Text && asked.call.messages_span.is_none() {
        return Ok(None);
    }
    let strings = match body.heavy() {
        None => wants_strings(body.bytes(client)),
        Some(body) => {
            short_here(core, client, false, move || wants_strings(body.bytes())).await?.flatten()
        }
    };
    let Some(strings) = strings else { return Ok(None) };
    let Some((known, mut prompts)) = prompt::exact(core, client, asked, body).await? else {
        return Ok(None);
    };
    // With media the count is the engine's alone to tell.
    let (Basis::Exact, Some(ids), []) = (known.basis, prompts.pop(), prompts.as_slice()) else {
        return Ok(None);
    };
    let (short, model) = (ids.len() <= IDS_HERE, Arc::clone(model));
    short_here(core, client, short, move || written(&ids, context, strings, &model)).await
}

/// The flag `return_token_strs` of a body; `None` when the engine refuses it.
fn wants_strings(body: &[u8]) -> Option<bool> {
    match openai::member(body, "return_token_strs") {
        None => Some(false),
        Some(value) => match value.kind {
            json::Kind::True => Some(true),
            json::Kind::False | json::Kind::Null => Some(false),
            _ => None,
        },
    }
}

fn written(ids: &[u32], context: u64, strings: bool, model: &Model) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + ids.len() * 8);
    let _ = write!(out, "{{\"count\":{},\"max_model_len\":{context},\"tokens\":[", ids.len());
    list(&mut out, ids, |out, id| {
        let _ = write!(out, "{id}");
    });
    out.extend_from_slice(b"],\"token_strs\":");
    if strings {
        out.push(b'[');
        list(&mut out, ids, |out, id| match model.tokenizer().id_to_token(*id) {
            Some(token) => write_string(out, token.as_bytes()),
            None => out.extend_from_slice(b"null"),
        });
        out.push(b']');
    } else {
        out.extend_from_slice(b"null");
    }
    out.push(b'}');
    out
}

fn list<T>(out: &mut Vec<u8>, items: &[T], mut write: impl FnMut(&mut Vec<u8>, &T)) {
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write(out, item);
    }
}

/// The answer to `/detokenize`; `None` for a body or an id that the engine refuses.
fn text(body: &[u8], model: &Model) -> Option<Vec<u8>> {
    let value = openai::member(body, "tokens")?;
    let ids = value.span.of(body);
    if memchr::memchr_iter(b'[', ids).count() > 1 {
        return None; // Lists in the list.
    }
    let ids = match ids.trim_ascii() {
        b"[]" => Vec::new(),
        ids => match openai::token_ids(ids).as_slice() {
            [ids] => ids.clone(),
            _ => return None,
        },
    };
    let commas = memchr::memchr_iter(b',', value.span.of(body)).count();
    let complete = ids.is_empty() || ids.len() == commas + 1;
    let tokenizer = model.tokenizer();
    if !complete || ids.iter().any(|id| *id >= tokenizer.vocab_size()) {
        return None;
    }
    let text = tokenizer.decode(&ids, false).ok()?;
    let mut out = Vec::with_capacity(text.len() + 16);
    out.extend_from_slice(b"{\"prompt\":");
    write_string(&mut out, text.as_bytes());
    out.push(b'}');
    Some(out)
}
