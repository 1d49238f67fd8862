//! The metrics page (the contract, section 5): the cores' shards summed, the fleet as it is now.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::exposition::Page;
use super::genai::genai;
use super::prefill::prefill;
use super::process::process;
use super::prompts::prompts;
use super::queue::queue;
use super::quota::store;
use super::routing::routing;
use super::server::View;
use super::shard::{Phase, PoolCells, RETRY_REASONS, Shard, Stage};
use super::share::share;
use super::signals::{adapters, signals};
use super::telemetry::telemetry;
use crate::runtime::cells::{Counter, Exemplar, Gauge, Histogram, Sum};
use crate::runtime::clock;

/// A family of one cell: its name, its help, where the cell is.
type Family<C, T> = (&'static str, &'static str, fn(&C) -> &T);

/// A label's value, and where its cell is.
type Kind<C, T> = (&'static str, fn(&C) -> &T);

/// The whole page; `open`: in OpenMetrics' format.
pub(super) fn page(view: &View, open: bool) -> String {
    let mut page = Page::new(open);
    pools(&mut page, view);
    queue(&mut page, view);
    gateway(&mut page, view);
    fleet(&mut page, view);
    signals(&mut page, view);
    adapters(&mut page, view);
    prompts(&mut page, view);
    routing(&mut page, view);
    prefill(&mut page, view);
    share(&mut page, view);
    store(&mut page, view);
    usage(&mut page, view);
    bodies(&mut page, view);
    reloads(&mut page, view);
    telemetry(&mut page, view);
    genai(&mut page, view);
    process(&mut page, view);
    page.into_text()
}

fn total<'s>(view: &'s View, of: impl Fn(&'s Shard) -> &'s Counter) -> u64 {
    view.shards.iter().fold(0, |sum, shard| sum.wrapping_add(of(shard).get()))
}

fn level<'s>(view: &'s View, of: impl Fn(&'s Shard) -> &'s Gauge) -> i64 {
    view.shards.iter().fold(0, |sum, shard| sum.wrapping_add(of(shard).get()))
}

fn sum<'s>(view: &'s View, of: impl Fn(&'s Shard) -> &'s Histogram) -> Sum {
    let mut sum = Sum::default();
    view.shards.iter().for_each(|shard| sum.add(of(shard)));
    sum
}

/// The cells of each pool over all cores, by name.
pub(super) fn by_pool(view: &View) -> BTreeMap<Arc<str>, Vec<Arc<PoolCells>>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (name, cells) in view.shards.iter().flat_map(|shard| shard.pools()) {
        all.entry(name).or_default().push(cells);
    }
    all
}

/// The last traced request of a bucket, over all cores.
fn last(cells: &[Arc<PoolCells>], bucket: usize) -> Option<Exemplar> {
    let each = cells.iter().filter_map(|cells| cells.ttft_exemplars.get(bucket));
    each.max_by_key(|exemplar| exemplar.unix_ms)
}

fn pools(page: &mut Page, view: &View) {
    let all = by_pool(view);
    page.family("expedite_requests_total", "counter", "Requests that passed the key check.");
    for (pool, cells) in &all {
        let mut counts: HashMap<_, u64> = HashMap::new();
        for cells in cells {
            let requests = cells.requests.lock().unwrap_or_else(|e| e.into_inner());
            for ((endpoint, outcome), n) in requests.iter() {
                *counts.entry((*endpoint, outcome.as_str())).or_default() += n.get();
            }
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_unstable();
        for ((endpoint, outcome), n) in counts {
            let labels = [("pool", &**pool), ("endpoint", endpoint), ("outcome", outcome)];
            page.value("expedite_requests_total", &labels, n);
        }
    }
    let histograms: [Family<PoolCells, Histogram>; 2] = [
        ("expedite_ttft_seconds", "Request head to first content.", |c| &c.ttft),
        ("expedite_tpot_seconds", "Mean time per output token after the first.", |c| &c.tpot),
    ];
    for (name, help, of) in histograms {
        page.family(name, "histogram", help);
        for (pool, cells) in &all {
            let mut sum = Sum::default();
            cells.iter().for_each(|cells| sum.add(of(cells)));
            page.histogram_with(name, &[("pool", pool)], &sum, |bucket| match name {
                "expedite_ttft_seconds" => last(cells, bucket),
                _ => None,
            });
        }
    }
    page.family("expedite_tokens_total", "counter", "Tokens in usage records.");
    let kinds: [Kind<PoolCells, Counter>; 3] =
        [("input", |c| &c.input), ("cached", |c| &c.cached), ("output", |c| &c.output)];
    for (pool, cells) in &all {
        for (kind, of) in kinds {
            let n = cells.iter().fold(0, |n: u64, cells| n.wrapping_add(of(cells).get()));
            page.value("expedite_tokens_total", &[("pool", pool), ("kind", kind)], n);
        }
    }
}

fn counters(page: &mut Page, view: &View) {
    let counters: [Family<Shard, Counter>; 7] = [
        ("expedite_long_prompts_total", "Prompts read beside the cores.", |s| &s.long_prompts),
        ("expedite_reuse_races_total", "Reused connections replaced.", |s| &s.reuse_races),
        ("expedite_foreign_answers_total", "Answers under another id than the request's.", |s| {
            &s.foreign_answers
        }),
        ("expedite_refused_heads_total", "Heads that were no HTTP.", |s| &s.refused_heads),
        ("expedite_refused_handshakes_total", "TLS that did not begin.", |s| &s.refused_handshakes),
        ("expedite_accept_errors_total", "Connections not accepted.", |s| &s.accept_errors),
        ("expedite_crowded_connections_total", "Closed for their address's limit.", |s| {
            &s.crowded_connections
        }),
    ];
    for (name, help, of) in counters {
        page.family(name, "counter", help);
        page.value(name, &[], total(view, of));
    }
}

fn gateway(page: &mut Page, view: &View) {
    page.family("expedite_overhead_seconds", "histogram", "Time within the gateway by stage.");
    for (stage, label) in Stage::ALL {
        let sum = sum(view, |shard| shard.stage(stage));
        page.histogram("expedite_overhead_seconds", &[("stage", label)], &sum);
    }
    page.family("expedite_cancel_seconds", "histogram", "Client gone to replica closed.");
    for (phase, label) in Phase::ALL {
        let sum = sum(view, |shard| shard.cancel(phase));
        page.histogram("expedite_cancel_seconds", &[("phase", label)], &sum);
    }
    page.family("expedite_loop_stall_seconds", "histogram", "Lateness of a core's sweep.");
    for (core, shard) in view.shards.iter().enumerate() {
        let mut stall = Sum::default();
        stall.add(&shard.loop_stall);
        page.histogram("expedite_loop_stall_seconds", &[("core", &core.to_string())], &stall);
    }
    let retries = "expedite_retries_total";
    page.family(retries, "counter", "Attempts after the first, by why the one before failed.");
    for (at, reason) in RETRY_REASONS.into_iter().enumerate() {
        let of = |shard: &Shard| shard.retries.get(at).map_or(0, Counter::get);
        let n = view.shards.iter().fold(0, |sum: u64, shard| sum.wrapping_add(of(shard)));
        page.value(retries, &[("reason", reason)], n);
    }
    counters(page, view);
    let name = "expedite_quota_rejects_total";
    page.family(name, "counter", "Requests refused by their tenant's budget.");
    let reasons: [Kind<Shard, Counter>; 3] = [
        ("tokens", |s| &s.quota_rejects[0]),
        ("concurrency", |s| &s.quota_rejects[1]),
        ("size", |s| &s.quota_rejects[2]),
    ];
    for (reason, of) in reasons {
        page.value(name, &[("reason", reason)], total(view, of));
    }
    page.family("expedite_panics_total", "counter", "Panics caught.");
    let panics = total(view, |s| &s.panics).wrapping_add(view.flags.panics.load(Relaxed));
    page.value("expedite_panics_total", &[], panics);
    page.family("expedite_connections", "gauge", "Open connections.");
    let sides: [Kind<Shard, Gauge>; 2] =
        [("client", |s| &s.client_connections), ("upstream_idle", |s| &s.idle_upstreams)];
    for (side, of) in sides {
        page.value("expedite_connections", &[("side", side)], level(view, of));
    }
    // HTTP/1.1: a request in flight holds one connection.
    let fleet = (view.fleet)();
    let lanes = fleet.pools.iter().flat_map(|pool| &pool.lanes);
    let busy = lanes.fold(0, |sum: u64, lane| sum.wrapping_add(lane.ledger.requests()));
    page.value("expedite_connections", &[("side", "upstream")], busy);
    // New connections go by a hash of addresses: few clients may all come to one core.
    let name = "expedite_core_connections";
    page.family(name, "gauge", "Open connections of clients, by core.");
    for (core, shard) in view.shards.iter().enumerate() {
        page.value(name, &[("core", &core.to_string())], shard.client_connections.get());
    }
    page.family("expedite_requests_open", "gauge", "Requests between head and end.");
    page.value("expedite_requests_open", &[], level(view, |s| &s.in_flight));
    page.family("expedite_driver_info", "gauge", "The cores' driver.");
    page.value("expedite_driver_info", &[("driver", view.driver)], 1);
}

fn fleet(page: &mut Page, view: &View) {
    let fleet = (view.fleet)();
    let now_ms = clock::now_ms();
    let replicas =
        || fleet.pools.iter().flat_map(|pool| pool.replicas.iter().map(move |r| (pool, r)));
    page.family("expedite_replica_up", "gauge", "May be sent work.");
    for (pool, replica) in replicas() {
        let labels = [("pool", &*pool.name), ("replica", &*replica.id)];
        page.value("expedite_replica_up", &labels, u8::from(replica.eligible(now_ms)));
    }
    let (name, help) = ("expedite_discovery_up", "1: the source's last answer was a list.");
    page.family(name, "gauge", help);
    for pool in &fleet.pools {
        if let Some((source, is_well)) = pool.state.source.told() {
            page.value(name, &[("pool", &pool.name), ("source", source)], u8::from(is_well));
        }
    }
    page.family("expedite_lanes_missing", "gauge", "Replicas and ranks past the limit of a pool.");
    for pool in &fleet.pools {
        page.value("expedite_lanes_missing", &[("pool", &pool.name)], pool.lanes_missing());
    }
    page.family("expedite_in_flight", "gauge", "Requests that we have at a replica.");
    for (pool, replica) in replicas() {
        let labels = [("pool", &*pool.name), ("replica", &*replica.id)];
        page.value("expedite_in_flight", &labels, pool.in_flight(replica).0);
    }
    page.family("expedite_in_flight_tokens", "gauge", "Tokens that we have at a replica.");
    for (pool, replica) in replicas() {
        let labels = [("pool", &*pool.name), ("replica", &*replica.id)];
        page.value("expedite_in_flight_tokens", &labels, pool.in_flight(replica).1);
    }
}

fn bodies(page: &mut Page, view: &View) {
    page.family(
        "expedite_request_body_bytes",
        "gauge",
        "Bytes of long request bodies that are held until their answers begin.",
    );
    page.value("expedite_request_body_bytes", &[], (view.bodies_held)());
}

fn reloads(page: &mut Page, view: &View) {
    let name = "expedite_tls_certificate_expires_seconds";
    page.family(name, "gauge", "When the certificate that clients are shown ends, since 1970.");
    if let Some(ends_s) = (view.certificate_ends_s)() {
        page.value(name, &[], ends_s);
    }
    let (done, refused) = view.reloads.counts();
    page.family("expedite_reloads_total", "counter", "Reloads of the configuration by result.");
    for (result, n) in [("done", done), ("refused", refused)] {
        page.value("expedite_reloads_total", &[("result", result)], n);
    }
}

fn usage(page: &mut Page, view: &View) {
    let counts = view.usage.counters();
    page.family("expedite_usage_records_total", "counter", "Usage records by what became of them.");
    let results = [
        ("written", counts.written),
        ("dropped", counts.dropped),
        ("failed", counts.failed),
        ("open", counts.open),
        ("streamed", counts.streamed),
        ("stream_dropped", counts.stream_dropped),
    ];
    for (result, n) in results {
        page.value("expedite_usage_records_total", &[("result", result)], n);
    }
}
