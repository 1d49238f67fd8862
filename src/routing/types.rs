//! What a policy sees of a request and of the fleet, and what it answers.
//!
//! Plain values, filled by the gateway from its own ledger, index and signals, and by the planner
//! from its simulated ones. Units are in the names; a float that is not a number reads as unknown.

use crate::engine::StepModel;

/// The random numbers of a pick; never for secrets.
pub type Rng = fastrand::Rng;

/// How a pool chooses. All but `Cost` are there for comparison, written from their published
/// descriptions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The least predicted cost in time, see `cost`.
    #[default]
    Cost,
    /// The less loaded (tokens) of two replicas drawn at random (Mitzenmacher 2001).
    P2c,
    /// Each in turn.
    RoundRobin,
    /// The fewest requests in flight, ties at random.
    LeastRequests,
    /// The replica that had the prefix last, while it runs fewer than 64 requests.
    PrefixAffinity,
    /// The least (pending + new prefill tokens) x (running + 1).
    Lmetric,
    /// SMG's and sglang's router: most cached above a match of 0.5, shortest queue when imbalanced.
    CacheAware,
    /// Preble's E2: exploit long hits, else the least recent and predicted GPU time.
    Preble,
    /// Dynamo's KV router: prefill blocks beside decode blocks, overlap weight 1.
    Dynamo,
    /// llm-d's scorers: prefix 3, KV use 2, queue 2.
    LlmD,
}

impl Policy {
    /// All, in the order of a comparison.
    pub const ALL: [Policy; 10] = [
        Policy::Cost,
        Policy::P2c,
        Policy::RoundRobin,
        Policy::LeastRequests,
        Policy::PrefixAffinity,
        Policy::Lmetric,
        Policy::CacheAware,
        Policy::Preble,
        Policy::Dynamo,
        Policy::LlmD,
    ];

    /// The name in configuration, headers and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Cost => "cost",
            Policy::P2c => "p2c",
            Policy::RoundRobin => "round_robin",
            Policy::LeastRequests => "least_requests",
            Policy::PrefixAffinity => "prefix_affinity",
            Policy::Lmetric => "lmetric",
            Policy::CacheAware => "cache_aware",
            Policy::Preble => "preble",
            Policy::Dynamo => "dynamo",
            Policy::LlmD => "llm_d",
        }
    }

    /// The policy of that name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// A request as a policy sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Request {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the answer to expect.
    pub output_tokens: f64,
    /// Tokens of the answer at most; 0 = unknown.
    pub output_tokens_max: u64,
    /// Tokens of a KV block.
    pub block_tokens: u32,
    /// Limit on the time to this request's first token, in ms; 0 = none.
    pub ttft_limit_ms: f64,
    /// Limit on the time of each later token, in ms; 0 = none.
    pub tpot_limit_ms: f64,
    /// It asks for an adapter.
    pub adapter: bool,
    /// Hash of the prefix's first blocks: who owns a prefix that nobody holds yet.
    pub owner_key: u64,
    /// The caller can keep it for a while: [`Decision::Hold`] is an answer.
    pub may_hold: bool,
    /// Share of a replica's KV blocks that is kept free of it, where others run; 0 to 1.
    pub headroom: f64,
}

/// Where a replica stands with the adapter that is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residency {
    /// Loaded, or none is asked for.
    #[default]
    Resident,
    /// Can be loaded there.
    Loadable,
    /// Neither.
    Absent,
}

/// A replica (or one data-parallel rank of it) as a policy sees it. Counts are this gateway's own
/// and the other gateways' where they are shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Hash of the replica's id (and rank), the same at every gateway; 0 = its index stands for it.
    pub key: u64,
    /// May take this request now: up, not tried before, holds the model.
    pub eligible: bool,
    /// Leading tokens of this prompt that it holds.
    pub cached_tokens: u64,
    /// Uncached prompt tokens of requests whose first token has not been seen.
    pub pending_tokens: u64,
    /// These requests.
    pub pending_requests: u64,
    /// Sequences that decode.
    pub decodes: u64,
    /// Tokens of their KV.
    pub decode_kv_tokens: u64,
    /// Mean time since their first tokens, in ms; 0 = unknown.
    pub decode_age_ms: f64,
    /// Requests in flight.
    pub requests: u64,
    /// Tokens in flight, prompts and answers.
    pub load_tokens: u64,
    /// KV blocks that it has; 0 = unknown.
    pub blocks: u64,
    /// KV blocks in use by running requests.
    pub blocks_used: u64,
    /// Sequences that it runs at once (`max_num_seqs`); 0 = unknown.
    pub sequences_max: u64,
    /// Share of its GPU time that went into prefill over the last 10 s, 0..1.
    pub prefill_duty: f64,
    /// Where it stands with the adapter.
    pub adapter: Residency,
    /// Adapters with requests in flight there.
    pub adapters_busy: u32,
    /// Adapters that it can hold at once; 0 = no limit known.
    pub adapter_slots: u32,
    /// Observed time over predicted time; 1 = as the model says.
    pub slowness: f64,
    /// Configured weight; 1 = as the others.
    pub weight: f64,
    /// Share of the picks that it may have while it starts, 0..1; 1 = all. Who fills the view
    /// leaves it out of the others, before any policy; a policy does not look at it.
    pub ramp: f64,
}

impl Default for Candidate {
    /// An idle, eligible replica of unknown size.
    fn default() -> Candidate {
        Candidate {
            key: 0,
            eligible: true,
            cached_tokens: 0,
            pending_tokens: 0,
            pending_requests: 0,
            decodes: 0,
            decode_kv_tokens: 0,
            decode_age_ms: 0.0,
            requests: 0,
            load_tokens: 0,
            blocks: 0,
            blocks_used: 0,
            sequences_max: 0,
            prefill_duty: 0.0,
            adapter: Residency::Resident,
            adapters_busy: 0,
            adapter_slots: 0,
            slowness: 1.0,
            weight: 1.0,
            ramp: 1.0,
        }
    }
}

/// What a policy sees of a pool.
pub trait FleetView {
    /// Number of replicas, eligible or not.
    fn len(&self) -> usize;
    /// True when there is no replica at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Replica `index`, below [`len`](FleetView::len); read once a pick.
    fn candidate(&self, index: usize) -> Candidate;
    /// What is dispatched shows only later, as in scraped numbers; a ledger shows it at once.
    fn lags(&self) -> bool {
        false
    }
}

/// The time model of a pool's replicas.
#[derive(Clone, Copy, Debug)]
pub struct Model<'m> {
    /// How long a step takes.
    pub step: &'m StepModel,
    /// `max_num_batched_tokens`.
    pub step_tokens_max: u64,
}

/// What a policy answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decision {
    /// Send it there.
    Pick(Pick),
    /// Every replica that may take it has no room: ask again when one of them has finished
    /// something. Where it would go if it had to.
    Hold(Pick),
    /// No replica may take it.
    Nobody,
}

/// The chosen replica, and what was predicted of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pick {
    /// Index in the pool.
    pub replica: usize,
    /// Tokens of the prompt that it holds.
    pub cached_tokens: u64,
    /// Predicted time to the first token in ms.
    pub ttft_ms: f64,
    /// Predicted time of each later token in ms.
    pub tpot_ms: f64,
    /// GPU time of the uncached tokens in ms, for the prefill duty.
    pub prefill_ms: f64,
    /// The mean of the same over all that may take it; 0 = not known.
    pub fleet_tpot_ms: f64,
    /// What the policy compared; its scale is the policy's own.
    pub cost: f64,
    /// The next best, with their cost.
    pub runners_up: [Option<(usize, f64)>; 2],
}

/// A candidate's share in a decision, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// Index in the pool.
    pub replica: usize,
    /// Why it may not take the request; the terms below are then what they would be.
    pub infeasible: Option<&'static str>,
    /// Tokens of the prompt that it holds.
    pub cached_tokens: u64,
    /// Predicted time to the first token in ms.
    pub ttft_ms: f64,
    /// Predicted time of each later token in ms.
    pub tpot_ms: f64,
    /// GPU time of the uncached tokens in ms.
    pub prefill_ms: f64,
    /// The cost that is compared, the sum of the terms.
    pub cost: f64,
    /// The terms of the cost by name.
    pub terms: Vec<(&'static str, f64)>,
}
