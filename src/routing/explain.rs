//! Why a replica: every candidate with what was predicted of it and the terms of its cost, for
//! people. Off the path of a request; it allocates.

use super::cost::{self, Scored, TERMS};
use super::echo::Echoes;
use super::predict::Tables;
use super::types::{Candidate, Explained, FleetView, Model, Request};

/// A view in which every replica is feasible, to say what the others would have cost.
struct Forced<'v, V: FleetView>(&'v V, usize);

impl<V: FleetView> FleetView for Forced<'_, V> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn candidate(&self, index: usize) -> Candidate {
        let candidate = self.0.candidate(index);
        if index != self.1 {
            return candidate;
        }
        Candidate { eligible: true, adapter: super::Residency::Resident, blocks: 0, ..candidate }
    }
}

/// Each candidate of `view` in order: why it cannot take `request`, or the terms of its cost by
/// the policy `cost`. What cannot take it is compared with those that can.
#[must_use]
pub fn explain(request: &Request, view: &impl FleetView, model: &Model<'_>) -> Vec<Explained> {
    let tables = Tables::new(model);
    let mut scored = Vec::new();
    cost::score(request, view, &tables, (&mut Echoes::default(), 0), &mut scored);
    let mut forced = Vec::new();
    (0..view.len())
        .filter_map(|index| {
            let infeasible = cost::infeasible(request, &view.candidate(index));
            let among = if infeasible.is_some() {
                let view = Forced(view, index);
                cost::score(request, &view, &tables, (&mut Echoes::default(), 0), &mut forced);
                &forced
            } else {
                &scored
            };
            let one = among.iter().find(|one| one.index == index)?;
            Some(explained(one, infeasible))
        })
        .collect()
}

fn explained(one: &Scored, infeasible: Option<&'static str>) -> Explained {
    Explained {
        replica: one.index,
        infeasible,
        cached_tokens: one.cached,
        ttft_ms: one.times.ttft_ms,
        tpot_ms: one.times.tpot_ms,
        prefill_ms: one.times.prefill_ms,
        cost: one.cost,
        terms: TERMS.into_iter().zip(one.terms()).collect(),
    }
}
