//! The picker: one per core (or simulated gateway), used by that core alone.
//!
//! It owns the scratch of a pick, so that a pick allocates nothing once the fleet has been seen,
//! and the state of the policies that keep some.

use super::simple;
use super::types::{Decision, FleetView, Model, Pick, Policy, Request, Rng};

/// Picks by one policy.
#[derive(Debug)]
pub struct Picker {
    policy: Policy,
    turn: u64,
}

impl Picker {
    /// A picker by `policy`.
    #[must_use]
    pub fn new(policy: Policy) -> Picker {
        Picker { policy, turn: 0 }
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
        let _ = (request, model, now_us);
        let chosen = match self.policy {
            Policy::RoundRobin => {
                self.turn = self.turn.wrapping_add(1);
                simple::in_turn(view, self.turn)
            }
            Policy::LeastRequests => simple::least_requests(view, rng),
            _ => simple::two_choices(view, rng),
        };
        chosen
            .map_or(Decision::Nobody, |replica| Decision::Pick(Pick { replica, ..Pick::default() }))
    }
}
