//! The highest rate that a fleet serves within its limits, found by halving.
//!
//! A run a step: enough requests within the limit of the first token, and enough within that of
//! the later ones. Near the edge that is a matter of luck of the draws, the same for every policy.

use crate::routing::Policy;

use super::outcome::Outcome;
use super::scenario::Scenario;
use super::workload::Workload;

/// How near the edge the search ends, as a share of it.
const NEARNESS: f64 = 0.003;
/// The search begins this far from the rate that was asked for, and doubles the way.
const STRIDE: f64 = 0.05;
/// Rates from this share of the first one on, and to this multiple of it.
const SHARE_MIN: f64 = 1.0 / 64.0;
const MULTIPLE_MAX: f64 = 64.0;

/// The highest mean rate within the limits; `workload` makes the sessions of a rate, `first` is a
/// rate to begin at. 0 when even a 64th of it is too much.
#[must_use]
pub fn capacity(
    scenario: &Scenario,
    policy: Policy,
    first: f64,
    workload: &dyn Fn(f64) -> Workload,
    tick: &mut dyn FnMut(u64),
) -> f64 {
    capacity_where(scenario, policy, first, workload, tick, Outcome::is_within_capacity)
}

/// The same by another rule: `fits` says whether a run is within the limits.
#[must_use]
pub fn capacity_where(
    scenario: &Scenario,
    policy: Policy,
    first: f64,
    workload: &dyn Fn(f64) -> Workload,
    tick: &mut dyn FnMut(u64),
    fits: impl Fn(&Outcome) -> bool,
) -> f64 {
    search(first, STRIDE, NEARNESS, |rate| {
        fits(&Outcome::of(scenario, &workload(rate), policy, tick))
    })
}

/// The highest rate that `fits`, from `first` outwards: the first stride is a share of it, each
/// later one twice as long; then by halves until it is known as `nearness` asks. 0 for none.
pub(crate) fn search(
    first: f64,
    mut stride: f64,
    nearness: f64,
    mut fits: impl FnMut(f64) -> bool,
) -> f64 {
    let (mut low, mut high);
    if fits(first) {
        low = first;
        loop {
            high = low * (1.0 + stride);
            if high > first * MULTIPLE_MAX {
                return low;
            }
            if !fits(high) {
                break;
            }
            low = high;
            stride *= 2.0;
        }
    } else {
        high = first;
        loop {
            low = high * (1.0 - stride.min(0.5));
            if low < first * SHARE_MIN {
                return 0.0;
            }
            if fits(low) {
                break;
            }
            high = low;
            stride *= 2.0;
        }
    }
    while high - low > nearness * high {
        let middle = f64::midpoint(low, high);
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edge_is_found_from_either_side() {
        for edge in [3.0, 90.0, 100.0, 337.0, 2000.0] {
            let mut runs = 0;
            let found = search(100.0, STRIDE, NEARNESS, |rate| {
                runs += 1;
                rate <= edge
            });
            assert!((edge * 0.996..=edge).contains(&found), "{edge}: {found}");
            assert!(runs < 20, "{edge}: {runs} runs");
        }
    }

    #[test]
    fn a_search_ends_without_an_edge() {
        assert_eq!(search(100.0, STRIDE, NEARNESS, |_| false), 0.0);
        assert!(search(100.0, STRIDE, NEARNESS, |_| true) <= 6400.0);
    }
}
