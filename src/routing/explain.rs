//! Why a replica was chosen: each candidate with the terms of its cost, or why it may not.

use super::cost::{self, Params};
use super::types::{Candidate, Explained, FleetView, Model, Request, Residency};

/// What the cost says of each candidate, by index. The terms are written without the hinge, which
/// is what is left of the cost.
#[must_use]
pub fn explain(request: &Request, view: &impl FleetView, model: &Model<'_>) -> Vec<Explained> {
    let params = Params::default();
    // Priced as if all might: what keeps one out is told beside its price.
    let all = All((0..view.len()).map(|index| view.candidate(index)).collect());
    let mut scored = Vec::new();
    cost::score(&params, request, &all, model, &mut scored);
    let limit = if request.ttft_limit_ms > 0.0 { request.ttft_limit_ms } else { 400.0 };
    let explained = scored.iter().map(|it| {
        let candidate = view.candidate(it.index);
        let terms = vec![
            ("ttft", params.ttft * it.x * it.x),
            ("tpot", params.tpot * it.y * it.y),
            ("work", params.work * it.times.prefill_ms / limit),
            ("kv", params.kv * it.kv),
            ("adapter", it.adapter),
        ];
        let sum: f64 = terms.iter().map(|(_, value)| value).sum();
        Explained {
            replica: it.index,
            infeasible: infeasible(&candidate),
            cached_tokens: it.cached,
            ttft_ms: it.times.ttft_ms,
            tpot_ms: it.times.tpot_ms,
            prefill_ms: it.times.prefill_ms,
            cost: it.cost,
            terms: terms.into_iter().chain([("hinge", (it.cost - sum).max(0.0))]).collect(),
        }
    });
    explained.collect()
}

fn infeasible(candidate: &Candidate) -> Option<&'static str> {
    if !candidate.eligible {
        return Some("it takes no work now, does not serve the model, or has failed the request");
    }
    (candidate.adapter == Residency::Absent).then_some("it cannot serve the adapter")
}

/// A view in which everyone may.
struct All(Vec<Candidate>);

impl FleetView for All {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn candidate(&self, index: usize) -> Candidate {
        let candidate = self.0.get(index).copied().unwrap_or_default();
        let adapter = match candidate.adapter {
            Residency::Absent => Residency::Loadable,
            adapter => adapter,
        };
        Candidate { eligible: true, adapter, ..candidate }
    }
}
