//! The part of the metrics page that tells what decode pools had prefilled by their pairs.

use super::exposition::Page;
use super::metrics::by_pool;
use super::server::View;
use super::shard::PrefillResult;
use crate::runtime::cells::Sum;

pub(super) fn prefill(page: &mut Page, view: &View) {
    let (fleet, all) = ((view.fleet)(), by_pool(view));
    let decoding = || fleet.pools.iter().filter(|pool| pool.prefills_at.is_some());
    let cells = |pool: &str| all.get(pool).map_or(&[][..], Vec::as_slice);
    let legs = "expedite_prefill_legs_total";
    page.family(legs, "counter", "Attempts at prefill replicas, and why there were none.");
    for pool in decoding() {
        for (result, label) in PrefillResult::ALL {
            let cells = cells(&pool.name).iter();
            let n = cells.fold(0, |n: u64, cells| n.wrapping_add(cells.prefill(result).get()));
            page.value(legs, &[("pool", &pool.name), ("result", label)], n);
        }
    }
    let took = "expedite_prefill_leg_seconds";
    page.family(took, "histogram", "Time that requests waited for the pair's prefill.");
    for pool in decoding() {
        let mut sum = Sum::default();
        cells(&pool.name).iter().for_each(|cells| sum.add(&cells.prefill_legs));
        page.histogram(took, &[("pool", &pool.name)], &sum);
    }
}
