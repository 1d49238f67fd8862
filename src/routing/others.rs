//! What other gateways have in flight at each replica, as one gateway believes it.
//!
//! They tell it every so often, so it is old by up to that long, and all of them act on the same
//! news: where it shows a gap, each fills the whole of it, and the next news show a heap. So a
//! replica's distance from the fleet's mean counts by half. The mean itself is no guess and counts
//! in full, as does what is the gateway's own.

use super::types::Candidate;

/// Share of its distance from the fleet's mean that news of a replica count: in the planner, two to
/// eight gateways that tell each other every 100 ms serve most with 0.5 to 0.7, and bursts at four
/// of them at once are spread best with 0.5.
const BELIEF: f64 = 0.5;

/// What other gateways have in flight at a replica, or at all of a fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Requests in flight.
    pub requests: u64,
    /// Tokens of their prompts and expected answers.
    pub tokens: u64,
    /// Uncached prompt tokens of requests without a first token.
    pub pending_tokens: u64,
    /// These requests.
    pub pending_requests: u64,
    /// Sequences that decode.
    pub decodes: u64,
    /// Tokens of their KV.
    pub decode_kv_tokens: u64,
}

impl Others {
    /// Adds what there is at another replica.
    pub fn add(&mut self, other: &Others) {
        self.requests = self.requests.saturating_add(other.requests);
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.pending_tokens = self.pending_tokens.saturating_add(other.pending_tokens);
        self.pending_requests = self.pending_requests.saturating_add(other.pending_requests);
        self.decodes = self.decodes.saturating_add(other.decodes);
        self.decode_kv_tokens = self.decode_kv_tokens.saturating_add(other.decode_kv_tokens);
    }

    /// Adds these, told of the candidate's replica, to its own; `fleet` is the sum over the
    /// `replicas` of its pool.
    pub fn add_to(&self, candidate: &mut Candidate, fleet: &Others, replicas: usize) {
        let share = 1.0 / replicas.max(1) as f64;
        let believed = |own: &mut u64, told: u64, fleet: u64| {
            let mean = fleet as f64 * share;
            *own = own.saturating_add((mean + BELIEF * (told as f64 - mean)).round() as u64);
        };
        believed(&mut candidate.requests, self.requests, fleet.requests);
        believed(&mut candidate.load_tokens, self.tokens, fleet.tokens);
        believed(&mut candidate.pending_tokens, self.pending_tokens, fleet.pending_tokens);
        believed(&mut candidate.pending_requests, self.pending_requests, fleet.pending_requests);
        believed(&mut candidate.decodes, self.decodes, fleet.decodes);
        believed(&mut candidate.decode_kv_tokens, self.decode_kv_tokens, fleet.decode_kv_tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_count_by_half_of_what_they_differ() {
        let told = [(40, 4000), (0, 0), (20, 2000), (0, 0)].map(|(decodes, decode_kv_tokens)| {
            Others { decodes, decode_kv_tokens, ..Others::default() }
        });
        let mut fleet = Others::default();
        told.iter().for_each(|it| fleet.add(it));
        let seen = told.map(|it| {
            let mut own = Candidate { decodes: 3, ..Candidate::default() };
            it.add_to(&mut own, &fleet, 4);
            (own.decodes, own.decode_kv_tokens, own.requests)
        });
        assert_eq!(seen, [(31, 2750, 0), (11, 750, 0), (21, 1750, 0), (11, 750, 0)]);
    }

    #[test]
    fn what_all_have_alike_counts_in_full() {
        let told = Others { requests: 7, pending_requests: 7, ..Others::default() };
        let mut fleet = Others::default();
        (0..3).for_each(|_| fleet.add(&told));
        let mut own = Candidate::default();
        told.add_to(&mut own, &fleet, 3);
        assert_eq!((own.requests, own.pending_requests, own.decodes), (7, 7, 0));
        Others { requests: u64::MAX, ..told }.add_to(&mut own, &fleet, 0);
        assert!(own.requests > 1 << 62, "a lie stays a number");
    }
}
