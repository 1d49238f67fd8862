//! What a run measures: one entry a request, sums and quantiles at the end.

use crate::engine::Gaps;

use super::scenario::Slo;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum End {
    /// Answered.
    Completed {
        /// From its arrival to its first token.
        ttft_ms: f64,
        /// Mean time of the tokens after it; 0 for an answer of one.
        tpot_ms: f64,
    },
    /// Refused: no room within its limits.
    Shed,
    /// No replica, or it died in the middle of the answer, or too often before.
    Failed,
    /// Still under way when the run was cut off.
    Unfinished,
}

/// Sums of one tenant.
#[derive(Clone, Debug, Default)]
pub(super) struct TenantTally {
    pub(super) asked: u64,
    pub(super) good: u64,
    pub(super) shed: u64,
    /// Over its completed requests; sorted at the end.
    ttft_ms: Vec<f32>,
}

impl TenantTally {
    /// Quantile in ms of the time to the first token; sorted before.
    pub(super) fn ttft_ms(&self, q: f64) -> f64 {
        quantile(&self.ttft_ms, q)
    }
}

/// What the replicas' KV memory was used for, as it was found time and again.
#[derive(Clone, Debug, Default)]
pub(super) struct KvUse {
    empty_sum: f64,
    /// Sorted at the end.
    used: Vec<f32>,
}

impl KvUse {
    /// A replica was found so: shares of its blocks that are held, and that are room without a
    /// token in held blocks.
    pub(super) fn add(&mut self, used: f64, empty: f64) {
        self.used.push(used as f32);
        self.empty_sum += empty;
    }

    /// Mean share of the blocks that was held.
    pub(super) fn mean(&self) -> f64 {
        self.used_sum() / self.used.len().max(1) as f64
    }

    /// Quantile of it over replicas and time; sorted before.
    pub(super) fn quantile(&self, q: f64) -> f64 {
        quantile(&self.used, q)
    }

    /// Of the held blocks' room, the share without a token in it.
    pub(super) fn empty_ratio(&self) -> f64 {
        let held = self.used_sum();
        if held > 0.0 { self.empty_sum / held } else { 0.0 }
    }

    fn used_sum(&self) -> f64 {
        self.used.iter().map(|&used| f64::from(used)).sum()
    }
}

/// Sums of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// Requests that came.
    pub(super) asked: u64,
    /// Sent once more after a replica died.
    pub(super) retried: u64,
    pub(super) completed: u64,
    pub(super) shed: u64,
    pub(super) failed: u64,
    pub(super) unfinished: u64,
    /// Within both limits.
    pub(super) good: u64,
    pub(super) ttft_ok: u64,
    pub(super) tpot_ok: u64,
    /// Of those that got a first token.
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) predicted_tokens: u64,
    /// Of all that came.
    pub(super) asked_tokens: u64,
    pub(super) endless_tokens: u64,
    pub(super) output_tokens: u64,
    /// Requests for an adapter, and those that went where it was loaded.
    pub(super) adapter_asked: u64,
    pub(super) adapter_resident: u64,
    pub(super) preemptions: u64,
    pub(super) kv: KvUse,
    pub(super) gaps: Gaps,
    pub(super) tenants: Vec<TenantTally>,
    ttft_ms: Vec<f32>,
    tpot_ms: Vec<f32>,
}

impl Tally {
    fn tenant(&mut self, tenant: u32) -> Option<&mut TenantTally> {
        let tenant = tenant as usize;
        if self.tenants.len() <= tenant {
            self.tenants.resize(tenant + 1, TenantTally::default());
        }
        self.tenants.get_mut(tenant)
    }

    /// A tenant's request has come.
    pub(super) fn asks(&mut self, tenant: u32) {
        self.asked += 1;
        if let Some(tenant) = self.tenant(tenant) {
            tenant.asked += 1;
        }
    }

    /// A request has ended; it is counted here, and only here.
    pub(super) fn end(&mut self, end: End, (tenant, prompt_tokens): (u32, u64), slo: &Slo) {
        let good = self.good;
        self.enter(end, prompt_tokens, slo);
        let good = self.good - good;
        let Some(tenant) = self.tenant(tenant) else { return };
        tenant.good += good;
        tenant.shed += u64::from(end == End::Shed);
        if let End::Completed { ttft_ms, .. } = end {
            tenant.ttft_ms.push(ttft_ms as f32);
        }
    }

    fn enter(&mut self, end: End, prompt_tokens: u64, slo: &Slo) {
        match end {
            End::Completed { ttft_ms, tpot_ms } => {
                self.completed += 1;
                let first = ttft_ms <= slo.ttft_limit_ms(prompt_tokens);
                let later = tpot_ms <= slo.tpot_ms;
                self.ttft_ok += u64::from(first);
                self.tpot_ok += u64::from(later);
                self.good += u64::from(first && later);
                self.ttft_ms.push(ttft_ms as f32);
                self.tpot_ms.push(tpot_ms as f32);
            }
            End::Shed => self.shed += 1,
            End::Failed => self.failed += 1,
            End::Unfinished => self.unfinished += 1,
        }
    }

    /// Requests that have ended.
    #[cfg(test)]
    pub(super) fn ended(&self) -> u64 {
        self.completed + self.shed + self.failed + self.unfinished
    }

    /// Puts the times in order, for the quantiles.
    pub(super) fn sort(&mut self) {
        self.ttft_ms.sort_unstable_by(f32::total_cmp);
        self.tpot_ms.sort_unstable_by(f32::total_cmp);
        self.kv.used.sort_unstable_by(f32::total_cmp);
        for tenant in &mut self.tenants {
            tenant.ttft_ms.sort_unstable_by(f32::total_cmp);
        }
    }

    /// Quantile in ms of the time to the first token, over the completed; sorted before.
    pub(super) fn ttft_ms(&self, q: f64) -> f64 {
        quantile(&self.ttft_ms, q)
    }

    /// Quantile in ms of the time of a later token, over the completed; sorted before.
    pub(super) fn tpot_ms(&self, q: f64) -> f64 {
        quantile(&self.tpot_ms, q)
    }
}

/// The smallest value that a share `q` does not pass; 0 of none.
fn quantile(sorted: &[f32], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).map_or(0.0, |&value| f64::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_is_within_both_limits() {
        let slo = Slo { ttft_ms: 400.0, tpot_ms: 50.0 };
        let mut tally = Tally::default();
        let completed = |ttft_ms, tpot_ms| End::Completed { ttft_ms, tpot_ms };
        tally.end(completed(399.0, 49.0), (0, 100), &slo);
        tally.end(completed(401.0, 49.0), (0, 100), &slo);
        tally.end(completed(401.0, 49.0), (1, 5000), &slo);
        tally.end(completed(100.0, 51.0), (0, 100), &slo);
        for end in [End::Shed, End::Failed, End::Unfinished] {
            tally.end(end, (1, 1), &slo);
        }
        assert_eq!((tally.good, tally.ttft_ok, tally.tpot_ok), (2, 3, 3));
        assert_eq!((tally.completed, tally.ended()), (4, 7));
        tally.sort();
        assert_eq!((tally.ttft_ms(0.5), tally.ttft_ms(0.99)), (399.0, 401.0));
    }

    #[test]
    fn room_without_tokens_is_a_share_of_what_is_held() {
        let mut kv = KvUse::default();
        assert_eq!((kv.mean(), kv.empty_ratio(), kv.quantile(0.95)), (0.0, 0.0, 0.0));
        kv.add(0.25, 0.01);
        kv.add(0.75, 0.04);
        assert_eq!((kv.mean(), kv.quantile(0.95)), (0.5, 0.75));
        assert!((kv.empty_ratio() - 0.05).abs() < 1e-9);
    }

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let values: Vec<f32> = (1..=200).map(|n| n as f32).collect();
        assert_eq!(quantile(&values, 0.99), 198.0);
        assert_eq!(quantile(&values, 0.5), 100.0);
        assert_eq!(quantile(&values, 1.0), 200.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }
}
