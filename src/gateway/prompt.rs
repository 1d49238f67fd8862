//! The stage that knows a call's prompts: their tokens, whether they fit, and the hashes of their
//! blocks, before any replica has seen them.
//!
//! Never holds its core for long: a long text is encoded in turns, and what cannot be cut goes to
//! a thread beside the cores ([`super::side`]). While it waits the client is watched.

use std::rc::Rc;

use super::beside::{STAGE_BYTES_MAX, beside, turn};
use super::body::{Apart, Body};
use super::connection::Client;
use super::core::Core;
use super::reply::Failure;
use crate::openai::{Call, Endpoint, Truncate};
use crate::prompt::blocks::{self, Root};
use crate::prompt::model::{self, Ask};
use crate::prompt::segments::SegmentCache;
use crate::prompt::work::{Terms, Turn, Work};
use crate::prompt::{Basis, Prompt};
use crate::replicas::{Pool, Served};
use crate::runtime::clock;

/// A turn of a core ends at the first step behind this. What a step costs depends on the text:
/// 20 us of English, 1 ms of the worst.
const TURN_NS: u64 = 300_000;
/// Bytes encoded in one step of a turn.
const STEP_BYTES: usize = 2 * 1024;
/// A longer body is rendered beside the cores, unless its template is known to be quick: others
/// take some 10 us a KiB and cannot be interrupted.
const RENDER_BYTES_MAX: usize = 32 * 1024;

/// Text whose chunks are hashed where there is no tokenizer: 0.2 ms.
const HASHED_BYTES_MAX: usize = 1 << 20;

/// Tokens in a block while the pool's are not known: vLLM's default.
pub(super) const BLOCK_TOKENS_DEFAULT: u32 = 16;

/// Output tokens of a completion that names no limit: the API's default, and vLLM's.
const COMPLETION_TOKENS_DEFAULT: u64 = 16;

/// A call and what it is for.
pub(super) struct Asked<'a> {
    pub endpoint: Endpoint,
    pub call: &'a Call,
    pub served: &'a Served,
    pub pool: &'a Pool,
    /// The cache salt that goes to the engine in place of the call's own.
    pub salt: Option<&'a str>,
}

impl Asked<'_> {
    fn terms(&self, body: &[u8]) -> Terms {
        let block_tokens = match self.pool.block_tokens() {
            0 => BLOCK_TOKENS_DEFAULT,
            tokens => tokens,
        };
        let blocks = (self.root(body), block_tokens);
        Terms::new(self.endpoint, self.call, self.served.context_tokens, blocks)
    }

    fn root(&self, body: &[u8]) -> Root {
        let own = || self.call.cache_salt(body).ok().flatten();
        let salt = self.salt.map(str::to_owned).or_else(own);
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

/// The prompts of a call, counted at one go: for whoever is not a core.
pub(super) fn at_once(asked: &Asked<'_>, body: &[u8]) -> Prompt {
    let (terms, model) = (asked.terms(body), asked.pool.model());
    let ask = Ask { endpoint: asked.endpoint, call: asked.call, body, unix_s: unix_s() };
    let source = model::of_ids(&ask).or_else(|| model?.source(&ask).ok());
    let counted = source.and_then(|source| {
        let mut work = Work::new(model.map(|model| model.tokenizer()), source, terms);
        work.rest(&mut SegmentCache::new(0)).ok()?;
        Some(work.finish().0)
    });
    counted.unwrap_or_else(|| estimate(asked, body))
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
    let (terms, model) = (asked.terms(bytes), asked.pool.model());
    let (endpoint, call, unix_s) = (asked.endpoint, asked.call, unix_s());
    let ask = Ask { endpoint, call, body: bytes, unix_s };
    if let Some(apart) = body.heavy() {
        return whole(core, client, asked, (apart, terms)).await;
    }
    let source = model::of_ids(&ask);
    if source.is_none()
        && let Some(model) = model
        && bytes.len() > RENDER_BYTES_MAX
        && !model.is_quick(&ask)
    {
        return whole(core, client, asked, (body.share(client), terms)).await;
    }
    let staged = bytes.len() > STAGE_BYTES_MAX;
    if staged {
        turn(core, client).await?;
    }
    let ask = Ask { endpoint, call, body: body.bytes(client), unix_s };
    // What the engine will refuse it shall refuse in its own words.
    let source = source.or_else(|| model?.source(&ask).ok());
    let Some(source) = source else { return Ok(None) };
    if staged {
        turn(core, client).await?;
    }
    encode(core, client, Work::new(model.map(|model| model.tokenizer()), source, terms)).await
}

/// Renders and encodes the prompts of a body beside the cores.
async fn whole(
    core: &Rc<Core>,
    client: &mut Client,
    asked: &Asked<'_>,
    (body, terms): (Apart, Terms),
) -> Result<Option<(Prompt, Vec<Vec<u32>>)>, Failure> {
    let (model, call, endpoint) = (asked.pool.model().cloned(), asked.call, asked.endpoint);
    if model.is_none() && !model::has_ids(call) {
        return Ok(None);
    }
    let (call, unix_s) = (call.clone(), unix_s());
    let job = move |cache: &mut SegmentCache| {
        let ask = Ask { endpoint, call: &call, body: body.bytes(), unix_s };
        let source = model::of_ids(&ask).or_else(|| model.as_ref()?.source(&ask).ok())?;
        let mut work = Work::new(model.as_ref().map(|model| model.tokenizer()), source, terms);
        work.rest(cache).ok()?;
        Some(work.finish())
    };
    encode_beside(core, client, job).await
}

/// Does `job` on one of the threads that encode.
async fn encode_beside<T: Send + 'static>(
    core: &Rc<Core>,
    client: &mut Client,
    job: impl FnOnce(&mut SegmentCache) -> Option<T> + Send + 'static,
) -> Result<Option<T>, Failure> {
    core.metrics.long_prompts.inc();
    Ok(beside(&core.shared.side, core, client, job).await?.flatten())
}

/// Encodes in turns; what cannot be cut goes to a thread beside the cores.
async fn encode(
    core: &Rc<Core>,
    client: &mut Client,
    mut work: Work,
) -> Result<Option<(Prompt, Vec<Vec<u32>>)>, Failure> {
    let mut began_ns = clock::now_ns();
    loop {
        let came = work.turn(&mut core.segments.borrow_mut(), STEP_BYTES);
        match came {
            Ok(Turn::Done) => return Ok(Some(work.finish())),
            Ok(Turn::More) if clock::now_ns().saturating_sub(began_ns) < TURN_NS => {}
            Ok(Turn::More) => {
                turn(core, client).await?;
                began_ns = clock::now_ns();
            }
            Ok(Turn::Long) => {
                return encode_beside(core, client, move |cache| {
                    work.rest(cache).ok()?;
                    Some(work.finish())
                })
                .await;
            }
            Err(_) => return Ok(None),
        }
    }
}

fn unix_s() -> i64 {
    i64::try_from(clock::unix_ms() / 1000).unwrap_or(0)
}

/// Without a tokenizer: tokens by the bytes of the text, and chunks of the text itself.
fn estimate(asked: &Asked<'_>, body: &[u8]) -> Prompt {
    let call = asked.call;
    // Any text is a token at least.
    let least = u64::from(call.text_bytes > 0);
    let tokens = asked.pool.state.prompts.estimate(call.text_bytes as u64).max(least);
    let mut root = asked.root(body);
    for whole in [call.tools_span, call.system_span].into_iter().flatten() {
        root = root.behind(whole.of(body));
    }
    let text = call.messages_span.or(call.prompt_span).map(|span| span.of(body));
    let text = text.and_then(|text| std::str::from_utf8(text).ok()).unwrap_or_default();
    let mut hashes = Vec::new();
    let mut hashed = text.len().min(HASHED_BYTES_MAX);
    while !text.is_char_boundary(hashed) {
        hashed -= 1;
    }
    blocks::of_text(root, text.get(..hashed).unwrap_or_default(), &mut hashes);
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
pub(super) fn output_tokens(asked: &Asked<'_>) -> Option<u64> {
    let default = (asked.endpoint == Endpoint::Completions).then_some(COMPLETION_TOKENS_DEFAULT);
    asked.call.output_tokens_max().or(default)
}

/// The most that a call without a limit may generate: what its prompt leaves of the context.
pub(super) fn room(asked: &Asked<'_>, prompt: &Prompt) -> Option<u64> {
    let open = asked.endpoint == Endpoint::ChatCompletions
        && asked.call.output_tokens_max().is_none()
        && prompt.basis == Basis::Exact;
    // Where the engine counts otherwise, what we fill in may be more than it takes.
    let open = open && !asked.pool.state.prompts.is_doubtful();
    let context = asked.served.context_tokens.filter(|_| open)?;
    Some(context.saturating_sub(prompt.longest))
}
