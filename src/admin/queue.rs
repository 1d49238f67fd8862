//! The part of the metrics page and of the status that tells what waits for room, and what was
//! refused.

use std::sync::Arc;

use serde_json::{Value, json};

use super::exposition::Page;
use super::metrics::by_pool;
use super::server::View;
use super::shard::{PoolCells, SHED_REASONS};
use crate::runtime::cells::{Gauge, Sum};

/// A gauge: its name, its help, where its cell is.
type Level = (&'static str, &'static str, fn(&PoolCells) -> &Gauge);

pub(super) fn queue(page: &mut Page, view: &View) {
    let all = by_pool(view);
    let levels: [Level; 2] = [
        ("expedite_queue_requests", "Requests that wait for room.", |c| &c.queue_requests),
        ("expedite_queue_tokens", "Tokens that they need room for.", |c| &c.queue_tokens),
    ];
    for (name, help, of) in levels {
        page.family(name, "gauge", help);
        for (pool, cells) in &all {
            page.value(name, &[("pool", pool)], level(cells, of));
        }
    }
    let wait = "expedite_queue_wait_seconds";
    page.family(wait, "histogram", "Time in the queue, also of requests that left it.");
    for (pool, cells) in &all {
        let mut sum = Sum::default();
        cells.iter().for_each(|cells| sum.add(&cells.queue_wait));
        page.histogram(wait, &[("pool", pool)], &sum);
    }
    let name = "expedite_shed_total";
    page.family(name, "counter", "Requests that were not admitted, by the limit that they miss.");
    for (pool, cells) in &all {
        for (reason, n) in SHED_REASONS.into_iter().zip(shed(cells)) {
            page.value(name, &[("pool", pool), ("reason", reason)], n);
        }
    }
}

/// What waits for a pool and what was refused, for the status.
pub(super) fn json(cells: &[Arc<PoolCells>]) -> Value {
    let refused: serde_json::Map<_, _> =
        SHED_REASONS.iter().zip(shed(cells)).map(|(r, n)| ((*r).to_owned(), n.into())).collect();
    json!({
        "requests": level(cells, |c| &c.queue_requests),
        "tokens": level(cells, |c| &c.queue_tokens),
        "shed": refused,
    })
}

fn level(cells: &[Arc<PoolCells>], of: fn(&PoolCells) -> &Gauge) -> i64 {
    cells.iter().fold(0, |sum, cells| sum.wrapping_add(of(cells).get()))
}

fn shed(cells: &[Arc<PoolCells>]) -> [u64; 5] {
    let mut sums = [0_u64; 5];
    for cells in cells {
        for (sum, cell) in sums.iter_mut().zip(&cells.shed) {
            *sum = sum.wrapping_add(cell.get());
        }
    }
    sums
}
