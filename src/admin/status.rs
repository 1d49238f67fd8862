//! `/status.json`: the fleet and the gateway as they are now, for programs and for people.

use serde_json::{Value, json};

use super::server::View;
use crate::runtime::clock;

/// The whole status.
pub(super) fn json(view: &View) -> Value {
    let fleet = (view.fleet)();
    let now_ms = clock::now_ms();
    let pools: Vec<_> = fleet
        .pools
        .iter()
        .map(|pool| {
            let replicas: Vec<_> = pool
                .replicas
                .iter()
                .map(|replica| {
                    let (requests, tokens) = pool.in_flight(replica);
                    json!({
                        "id": &*replica.id,
                        "url": format!("http://{}", replica.authority),
                        "state": replica.health.state(now_ms).name(),
                        "in_flight": requests,
                        "in_flight_tokens": tokens,
                        "models": replica.models.load().as_ref().map(|list| {
                            list.iter().map(|e| e.id.clone()).collect::<Vec<_>>()
                        }),
                    })
                })
                .collect();
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
        "pools": pools,
    })
}
