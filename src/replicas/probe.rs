//! The active side of what we know: resolves names, asks `/health` and `/v1/models`.
//!
//! One task a replica on the control thread (tokio, hyper): an ordinary client, because nothing
//! here is hot. It writes the replica's atomics, and calls back when what it learned changes the
//! shape of the fleet.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::learn;
use super::pool::Pool;
use super::replica::Replica;
use crate::openai::models::{self, Entry};

/// Between two probes of one replica. vLLM answers `/health` from its one event loop: gently.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Between two readings of `/v1/models` while all is well: adapters come and go.
const MODELS_EVERY: u32 = 10;
/// A probe that takes longer has failed: a replica that is only busy answers in milliseconds, and
/// its requests prove it anyway.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// Largest answer that is read: a `/v1/models` of thousands of adapters.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// Probes `replica` until the task is dropped; `learned` is called when its models have changed.
pub async fn watch(pool: Arc<Pool>, replica: Arc<Replica>, learned: impl Fn()) {
    let mut round = 0;
    loop {
        resolve(&replica).await;
        let ok = match replica.addr.load_full() {
            Some(addr) => probe(&pool, &replica, *addr, &mut round, &learned).await,
            None => false,
        };
        replica.health.probed(ok);
        // Spread over the second, so that a large fleet is not asked in one burst.
        let jitter = Duration::from_millis(fastrand::u64(0..200));
        tokio::time::sleep(PROBE_EVERY.saturating_sub(Duration::from_millis(100)) + jitter).await;
    }
}

/// Resolves a host name, keeping the last good address on failure.
async fn resolve(replica: &Replica) {
    if replica.host.parse::<std::net::IpAddr>().is_ok() {
        return;
    }
    let lookup = tokio::net::lookup_host((replica.host.as_str(), replica.port));
    let Ok(Ok(found)) = tokio::time::timeout(PROBE_TIMEOUT, lookup).await else { return };
    let found: Vec<SocketAddr> = found.collect();
    let current = replica.addr.load_full();
    if current.is_some_and(|addr| found.contains(&addr)) {
        return;
    }
    // IPv4 first: servers are commonly bound to 0.0.0.0, while `localhost` also names ::1.
    let addr = found.iter().find(|a| a.is_ipv4()).or(found.first());
    if let Some(addr) = addr {
        replica.addr.store(Some(Arc::new(*addr)));
    }
}

async fn probe(
    pool: &Pool,
    replica: &Replica,
    addr: SocketAddr,
    round: &mut u32,
    learned: &impl Fn(),
) -> bool {
    let at = Target { pool, replica, addr };
    if !matches!(at.get("/health").await, Some((200, _))) {
        *round = 0;
        return false;
    }
    if *round == 0 {
        facts(&at).await;
    }
    let due = round.is_multiple_of(MODELS_EVERY) || replica.models.load().is_none();
    if due
        && let Some((200, body)) = at.get("/v1/models").await
        && let Ok(list) = models::parse(&body)
        && replica.models.load_full().is_none_or(|known| !same(&known, &list))
    {
        replica.models.store(Some(Arc::new(list)));
        learned();
    }
    *round = round.wrapping_add(1);
    true
}

/// What does not change while a replica runs, asked for when it has come (back).
async fn facts(at: &Target<'_>) {
    if let Some((200, page)) = at.get("/metrics").await
        && let Some(tokens) = learn::block_tokens(&page)
    {
        at.replica.signals.set_block_tokens(tokens);
    }
    // One sample of the vocabulary, so that the first prompts are not priced by a rule of thumb.
    if at.pool.state.prompts.has_learned() {
        return;
    }
    let asked = serde_json::json!({"prompt": learn::SAMPLE}).to_string();
    if let Some((200, answer)) = at.post("/tokenize", asked).await
        && let Some(tokens) = learn::token_count(&answer)
    {
        at.pool.state.prompts.learn(learn::SAMPLE.len() as u64, tokens);
    }
}

/// The same names with the same context: `created` and permission ids differ at each asking.
fn same(a: &[Entry], b: &[Entry]) -> bool {
    let facts = |e: &Entry| (e.id.clone(), e.parent.clone(), e.max_model_len);
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| facts(a) == facts(b))
}

/// Whom a probe asks.
struct Target<'t> {
    pool: &'t Pool,
    replica: &'t Replica,
    addr: SocketAddr,
}

impl Target<'_> {
    async fn get(&self, path: &str) -> Option<(u16, Bytes)> {
        self.ask(hyper::Request::get(path), String::new()).await
    }

    async fn post(&self, path: &str, json: String) -> Option<(u16, Bytes)> {
        let request = hyper::Request::post(path).header("content-type", "application/json");
        self.ask(request, json).await
    }

    /// Status and body of one exchange on a connection of its own; `None` on any failure.
    async fn ask(
        &self,
        request: hyper::http::request::Builder,
        body: String,
    ) -> Option<(u16, Bytes)> {
        let exchange = async {
            let socket = TcpStream::connect(self.addr).await.ok()?;
            let (mut send, connection) = http1::handshake(TokioIo::new(socket)).await.ok()?;
            let mut request = request.header("host", &self.replica.authority);
            if let Some(key) = &self.pool.api_key {
                request = request.header("authorization", format!("Bearer {}", key.expose()));
            }
            let request = request.body(Full::new(Bytes::from(body))).ok()?;
            let answer = async {
                let response = send.send_request(request).await.ok()?;
                let status = response.status().as_u16();
                let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
                Some((status, body.collect().await.ok()?.to_bytes()))
            };
            tokio::select! {
                answer = answer => answer,
                _ = async { let _ = connection.await; std::future::pending::<()>().await } => None,
            }
        };
        tokio::time::timeout(PROBE_TIMEOUT, exchange).await.ok()?
    }
}
