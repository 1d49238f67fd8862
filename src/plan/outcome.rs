//! What a run came to: the figures of a report, and their JSON.

use serde_json::{Map, Value, json};

use crate::routing::Policy;

use super::replay;
use super::scenario::Scenario;
use super::tally::{Tally, TenantTally};
use super::workload::Workload;

/// What a tenant got.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantOutcome {
    /// Its requests that came, a second.
    pub offered_rps: f64,
    /// Those within both limits, a second.
    pub good_rps: f64,
    /// 99th percentile of the time to the first token of its completed requests.
    pub ttft_p99_ms: f64,
    /// Its requests that were refused.
    pub shed: u64,
}

/// A run's figures. Shares are 0 to 1; quantiles are over completed requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// How replicas were picked.
    pub policy: Policy,
    /// Draws followed from it.
    pub seed: u64,
    /// Seconds in which requests came that are counted.
    pub seconds: f64,
    /// Requests that came, a second.
    pub offered_rps: f64,
    /// Requests within both limits, a second.
    pub good_rps: f64,
    /// Highest rate with enough requests within each limit, if it was looked for.
    pub capacity_rps: Option<f64>,
    /// Median time to the first token.
    pub ttft_p50_ms: f64,
    /// 99th percentile of it.
    pub ttft_p99_ms: f64,
    /// Median over requests of the mean time of a later token.
    pub tpot_p50_ms: f64,
    /// 95th percentile of it.
    pub tpot_p95_ms: f64,
    /// 99th percentile of it.
    pub tpot_p99_ms: f64,
    /// Prompt tokens that the caches spared, of all prompts that were begun.
    pub hit_ratio: f64,
    /// The same as the gateways predicted it.
    pub predicted_hit_ratio: f64,
    /// What one cache without end would have spared, of all prompts that came.
    pub endless_hit_ratio: f64,
    /// Requests that came.
    pub requests: u64,
    /// Answered.
    pub completed: u64,
    /// Refused: no room within the limits.
    pub shed: u64,
    /// Lost to a dead replica, or none was up.
    pub failed: u64,
    /// Still under way when the run was cut off.
    pub unfinished: u64,
    /// Sent once more after a replica had died.
    pub retried: u64,
    /// Times that an engine took a request's blocks away.
    pub preemptions: u64,
    /// 99th percentile of the time between two tokens of an answer, over all tokens of the run.
    pub gap_p99_ms: f64,
    /// Share of the KV blocks that live requests held, in the mean of replicas and time.
    pub kv_used_mean: f64,
    /// 95th percentile of it.
    pub kv_used_p95: f64,
    /// Of the room in those blocks, the share without a token in it.
    pub kv_empty_ratio: f64,
    /// Of all requests, those with a first token in time.
    pub ttft_ok_ratio: f64,
    /// Of all requests, those with later tokens in time.
    pub tpot_ok_ratio: f64,
    /// Of the requests for an adapter, those sent where it was loaded.
    pub adapter_hit_ratio: Option<f64>,
    /// Mean tokens of the prompts that came.
    pub prompt_tokens_mean: f64,
    /// Mean tokens of the complete answers.
    pub output_tokens_mean: f64,
    /// Time to the first token in ms at each hundredth, from the least to the most.
    pub ttft_curve_ms: Vec<f64>,
    /// Time of a later token likewise.
    pub tpot_curve_ms: Vec<f64>,
    /// By tenant.
    pub tenants: Vec<TenantOutcome>,
}

/// Share of the requests that must be within the TTFT limit, and within the TPOT limit, for a rate
/// to be within a fleet's capacity.
pub const CAPACITY_RATIOS: (f64, f64) = (0.99, 0.95);

impl Outcome {
    /// Runs `workload` to its end; `tick` is called with the virtual time in us now and then.
    #[must_use]
    pub fn of(
        scenario: &Scenario,
        workload: &Workload,
        policy: Policy,
        tick: &mut dyn FnMut(u64),
    ) -> Outcome {
        let mut tally = replay::run(scenario, workload, policy, tick);
        tally.sort();
        let seconds = workload.end_us.saturating_sub(scenario.warmup_us) as f64 / 1e6;
        let Tally { asked, completed, .. } = tally;
        Outcome {
            policy,
            seed: scenario.seed,
            seconds,
            offered_rps: ratio(asked as f64, seconds),
            good_rps: ratio(tally.good as f64, seconds),
            capacity_rps: None,
            ttft_p50_ms: tally.ttft_ms(0.5),
            ttft_p99_ms: tally.ttft_ms(0.99),
            tpot_p50_ms: tally.tpot_ms(0.5),
            tpot_p95_ms: tally.tpot_ms(0.95),
            tpot_p99_ms: tally.tpot_ms(0.99),
            hit_ratio: ratio(tally.cached_tokens as f64, tally.prompt_tokens as f64),
            predicted_hit_ratio: ratio(tally.predicted_tokens as f64, tally.prompt_tokens as f64),
            endless_hit_ratio: ratio(tally.endless_tokens as f64, tally.asked_tokens as f64),
            requests: asked,
            completed,
            shed: tally.shed,
            failed: tally.failed,
            unfinished: tally.unfinished,
            retried: tally.retried,
            preemptions: tally.preemptions,
            gap_p99_ms: tally.gaps.ms(0.99),
            kv_used_mean: tally.kv.mean(),
            kv_used_p95: tally.kv.quantile(0.95),
            kv_empty_ratio: tally.kv.empty_ratio(),
            ttft_ok_ratio: ratio(tally.ttft_ok as f64, asked as f64),
            tpot_ok_ratio: ratio(tally.tpot_ok as f64, asked as f64),
            adapter_hit_ratio: (tally.adapter_asked > 0)
                .then(|| ratio(tally.adapter_resident as f64, tally.adapter_asked as f64)),
            prompt_tokens_mean: ratio(tally.asked_tokens as f64, asked as f64),
            output_tokens_mean: ratio(tally.output_tokens as f64, completed as f64),
            ttft_curve_ms: hundredths().map(|q| tally.ttft_ms(q)).collect(),
            tpot_curve_ms: hundredths().map(|q| tally.tpot_ms(q)).collect(),
            tenants: tally.tenants.iter().map(|tenant| tenant_outcome(tenant, seconds)).collect(),
        }
    }

    /// Whether the rate is within the fleet's capacity.
    #[must_use]
    pub fn is_within_capacity(&self) -> bool {
        let (ttft, tpot) = CAPACITY_RATIOS;
        self.ttft_ok_ratio >= ttft && self.tpot_ok_ratio >= tpot
    }

    /// One object; the names are a contract with scripts.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut object = Map::new();
        let mut set = |name: &str, value: Value| drop(object.insert(name.to_owned(), value));
        set("policy", self.policy.name().into());
        set("offered_rps", rounded(self.offered_rps));
        set("good_rps", rounded(self.good_rps));
        set("capacity_rps", self.capacity_rps.map_or(Value::Null, rounded));
        set("ttft_p50_ms", rounded(self.ttft_p50_ms));
        set("ttft_p99_ms", rounded(self.ttft_p99_ms));
        set("tpot_p50_ms", rounded(self.tpot_p50_ms));
        set("tpot_p95_ms", rounded(self.tpot_p95_ms));
        set("hit_ratio", rounded(self.hit_ratio));
        set("shed", self.shed.into());
        set("preemptions", self.preemptions.into());
        set("seed", self.seed.into());
        set("seconds", rounded(self.seconds));
        set("requests", self.requests.into());
        set("completed", self.completed.into());
        set("failed", self.failed.into());
        set("unfinished", self.unfinished.into());
        set("retried", self.retried.into());
        set("ttft_ok_ratio", rounded(self.ttft_ok_ratio));
        set("tpot_ok_ratio", rounded(self.tpot_ok_ratio));
        set("predicted_hit_ratio", rounded(self.predicted_hit_ratio));
        set("endless_hit_ratio", rounded(self.endless_hit_ratio));
        set("adapter_hit_ratio", self.adapter_hit_ratio.map_or(Value::Null, rounded));
        set("prompt_tokens_mean", rounded(self.prompt_tokens_mean));
        set("output_tokens_mean", rounded(self.output_tokens_mean));
        set("tpot_p99_ms", rounded(self.tpot_p99_ms));
        set("gap_p99_ms", rounded(self.gap_p99_ms));
        set("kv_used_mean", rounded(self.kv_used_mean));
        set("kv_used_p95", rounded(self.kv_used_p95));
        set("kv_empty_ratio", rounded(self.kv_empty_ratio));
        if self.tenants.len() > 1 {
            let tenants = self.tenants.iter().map(TenantOutcome::json).collect();
            set("tenants", Value::Array(tenants));
        }
        Value::Object(object)
    }
}

impl TenantOutcome {
    fn json(&self) -> Value {
        json!({
            "offered_rps": rounded(self.offered_rps),
            "good_rps": rounded(self.good_rps),
            "ttft_p99_ms": rounded(self.ttft_p99_ms),
            "shed": self.shed,
        })
    }
}

fn tenant_outcome(tally: &TenantTally, seconds: f64) -> TenantOutcome {
    TenantOutcome {
        offered_rps: ratio(tally.asked as f64, seconds),
        good_rps: ratio(tally.good as f64, seconds),
        ttft_p99_ms: tally.ttft_ms(0.99),
        shed: tally.shed,
    }
}

fn hundredths() -> impl Iterator<Item = f64> {
    (0..=100).map(|i| f64::from(i) / 100.0)
}

/// To four decimals: more is noise, and the same text comes out everywhere.
fn rounded(value: f64) -> Value {
    ((value * 1e4).round() / 1e4).into()
}

fn ratio(part: f64, all: f64) -> f64 {
    if all > 0.0 { part / all } else { 0.0 }
}
