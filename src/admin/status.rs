//! `/status.json`: the fleet and the gateway as they are now, for programs and for people.

use serde_json::{Value, json};

use super::metrics::by_pool;
use super::queue;
use super::server::View;
use super::tenants;
use crate::replicas::{Pool, Replica};
use crate::runtime::clock;

/// The whole status.
pub(super) fn json(view: &View) -> Value {
    let fleet = (view.fleet)();
    let now_ms = clock::now_ms();
    let cells = by_pool(view);
    let pools: Vec<_> = fleet
        .pools
        .iter()
        .map(|pool| {
            let replicas: Vec<_> =
                pool.replicas.iter().map(|replica| replica_json(pool, replica, now_ms)).collect();
            let (same, differing) = pool.state.prompts.checked();
            json!({
                "name": &*pool.name,
                "prompts": {
                    "mode": pool.prompt_mode(),
                    "counts_same": same,
                    "counts_differing": differing,
                    "bytes_per_token": pool.state.prompts.bytes_a_token(),
                    "block_tokens": pool.block_tokens(),
                },
                "queue": queue::json(cells.get(&pool.name).map_or(&[], Vec::as_slice)),
                "replicas": replicas,
            })
        })
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "driver": view.driver,
        "cores": view.shards.len(),
        "uptime_ms": now_ms,
        "ready": view.is_ready(),
        "reloads": view.reloads.counts().0,
        "reloaded_unix_ms": view.reloads.last_unix_ms(),
        "pools": pools,
        "tenants": tenants::json(&(view.accounts)()),
    })
}

fn replica_json(pool: &Pool, replica: &Replica, now_ms: u64) -> Value {
    let (requests, tokens) = pool.in_flight(replica);
    let signals = &replica.signals;
    let told = signals.server.load(now_ms);
    let facts = signals.facts.load_full();
    let facts = facts.as_deref();
    json!({
        "id": &*replica.id,
        "url": format!("http://{}", replica.authority),
        "zone": replica.zone,
        "source": replica.source().name(),
        "state": replica.state(now_ms).name(),
        "ramp": replica.health.ramp(now_ms),
        "in_flight": requests,
        "in_flight_tokens": tokens,
        "models": replica.models.load().as_ref().map(|list| {
            list.iter().map(|e| e.id.clone()).collect::<Vec<_>>()
        }),
        "version": facts.and_then(|facts| facts.version.clone()),
        "hash_algorithm": facts.and_then(|facts| facts.hash_algorithm.clone()),
        "prefix_caching": facts.and_then(|facts| facts.prefix_caching),
        "ranks": signals.ranks(),
        "blocks": signals.server.blocks(),
        "block_tokens": signals.block_tokens(),
        "adapter_slots": signals.adapter_slots(),
        "signal_age_ms": told.map(|(_, age_ms)| age_ms),
        "running": told.map(|(load, _)| load.running),
        "waiting": told.map(|(load, _)| load.waiting),
        "kv_usage": told.map(|(load, _)| load.kv_usage),
        "preemptions": signals.totals().preemptions,
        "signals_refused": signals.refused(),
    })
}
