//! THE PATH of a request, stage by stage. Each stage hands a value to the next, so that one cannot
//! be skipped: head -> endpoint -> tenant -> record slot -> body -> call -> served name -> prompt
//! -> reservation -> exchange -> outcome -> usage record.

use std::rc::Rc;

use super::beside;
use super::body::{self, Body};
use super::connection::{Client, Next};
use super::core::{Core, caught};
use super::local;
use super::plan::Plan;
use super::prefill;
use super::prompt::{self, Asked};
use super::quota::{self, Spending};
use super::relay;
use super::reply::Failure;
use super::shared::Published;
use super::ticket::Ticket;
use super::tokenize;
use super::upstream;
use crate::admin::Stage;
use crate::http1::{BodyLength, Method, RequestHead, Span, Version};
use crate::openai::{self, Call, Edits, Endpoint, RouteError, media, multipart};
use crate::replicas::{Served, Unresolved};
use crate::tenants::{KeyId, TenantRef};

/// Serves one request whose head is at the start of the client's inbox.
pub(super) async fn serve_request(
    core: &Rc<Core>,
    client: &mut Client,
    head: &RequestHead,
) -> Next {
    let published = core.published();
    let mut ticket = Ticket::open(core, client.inbox.filled(), head);
    let sent_before = client.sent_bytes;
    let done = {
        let work = stages(core, client, head, &published, &mut ticket);
        caught(std::pin::pin!(work)).await
    };
    let next = match done {
        Some(Ok(next)) => next,
        Some(Err(failure)) => fail(core, client, &mut ticket, failure).await,
        None => {
            core.metrics.panics.inc();
            if client.sent_bytes == sent_before {
                fail(core, client, &mut ticket, Failure::Internal).await
            } else {
                // Behind bytes of an answer nothing more can be said.
                Next::Reset
            }
        }
    };
    client.comments = None;
    ticket.sent_bytes = client.sent_bytes.saturating_sub(sent_before);
    // What it held is free.
    core.queues.released(core.sweep.now_ms());
    client.forget_request(core);
    match next {
        Next::KeepAlive if ticket.closes() => Next::Close,
        next => next,
    }
}

async fn stages(
    core: &Rc<Core>,
    client: &mut Client,
    head: &RequestHead,
    published: &Published,
    ticket: &mut Ticket<'_>,
) -> Result<Next, Failure> {
    #[cfg(test)]
    assert_ne!(head.target.of(client.inbox.filled()), b"/panic", "as a test wants it");
    let endpoint = route(client, head)?;
    ticket.routed_to(endpoint);
    let tenant = authenticate(client, head, endpoint, published)?;
    ticket.met(tenant.key_id, || published.tenant(tenant));
    let path = head.target.of(client.inbox.filled());
    if let Some(answer) = local::answer(endpoint, path, published, tenant) {
        let answer = answer?;
        ticket.answered_here();
        return local::send(core, client, head, &answer, ticket).await;
    }
    ticket.caller(endpoint, tenant.key_id, published.tenant(tenant));
    ticket.reserve()?;
    ticket.spending = Spending::of(published.accounts.budget(tenant));
    let policy = head.policy.map(|span| span.of(client.inbox.filled()));
    let policy = published.policy(tenant, policy).ok_or(Failure::UnknownPolicy)?;
    plain_body(client, head)?;
    let body = body::read(core, client, head, published.body_bytes_max).await;
    ticket.waited_for_them(std::mem::take(&mut client.waited_ns));
    let body = body?;
    let call = called(core, client, head, endpoint, &body).await?;
    let bytes = body.bytes(client);
    ticket.body_bytes = bytes.len() as u64;
    ticket.asked(&call, bytes);
    let (mut edits, served) = understand(endpoint, &call, bytes, published, tenant)?;
    let salt = salted(endpoint, &call, bytes, published, tenant)?;
    if let Some(salt) = &salt {
        edits.set_policy_field(&call, "cache_salt", &format!("\"{salt}\""));
    }
    let settings = published.config.pools.get(served.pool);
    let hosts = settings.and_then(|pool| pool.media_hosts.as_deref());
    media::check(&call, bytes, hosts).map_err(Failure::Body)?;
    let pool = published.fleet.pools.get(served.pool).ok_or(Failure::NoHealthyReplica)?;
    ticket.called(&call, &served, pool);
    ticket.stage_ended(Stage::Auth);
    let asked = Asked { endpoint, call: &call, served: &served, pool, salt: salt.as_deref() };
    if matches!(endpoint, Endpoint::Tokenize | Endpoint::Detokenize)
        && let Some(next) = tokenize::answer(core, client, head, (&asked, &body), ticket).await?
    {
        return Ok(next);
    }
    let prompt = prompt::read(core, client, &asked, &body).await?;
    let room = prompt::room(&asked, &prompt);
    ticket.prompted(prompt);
    ticket.stage_ended(Stage::Tokenize);
    let default = quota::reserve(core, &asked, (room, published), ticket).await?;
    if let Some(tokens) = default.or(room) {
        edits.set_max_tokens(&call, endpoint.limit_field(), tokens);
    }
    let what = (endpoint, &call, policy, tenant);
    let mut plan = Plan::new(client, head, what, edits, body, served, published)?;
    ticket.tier_ms = plan.end_ms();
    prefill::prepare(client, &mut plan, &call, salt.as_deref(), ticket);
    let opened = upstream::open(core, client, &plan, ticket).await;
    relay::run(core, client, &plan, opened, ticket).await
}

fn plain_body(client: &Client, head: &RequestHead) -> Result<(), Failure> {
    let coding = head.content_encoding.map(|span| span.of(client.inbox.filled()));
    match coding {
        Some(coding) if !coding.eq_ignore_ascii_case(b"identity") => Err(Failure::ContentCoding),
        _ => Ok(()),
    }
}

fn route(client: &Client, head: &RequestHead) -> Result<Endpoint, Failure> {
    let method = match head.method {
        Method::Get => openai::Method::Get,
        Method::Head => openai::Method::Head,
        Method::Post => openai::Method::Post,
        // A tunnel or an echo is refused whatever the target says.
        Method::Connect | Method::Trace => return Err(Failure::MethodNotAllowed("GET, POST")),
        _ => openai::Method::Other,
    };
    let path = head.target.of(client.inbox.filled());
    if path == b"*" {
        return Err(Failure::MethodNotAllowed("GET, POST"));
    }
    openai::route(method, path).map_err(|error| match error {
        RouteError::NotFound => Failure::NotFound,
        RouteError::MethodNotAllowed(allow) => Failure::MethodNotAllowed(allow),
    })
}

fn authenticate(
    client: &Client,
    head: &RequestHead,
    endpoint: Endpoint,
    published: &Published,
) -> Result<TenantRef, Failure> {
    if endpoint == Endpoint::Health {
        return Ok(TenantRef { index: usize::MAX, key_id: KeyId::OPEN });
    }
    let bytes = client.inbox.filled();
    let field = |span: Option<Span>| span.map(|s| s.of(bytes));
    published
        .keys
        .authenticate(field(head.authorization), field(head.api_key))
        .map_err(|_| Failure::InvalidApiKey)
}

/// Reads the body.
async fn called(
    core: &Rc<Core>,
    client: &mut Client,
    head: &RequestHead,
    endpoint: Endpoint,
    body: &Body,
) -> Result<Call, Failure> {
    if endpoint.multipart() {
        let kind = head.content_type.map(|s| s.of(client.inbox.filled())).unwrap_or_default();
        return multipart::read_call(kind, body.bytes(client)).map_err(Failure::Body);
    }
    let call = beside::call(core, client, endpoint, body).await?;
    call.refuse_chat_template().map_err(Failure::Body)?;
    Ok(call)
}

/// What is asked for: who serves it, and what must be changed in the body.
fn understand(
    endpoint: Endpoint,
    call: &Call,
    bytes: &[u8],
    published: &Published,
    tenant: TenantRef,
) -> Result<(Edits, Served), Failure> {
    let name = call.model_name(bytes);
    let served = published.fleet.resolve(name).map_err(|why| match why {
        Unresolved::Unknown => Failure::ModelNotFound(shown(name)),
        Unresolved::NotLearned => Failure::NoHealthyReplica,
        Unresolved::NoName => Failure::ModelMissing,
    })?;
    let pool = published.fleet.pools.get(served.pool);
    if !pool.is_some_and(|pool| published.may_use(tenant, &pool.name)) {
        return Err(Failure::ModelNotFound(shown(name)));
    }
    let mut edits = Edits::new(call);
    if name.is_some_and(|name| name != &*served.upstream) {
        edits.set_model(call, &served.upstream);
    }
    if endpoint.usage_is_asked_for() && call.stream && !call.client_asked_for_usage() {
        edits.ask_for_usage(call);
    }
    // Fields by which a caller could steer the engine past us; the salt only separates.
    edits.remove(call, bytes, |field| field.name != "cache_salt");
    Ok((edits, served.clone()))
}

/// The cache salt that keeps what the tenant's prompts leave in caches from other tenants. Hex
/// digits. The token endpoints touch no cache, and a form has no field for it.
fn salted(
    endpoint: Endpoint,
    call: &Call,
    bytes: &[u8],
    published: &Published,
    tenant: TenantRef,
) -> Result<Option<String>, Failure> {
    let tokens_only = matches!(endpoint, Endpoint::Tokenize | Endpoint::Detokenize);
    if !published.salts() || tokens_only || endpoint.multipart() {
        return Ok(None);
    }
    let own = call.cache_salt(bytes).map_err(Failure::Body)?;
    Ok(published.salt(tenant.index, own.as_deref()))
}

/// A model's name as a message shows it: short.
fn shown(name: Option<&str>) -> String {
    name.unwrap_or_default().chars().take(128).collect()
}

/// Answers a failure and closes the books on the request.
async fn fail(
    core: &Rc<Core>,
    client: &mut Client,
    ticket: &mut Ticket<'_>,
    failure: Failure,
) -> Next {
    ticket.failed(&failure);
    if matches!(failure, Failure::ClientGone) {
        ticket.cancelled(client.gone_ns());
        return Next::Cut;
    }
    // A body that was not read cannot be told from the next request: read past it, or close.
    let read = client.body_taken || client.request_bytes > ticket.head.head_bytes as usize;
    // After a CONNECT whatever follows is meant for a tunnel; a client that waits for
    // `100 Continue` may send its body or not.
    let spent = failure.must_close()
        || ticket.head.method == Method::Connect
        || (ticket.head.expect_continue && !read);
    let clear = !spent && (read || body::skip(core, client, ticket.head).await);
    let close = !clear || ticket.closes();
    let mut out = Vec::with_capacity(512);
    failure.write(ticket, close, &mut out);
    match client.send(core, &out).await {
        Err(_) => Next::Cut,
        Ok(()) if close => Next::Close,
        Ok(()) => Next::KeepAlive,
    }
}

/// Stands for a head that could not be read.
fn unread_head() -> RequestHead {
    RequestHead {
        method: Method::Get,
        target: Span::default(),
        query: Span::default(),
        version: Version::Http11,
        host: Span::default(),
        body: BodyLength::None,
        keep_alive: false,
        expect_continue: false,
        authorization: None,
        api_key: None,
        content_type: None,
        content_encoding: None,
        request_id: None,
        traceparent: None,
        tracestate: None,
        deadline_ms: None,
        policy: None,
        head_bytes: 0,
    }
}

/// Answers what is no request at all; the connection is spent.
pub(super) async fn refuse(core: &Rc<Core>, client: &mut Client, failure: Failure) -> Next {
    let head = unread_head();
    let mut ticket = Ticket::open(core, &[], &head);
    ticket.unread();
    ticket.failed(&failure);
    let mut out = Vec::with_capacity(512);
    failure.write(&ticket, true, &mut out);
    core.metrics.refused_heads.inc();
    match client.send(core, &out).await {
        Ok(()) => Next::Close,
        Err(_) => Next::Cut,
    }
}
