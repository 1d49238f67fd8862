//! The part of the metrics page that tells what routing goes by: work that waits for its prefill,
//! the prefix index, and how its predictions turn out.

use super::exposition::Page;
use super::metrics::by_pool;
use super::server::View;
use crate::prefix::Counts;
use crate::replicas::Pool;
use crate::runtime::clock;

/// A counter of an index, and its label.
type Counted = (&'static str, fn(&Counts) -> u64);

/// What an index counts.
const EVENTS: [Counted; 5] = [
    ("evicted", |counts| counts.evicted),
    ("overflowed", |counts| counts.overflowed),
    ("refused", |counts| counts.refused),
    ("unknown_removal", |counts| counts.unknown_removals),
    ("expired", |counts| counts.expired),
];

pub(super) fn routing(page: &mut Page, view: &View) {
    let fleet = (view.fleet)();
    pending(page, &fleet.pools);
    let hits = "expedite_prefix_hit_tokens_total";
    page.family(hits, "counter", "Cached tokens of requests whose engine told its own count.");
    for (pool, cells) in &by_pool(view) {
        let mut sums = [0_u64; 2];
        for cells in cells {
            sums[0] = sums[0].wrapping_add(cells.hits_predicted.get());
            sums[1] = sums[1].wrapping_add(cells.hits_actual.get());
        }
        for (kind, sum) in ["predicted", "actual"].into_iter().zip(sums) {
            page.value(hits, &[("pool", pool), ("kind", kind)], sum);
        }
    }
    let blocks = "expedite_prefix_index_blocks";
    page.family(blocks, "gauge", "Blocks in the prefix index, over all that hold them.");
    for pool in &fleet.pools {
        page.value(blocks, &[("pool", &pool.name)], pool.state.index.blocks());
    }
    let bytes = "expedite_prefix_index_bytes";
    page.family(bytes, "gauge", "Bytes that the prefix index takes.");
    for pool in &fleet.pools {
        page.value(bytes, &[("pool", &pool.name)], pool.state.index.bytes());
    }
    let events = "expedite_prefix_index_events_total";
    page.family(events, "counter", "Blocks and dispatches that the index let go, by why.");
    for pool in &fleet.pools {
        let counts = pool.state.index.counts();
        for (event, of) in EVENTS {
            page.value(events, &[("pool", &pool.name), ("event", event)], of(&counts));
        }
    }
    let mode = "expedite_prefix_mode";
    page.family(mode, "gauge", "1 for what a replica's entries in the index come from.");
    for pool in &fleet.pools {
        for lane in &pool.lanes {
            // One series a server: the ranks of one are followed alike, and the first speaks.
            if lane.rank.is_some_and(|rank| rank > 0) {
                continue;
            }
            let labels = [
                ("pool", &*pool.name),
                ("replica", &*lane.replica.id),
                ("mode", pool.prefix_mode(lane).name()),
            ];
            page.value(mode, &labels, 1);
        }
    }
}

fn pending(page: &mut Page, pools: &[std::sync::Arc<Pool>]) {
    let name = "expedite_pending_prefill_tokens";
    let help = "Prompt tokens at a replica that wait for their first token and no cache spares.";
    page.family(name, "gauge", help);
    let now_ms = clock::now_ms();
    for pool in pools {
        for replica in &pool.replicas {
            let lanes = pool.lanes.iter().filter(|lane| lane.replica.key == replica.key);
            let pending = lanes.map(|lane| lane.ledger.own(now_ms).pending_tokens);
            let pending = pending.fold(0_u64, u64::wrapping_add);
            page.value(name, &[("pool", &pool.name), ("replica", &replica.id)], pending);
        }
    }
}
