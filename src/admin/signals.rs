//! The part of the metrics page that tells what replicas tell of themselves, and how old it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::exposition::Page;
use super::server::View;
use crate::replicas::{Pool, Replica, State};
use crate::runtime::clock;

/// A gauge of one replica; `None` leaves the series out.
type Of = fn(&Replica, u64) -> Option<f64>;

/// Name, help, and where the value is.
const GAUGES: [(&str, &str, Of); 6] = [
    (
        "expedite_replica_signal_age_seconds",
        "Age of the last load that the replica told; none before the first.",
        |replica, now_ms| Some(replica.signals.server.load(now_ms)?.1 as f64 / 1e3),
    ),
    (
        "expedite_kv_used_ratio",
        "Share of its KV blocks that live requests hold, as it last told.",
        |replica, now_ms| Some(replica.signals.server.load(now_ms)?.0.kv_usage),
    ),
    (
        "expedite_replica_running",
        "Requests in its running batch, as it last told.",
        |replica, now_ms| Some(replica.signals.server.load(now_ms)?.0.running as f64),
    ),
    (
        "expedite_replica_waiting",
        "Requests that wait in it, as it last told.",
        |replica, now_ms| Some(replica.signals.server.load(now_ms)?.0.waiting as f64),
    ),
    ("expedite_replica_blocks", "Its KV blocks; 0 = not known.", |replica, _| {
        Some(replica.signals.server.blocks() as f64)
    }),
    (
        "expedite_replica_ramp",
        "Share of its work that it should get: below 1 after it joined or came back.",
        |replica, now_ms| Some(replica.health.ramp(now_ms)),
    ),
];

pub(super) fn signals(page: &mut Page, view: &View) {
    let fleet = (view.fleet)();
    let now_ms = clock::now_ms();
    let replicas = || fleet.pools.iter().flat_map(|p| p.replicas.iter().map(move |r| (&**p, &**r)));
    for (name, help, of) in GAUGES {
        page.family(name, "gauge", help);
        for (pool, replica) in replicas() {
            if let Some(value) = of(replica, now_ms) {
                page.value(name, &labels(pool, replica), value);
            }
        }
    }
    let refused = "expedite_replica_signals_refused_total";
    page.family(refused, "counter", "Values that it told and that no engine can mean.");
    for (pool, replica) in replicas() {
        page.value(refused, &labels(pool, replica), replica.signals.refused());
    }
    let state = "expedite_replica_state";
    page.family(state, "gauge", "1 for the state that it is in.");
    for (pool, replica) in replicas() {
        let is = replica.state(now_ms);
        for known in State::ALL {
            let (pool, id) = (("pool", &*pool.name), ("replica", &*replica.id));
            page.value(state, &[pool, id, ("state", known.name())], u8::from(known == is));
        }
    }
}

pub(super) fn adapters(page: &mut Page, view: &View) {
    let mut all: BTreeMap<Arc<str>, [u64; 2]> = BTreeMap::new();
    for (name, [hits, misses]) in view.shards.iter().flat_map(|shard| shard.adapters()) {
        let sum = all.entry(name).or_default();
        *sum = [sum[0].wrapping_add(hits), sum[1].wrapping_add(misses)];
    }
    let name = "expedite_adapter_requests_total";
    page.family(name, "counter", "Requests for an adapter: was it on the chosen replica?");
    for (adapter, counts) in &all {
        for (hit, n) in [("true", counts[0]), ("false", counts[1])] {
            page.value(name, &[("adapter", adapter), ("hit", hit)], n);
        }
    }
}

fn labels<'l>(pool: &'l Pool, replica: &'l Replica) -> [(&'static str, &'l str); 2] {
    [("pool", &pool.name), ("replica", &replica.id)]
}
