//! The picker: one per core (or simulated gateway), used by that core alone.
//!
//! It owns the scratch of a pick, so that a pick allocates nothing once the fleet has been seen,
//! and the state of the policies that keep some.

use super::affinity::Owners;
use super::cost::{self, Params, Scored};
use super::predict::{Predictor, Tables};
use super::types::{Decision, FleetView, Model, Pick, Policy, Request, Rng};
use super::{published, simple};

/// Picks by one policy.
#[derive(Debug)]
pub struct Picker {
    policy: Policy,
    params: Params,
    turn: u64,
    owners: Owners,
    scored: Vec<Scored>,
    tables: Option<Tables>,
    usual: cost::Usual,
}

impl Picker {
    /// A picker by `policy`.
    #[must_use]
    pub fn new(policy: Policy) -> Picker {
        Picker::with_params(policy, Params::default())
    }

    /// A picker whose cost has other weights.
    #[must_use]
    pub fn with_params(policy: Policy, params: Params) -> Picker {
        Picker { policy, params, turn: 0, owners: Owners::default(), scored: Vec::new(), tables: None, usual: cost::Usual::default() }
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Chooses a replica for `request` at `now_us` (from any origin, never backwards).
    pub fn pick(
        &mut self,
        request: &Request,
        view: &impl FleetView,
        model: &Model<'_>,
        now_us: u64,
        rng: &mut Rng,
    ) -> Decision {
        let _ = now_us;
        if !self.tables.as_ref().is_some_and(|tables| tables.are_of(model)) {
            self.tables = None;
        }
        let tables = self.tables.get_or_insert_with(|| Tables::new(model));
        let chosen = match self.policy {
            Policy::Cost => {
                return cost::pick(&self.params, request, view, tables, &mut self.scored, &mut self.usual, rng);
            }
            Policy::P2c => simple::two_choices(view, rng),
            Policy::RoundRobin => {
                self.turn = self.turn.wrapping_add(1);
                simple::in_turn(view, self.turn)
            }
            Policy::LeastRequests => simple::least_requests(view, rng),
            Policy::PrefixAffinity => self.owners.pick(request, view, rng),
            Policy::Lmetric => published::lmetric(request, view, rng),
            Policy::CacheAware => published::cache_aware(request, view, rng),
            Policy::Preble => published::preble(request, view, tables, rng),
            Policy::Dynamo => published::dynamo(request, view, rng),
            Policy::LlmD => published::llm_d(request, view, rng),
        };
        chosen.map_or(Decision::Nobody, |replica| {
            Decision::Pick(predicted(replica, request, view, tables))
        })
    }
}

/// What to expect of the replica that another policy chose.
fn predicted(replica: usize, request: &Request, view: &impl FleetView, tables: &Tables) -> Pick {
    let candidate = view.candidate(replica);
    let times = Predictor::new(tables, request).times(&candidate);
    Pick {
        replica,
        cached_tokens: candidate.cached_tokens,
        ttft_ms: times.ttft_ms,
        tpot_ms: times.tpot_ms,
        prefill_ms: times.prefill_ms,
        ..Pick::default()
    }
}
