//! The retry budget of a core: retries stay a share of its requests, so that a failing fleet is
//! not buried under its own repetitions.

use std::cell::Cell;

/// Retries that may come at once after a quiet time: those of a replica that dies with its
/// streams.
const RESERVE: f64 = 100.0;

/// A bucket of a core, for all its pools, that each request fills by `budget_ratio` and each retry
/// empties by one.
pub(super) struct RetryBudget {
    left: Cell<f64>,
}

impl Default for RetryBudget {
    fn default() -> RetryBudget {
        RetryBudget { left: Cell::new(RESERVE) }
    }
}

impl RetryBudget {
    /// A request starts.
    pub(super) fn earn(&self, ratio: f64) {
        self.left.set((self.left.get() + ratio).min(RESERVE));
    }

    /// May a retry start, where retries are this share of requests? Of nothing there is no reserve.
    pub(super) fn can_spend(&self, ratio: f64) -> bool {
        ratio > 0.0 && self.left.get() >= 1.0
    }

    /// A retry wants to start: may it? If so, it is counted.
    pub(super) fn spend(&self, ratio: f64) -> bool {
        let may = self.can_spend(ratio);
        if may {
            self.left.set(self.left.get() - 1.0);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_share_of_requests() {
        let budget = RetryBudget::default();
        assert!(!budget.can_spend(0.0) && !budget.spend(0.0), "a share of nothing");
        let mut retries = 0;
        while budget.spend(0.1) {
            retries += 1;
        }
        assert_eq!(retries, 100);
        (0..25).for_each(|_| budget.earn(0.1));
        assert!(budget.spend(0.1) && budget.spend(0.1) && !budget.spend(0.1));
    }
}
