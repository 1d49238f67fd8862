//! May a replica be sent work? Two sources of evidence, kept apart, and the operator's word.
//!
//! *Passive*: what the cores see of their own requests. It outweighs the probes both ways: a
//! replica that fails requests is ejected whatever `/health` says (a draining vLLM answers 200 to
//! the end), and one that serves requests stays in whatever `/health` says. One that lets requests
//! wait in silence, as a frozen vLLM does, becomes suspect.
//! *Active*: `/health`, asked by the control thread; it decides where there is no recent traffic.
//!
//! Who joins a running fleet or comes back starts slowly: its caches are empty and its first steps
//! are slow, and a fleet that sees an idle replica would flood it.
//!
//! State is a handful of relaxed atomics that every core reads and writes: wrong by a moment costs
//! one attempt, never correctness. Time (ms since process start) is an argument.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::runtime::seldom::Seldom;

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
/// Who joined or came back takes its whole share after so long.
const RAMP_MS: u64 = 10_000;
/// The share that it begins with.
const RAMP_MIN: f64 = 0.1;
/// Who says that it is full, or does not take our key, is left alone so long.
const UNWILLING_MS: u64 = 1_000;
/// A suspect that no probe can clear gets a client's request as its trial after so long.
const SUSPECT_MS: u64 = 30_000;

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
    /// Takes nothing new and finishes what runs: the operator, its source or it itself says so.
    Draining,
    /// Lets requests wait in silence, or fails some while its probes fail: nothing new until it
    /// has answered one.
    Suspect,
    /// Ejected by failed requests; a trial request decides its return.
    Ejected,
    /// Put to sleep: it answers probes, and requests would hang.
    Sleeping,
    /// Down by its probes.
    Down,
}

impl State {
    /// All states.
    pub const ALL: [State; 7] = [
        State::Joining,
        State::Up,
        State::Draining,
        State::Suspect,
        State::Ejected,
        State::Sleeping,
        State::Down,
    ];

    /// Lower-case name for pages and labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            State::Joining => "joining",
            State::Up => "up",
            State::Draining => "draining",
            State::Suspect => "suspect",
            State::Ejected => "ejected",
            State::Sleeping => "sleeping",
            State::Down => "down",
        }
    }
}

/// The health of one replica.
#[derive(Debug, Default)]
pub struct Health {
    failures: AtomicU32,
    /// Streams in a row that broke off after they had begun well.
    cuts: AtomicU32,
    ejections: AtomicU32,
    ejected_until_ms: AtomicU64,
    trial_at_ms: AtomicU64,
    succeeded_at_ms: AtomicU64,
    /// It is left alone until then.
    unwilling_until_ms: AtomicU64,
    /// That it does not take our key.
    denied_said: Seldom,
    probes_failed: AtomicU32,
    probes_ok: AtomicU32,
    /// It ejected itself: it said that it takes no more work.
    closing: AtomicBool,
    /// The operator or its source wants it drained.
    draining: AtomicBool,
    /// Since when it is suspect; 0 = it is not.
    suspect_ms: AtomicU64,
    /// Its first good probe begins a slow start.
    newcomer: AtomicBool,
    /// When its slow start began; 0 = none.
    ramp_from_ms: AtomicU64,
}

impl Health {
    /// It joins a running fleet: no work before its first good probe, then slowly.
    pub fn join_late(&self) {
        self.newcomer.store(true, Relaxed);
    }

    /// Drains it, or takes it back.
    pub fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Relaxed);
    }

    /// Is it drained by the operator or its source?
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Requests wait there in silence, or do so no more. True when that is news.
    pub fn set_suspect(&self, suspect: bool, now_ms: u64) -> bool {
        let was = self.suspect_ms.load(Relaxed) != 0;
        if was != suspect {
            self.suspect_ms.store(if suspect { now_ms.max(1) } else { 0 }, Relaxed);
            self.trial_at_ms.store(now_ms, Relaxed);
        }
        was != suspect
    }

    /// Since when it is suspect for its silence, in ms; 0 = it is not.
    #[must_use]
    pub fn suspect_ms(&self) -> u64 {
        self.suspect_ms.load(Relaxed)
    }

    /// Is it suspect for its silence?
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.suspect_ms.load(Relaxed) != 0
    }

    /// It has begun anew with empty caches, though no probe has missed it.
    pub fn restarted(&self, now_ms: u64) {
        self.ramp_from_ms.store(now_ms.max(1), Relaxed);
    }

    /// When it last began anew or came back, in ms; 0 = never.
    #[must_use]
    pub fn began_ms(&self) -> u64 {
        self.ramp_from_ms.load(Relaxed)
    }

    /// The share of its work that it should get: from 0.1 to 1 over ten seconds after it joined or
    /// came back.
    #[must_use]
    pub fn ramp(&self, now_ms: u64) -> f64 {
        if self.newcomer.load(Relaxed) {
            return RAMP_MIN;
        }
        match self.ramp_from_ms.load(Relaxed) {
            0 => 1.0,
            from => {
                let passed = now_ms.saturating_sub(from) as f64 / RAMP_MS as f64;
                (RAMP_MIN + (1.0 - RAMP_MIN) * passed).min(1.0)
            }
        }
    }

    /// A request got an answer (any answer that the engine meant, a 4xx too).
    pub fn succeeded(&self, now_ms: u64) {
        self.succeeded_at_ms.store(now_ms.max(1), Relaxed);
        // Plain loads first: the good case must not write a line that all cores read.
        let away = self.ejected_until_ms.load(Relaxed) != 0 || self.is_suspect();
        if away || self.failures.load(Relaxed) != 0 {
            if away {
                self.restarted(now_ms);
            }
            self.suspect_ms.store(0, Relaxed);
            self.failures.store(0, Relaxed);
            // Who cuts its streams begins them well.
            if self.cuts.load(Relaxed) == 0 {
                self.ejections.store(0, Relaxed);
            }
            self.ejected_until_ms.store(0, Relaxed);
            self.closing.store(false, Relaxed);
        }
    }

    /// A stream ended as it should.
    pub fn finished(&self) {
        if self.cuts.load(Relaxed) != 0 {
            self.cuts.store(0, Relaxed);
            self.ejections.store(0, Relaxed);
        }
    }

    /// It has no room, or does not serve us. That is no illness, but others come first for a while.
    pub fn unwilling(&self, now_ms: u64) {
        self.unwilling_until_ms.store(now_ms.saturating_add(UNWILLING_MS), Relaxed);
    }

    /// It does not take our key. True when that is to be said.
    pub fn denied(&self, now_ms: u64) -> bool {
        self.unwilling(now_ms);
        self.denied_said.due(now_ms)
    }

    /// Has it been unwilling within a second?
    #[must_use]
    pub fn is_unwilling(&self, now_ms: u64) -> bool {
        now_ms < self.unwilling_until_ms.load(Relaxed)
    }

    /// A request failed. True when that ejected the replica now.
    pub fn failed(&self, failure: Failure, now_ms: u64) -> bool {
        let by_degrees = matches!(failure, Failure::Broken | Failure::Erred);
        self.counted(&self.failures, !by_degrees, now_ms, failure == Failure::Draining)
    }

    /// A stream broke off whose beginning had gone out. Counted apart from what fails before: the
    /// next stream begins well, too. True when that ejected the replica now.
    pub fn cut(&self, now_ms: u64) -> bool {
        self.counted(&self.cuts, false, now_ms, false)
    }

    fn counted(&self, failures: &AtomicU32, at_once: bool, now_ms: u64, closing: bool) -> bool {
        let failures = failures.fetch_add(1, Relaxed).saturating_add(1);
        let at_once = at_once || self.ejected_until_ms.load(Relaxed) != 0;
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
        self.closing.store(closing, Relaxed);
        true
    }

    /// A probe ended.
    pub fn probed(&self, ok: bool, now_ms: u64) {
        if ok {
            let was_down = self.probes_failed.load(Relaxed) >= PROBES_MAX;
            if was_down || self.newcomer.swap(false, Relaxed) {
                self.newcomer.store(false, Relaxed);
                self.restarted(now_ms);
            }
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
        if self.draining.load(Relaxed) {
            return State::Draining;
        }
        if self.ejected_until_ms.load(Relaxed) != 0 {
            let closing = self.closing.load(Relaxed);
            return if closing { State::Draining } else { State::Ejected };
        }
        if self.is_suspect() {
            return State::Suspect;
        }
        let succeeded = self.succeeded_at_ms.load(Relaxed);
        let proven = succeeded != 0 && now_ms.saturating_sub(succeeded) < EVIDENCE_MS;
        if self.probes_failed.load(Relaxed) >= PROBES_MAX {
            if !proven {
                return State::Down;
            }
            if self.failures.load(Relaxed) > 0 {
                return State::Suspect;
            }
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
        let trial_due = |since_ms, after_ms| {
            now_ms >= since_ms
                && now_ms.saturating_sub(self.trial_at_ms.load(Relaxed)) >= after_ms
                && !self.draining.load(Relaxed)
        };
        let ejected_until_ms = self.ejected_until_ms.load(Relaxed);
        match self.state(now_ms) {
            State::Joining => !self.newcomer.load(Relaxed),
            State::Up => true,
            State::Down | State::Sleeping => false,
            State::Suspect => self.is_suspect() && trial_due(0, SUSPECT_MS),
            State::Ejected | State::Draining => {
                ejected_until_ms != 0 && trial_due(ejected_until_ms, TRIAL_MS)
            }
        }
    }

    /// The request that was chosen for this replica starts: after an ejection it is the trial, and
    /// no other starts beside it for a while.
    pub fn start(&self, now_ms: u64) {
        if self.ejected_until_ms.load(Relaxed) != 0 || self.is_suspect() {
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
    fn streams_that_break_off_eject_however_well_they_begin() {
        let h = Health::default();
        for now in [1_000, 1_010] {
            h.succeeded(now);
            assert!(!h.cut(now + 5));
        }
        h.succeeded(1_020);
        assert!(h.cut(1_025));
        assert!(!h.eligible(1_524) && h.eligible(1_525));
        h.start(1_525);
        h.succeeded(1_530);
        assert!(h.eligible(1_531), "it may have been mended");
        assert!(h.cut(1_540), "it was not");
        assert!(!h.eligible(2_539) && h.eligible(2_540), "longer each time");
        h.start(2_540);
        h.succeeded(2_550);
        h.finished();
        assert!(!h.cut(2_560) && h.eligible(2_561), "one that ends well begins the count anew");
    }

    #[test]
    fn who_is_unwilling_is_so_for_a_second_and_never_ill() {
        let h = Health::default();
        h.succeeded(1_000);
        h.unwilling(2_000);
        assert!(h.is_unwilling(2_999) && !h.is_unwilling(3_000));
        assert!(h.eligible(2_500) && h.state(2_500) == State::Up);
        assert!(h.denied(5_000) && h.is_unwilling(5_999));
        assert!(!h.denied(64_999) && h.denied(65_000), "said once a minute");
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
            h.probed(false, 1_000);
        }
        assert_eq!(h.state(2_000), State::Up, "it serves: /health is only blocked");
        assert_eq!(h.state(6_000), State::Down, "no traffic proves it any more");
        h.probed(true, 6_000);
        assert_eq!(h.state(6_000), State::Up);
        h.failed(Failure::Refused, 6_000);
        h.probed(true, 6_000);
        assert_eq!(h.state(6_001), State::Ejected, "a good probe does not lift an ejection");
    }

    #[test]
    fn a_joining_replica_is_tried() {
        let h = Health::default();
        assert_eq!(h.state(0), State::Joining);
        assert!(h.eligible(0));
    }

    #[test]
    fn a_drained_replica_gets_nothing_not_even_a_trial() {
        let h = Health::default();
        h.failed(Failure::Refused, 0);
        h.set_draining(true);
        assert_eq!((h.state(60_000), h.eligible(60_000)), (State::Draining, false));
        h.set_draining(false);
        assert_eq!((h.state(60_000), h.eligible(60_000)), (State::Ejected, true));
    }

    #[test]
    fn an_engine_that_closes_shows_as_draining_and_is_tried_later() {
        let h = Health::default();
        h.failed(Failure::Draining, 1_000);
        assert_eq!((h.state(1_000), h.eligible(1_499)), (State::Draining, false));
        assert!(h.eligible(1_500));
        h.succeeded(1_600);
        assert_eq!(h.state(1_600), State::Up);
    }

    #[test]
    fn a_suspect_waits_for_its_trial() {
        let h = Health::default();
        assert!(h.set_suspect(true, 1_000));
        assert!(!h.set_suspect(true, 2_000), "no news");
        assert_eq!((h.state(2_000), h.eligible(30_999)), (State::Suspect, false));
        assert!(h.eligible(31_000));
        h.start(31_000);
        assert!(!h.eligible(31_001), "one trial at a time");
        assert!(h.set_suspect(false, 32_000));
        assert!(h.eligible(32_000));
    }

    #[test]
    fn failed_requests_and_failed_probes_together_outweigh_a_recent_success() {
        let h = Health::default();
        h.succeeded(1_000);
        h.probed(false, 1_100);
        h.probed(false, 1_200);
        h.failed(Failure::Broken, 1_300);
        assert_eq!((h.state(1_300), h.eligible(1_300)), (State::Suspect, false));
        h.probed(true, 1_400);
        assert!(h.eligible(1_400));
    }

    #[test]
    fn newcomers_and_those_who_return_start_slowly() {
        let first = Health::default();
        first.probed(true, 10);
        assert_eq!(first.ramp(10).to_bits(), 1.0f64.to_bits(), "there from the start");
        let h = Health::default();
        h.join_late();
        assert!(!h.eligible(1_000) && h.ramp(1_000) < 0.11);
        h.probed(true, 2_000);
        assert!(h.eligible(2_000) && h.ramp(2_000) < 0.11);
        assert!((h.ramp(7_000) - 0.55).abs() < 1e-9);
        assert_eq!(h.ramp(12_000).to_bits(), 1.0f64.to_bits());
        h.probed(false, 20_000);
        h.probed(true, 21_000);
        assert!(h.ramp(21_000) > 0.9, "one missed probe is no absence");
        h.probed(false, 30_000);
        h.probed(false, 31_000);
        h.probed(true, 32_000);
        assert!(h.ramp(32_000) < 0.11);
        h.failed(Failure::Refused, 50_000);
        h.succeeded(51_000);
        assert!(h.ramp(51_000) < 0.11, "back from an ejection");
    }
}
