//! `/status.json`: the fleet and the gateway as they are now, for programs and for people.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;
use serde_json::{Value, json};

use super::metrics::by_pool;
use super::queue;
use super::recent::Window;
use super::server::View;
use super::shard::{PoolCells, Shard};
use super::tenants;
use crate::replicas::{Pool, Replica};
use crate::runtime::cells::{Counter, Gauge};
use crate::runtime::clock;

/// The whole status. What there is a thousand of is written as it is, without a tree of values
/// between, which would cost the control thread several times as much.
#[derive(Serialize)]
struct Status<'f> {
    #[serde(flatten)]
    gateway: Value,
    pools: Vec<PoolStatus<'f>>,
    tenants: Vec<tenants::Tenant<'f>>,
}

#[derive(Serialize)]
struct PoolStatus<'f> {
    #[serde(flatten)]
    pool: Value,
    replicas: Vec<ReplicaStatus<'f>>,
}

/// The whole status, as JSON.
pub(super) fn json(view: &View) -> String {
    let fleet = (view.fleet)();
    let now_ms = clock::now_ms();
    let cells = by_pool(view);
    let window = view.recent.window(view, now_ms);
    let pools: Vec<_> = fleet
        .pools
        .iter()
        .map(|pool| {
            let cells = cells.get(&pool.name).map_or(&[] as &[_], Vec::as_slice);
            pool_status(pool, cells, &window, now_ms)
        })
        .collect();
    let gateway = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "driver": view.driver,
        "cores": view.shards.len(),
        "uptime_ms": now_ms,
        "ready": view.is_ready(),
        "draining": view.flags.draining.load(Relaxed),
        "requests_open": level(view, |shard| &shard.in_flight),
        "client_connections": level(view, |shard| &shard.client_connections),
        "retries": retries(view),
        "window_ms": window.ms(),
        "overhead_ms": window.overhead(),
        "reloads": view.reloads.counts().0,
        "reloads_refused": view.reloads.counts().1,
        "reloaded_unix_ms": view.reloads.last_unix_ms(),
    });
    let accounts = (view.accounts)();
    let status = Status { gateway, pools, tenants: tenants::all(&accounts) };
    // Maps with names for keys, numbers and words: nothing of it can fail.
    serde_json::to_string(&status).unwrap_or_default()
}

fn level(view: &View, of: fn(&Shard) -> &Gauge) -> i64 {
    view.shards.iter().fold(0, |sum, shard| sum.wrapping_add(of(shard).get()))
}

fn retries(view: &View) -> u64 {
    let counts = view.shards.iter().flat_map(|shard| shard.retries.each_ref()).map(Counter::get);
    counts.fold(0, u64::wrapping_add)
}

fn pool_status<'f>(
    pool: &'f Pool,
    cells: &[Arc<PoolCells>],
    window: &Window,
    now_ms: u64,
) -> PoolStatus<'f> {
    let (same, differing) = pool.state.prompts.checked();
    let held = held(pool, now_ms);
    let count = |of: fn(&PoolCells) -> &Counter| {
        cells.iter().fold(0_u64, |sum, cells| sum.wrapping_add(of(cells).get()))
    };
    let replicas: Vec<_> = pool
        .replicas
        .iter()
        .map(|replica| {
            let held = held.get(&replica.key).copied().unwrap_or_default();
            replica_status(replica, &held, now_ms)
        })
        .collect();
    let mut value = json!({
        "name": &*pool.name,
        "prompts": {
            "mode": pool.prompt_mode(),
            "counts_same": same,
            "counts_differing": differing,
            "bytes_per_token": pool.state.prompts.bytes_a_token(),
            "block_tokens": pool.block_tokens(),
        },
        "outcomes": outcomes(cells),
        "tokens": {
            "input": count(|c| &c.input),
            "cached": count(|c| &c.cached),
            "output": count(|c| &c.output),
        },
        "hit_tokens": {
            "predicted": count(|c| &c.hits_predicted),
            "actual": count(|c| &c.hits_actual),
        },
        "index_blocks": pool.state.index.blocks(),
        "queue": queue::json(cells),
    });
    if let Value::Object(map) = &mut value {
        map.extend(window.pool(&pool.name).map(|(key, value)| (key.to_owned(), value)));
    }
    PoolStatus { pool: value, replicas }
}

/// Requests that have ended, by how.
fn outcomes(cells: &[Arc<PoolCells>]) -> BTreeMap<&'static str, u64> {
    let mut sums = BTreeMap::new();
    for cells in cells {
        let requests = cells.requests.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for ((_, outcome), n) in requests.iter() {
            let sum: &mut u64 = sums.entry(outcome.as_str()).or_default();
            *sum = sum.wrapping_add(n.get());
        }
    }
    sums
}

/// What we have at a replica, over its lanes.
#[derive(Clone, Copy, Default)]
struct Held {
    requests: u64,
    tokens: u64,
    pending_tokens: u64,
    prefix_mode: Option<&'static str>,
}

/// By the replica's key, in one pass: a pool may have a thousand of them.
fn held(pool: &Pool, now_ms: u64) -> HashMap<usize, Held> {
    let mut all: HashMap<usize, Held> = HashMap::with_capacity(pool.replicas.len());
    for lane in &pool.lanes {
        let held = all.entry(lane.replica.key).or_default();
        held.requests = held.requests.wrapping_add(lane.ledger.requests());
        held.tokens = held.tokens.wrapping_add(lane.ledger.tokens());
        let pending = lane.ledger.own(now_ms).pending_tokens;
        held.pending_tokens = held.pending_tokens.wrapping_add(pending);
        // The ranks of one server are followed alike, and the first speaks.
        held.prefix_mode = held.prefix_mode.or_else(|| Some(pool.prefix_mode(lane).name()));
    }
    all
}

/// What is known of a replica; the names are those of the JSON.
#[derive(Serialize)]
struct ReplicaStatus<'f> {
    id: &'f str,
    url: String,
    zone: Option<&'f str>,
    source: &'static str,
    state: &'static str,
    ramp: f64,
    in_flight: u64,
    in_flight_tokens: u64,
    pending_prefill_tokens: u64,
    prefix_mode: Option<&'static str>,
    models: Option<Vec<String>>,
    version: Option<String>,
    hash_algorithm: Option<String>,
    prefix_caching: Option<bool>,
    ranks: u32,
    blocks: u64,
    block_tokens: u32,
    adapter_slots: u32,
    signal_age_ms: Option<u64>,
    running: Option<u64>,
    waiting: Option<u64>,
    kv_usage: Option<f64>,
    preemptions: u64,
    prefix_query_tokens: u64,
    prefix_hit_tokens: u64,
    signals_refused: u64,
}

fn replica_status<'f>(replica: &'f Replica, held: &Held, now_ms: u64) -> ReplicaStatus<'f> {
    let signals = &replica.signals;
    let totals = signals.totals();
    let told = signals.server.load(now_ms);
    let facts = signals.facts.load_full();
    let facts = facts.as_deref();
    let models = replica.models.load();
    ReplicaStatus {
        id: &replica.id,
        url: format!("http://{}", replica.authority),
        zone: replica.zone.as_deref(),
        source: replica.source().name(),
        state: replica.state(now_ms).name(),
        ramp: replica.health.ramp(now_ms),
        in_flight: held.requests,
        in_flight_tokens: held.tokens,
        pending_prefill_tokens: held.pending_tokens,
        prefix_mode: held.prefix_mode,
        models: models.as_ref().map(|list| list.iter().map(|one| one.id.clone()).collect()),
        version: facts.and_then(|facts| facts.version.clone()),
        hash_algorithm: facts.and_then(|facts| facts.hash_algorithm.clone()),
        prefix_caching: facts.and_then(|facts| facts.prefix_caching),
        ranks: signals.ranks(),
        blocks: signals.server.blocks(),
        block_tokens: signals.block_tokens(),
        adapter_slots: signals.adapter_slots(),
        signal_age_ms: told.map(|(_, age_ms)| age_ms),
        running: told.map(|(load, _)| load.running),
        waiting: told.map(|(load, _)| load.waiting),
        kv_usage: told.map(|(load, _)| load.kv_usage),
        preemptions: totals.preemptions,
        prefix_query_tokens: totals.prefix_queries,
        prefix_hit_tokens: totals.prefix_hits,
        signals_refused: signals.refused(),
    }
}
