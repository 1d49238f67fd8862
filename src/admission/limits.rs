//! The times that a request has to meet, and whether what is predicted of it meets them.
//!
//! Three sources, the tightest wins: the pool's `slo`, the tier's deadline (`deadline_ms` and the
//! time of a token for each token that may come), the caller's `x-request-deadline-ms`. A request
//! that has none of them is never refused for time.

use super::fair::Standing;

/// Time of a later token in a deadline where the pool names none, in ms.
const TPOT_BUDGET_MS: f64 = 50.0;
/// A prompt above so many tokens gets so much more time for each, as prefill takes it.
pub const LONG_TOKENS: u64 = 4_000;
/// See [`LONG_TOKENS`].
pub const LONG_MS_A_TOKEN: f64 = 0.15;

/// Share of the TPOT limit up to which a prediction is good enough: refusing lightens the load, so
/// that predictions are late. Where the fleet as a whole is below a share of it, one slow replica
/// is no reason to refuse. The numbers here are from `plan replay`, moved one at a time.
const TPOT_SHARE: f64 = 1.05;
const TPOT_SHARE_FLEET: f64 = 0.9;
/// Share of the TTFT limit that is good enough of a fleet that is pressed: who has much to prefill
/// then takes the place of two who have not. Of one that is not, the whole limit.
const TTFT_SHARE_PRESSED: f64 = 0.55;
/// The same for a tenant that had less than its fair share by a tenth or more.
const TTFT_SHARE_OWED: f64 = 0.75;
const OWED: f64 = 0.9;
/// A fleet is pressed from this share of the TPOT limit on, and wholly a little later.
const PRESSED_TPOT: f64 = 0.93;
const PRESSED_TPOT_WIDTH: f64 = 0.05;
/// Without a TPOT limit: when what is before a request takes this share of its TTFT limit.
const PRESSED_WAIT: f64 = 0.6;
const PRESSED_WAIT_WIDTH: f64 = 0.2;

/// What limits a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Asked {
    /// The pool's limit on the time to the first token, in ms.
    pub slo_ttft_ms: Option<f64>,
    /// The pool's limit on the time of each later token, in ms.
    pub slo_tpot_ms: Option<f64>,
    /// The base of the tier's deadline in ms; 0 = none. See [`end_ms`].
    pub tier_deadline_ms: u64,
    /// By when the caller wants the first content, in ms.
    pub caller_ms: Option<u64>,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the answer at most, or as many as are expected.
    pub output_tokens: u64,
}

/// The times that a request has to meet, in ms since it came. What is `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// To its first token, by the pool's objective.
    ttft_ms: Option<f64>,
    /// Of each later token.
    tpot_ms: Option<f64>,
    /// To its first content, by the caller.
    caller_ms: Option<f64>,
    /// To its end.
    end_ms: Option<f64>,
}

/// What a replica would make of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Predicted {
    /// Time to the first token in ms, from now.
    pub ttft_ms: f64,
    /// GPU time of its uncached tokens in ms: what of the time to the first is not load.
    pub prefill_ms: f64,
    /// Time of each later token in ms.
    pub tpot_ms: f64,
    /// The mean of the same over the fleet; 0 = not known.
    pub fleet_tpot_ms: f64,
    /// Tokens that the answer is expected to have.
    pub output_tokens: f64,
}

impl Predicted {
    /// Time of a later token over the fleet, as far as it is known.
    fn fleet_ms(&self) -> f64 {
        if self.fleet_tpot_ms > 0.0 { self.fleet_tpot_ms } else { self.tpot_ms }
    }
}

/// Why a request is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// Its first token would be late by the pool's objective.
    Ttft,
    /// Its later tokens would be too slow, and those of others with it.
    Tpot,
    /// Its own deadline, or its tier's, would pass.
    Deadline,
    /// Nobody has room, and the queue has none either.
    QueueFull,
    /// It has waited as long as anybody may.
    QueueTime,
}

impl Why {
    /// All, with their label in metrics.
    pub const ALL: [(Why, &'static str); 5] = [
        (Why::Ttft, "ttft"),
        (Why::Tpot, "tpot"),
        (Why::Deadline, "deadline"),
        (Why::QueueFull, "queue_full"),
        (Why::QueueTime, "queue_time"),
    ];
}

/// By when a tier has a request end, in ms since it came: its `deadline_ms` (0 = never), and the
/// pool's time of a token for each of `output_tokens`.
#[must_use]
pub fn end_ms(deadline_ms: u64, slo_tpot_ms: Option<f64>, output_tokens: u64) -> Option<f64> {
    let budget_ms = slo_tpot_ms.unwrap_or(TPOT_BUDGET_MS);
    (deadline_ms > 0).then_some(deadline_ms as f64 + budget_ms * output_tokens as f64)
}

impl Limits {
    /// Of a request.
    #[must_use]
    pub fn of(asked: &Asked) -> Limits {
        let long = asked.prompt_tokens.saturating_sub(LONG_TOKENS) as f64;
        Limits {
            ttft_ms: asked.slo_ttft_ms.map(|ms| ms + LONG_MS_A_TOKEN * long),
            tpot_ms: asked.slo_tpot_ms,
            caller_ms: asked.caller_ms.map(|ms| ms as f64),
            end_ms: end_ms(asked.tier_deadline_ms, asked.slo_tpot_ms, asked.output_tokens),
        }
    }

    /// Does a prediction meet them, `waited_ms` after the request came, for a tenant that so
    /// stands?
    ///
    /// # Errors
    /// The first limit that it does not meet.
    pub fn check(
        &self,
        predicted: &Predicted,
        waited_ms: f64,
        standing: &Standing,
    ) -> Result<(), Why> {
        let first_ms = waited_ms + predicted.ttft_ms;
        let end_ms = first_ms + predicted.tpot_ms * predicted.output_tokens;
        let passed = |limit: Option<f64>, ms: f64| limit.is_some_and(|limit| ms > limit);
        if passed(self.caller_ms, first_ms) || passed(self.end_ms, end_ms) {
            return Err(Why::Deadline);
        }
        if first_ms > self.ttft_bound_ms(predicted, waited_ms, standing) {
            return Err(Why::Ttft);
        }
        if predicted.tpot_ms > self.tpot_bound_ms(standing) && !self.is_fast(predicted, standing) {
            return Err(Why::Tpot);
        }
        Ok(())
    }

    /// How long it may still wait before it is sent, in ms, when it then took `predicted`; less
    /// than nothing when it is late already.
    #[must_use]
    pub fn slack_ms(&self, predicted: &Predicted, waited_ms: f64, standing: &Standing) -> f64 {
        let first_ms = waited_ms + predicted.ttft_ms;
        let end_ms = first_ms + predicted.tpot_ms * predicted.output_tokens;
        let left = |limit: Option<f64>, ms: f64| limit.map_or(f64::INFINITY, |limit| limit - ms);
        left(self.caller_ms, first_ms)
            .min(left(self.end_ms, end_ms))
            .min(self.ttft_bound_ms(predicted, waited_ms, standing) - first_ms)
    }

    /// The longest time to the first token with which it is admitted, in ms since it came.
    fn ttft_bound_ms(&self, predicted: &Predicted, waited_ms: f64, standing: &Standing) -> f64 {
        let Some(limit_ms) = self.ttft_ms else { return f64::INFINITY };
        let pressed = match self.tpot_ms {
            Some(ms) => (predicted.fleet_ms() / ms - PRESSED_TPOT) / PRESSED_TPOT_WIDTH,
            None => {
                let before_ms = waited_ms + predicted.ttft_ms - predicted.prefill_ms;
                (before_ms / limit_ms - PRESSED_WAIT) / PRESSED_WAIT_WIDTH
            }
        };
        let least = if standing.ratio < OWED { TTFT_SHARE_OWED } else { TTFT_SHARE_PRESSED };
        limit_ms * standing.bound() * (1.0 - pressed.clamp(0.0, 1.0) * (1.0 - least))
    }

    /// Is the fleet as a whole well below the limit?
    fn is_fast(&self, predicted: &Predicted, standing: &Standing) -> bool {
        let bound = |ms: f64| ms * TPOT_SHARE_FLEET * standing.bound();
        predicted.fleet_tpot_ms > 0.0
            && self.tpot_ms.is_none_or(|ms| predicted.fleet_tpot_ms < bound(ms))
    }

    /// The longest time of a later token with which it is admitted, in ms; endless without a limit.
    #[must_use]
    pub fn tpot_bound_ms(&self, standing: &Standing) -> f64 {
        self.tpot_ms.map_or(f64::INFINITY, |ms| ms * TPOT_SHARE * standing.bound())
    }

    /// The same limits where predictions of the first token or of the later ones are not to be
    /// believed yet: what is not counts only once it has passed.
    #[must_use]
    pub fn believing(&self, ttft: bool, tpot: bool) -> Limits {
        let (ttft_ms, tpot_ms) = (self.ttft_ms.filter(|_| ttft), self.tpot_ms.filter(|_| tpot));
        Limits { ttft_ms, tpot_ms, ..*self }
    }
}

/// How far a request's tokens may be counted too high, when they are an estimate.
const ESTIMATE_OVER: u64 = 2;

/// Could a replica with a KV cache of `capacity` tokens (0 = unknown) ever hold a request?
#[must_use]
pub fn ever_fits(capacity: u64, prompt_tokens: u64, counted: bool, output_tokens: u64) -> bool {
    let prompt = if counted { prompt_tokens } else { prompt_tokens / ESTIMATE_OVER };
    capacity == 0 || prompt.saturating_add(output_tokens) <= capacity
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Standing = Standing { ratio: 1.0, behind: 0 };

    fn slo() -> Asked {
        Asked { slo_ttft_ms: Some(400.0), slo_tpot_ms: Some(50.0), ..Asked::default() }
    }

    fn predicted(ttft_ms: f64, tpot_ms: f64) -> Predicted {
        let fleet_tpot_ms = tpot_ms;
        Predicted { ttft_ms, tpot_ms, fleet_tpot_ms, output_tokens: 100.0, ..Predicted::default() }
    }

    fn check(asked: &Asked, predicted: &Predicted) -> Result<(), Why> {
        Limits::of(asked).check(predicted, 0.0, &CALM)
    }

    #[test]
    fn without_a_limit_nothing_is_refused_for_time() {
        assert_eq!(check(&Asked::default(), &predicted(1e9, 1e9)), Ok(()));
        let limits = Limits::of(&Asked::default());
        assert_eq!(limits.slack_ms(&predicted(1e9, 1e9), 1e9, &CALM), f64::INFINITY);
    }

    #[test]
    fn a_calm_fleet_refuses_what_is_late_and_a_pressed_one_what_is_costly() {
        assert_eq!(check(&slo(), &predicted(390.0, 30.0)), Ok(()));
        assert_eq!(check(&slo(), &predicted(410.0, 30.0)), Err(Why::Ttft));
        assert_eq!(check(&slo(), &predicted(390.0, 49.0)), Err(Why::Ttft));
        assert_eq!(check(&slo(), &predicted(200.0, 49.0)), Ok(()));
        assert_eq!(check(&slo(), &predicted(200.0, 53.0)), Err(Why::Tpot));
        // One slow replica is no overload.
        let one = Predicted { fleet_tpot_ms: 30.0, ..predicted(200.0, 53.0) };
        assert_eq!(check(&slo(), &one), Ok(()));
        // A long prompt has longer.
        let long = Asked { prompt_tokens: 6_000, ..slo() };
        assert_eq!(check(&long, &predicted(650.0, 30.0)), Ok(()));
    }

    #[test]
    fn who_has_had_much_is_refused_before_who_has_had_little() {
        let limits = Limits::of(&slo());
        let of = |ratio| Standing { ratio, behind: 0 };
        let at = |tpot_ms, ratio| limits.check(&predicted(100.0, tpot_ms), 0.0, &of(ratio));
        assert_eq!((at(48.0, 0.5), at(48.0, 3.0)), (Ok(()), Err(Why::Tpot)));
        assert_eq!((at(39.0, 0.5), at(39.0, 3.0)), (Ok(()), Ok(())));
        let owed = predicted(280.0, 50.0);
        assert_eq!(limits.check(&owed, 0.0, &of(0.5)), Ok(()));
        assert_eq!(limits.check(&owed, 0.0, &of(1.0)), Err(Why::Ttft));
        let behind = Standing { ratio: 1.0, behind: 1 };
        assert_eq!(limits.check(&predicted(100.0, 49.0), 0.0, &behind), Err(Why::Tpot));
    }

    #[test]
    fn deadlines_are_of_the_first_content_and_of_the_end() {
        let caller = Asked { caller_ms: Some(1_000), ..Asked::default() };
        assert_eq!(check(&caller, &predicted(900.0, 500.0)), Ok(()));
        assert_eq!(check(&caller, &predicted(1_100.0, 5.0)), Err(Why::Deadline));
        // 2 s and 50 ms for each of the 200 tokens that may come; 100 are expected.
        let tier = Asked { tier_deadline_ms: 2_000, output_tokens: 200, ..Asked::default() };
        assert_eq!(check(&tier, &predicted(2_000.0, 99.0)), Ok(()));
        assert_eq!(check(&tier, &predicted(2_200.0, 99.0)), Err(Why::Deadline));
        let limits = Limits::of(&caller);
        assert_eq!(limits.check(&predicted(500.0, 5.0), 600.0, &CALM), Err(Why::Deadline));
        assert_eq!(limits.slack_ms(&predicted(500.0, 5.0), 100.0, &CALM), 400.0);
        // What cannot be predicted yet is late only once it is late.
        let blind = Limits::of(&Asked { caller_ms: Some(1_000), ..slo() }).believing(false, false);
        let waited = |ms| blind.check(&Predicted::default(), ms, &CALM);
        assert_eq!((waited(900.0), waited(1_100.0)), (Ok(()), Err(Why::Deadline)));
    }

    #[test]
    fn what_no_replica_can_ever_hold_is_known() {
        assert!(ever_fits(0, u64::MAX, true, u64::MAX));
        assert!(ever_fits(1_600, 1_000, true, 600));
        assert!(!ever_fits(1_600, 1_000, true, 601));
        // An estimate may be twice too high.
        assert!(ever_fits(1_600, 2_000, false, 600));
        assert!(!ever_fits(1_600, 2_100, false, 600));
    }
}
