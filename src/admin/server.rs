//! The listener itself: a handful of paths over hyper.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};

use super::guard::{self, POOLS, Refused};
use super::recent::{EVERY_MS, Recent};
use super::shard::Shard;
use super::{exposition, heap, metrics, page, profile, replicas, status};
use crate::config::Secret;
use crate::http1::unescaped;
use crate::replicas::Fleet;
use crate::replicas::registry::Handle;
use crate::replicas::share::Stats;
use crate::runtime::clock;
use crate::telemetry::{AccessLog, Traces};
use crate::tenants::Accounts;
use crate::tenants::quota;
use crate::usage::UsageSink;

/// Flags of the process that admin shows or sets.
#[derive(Debug, Default)]
pub struct Flags {
    /// Nobody is accepted yet: the gateway before still serves, and what it serves with is unknown
    /// here.
    pub holding: AtomicBool,
    /// When a successor took over, in ms since process start; 0: none has.
    pub handed_over_ms: AtomicU64,
    /// A successor has asked for the sockets and not yet said that it serves.
    pub handing_over: AtomicBool,
    /// A drain has begun: readiness is gone, answers close their connections.
    pub draining: AtomicBool,
    /// No new connection is accepted.
    pub listeners_closed: AtomicBool,
    /// The drain's time is over: cores end whatever is open.
    pub stop_now: AtomicBool,
    /// Every core has ended.
    pub cores_ended: AtomicBool,
    /// Cores that panicked outside a connection's fence.
    pub panics: AtomicU64,
}

/// What came of the reloads so far.
#[derive(Debug, Default)]
pub struct Reloads {
    done: AtomicU64,
    refused: AtomicU64,
    /// When the configuration in use was read, in ms since 1970; 0 = at the start.
    done_unix_ms: AtomicU64,
}

impl Reloads {
    /// One was carried out.
    pub fn done(&self) {
        self.done.fetch_add(1, Relaxed);
        self.done_unix_ms.store(clock::unix_ms(), Relaxed);
    }

    /// One was refused, and the configuration before stays.
    pub fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// Carried out, refused.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.done.load(Relaxed), self.refused.load(Relaxed))
    }

    /// When the last one was carried out, in ms since 1970.
    #[must_use]
    pub fn last_unix_ms(&self) -> Option<u64> {
        Some(self.done_unix_ms.load(Relaxed)).filter(|&ms| ms > 0)
    }
}

/// Keys that wait for the next start, or why nothing has changed.
type Reloaded = Result<Vec<&'static str>, String>;

/// Explains a call: from its path, its tenant and its body to a status and JSON.
type Explain = Box<dyn Fn((&str, Option<&str>), &[u8]) -> (u16, Value) + Send + Sync>;

/// The last decisions: all that are kept, or so many of them without their candidates.
type Decided = Box<dyn Fn(Option<usize>) -> Value + Send + Sync>;

/// What the admin listener can see.
pub struct View {
    /// What callers must present, as last published; `None`: nothing.
    pub secret: Box<dyn Fn() -> Option<Secret> + Send + Sync>,
    /// How long things took lately.
    pub recent: Recent,
    /// One shard a core.
    pub shards: Vec<Arc<Shard>>,
    /// The fleet as last published.
    pub fleet: Box<dyn Fn() -> Arc<Fleet> + Send + Sync>,
    /// What tenants may spend, as last published.
    pub accounts: Box<dyn Fn() -> Arc<Accounts> + Send + Sync>,
    /// The usage log.
    pub usage: UsageSink,
    /// The access log, if there is one.
    pub access: Option<AccessLog>,
    /// What goes to the collector, if there is one.
    pub traces: Option<Arc<Traces>>,
    /// What became of sharing with other gateways.
    pub share: Arc<Stats>,
    /// The store of budgets that other gateways ask too.
    pub quota: Option<Arc<quota::store::Shared>>,
    /// Flags of the process.
    pub flags: Arc<Flags>,
    /// Name of the cores' driver.
    pub driver: &'static str,
    /// Begins a reload; what comes of it comes later.
    pub reload: Box<dyn Fn() -> oneshot::Receiver<Reloaded> + Send + Sync>,
    /// When the certificate that clients are shown ends, in s since 1970.
    pub certificate_ends_s: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    /// Bytes of request bodies that are held now.
    pub bodies_held: Box<dyn Fn() -> u64 + Send + Sync>,
    /// What came of reloads.
    pub reloads: Arc<Reloads>,
    /// Begins a drain.
    pub drain: Box<dyn Fn() + Send + Sync>,
    /// Explains the call in a body that a tenant means for a path: a status, and JSON. As long as
    /// the prompt, so that it is called beside this thread.
    pub explain: Explain,
    /// The cores' last decisions.
    pub decisions: Decided,
    /// The fleet as routing sees it.
    pub snapshot: Box<dyn Fn() -> Value + Send + Sync>,
    /// Longest body that is read, in bytes.
    pub body_bytes_max: usize,
    /// The way to the registry of replicas.
    pub registry: Handle,
}

/// A core that has not swept for this long is stuck.
const BEAT_MS_MAX: i64 = 2_000;

/// Has every core swept lately? One that has ended in a drain is not waited for.
#[must_use]
pub fn all_turn(shards: &[Arc<Shard>], now_ms: u64) -> bool {
    let now_ms = now_ms as i64;
    shards.iter().all(|shard| now_ms.saturating_sub(shard.beat_ms.get()) < BEAT_MS_MAX)
}

impl View {
    /// May a load balancer send requests: not draining, no request refused for the usage log's
    /// sake, and some replica takes work?
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let draining = self.flags.draining.load(Relaxed);
        !draining && self.usage.takes_requests() && (self.fleet)().any_eligible(clock::now_ms())
    }

    /// The same for a pool alone; `None`: there is none of this name.
    fn is_pool_ready(&self, name: &str) -> Option<bool> {
        let fleet = (self.fleet)();
        let pool = fleet.pools.iter().find(|pool| *pool.name == *name)?;
        let now_ms = clock::now_ms();
        Some(self.is_ready() && pool.replicas.iter().any(|replica| replica.eligible(now_ms)))
    }

    fn is_live(&self) -> bool {
        all_turn(&self.shards, clock::now_ms())
    }
}

/// Serves the admin paths on `listener`, which does not block, until `gone` holds: then no new
/// connection is accepted, and those that are open end with the answer that is under way.
///
/// # Errors
/// The runtime cannot register the socket.
pub async fn serve(
    listener: std::net::TcpListener,
    view: Arc<View>,
    mut gone: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    tokio::task::spawn_local(sample(Arc::downgrade(&view)));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = is_gone(&mut gone) => return Ok(()),
        };
        let Ok((socket, _)) = accepted else {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        let (view, mut gone) = (Arc::clone(&view), gone.clone());
        tokio::task::spawn_local(async move {
            let service = service_fn(move |request| {
                let view = Arc::clone(&view);
                async move { Ok::<_, Infallible>(answer(&view, request).await) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(std::time::Duration::from_secs(10))
                .serve_connection(TokioIo::new(socket), service);
            let mut connection = std::pin::pin!(connection);
            // An admin client that breaks its connection is no concern of ours.
            tokio::select! {
                _ = connection.as_mut() => return,
                () = is_gone(&mut gone) => connection.as_mut().graceful_shutdown(),
            }
            let _ = connection.await;
        });
    }
}

/// Waits until it holds; for ever, if nobody can say so any more.
async fn is_gone(gone: &mut watch::Receiver<bool>) {
    if gone.wait_for(|gone| *gone).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Keeps what the last minute is measured from, as long as the listener lives.
async fn sample(view: Weak<View>) {
    let mut ticks = tokio::time::interval(std::time::Duration::from_millis(EVERY_MS));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let Some(view) = view.upgrade() else { return };
        view.recent.keep(&view, clock::now_ms());
    }
}

async fn answer(view: &Arc<View>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let secret = (view.secret)();
    let asked = (request.method(), request.uri().path());
    match guard::check(secret.as_ref(), asked, request.headers()) {
        Ok(()) => answer_known(view, request).await,
        Err(why) => refused(why),
    }
}

async fn answer_known(view: &Arc<View>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() == Method::POST && request.uri().path() == "/explain" {
        return explain(view, request).await;
    }
    let get = matches!(*request.method(), Method::GET | Method::HEAD);
    let post = request.method() == Method::POST;
    match request.uri().path() {
        "/metrics" if get => metrics(view, &request),
        "/ready" if get => yes_or_no(view.is_ready(), "ready"),
        path if get && path.starts_with(POOLS) => {
            let name = unescaped(path.strip_prefix(POOLS).unwrap_or_default());
            match view.is_pool_ready(&name) {
                Some(ready) => yes_or_no(ready, "ready"),
                None => text(404, "text/plain", "unknown pool\n".to_owned()),
            }
        }
        "/live" if get => yes_or_no(view.is_live(), "live"),
        "/status" if get => page::answer(),
        "/status.json" if get => text(200, "application/json", status::json(view)),
        "/decisions" if get => json(200, &(view.decisions)(last(&request))),
        "/snapshot" if get => json(200, &(view.snapshot)()),
        "/debug/heap" if get => json(200, &heap::json(view)),
        "/debug/profile" if get => profile(request.uri().query().unwrap_or_default()).await,
        "/drain" if post => {
            (view.drain)();
            text(200, "text/plain", "draining\n".to_owned())
        }
        "/reload" if post => reload(view).await,
        "/replicas" if post => replicas::add(view, request).await,
        path if path.starts_with("/replicas/") && request.method() == Method::DELETE => {
            replicas::remove(view, &request).await
        }
        path if path.starts_with("/replicas/") || path.starts_with(POOLS) => {
            text(405, "text/plain", "wrong method\n".to_owned())
        }
        "/replicas" | "/metrics" | "/ready" | "/live" | "/status" | "/status.json" | "/drain"
        | "/reload" | "/decisions" | "/snapshot" | "/explain" | "/debug/heap"
        | "/debug/profile" => text(405, "text/plain", "wrong method\n".to_owned()),
        _ => text(404, "text/plain", "unknown path\n".to_owned()),
    }
}

fn refused(why: Refused) -> Response<Full<Bytes>> {
    let (status, what) = match why {
        Refused::NoSecret => (401, "this needs the admin secret: Authorization: Bearer ..."),
        Refused::Foreign => (403, "a page of another origin may not ask this"),
        Refused::Named => (
            403,
            "without admin_secret in [server] a browser has to use this listener's IP address or \
             localhost instead of a name",
        ),
    };
    let mut response = json(status, &json!({ "error": what }));
    if why == Refused::NoSecret {
        let scheme = header::HeaderValue::from_static("Bearer");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
    }
    response
}

/// The metrics page, in the format that the scraper prefers.
fn metrics(view: &View, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let accept = request.headers().get_all(header::ACCEPT).iter();
    let accept: Vec<_> = accept.filter_map(|field| field.to_str().ok()).collect();
    match exposition::wants_open(&accept.join(",")) {
        true => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            text(200, kind, metrics::page(view, true))
        }
        false => text(200, "text/plain; version=0.0.4; charset=utf-8", metrics::page(view, false)),
    }
}

/// The number in `?last=N`.
fn last(request: &Request<Incoming>) -> Option<usize> {
    request.uri().query()?.split('&').find_map(|pair| pair.strip_prefix("last=")?.parse().ok())
}

/// `POST /reload`: answers when it is done, or why nothing has changed.
async fn reload(view: &View) -> Response<Full<Bytes>> {
    match (view.reload)().await {
        Ok(Ok(waiting)) => json(200, &json!({ "reloaded": true, "next_start": waiting })),
        Ok(Err(why)) => json(400, &json!({ "reloaded": false, "error": why })),
        Err(_) => json(503, &json!({ "reloaded": false, "error": "too many reloads at once" })),
    }
}

/// `GET /debug/profile?seconds=10&hz=99`: answers when that time is over. What it costs is on a
/// thread beside this one.
async fn profile(query: &str) -> Response<Full<Bytes>> {
    let asked = match profile::Asked::of(query) {
        Ok(asked) => asked,
        Err(why) => return json(400, &json!({ "error": why })),
    };
    match tokio::task::spawn_blocking(move || asked.take()).await {
        Ok(Ok(Some(taken))) => {
            let mut response = text(200, "text/plain; charset=utf-8", taken.folded);
            for (name, count) in [("x-samples", taken.samples), ("x-samples-lost", taken.lost)] {
                response.headers_mut().insert(name, count.into());
            }
            response
        }
        Ok(Ok(None)) => json(409, &json!({ "error": "another profile is being taken" })),
        Ok(Err(error)) => json(500, &json!({ "error": error.to_string() })),
        Err(_) => json(500, &json!({ "error": "it cannot be taken" })),
    }
}

/// `POST /explain?path=/v1/chat/completions&tenant=ID` with the call's body; no tenant, no salt.
async fn explain(view: &Arc<View>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let query = request.uri().query().unwrap_or_default();
    let value = |key: &str| {
        let named = |pair: &str| pair.strip_prefix(key)?.strip_prefix('=').map(str::to_owned);
        query.split('&').find_map(named)
    };
    let path = value("path").unwrap_or_else(|| "/v1/chat/completions".to_owned());
    let path = path.replace("%2F", "/").replace("%2f", "/");
    let tenant = value("tenant");
    let body = Limited::new(request.into_body(), view.body_bytes_max).collect().await;
    let Ok(body) = body else {
        return json(413, &json!({ "error": "the body is too long or did not come whole" }));
    };
    let (view, body) = (Arc::clone(view), body.to_bytes());
    let said =
        tokio::task::spawn_blocking(move || (view.explain)((&path, tenant.as_deref()), &body))
            .await;
    let (status, said) = said.unwrap_or_else(|_| (500, json!({ "error": "it cannot be read" })));
    json(status, &said)
}

fn json(status: u16, value: &Value) -> Response<Full<Bytes>> {
    text(status, "application/json", value.to_string())
}

fn yes_or_no(yes: bool, what: &str) -> Response<Full<Bytes>> {
    match yes {
        true => text(200, "text/plain", format!("{what}\n")),
        false => text(503, "text/plain", format!("not {what}\n")),
    }
}

pub(super) fn text(status: u16, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    if let Ok(status) = hyper::StatusCode::from_u16(status) {
        *response.status_mut() = status;
    }
    let kind = hyper::header::HeaderValue::from_static(kind);
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    response
}
