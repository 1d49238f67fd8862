//! A fleet for tests: candidates that can be written down, and that take what is picked for them.

use super::{Candidate, Decision, FleetView, Model, Pick, Picker, Policy, Request, Rng};
use crate::engine::StepModel;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fleet(pub(super) Vec<Candidate>);

impl FleetView for Fleet {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn candidate(&self, index: usize) -> Candidate {
        self.0[index]
    }
}

impl Fleet {
    /// `count` replicas that are all alike.
    pub(super) fn of(count: usize, one: Candidate) -> Fleet {
        Fleet(vec![one; count])
    }

    /// As `of`, each with a good deal to do.
    pub(super) fn busy(count: usize) -> Fleet {
        Fleet::of(count, busy())
    }

    /// Enters a dispatch as a ledger would, and the prompt as an index would.
    pub(super) fn dispatch(&mut self, request: &Request, pick: &Pick) {
        let one = &mut self.0[pick.replica];
        one.pending_tokens += request.prompt_tokens - pick.cached_tokens.min(request.prompt_tokens);
        one.pending_requests += 1;
        one.requests += 1;
        one.load_tokens += request.prompt_tokens + request.output_tokens as u64;
    }
}

/// A replica with 60 answers under way and a sixth of its time in prefill.
pub(super) fn busy() -> Candidate {
    Candidate {
        decodes: 60,
        decode_kv_tokens: 60 * 1900,
        requests: 60,
        load_tokens: 60 * 2040,
        blocks: 27_900,
        blocks_used: 8000,
        prefill_duty: 0.16,
        ..Candidate::default()
    }
}

/// A usual request: 1,736 tokens in, 297 out.
pub(super) fn usual() -> Request {
    Request {
        prompt_tokens: 1736,
        output_tokens: 297.0,
        block_tokens: 16,
        ttft_limit_ms: 400.0,
        tpot_limit_ms: 50.0,
        ..Request::default()
    }
}

/// Picks once, with a fresh picker.
pub(super) fn decide(policy: Policy, request: &Request, fleet: &Fleet, seed: u64) -> Decision {
    let step = StepModel::a100_8b();
    let model = Model { step: &step, step_tokens_max: 2048 };
    Picker::new(policy).pick(request, fleet, &model, 0, &mut Rng::with_seed(seed))
}

/// The replica that is picked.
pub(super) fn pick(policy: Policy, request: &Request, fleet: &Fleet, seed: u64) -> usize {
    match decide(policy, request, fleet, seed) {
        Decision::Pick(pick) => pick.replica,
        other => panic!("{policy:?}: {other:?}"),
    }
}

/// Sends `count` requests, each entered; returns how many each replica got.
pub(super) fn send(
    picker: &mut Picker,
    count: usize,
    fleet: &mut Fleet,
    mut request: impl FnMut(usize) -> Request,
) -> Vec<usize> {
    let step = StepModel::a100_8b();
    let model = Model { step: &step, step_tokens_max: 2048 };
    let mut rng = Rng::with_seed(7);
    let mut counts = vec![0; fleet.0.len()];
    for i in 0..count {
        let request = request(i);
        match picker.pick(&request, fleet, &model, 0, &mut rng) {
            Decision::Pick(pick) => {
                counts[pick.replica] += 1;
                fleet.dispatch(&request, &pick);
            }
            other => panic!("request {i}: {other:?}"),
        }
    }
    counts
}
