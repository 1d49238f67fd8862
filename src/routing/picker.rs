//! The picker: one per core (or simulated gateway), used by that core alone.
//!
//! It owns the scratch of a pick, so that a pick allocates nothing once the fleet has been seen,
//! and the state of the policies that keep some.

use super::affinity::Owners;
use super::cost::{self, Scored};
use super::decide::decide;
use super::echo::Echoes;
use super::predict::{Predictor, Tables};
use super::types::{Decision, FleetView, Model, Pick, Policy, Request, Rng};
use super::{published, simple};

/// Picks by one policy.
#[derive(Debug)]
pub struct Picker {
    policy: Policy,
    /// Picks so far, for round robin.
    turn: u64,
    owners: Owners,
    echoes: Echoes,
    scored: Vec<Scored>,
    /// Of the model of the last pick.
    tables: Option<Tables>,
}

impl Picker {
    /// A picker by `policy`.
    #[must_use]
    pub fn new(policy: Policy) -> Picker {
        Picker {
            policy,
            turn: 0,
            owners: Owners::default(),
            echoes: Echoes::default(),
            scored: Vec::new(),
            tables: None,
        }
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Chooses a replica for `request`. Only `Cost` holds; the others are as published.
    pub fn pick(
        &mut self,
        request: &Request,
        view: &impl FleetView,
        model: &Model<'_>,
        now_us: u64,
        rng: &mut Rng,
    ) -> Decision {
        if !self.tables.as_ref().is_some_and(|tables| tables.are_of(model)) {
            self.tables = None;
        }
        let tables = self.tables.get_or_insert_with(|| Tables::new(model));
        let chosen = match self.policy {
            Policy::Cost => {
                let (echoes, scored) = (&mut self.echoes, &mut self.scored);
                cost::score(request, view, tables, (&mut *echoes, now_us), scored);
                let decision = decide(request, scored, rng);
                if let Decision::Pick(pick) = decision
                    && view.lags()
                {
                    let uncached = request.prompt_tokens.saturating_sub(pick.cached_tokens).max(1);
                    let kv_tokens = request.prompt_tokens + (0.5 * request.output_tokens) as u64;
                    echoes.picked(pick.replica, (uncached, kv_tokens), pick.ttft_ms, now_us);
                }
                return decision;
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
