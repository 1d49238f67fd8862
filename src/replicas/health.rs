//! May a replica be sent work? Two sources of evidence, kept apart.
//!
//! *Passive*: what the cores see of their own requests. It outweighs the probes both ways: a
//! replica that fails requests is ejected whatever `/health` says (a draining vLLM answers 200 to
//! the end), and one that serves requests stays in whatever `/health` says.
//! *Active*: `/health`, asked by the control thread; it decides where there is no recent traffic.
//!
//! State is a handful of relaxed atomics that every core reads and writes: wrong by a moment costs
//! one attempt, never correctness. Time (ms since process start) is an argument.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Failures in a row before a replica is ejected.
const FAILURES_MAX: u32 = 3;
/// First ejection; doubled each time in a row.
const EJECT_MS_MIN: u64 = 500;
/// Longest ejection.
const EJECT_MS_MAX: u64 = 30_000;
/// Between two trial requests of a replica whose ejection has run out.
const TRIAL_MS: u64 = 1_000;
/// Failed probes in a row that count as down.
const PROBES_MAX: u32 = 2;
/// A success of a request this recent outweighs failed probes.
const EVIDENCE_MS: u64 = 5_000;

/// What went wrong with a request at a replica, as far as its health is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The port refused the connection: nobody is there.
    Refused,
    /// Anything else that the replica did not survive: reset, end or silence before an answer.
    Broken,
    /// It says itself that it takes no more work (a draining vLLM).
    Draining,
    /// The engine answered with an error of its own, such as 500. That may be the request's doing,
    /// and one caller must not take a replica from all: it counts when another replica has served
    /// the same request, as [`Broken`](Self::Broken).
    Erred,
}

/// What the page and the metrics show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not heard of yet; tried all the same.
    Joining,
    /// Takes work.
    Up,
    /// Ejected by failed requests; a trial request decides its return.
    Ejected,
    /// Down by its probes.
    Down,
}

impl State {
    /// Lower-case name for pages and labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            State::Joining => "joining",
            State::Up => "up",
            State::Ejected => "ejected",
            State::Down => "down",
        }
    }
}

/// The health of one replica.
#[derive(Debug, Default)]
pub struct Health {
    failures: AtomicU32,
    ejections: AtomicU32,
    ejected_until_ms: AtomicU64,
    trial_at_ms: AtomicU64,
    succeeded_at_ms: AtomicU64,
    probes_failed: AtomicU32,
    probes_ok: AtomicU32,
}

impl Health {
    /// A request got an answer (any answer that the engine meant, a 4xx too).
    pub fn succeeded(&self, now_ms: u64) {
        self.succeeded_at_ms.store(now_ms.max(1), Relaxed);
        // Plain loads first: the good case must not write a line that all cores read.
        if self.failures.load(Relaxed) != 0 || self.ejected_until_ms.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
            self.ejections.store(0, Relaxed);
            self.ejected_until_ms.store(0, Relaxed);
        }
    }

    /// A request failed. True when that ejected the replica now.
    pub fn failed(&self, failure: Failure, now_ms: u64) -> bool {
        let failures = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        let by_degrees = matches!(failure, Failure::Broken | Failure::Erred);
        let at_once = !by_degrees || self.ejected_until_ms.load(Relaxed) != 0;
        if !at_once && failures < FAILURES_MAX {
            return false;
        }
        if now_ms < self.ejected_until_ms.load(Relaxed) {
            return false; // Requests that were under way when it was ejected say nothing new.
        }
        let doublings = self.ejections.fetch_add(1, Relaxed).min(6);
        let ms = (EJECT_MS_MIN << doublings).min(EJECT_MS_MAX);
        self.ejected_until_ms.store(now_ms.saturating_add(ms), Relaxed);
        self.trial_at_ms.store(0, Relaxed);
        true
    }

    /// A probe ended.
    pub fn probed(&self, ok: bool) {
        if ok {
            self.probes_failed.store(0, Relaxed);
            self.probes_ok.store(1, Relaxed);
        } else {
            let failed = self.probes_failed.load(Relaxed).saturating_add(1);
            self.probes_failed.store(failed, Relaxed);
        }
    }

    /// Shown state.
    #[must_use]
    pub fn state(&self, now_ms: u64) -> State {
        if self.ejected_until_ms.load(Relaxed) != 0 {
            return State::Ejected;
        }
        let succeeded = self.succeeded_at_ms.load(Relaxed);
        let proven = succeeded != 0 && now_ms.saturating_sub(succeeded) < EVIDENCE_MS;
        if !proven && self.probes_failed.load(Relaxed) >= PROBES_MAX {
            return State::Down;
        }
        if succeeded == 0 && self.probes_ok.load(Relaxed) == 0 {
            return State::Joining;
        }
        State::Up
    }

    /// May a request be sent now? Changes nothing, so it can be asked of every candidate; the one
    /// that is chosen calls [`start`](Self::start).
    #[must_use]
    pub fn eligible(&self, now_ms: u64) -> bool {
        match self.state(now_ms) {
            State::Joining | State::Up => true,
            State::Down => false,
            State::Ejected => {
                now_ms >= self.ejected_until_ms.load(Relaxed)
                    && now_ms.saturating_sub(self.trial_at_ms.load(Relaxed)) >= TRIAL_MS
            }
        }
    }

    /// The request that was chosen for this replica starts: after an ejection it is the trial, and
    /// no other starts beside it for a while.
    pub fn start(&self, now_ms: u64) {
        if self.ejected_until_ms.load(Relaxed) != 0 {
            self.trial_at_ms.store(now_ms, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_broken_requests_eject_and_one_trial_returns() {
        let h = Health::default();
        assert!(!h.failed(Failure::Broken, 10_000));
        assert!(!h.failed(Failure::Broken, 10_000));
        assert!(h.failed(Failure::Broken, 10_000));
        assert!(!h.eligible(10_499));
        assert_eq!(h.state(10_499), State::Ejected);
        assert!(h.eligible(10_500));
        h.start(10_500);
        assert!(!h.eligible(10_501), "one trial at a time");
        h.succeeded(10_600);
        assert!(h.eligible(10_601));
        assert_eq!(h.state(10_601), State::Up);
    }

    #[test]
    fn a_refused_connection_ejects_at_once_and_longer_each_time() {
        let h = Health::default();
        assert!(h.failed(Failure::Refused, 1_000));
        assert!(!h.failed(Failure::Refused, 1_001), "requests under way add nothing");
        assert!(!h.eligible(1_499) && h.eligible(1_500));
        h.start(1_500);
        assert!(h.failed(Failure::Refused, 1_501));
        assert!(!h.eligible(2_500) && h.eligible(2_501));
    }

    #[test]
    fn a_success_between_failures_starts_the_count_anew() {
        let h = Health::default();
        for now in 0..100 {
            h.failed(Failure::Broken, now);
            h.failed(Failure::Broken, now);
            h.succeeded(now);
        }
        assert_eq!(h.state(100), State::Up);
    }

    #[test]
    fn passive_evidence_outweighs_probes_both_ways() {
        let h = Health::default();
        h.succeeded(1_000);
        for _ in 0..9 {
            h.probed(false);
        }
        assert_eq!(h.state(2_000), State::Up, "it serves: /health is only blocked");
        assert_eq!(h.state(6_000), State::Down, "no traffic proves it any more");
        h.probed(true);
        assert_eq!(h.state(6_000), State::Up);
        h.failed(Failure::Refused, 6_000);
        h.probed(true);
        assert_eq!(h.state(6_001), State::Ejected, "a good probe does not lift an ejection");
    }

    #[test]
    fn a_joining_replica_is_tried() {
        let h = Health::default();
        assert_eq!(h.state(0), State::Joining);
        assert!(h.eligible(0));
    }
}
