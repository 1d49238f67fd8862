//! The decision: start, wait, or be refused, and in the last case when to come again.

use super::fair::Standing;
use super::limits::{Limits, Predicted, Why};
use super::release::{Running, retry_after_ms};

/// A wait for faster steps is worth it only for who has so long, in ms: below, each that waits
/// takes the time of one that comes, and all of them are later.
const TPOT_SLACK_MS_MIN: f64 = 500.0;

/// A request that asks to start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case<'c> {
    /// The times that it has to meet.
    pub limits: &'c Limits,
    /// What the best replica for it would make of it.
    pub predicted: Predicted,
    /// No replica that may take it has room.
    pub full: bool,
    /// Others wait for the same.
    pub behind: bool,
    /// Since it came, in ms.
    pub waited_ms: f64,
    /// How its tenant stands.
    pub standing: Standing,
    /// What runs in the pool.
    pub running: Running,
    /// Tokens that it needs room for.
    pub tokens: u64,
    /// Tokens that wait and come before it.
    pub tokens_before: u64,
    /// Longest wait in the queue, in ms; 0: nobody waits.
    pub queue_ms_max: u64,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is sent now.
    Start,
    /// It waits, for so many ms at most from now.
    Wait {
        /// The end of its wait.
        most_ms: u64,
    },
    /// It is refused.
    Refuse {
        /// Why.
        why: Why,
        /// When the same request would be admitted, in ms from now, if nobody else came.
        retry_after_ms: u64,
    },
}

/// Decides.
#[must_use]
pub fn judge(case: &Case<'_>) -> Verdict {
    let Case { limits, predicted, running, .. } = case;
    let refuse =
        |why, room_ms: f64| Verdict::Refuse { why, retry_after_ms: retry_after_ms(room_ms) };
    let before_ms = running.until_tokens(case.tokens_before);
    match limits.check(predicted, case.waited_ms, &case.standing) {
        Ok(()) if !case.full && !case.behind => Verdict::Start,
        Ok(()) => {
            let room_ms =
                before_ms + if case.full { running.until_tokens(case.tokens) } else { 0.0 };
            wait(case, 0.0, room_ms).unwrap_or_else(|why| refuse(why, room_ms))
        }
        Err(Why::Tpot) => {
            let bound_ms = limits.tpot_bound_ms(&case.standing);
            let room_ms = before_ms + running.until_faster(predicted.tpot_ms, bound_ms);
            wait(case, TPOT_SLACK_MS_MIN, room_ms).unwrap_or_else(|_| refuse(Why::Tpot, room_ms))
        }
        // What has to be prefilled before it takes as long here as there.
        Err(why) => {
            let excess_ms = -limits.slack_ms(predicted, case.waited_ms, &case.standing);
            refuse(why, before_ms + (excess_ms - case.waited_ms).max(0.0))
        }
    }
}

fn wait(case: &Case<'_>, slack_ms_min: f64, room_ms: f64) -> Result<Verdict, Why> {
    let slack_ms = case.limits.slack_ms(&case.predicted, case.waited_ms, &case.standing);
    if case.queue_ms_max == 0 {
        return Err(Why::QueueFull);
    }
    let most_ms = (case.queue_ms_max as f64).min(slack_ms);
    if slack_ms < slack_ms_min || most_ms < room_ms.max(1.0) {
        return Err(Why::QueueTime);
    }
    Ok(Verdict::Wait { most_ms: most_ms as u64 })
}

#[cfg(test)]
mod tests {
    use super::super::limits::Asked;
    use super::*;

    fn case(limits: &Limits) -> Case<'_> {
        Case {
            limits,
            predicted: Predicted {
                ttft_ms: 100.0,
                tpot_ms: 30.0,
                output_tokens: 300.0,
                ..Default::default()
            },
            full: false,
            behind: false,
            waited_ms: 0.0,
            standing: Standing::default(),
            running: Running { requests: 100, tokens: 200_000, answer_ms: 10_000.0 },
            tokens: 2_000,
            tokens_before: 0,
            queue_ms_max: 2_000,
        }
    }

    fn slo(ttft_ms: f64) -> Limits {
        let asked =
            Asked { slo_ttft_ms: Some(ttft_ms), slo_tpot_ms: Some(50.0), ..Asked::default() };
        Limits::of(&asked)
    }

    fn refused(verdict: Verdict) -> (Why, u64) {
        let Verdict::Refuse { why, retry_after_ms } = verdict else { panic!("{verdict:?}") };
        (why, retry_after_ms)
    }

    #[test]
    fn it_waits_where_room_comes_in_time_and_is_refused_where_it_does_not() {
        let limits = Limits::default();
        assert_eq!(judge(&case(&limits)), Verdict::Start);
        let full = Case { full: true, ..case(&limits) };
        assert_eq!(judge(&full), Verdict::Wait { most_ms: 2_000 });
        assert_eq!(
            judge(&Case { behind: true, ..case(&limits) }),
            Verdict::Wait { most_ms: 2_000 }
        );
        // 60,000 tokens come first: 3 s, more than anybody may wait.
        let many = Case { tokens_before: 60_000, ..full };
        assert_eq!(refused(judge(&many)), (Why::QueueTime, 3_100));
        assert_eq!(refused(judge(&Case { queue_ms_max: 0, ..full })).0, Why::QueueFull);
        // Its own limit is shorter than the queue's.
        let soon = slo(400.0);
        let full = Case { limits: &soon, ..full };
        assert_eq!(judge(&full), Verdict::Wait { most_ms: 300 });
        assert_eq!(refused(judge(&Case { tokens_before: 10_000, ..full })).0, Why::QueueTime);
    }

    #[test]
    fn slow_steps_are_waited_for_only_with_time_to_spare() {
        let slow = |case: Case<'_>| {
            let predicted = Predicted { tpot_ms: 55.0, ..case.predicted };
            judge(&Case { predicted, ..case })
        };
        let (soon, late) = (slo(400.0), slo(3_000.0));
        // One answer of twenty must end: half a second.
        let (why, ms) = refused(slow(case(&soon)));
        assert_eq!(why, Why::Tpot);
        assert!((400..=500).contains(&ms), "{ms}");
        assert!(matches!(slow(case(&late)), Verdict::Wait { .. }));
    }

    #[test]
    fn what_is_late_by_its_queue_may_come_again_when_that_has_gone() {
        let limits = slo(400.0);
        let predicted = Predicted { ttft_ms: 900.0, ..case(&limits).predicted };
        let (why, ms) = refused(judge(&Case { predicted, ..case(&limits) }));
        assert_eq!((why, ms), (Why::Ttft, 500));
    }
}
