//! When room will be, by what runs now: the truth behind `retry-after`, and whether a wait is
//! worth it.
//!
//! By Little's law (1961), of `n` answers that take `t` each, n / t end in a unit of time, however
//! long each still has. The sums are the ledger's, the length of an answer is learned; what comes
//! meanwhile is not foreseen, so that a time said here holds for one caller and not for a crowd.

/// A refused caller is told to come again in so many ms at least, and at most.
const RETRY_MS_MIN: f64 = 100.0;
const RETRY_MS_MAX: f64 = 60_000.0;

/// What runs in a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Running {
    /// Requests in flight.
    pub requests: u64,
    /// Tokens that they hold, prompts and expected answers.
    pub tokens: u64,
    /// How long an answer takes as a rule, from its first token to its last, in ms.
    pub answer_ms: f64,
}

impl Running {
    /// Until so many of the requests have ended, in ms.
    #[must_use]
    pub fn until_requests(&self, requests: f64) -> f64 {
        self.until(requests, self.requests)
    }

    /// Until so many of the tokens are free, in ms.
    #[must_use]
    pub fn until_tokens(&self, tokens: u64) -> f64 {
        self.until(tokens as f64, self.tokens)
    }

    fn until(&self, wanted: f64, all: u64) -> f64 {
        let answer_ms = if self.answer_ms > 0.0 { self.answer_ms } else { 0.0 };
        if all == 0 { 0.0 } else { answer_ms * wanted.max(0.0) / all as f64 }
    }

    /// When the step is as short as `bound_ms`, `tpot_ms` as it is now: as many answers must end as
    /// make it too long. (Part of a step is fixed, so that this is the earliest.)
    #[must_use]
    pub fn until_faster(&self, tpot_ms: f64, bound_ms: f64) -> f64 {
        let excess = 1.0 - bound_ms / tpot_ms.max(bound_ms).max(1e-9);
        self.until_requests(excess * self.requests as f64)
    }
}

/// A time for `retry-after`, in ms.
#[must_use]
pub fn retry_after_ms(room_ms: f64) -> u64 {
    room_ms.clamp(RETRY_MS_MIN, RETRY_MS_MAX).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_comes_as_fast_as_answers_end() {
        // 100 answers of 10 s: one in 100 ms.
        let running = Running { requests: 100, tokens: 200_000, answer_ms: 10_000.0 };
        assert_eq!(running.until_requests(1.0), 100.0);
        assert_eq!(running.until_tokens(20_000), 1_000.0);
        // 10 % too slow: as many must end.
        assert!((running.until_faster(50.0, 45.0) - 1_000.0).abs() < 1.0);
        assert_eq!(running.until_faster(40.0, 45.0), 0.0);
    }

    #[test]
    fn nothing_runs_and_nonsense_is_no_time() {
        assert_eq!(Running::default().until_tokens(5), 0.0);
        let odd = Running { requests: 1, tokens: 1, answer_ms: f64::NAN };
        assert_eq!(odd.until_requests(3.0), 0.0);
        assert_eq!(retry_after_ms(0.0), 100);
        assert_eq!(retry_after_ms(1234.2), 1235);
        assert_eq!(retry_after_ms(1e12), 60_000);
    }
}
