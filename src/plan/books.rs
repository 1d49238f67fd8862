//! What a simulated gateway knows of one replica: its own account of what is in flight, and what
//! it last read in the replica's metrics.
//!
//! The same sums as the gateway's ledger keeps, in plain numbers: one thread runs a simulation.

use crate::routing::Others;

/// Time over which prefill work fades, so that its mean age is that of a window of 10 s.
const DUTY_TAU_US: f64 = 5e6;

/// What a request weighs in the books.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Weight {
    /// Uncached prompt tokens, as predicted.
    pub(super) prefill_tokens: u64,
    /// Prompt tokens and expected answer.
    pub(super) tokens: u64,
    /// KV tokens that its steps read: the prompt and half of the expected answer.
    pub(super) kv_tokens: u64,
}

/// What is in flight at a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    pub(super) requests: u64,
    pub(super) tokens: u64,
    pub(super) pending_tokens: u64,
    pub(super) pending_requests: u64,
    pub(super) decodes: u64,
    pub(super) decode_kv_tokens: u64,
    /// When each of the decodes had its first token, summed.
    begun_us: u64,
    /// GPU time in ms of the prefills of the last seconds, the older the less.
    prefill_ms: f64,
    prefill_at_us: u64,
}

impl Sums {
    /// A request is sent.
    pub(super) fn dispatch(&mut self, weight: &Weight, prefill_ms: f64, now_us: u64) {
        self.requests += 1;
        self.tokens += weight.tokens;
        self.pending_requests += 1;
        self.pending_tokens += weight.prefill_tokens;
        self.prefill_ms = self.prefill_ms_at(now_us) + prefill_ms;
        self.prefill_at_us = now_us;
    }

    /// Its first token has come.
    pub(super) fn first(&mut self, weight: &Weight, now_us: u64) {
        self.pending_requests -= 1;
        self.pending_tokens -= weight.prefill_tokens;
        self.decodes += 1;
        self.decode_kv_tokens += weight.kv_tokens;
        self.begun_us += now_us;
    }

    /// It has ended; its first token had come at `first_us`.
    pub(super) fn end(&mut self, weight: &Weight, first_us: Option<u64>) {
        self.requests -= 1;
        self.tokens -= weight.tokens;
        if let Some(first_us) = first_us {
            self.begun_us -= first_us;
            self.decodes -= 1;
            self.decode_kv_tokens -= weight.kv_tokens;
        } else {
            self.pending_requests -= 1;
            self.pending_tokens -= weight.prefill_tokens;
        }
    }

    /// Mean time since the first token of what decodes, in ms; 0 = nothing does.
    pub(super) fn decode_age_ms(&self, now_us: u64) -> f64 {
        let ages_us = (self.decodes * now_us).saturating_sub(self.begun_us);
        ages_us as f64 / 1e3 / self.decodes.max(1) as f64
    }

    /// Adds what others have in flight.
    pub(super) fn add(&mut self, other: &Sums) {
        self.requests += other.requests;
        self.tokens += other.tokens;
        self.pending_tokens += other.pending_tokens;
        self.pending_requests += other.pending_requests;
        self.decodes += other.decodes;
        self.decode_kv_tokens += other.decode_kv_tokens;
        self.begun_us += other.begun_us;
        let at_us = self.prefill_at_us.max(other.prefill_at_us);
        self.prefill_ms = self.prefill_ms_at(at_us) + other.prefill_ms_at(at_us);
        self.prefill_at_us = at_us;
    }

    /// As another gateway is told of it.
    pub(super) fn told(&self) -> Others {
        Others {
            requests: self.requests,
            tokens: self.tokens,
            pending_tokens: self.pending_tokens,
            pending_requests: self.pending_requests,
            decodes: self.decodes,
            decode_kv_tokens: self.decode_kv_tokens,
        }
    }

    fn prefill_ms_at(&self, now_us: u64) -> f64 {
        // (1 + x/8)^-8 for e^-x, as the gateway's ledger has it.
        let age_us = now_us.saturating_sub(self.prefill_at_us) as f64;
        let mut left = 1.0 / (1.0 + age_us / (8.0 * DUTY_TAU_US));
        left *= left;
        left *= left;
        left *= left;
        self.prefill_ms * left
    }

    /// Share of the replica's time that went into prefills lately, 0 to 1.
    pub(super) fn prefill_duty(&self, now_us: u64) -> f64 {
        (self.prefill_ms_at(now_us) / (DUTY_TAU_US / 1e3)).clamp(0.0, 1.0)
    }

    /// Nothing is in flight.
    #[cfg(test)]
    pub(super) fn is_zero(&self) -> bool {
        let Sums { requests, tokens, pending_tokens, pending_requests, .. } = *self;
        let Sums { decodes, decode_kv_tokens, begun_us, .. } = *self;
        let waiting = [requests, tokens, pending_tokens, pending_requests];
        let all = [decodes, decode_kv_tokens, begun_us].into_iter().chain(waiting);
        all.into_iter().all(|n| n == 0)
    }
}

/// What the metrics of a replica said when they were last read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Scraped {
    pub(super) running: u64,
    pub(super) waiting: u64,
    /// KV blocks in use.
    pub(super) blocks_used: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_taken_off() {
        let weights = [
            Weight { prefill_tokens: 100, tokens: 600, kv_tokens: 450 },
            Weight { prefill_tokens: 7, tokens: 9, kv_tokens: 8 },
        ];
        let mut sums = Sums::default();
        weights.iter().for_each(|w| sums.dispatch(w, 5.0, 0));
        assert_eq!((sums.pending_tokens, sums.decodes), (107, 0));
        sums.first(&weights[0], 3_000);
        assert_eq!(sums.decode_age_ms(5_000), 2.0);
        assert_eq!((sums.pending_tokens, sums.decode_kv_tokens), (7, 450));
        sums.end(&weights[0], Some(3_000));
        assert!(!sums.is_zero());
        sums.end(&weights[1], None);
        assert!(sums.is_zero());
    }

    #[test]
    fn steady_prefills_are_their_share_of_the_time() {
        let mut sums = Sums::default();
        for i in 0..600u64 {
            sums.dispatch(&Weight::default(), 30.0, i * 100_000);
        }
        let duty = sums.prefill_duty(60_000_000);
        assert!((0.28..0.32).contains(&duty), "30 ms each 100 ms: {duty}");
        assert!(sums.prefill_duty(90_000_000) < 0.01);
    }
}
