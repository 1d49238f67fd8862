//! The stage that knows a call's prompts: their tokens, whether they fit, and the hashes of their
//! blocks, before any replica has seen them.
//!
//! Never holds its core for long: a long text is encoded in turns, and what cannot be cut goes to
//! a thread beside the cores ([`super::side`]). While it waits the client is watched.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use super::body::Body;
use super::connection::Client;
use super::core::Core;
use super::reply::Failure;
use super::side::{Busy, Lost};
use crate::openai::{self, Call, Endpoint, Truncate};
use crate::prompt::blocks::{self, Root};
use crate::prompt::model::{self, Ask, Model};
use crate::prompt::segments::SegmentCache;
use crate::prompt::work::{Terms, Turn, Work};
use crate::prompt::{Basis, Prompt};
use crate::replicas::{Pool, Served};
use crate::runtime::clock;

/// Bytes encoded in one turn of a core: half a millisecond of text that nobody has sent before.
const TURN_BYTES: usize = 8 * 1024;
/// A longer body is rendered beside the cores, unless its template is known to be quick: others
/// take some 10 us a KiB and cannot be interrupted.
const RENDER_BYTES_MAX: usize = 32 * 1024;
/// A body that is longer still is read beside the cores whatever it holds: to copy its text out
/// takes a core a millisecond.
const READ_BYTES_MAX: usize = 1024 * 1024;
/// So is one with as many bytes of token ids: they take half a millisecond.
pub(super) const IDS_BYTES_MAX: usize = 128 * 1024;

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
    fn terms(&self, body: &[u8]) -> Terms {
        let blocks = (self.root(body), self.pool.block_tokens());
        Terms::new(self.endpoint, self.call, self.served.context_tokens, blocks)
    }

    fn root(&self, body: &[u8]) -> Root {
        let salt = self.call.policy_fields.iter().find(|field| field.name == "cache_salt");
        let salt = salt.and_then(|field| openai::texts(field.value.span.of(body)).pop());
        Root::new(self.served.adapter.as_deref(), salt.as_deref())
    }
}

/// Knows the prompts of a call.
///
/// # Errors
/// They do not fit into the context, the client goes meanwhile, or too many long prompts wait.
pub(super) async fn read(
    core: &Rc<Core>,
    client: &mut Client,
    asked: &Asked<'_>,
    body: &Body,
) -> Result<Prompt, Failure> {
    let known = exact(core, client, asked, body).await?;
    let prompt = known.map_or_else(|| estimate(asked, body.bytes(client)), |(prompt, _)| prompt);
    fits(asked, &prompt)?;
    Ok(prompt)
}

/// The prompts of a call with their ids; `None` when they can only be estimated.
///
/// # Errors
/// The client goes, or too many long prompts wait.
pub(super) async fn exact(
    core: &Rc<Core>,
    client: &mut Client,
    asked: &Asked<'_>,
    body: &Body,
) -> Result<Option<(Prompt, Vec<Vec<u32>>)>, Failure> {
    let bytes = body.bytes(client);
    let ask = Ask { endpoint: asked.endpoint, call: asked.call, body: bytes, unix_s: unix_s() };
    let terms = asked.terms(bytes);
    let model = asked.pool.model();
    if model.is_none() && !model::has_ids(asked.call) {
        return Ok(None);
    }
    if is_slow(&ask, model) {
        let (model, call, bytes) = (model.map(Arc::clone), asked.call.clone(), bytes.to_vec());
        let endpoint = asked.endpoint;
        return beside(core, client, move |cache| {
            let ask = Ask { endpoint, call: &call, body: &bytes, unix_s: ask.unix_s };
            let mut work = work(&ask, model.as_ref(), terms)?;
            work.rest(cache).ok()?;
            Some(work.finish())
        })
        .await;
    }
    match work(&ask, model, terms) {
        Some(work) => encode(core, client, work).await,
        None => Ok(None),
    }
}

/// Does reading this body take longer than a turn of a core?
fn is_slow(ask: &Ask<'_>, model: Option<&Arc<Model>>) -> bool {
    let quick = || match model::has_ids(ask.call) {
        true => ask.body.len() <= IDS_BYTES_MAX,
        false => model.is_some_and(|model| model.is_quick(ask)),
    };
    let bytes = ask.body.len();
    bytes > RENDER_BYTES_MAX && (bytes > READ_BYTES_MAX || !quick())
}

/// The prompts of a call on their way to tokens. What the engine will refuse is `None`: it shall
/// refuse it in its own words.
fn work(ask: &Ask<'_>, model: Option<&Arc<Model>>, terms: Terms) -> Option<Work> {
    if let Some(source) = model::of_ids(ask) {
        return Some(Work::new(None, source, terms));
    }
    let model = model?;
    Some(Work::new(Some(model.tokenizer()), model.source(ask).ok()?, terms))
}

/// Encodes in turns; what cannot be cut goes to a thread beside the cores.
async fn encode(
    core: &Rc<Core>,
    client: &mut Client,
    mut work: Work,
) -> Result<Option<(Prompt, Vec<Vec<u32>>)>, Failure> {
    loop {
        let turn = work.turn(&mut core.segments.borrow_mut(), TURN_BYTES);
        match turn {
            Ok(Turn::Done) => return Ok(Some(work.finish())),
            Ok(Turn::More) => {
                core.bell.turn().await;
                if poll_fn(|cx| Poll::Ready(client.poll_gone(cx, core).is_ready())).await {
                    return Err(Failure::ClientGone);
                }
            }
            Ok(Turn::Long) => {
                return beside(core, client, move |cache| {
                    work.rest(cache).ok()?;
                    Some(work.finish())
                })
                .await;
            }
            Err(_) => return Ok(None),
        }
    }
}

/// Does `job` on a thread beside the cores and waits for it, watching the client.
///
/// # Errors
/// The client goes, the gateway stops, or too many wait.
pub(super) async fn beside<T: Send + 'static>(
    core: &Rc<Core>,
    client: &mut Client,
    job: impl FnOnce(&mut SegmentCache) -> Option<T> + Send + 'static,
) -> Result<Option<T>, Failure> {
    core.metrics.long_prompts.inc();
    let answer = core.shared.side.submit(&core.bell, job).map_err(|Busy| Failure::Busy)?;
    let mut rung = pin!(core.bell.rung());
    poll_fn(|cx| {
        loop {
            match answer.take() {
                Ok(Some(answer)) => return Poll::Ready(Ok(answer)),
                Err(Lost) => return Poll::Ready(Ok(None)),
                Ok(None) => {}
            }
            if client.poll_gone(cx, core).is_ready() {
                return Poll::Ready(Err(Failure::ClientGone));
            }
            if core.sweep.ended() {
                return Poll::Ready(Err(Failure::Stopping));
            }
            if rung.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            rung.set(core.bell.rung());
        }
    })
    .await
}

fn unix_s() -> i64 {
    i64::try_from(clock::unix_ms() / 1000).unwrap_or(0)
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
    let cut_to_context = call.truncate == Some(Truncate::ToContext);
    Prompt { tokens, longest, basis: Basis::Estimate, hashes, block_tokens: 0, cut_to_context }
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
        // Beyond the context alone it is refused all the same, as by the engine.
        Some(output) if prompt.cut_to_context && output <= context => output.min(1),
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

/// Output tokens of a sequence, as the engine will take the call; to a completion null is no limit
/// either.
fn output_tokens(asked: &Asked<'_>) -> Option<u64> {
    let default = (asked.endpoint == Endpoint::Completions).then_some(COMPLETION_TOKENS_DEFAULT);
    asked.call.output_tokens_max().or(default)
}

/// The most that a call without a limit may generate: what its prompt leaves of the context.
pub(super) fn room(asked: &Asked<'_>, prompt: &Prompt) -> Option<u64> {
    let open = asked.endpoint == Endpoint::ChatCompletions
        && asked.call.output_tokens_max().is_none()
        && prompt.basis == Basis::Exact;
    let context = asked.served.context_tokens.filter(|_| open)?;
    Some(context.saturating_sub(prompt.longest))
}
