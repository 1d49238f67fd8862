//! The metrics of the store of budgets that gateways share.

use super::exposition::Page;
use super::server::View;
use crate::runtime::cells::{Counter, Sum};
use crate::tenants::quota::store::{Stats, Trouble};

/// How a decision was made: its label, and where it is counted.
type By = (&'static str, fn(&Stats) -> &Counter);

/// All families. Where each gateway counts by itself the counts are zero, and no store is up or
/// down.
pub(super) fn store(page: &mut Page, view: &View) {
    let shared = view.quota.as_deref();
    let each = || shared.into_iter().flat_map(|shared| shared.stats());
    let total =
        |of: &dyn Fn(&Stats) -> u64| each().fold(0, |sum: u64, stats| sum.wrapping_add(of(stats)));
    page.family("expedite_quota_store_up", "gauge", "Every core is served by the quota store.");
    if shared.is_some() {
        let up = each().all(|stats| stats.up.get() == 1);
        page.value("expedite_quota_store_up", &[], u8::from(up));
    }
    page.family("expedite_quota_gateways", "gauge", "Gateways alive, as the store last told.");
    if let Some(shared) = shared {
        page.value("expedite_quota_gateways", &[], shared.gateways());
    }
    let seconds = "expedite_quota_store_seconds";
    page.family(seconds, "histogram", "Round trips to the quota store.");
    let mut sum = Sum::default();
    each().for_each(|stats| sum.add(&stats.seconds));
    page.histogram(seconds, &[], &sum);
    let decisions = "expedite_quota_decisions_total";
    page.family(
        decisions,
        "counter",
        "Decisions by the store, from what it gave ahead, without it.",
    );
    let kinds: [By; 3] =
        [("store", |s| &s.asked), ("ahead", |s| &s.ahead), ("alone", |s| &s.alone)];
    for (by, of) in kinds {
        page.value(decisions, &[("by", by)], total(&|stats| of(stats).get()));
    }
    let errors = "expedite_quota_store_errors_total";
    page.family(errors, "counter", "What went wrong with the quota store.");
    for (trouble, label, _) in Trouble::ALL {
        page.value(errors, &[("kind", label)], total(&|stats| stats.errors(trouble).get()));
    }
    page.family(
        "expedite_quota_lost_total",
        "counter",
        "Settlements that the store never heard of.",
    );
    page.value("expedite_quota_lost_total", &[], total(&|stats| stats.lost.get()));
}
