//! A loaded fleet and requests to it, for benches of the router.

use expedite::routing::{Candidate, FleetView, Request, Residency, Rng};

/// Replicas as the router sees them.
pub(crate) struct Fleet(pub(crate) Vec<Candidate>);

impl FleetView for Fleet {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn candidate(&self, index: usize) -> Candidate {
        self.0[index]
    }
}

/// A loaded fleet; one in eight holds a part of the prompt, one in sixteen is down.
pub(crate) fn fleet(count: usize, rng: &mut Rng) -> Fleet {
    let one = |index: usize| {
        let decodes = rng.u64(40..120);
        let pending = rng.u64(0..3);
        Candidate {
            key: index as u64 + 1,
            eligible: index % 16 != 5,
            cached_tokens: if index.is_multiple_of(8) { rng.u64(0..108) * 16 } else { 0 },
            pending_tokens: pending * rng.u64(100..1500),
            pending_requests: pending,
            decodes,
            decode_kv_tokens: decodes * 1900,
            requests: decodes + pending,
            load_tokens: (decodes + pending) * 2040,
            blocks: 27_900,
            blocks_used: decodes * 119,
            prefill_duty: 0.1 + 0.2 * rng.f64(),
            adapter: Residency::Resident,
            ..Candidate::default()
        }
    };
    Fleet((0..count).map(one).collect())
}

/// A request of about 1,750 tokens.
pub(crate) fn request(rng: &mut Rng) -> Request {
    Request {
        prompt_tokens: rng.u64(1600..1900),
        output_tokens: 297.0,
        block_tokens: 16,
        ttft_limit_ms: 400.0,
        tpot_limit_ms: 50.0,
        owner_key: rng.u64(1..),
        ..Request::default()
    }
}
