//! The metrics of sharing between gateways.

use super::exposition::Page;
use super::server::View;
use crate::replicas::share::Lost;
use crate::runtime::cells::Sum;

/// All families; zeros where nothing is shared.
pub(super) fn share(page: &mut Page, view: &View) {
    let stats = &view.share;
    page.family("expedite_share_up", "gauge", "What we share comes back from the store.");
    page.value("expedite_share_up", &[], stats.up.get());
    page.family("expedite_share_peers", "gauge", "Other gateways heard of lately.");
    page.value("expedite_share_peers", &[], stats.peers.get());
    let batches = "expedite_share_batches_total";
    page.family(batches, "counter", "Batches that gateways told each other.");
    for (direction, count) in [("sent", &stats.sent), ("received", &stats.received)] {
        page.value(batches, &[("direction", direction)], count.get());
    }
    let dropped = "expedite_share_dropped_total";
    page.family(dropped, "counter", "Dispatches and batches that were not shared.");
    for (why, reason) in Lost::ALL {
        page.value(dropped, &[("reason", reason)], stats.lost(why).get());
    }
    let lag = "expedite_share_lag_seconds";
    page.family(lag, "histogram", "From sending a batch to its coming back from the store.");
    let mut sum = Sum::default();
    sum.add(&stats.lag);
    page.histogram(lag, &[], &sum);
}
