//! `/tokenize` and `/detokenize`, answered here in vLLM's shape when the pool's tokenizer is
//! loaded; without one, or for what only the engine can say (errors among it), it is asked.

use std::io::Write as _;
use std::rc::Rc;
use std::sync::Arc;

use super::body::Body;
use super::connection::{Client, Next};
use super::core::Core;
use super::local;
use super::prompt::{self, Asked, IDS_BYTES_MAX};
use super::reply::Failure;
use super::ticket::Ticket;
use crate::http1::RequestHead;
use crate::openai::error::write_string;
use crate::openai::{self, Endpoint, json};
use crate::prompt::model::Model;

/// Ids that a core writes in one turn: half a millisecond with their texts.
const IDS_MAX: usize = 8 * 1024;

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
            let bytes = body.bytes(client);
            if bytes.len() <= IDS_BYTES_MAX {
                text(bytes, model)
            } else {
                let (bytes, model) = (bytes.to_vec(), Arc::clone(model));
                prompt::beside(core, client, move |_| text(&bytes, &model)).await?
            }
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
    let strings = match openai::member(body.bytes(client), "return_token_strs") {
        None => false,
        Some(value) => match value.kind {
            json::Kind::True => true,
            json::Kind::False | json::Kind::Null => false,
            _ => return Ok(None),
        },
    };
    let Some((known, prompts)) = prompt::exact(core, client, asked, body).await? else {
        return Ok(None);
    };
    // With media the count is the engine's alone to tell.
    let (crate::prompt::Basis::Exact, Ok([ids])) = (known.basis, <[_; 1]>::try_from(prompts))
    else {
        return Ok(None);
    };
    let strings = strings.then(|| Arc::clone(model));
    if ids.len() <= IDS_MAX {
        return Ok(Some(listed(&ids, context, strings.as_deref())));
    }
    prompt::beside(core, client, move |_| Some(listed(&ids, context, strings.as_deref()))).await
}

/// The answer for these ids, with their texts when there is a model to take them from.
fn listed(ids: &[u32], context: u64, strings: Option<&Model>) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + ids.len() * 8);
    let _ = write!(out, "{{\"count\":{},\"max_model_len\":{context},\"tokens\":[", ids.len());
    list(&mut out, ids, |out, id| {
        let _ = write!(out, "{id}");
    });
    out.extend_from_slice(b"],\"token_strs\":");
    if let Some(model) = strings {
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
