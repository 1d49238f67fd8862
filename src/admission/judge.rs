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
    let refuse = |why, room_ms: f64| Verdict::Refuse { why, retry_after_ms: retry_after_ms(room_ms) };
    let before_ms = running.until_tokens(case.tokens_before);
    match limits.check(predicted, case.waited_ms, &case.standing) {
        Ok(()) if !case.full && !case.behind => Verdict::Start,
        Ok(()) => {
            let room_ms = before_ms + if case.full { running.until_tokens(case.tokens) } else { 0.0 };
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
