//! The last decisions of a core, for the admin listener: what was asked, what was chosen, what was
//! predicted, and, for some, every candidate as it was seen.
//!
//! The core writes under a lock that only the admin listener contends for, and does not wait for
//! it: what it cannot write is left out and counted. Rings of fixed size, whose places are used
//! again, so that in steady state nothing is allocated.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::replicas::Pool;
use crate::routing::{Candidate, Pick, Policy, Request};
use crate::usage::SmallId;

/// Decisions that are kept.
const RECENT: usize = 256;
/// Decisions that are kept with all their candidates.
const WHOLE: usize = 16;
/// One decision in so many is kept whole, besides those that are predicted to miss their limit.
const WHOLE_EVERY: u64 = 64;

/// One decision.
#[derive(Clone)]
pub(super) struct Entry {
    pub id: SmallId,
    /// When, in ms since 1970.
    pub at_unix_ms: u64,
    /// The pool as it was; the pick's index is of its lanes.
    pub pool: Arc<Pool>,
    pub policy: Policy,
    /// Which attempt of the request, from 1.
    pub attempt: u32,
    pub request: Request,
    pub pick: Pick,
    /// What looking up and choosing took.
    pub route_ns: u64,
    /// The time to the first content as it was, from the request sent.
    pub ttft_ms: Option<f64>,
    /// Every candidate, by lane; empty when they were not kept.
    pub candidates: Vec<Candidate>,
}

#[derive(Default)]
struct Ring {
    /// Decisions so far; the n-th is at n modulo the ring's size.
    count: u64,
    recent: Vec<Entry>,
    /// Number of a decision, and its candidates.
    whole: Vec<(u64, Vec<Candidate>)>,
    next_whole: usize,
}

/// See the module.
#[derive(Default)]
pub(super) struct Decisions {
    ring: Mutex<Ring>,
    left_out: AtomicU64,
}

impl Decisions {
    /// Enters a decision among `candidates`; the entry's own are empty. Its number, for
    /// [`first_token`](Self::first_token).
    pub(super) fn enter(&self, entry: Entry, candidates: &[Candidate]) -> Option<u64> {
        let Ok(mut ring) = self.ring.try_lock() else {
            self.left_out.fetch_add(1, Relaxed);
            return None;
        };
        let number = ring.count;
        ring.count += 1;
        let late = entry.pick.ttft_ms > entry.request.ttft_limit_ms;
        if late || number.is_multiple_of(WHOLE_EVERY) {
            ring.keep_whole(number, candidates);
        }
        let place = (number % RECENT as u64) as usize;
        match ring.recent.get_mut(place) {
            Some(old) => *old = entry,
            None => ring.recent.push(entry),
        }
        Some(number)
    }

    /// The first content of that decision's request came after `ttft_ms`.
    pub(super) fn first_token(&self, number: u64, ttft_ms: f64) {
        let Ok(mut ring) = self.ring.try_lock() else { return };
        if ring.count.saturating_sub(number) <= RECENT as u64
            && let Some(entry) = ring.recent.get_mut((number % RECENT as u64) as usize)
        {
            entry.ttft_ms = Some(ttft_ms);
        }
    }

    /// A copy of what is kept, or of the `last` so many of it, the newest first, and how many
    /// decisions were left out.
    pub(super) fn copy(&self, last: Option<usize>) -> (Vec<Entry>, u64) {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let last = last.unwrap_or(RECENT).min(RECENT);
        let oldest = ring.count.saturating_sub(last as u64);
        let entries = (oldest..ring.count).rev().filter_map(|number| {
            let mut entry = ring.recent.get((number % RECENT as u64) as usize)?.clone();
            let whole = ring.whole.iter().find(|(of, _)| *of == number);
            entry.candidates = whole.map(|(_, kept)| kept.clone()).unwrap_or_default();
            Some(entry)
        });
        (entries.collect(), self.left_out.load(Relaxed))
    }
}

impl Ring {
    fn keep_whole(&mut self, number: u64, candidates: &[Candidate]) {
        if self.whole.len() < WHOLE {
            self.whole.push((number, candidates.to_vec()));
            return;
        }
        if let Some((of, kept)) = self.whole.get_mut(self.next_whole) {
            *of = number;
            kept.clear();
            kept.extend_from_slice(candidates);
        }
        self.next_whole = (self.next_whole + 1) % WHOLE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::replicas::{Files, Fleet};

    fn pool() -> Arc<Pool> {
        let text = "[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n";
        let config = config::Config::from_text("t", text).unwrap();
        Arc::clone(&Fleet::new(&config, 1, &Files::default(), 0).pools[0])
    }

    fn entry(pool: &Arc<Pool>, n: u64, ttft_ms: f64) -> Entry {
        Entry {
            id: SmallId::new(&n.to_string()).unwrap(),
            at_unix_ms: n,
            pool: Arc::clone(pool),
            policy: Policy::Cost,
            attempt: 1,
            request: Request { ttft_limit_ms: 400.0, ..Request::default() },
            pick: Pick { ttft_ms, ..Pick::default() },
            route_ns: 0,
            ttft_ms: None,
            candidates: Vec::new(),
        }
    }

    #[test]
    fn the_last_are_kept_and_some_of_them_whole() {
        let (decisions, pool) = (Decisions::default(), pool());
        let candidates = [Candidate::default(); 3];
        for n in 0..1_000 {
            // Decision 990 is predicted to come late.
            let ttft_ms = if n == 990 { 500.0 } else { 50.0 };
            assert_eq!(decisions.enter(entry(&pool, n, ttft_ms), &candidates), Some(n));
        }
        decisions.first_token(995, 61.0);
        decisions.first_token(3, 1.0);
        let (newest, _) = decisions.copy(Some(2));
        assert_eq!(newest.iter().map(|e| e.at_unix_ms).collect::<Vec<_>>(), [999, 998]);
        let (kept, left_out) = decisions.copy(None);
        assert_eq!((kept.len(), left_out), (RECENT, 0));
        assert_eq!((kept[0].at_unix_ms, kept[255].at_unix_ms), (999, 744));
        let whole: Vec<_> = kept.iter().filter(|e| !e.candidates.is_empty()).collect();
        let numbers: Vec<_> = whole.iter().map(|e| e.at_unix_ms).collect();
        assert_eq!(numbers, [990, 960, 896, 832, 768]);
        assert_eq!(whole[0].candidates, candidates);
        let seen: Vec<_> = kept.iter().filter_map(|e| e.ttft_ms).collect();
        assert_eq!(seen, [61.0], "one that has gone is not another");
    }

    #[test]
    fn a_core_does_not_wait() {
        let (decisions, pool) = (Decisions::default(), pool());
        decisions.enter(entry(&pool, 0, 1.0), &[]);
        let held = decisions.ring.lock().unwrap();
        assert_eq!(decisions.enter(entry(&pool, 1, 1.0), &[]), None);
        decisions.first_token(0, 5.0);
        drop(held);
        let (kept, left_out) = decisions.copy(None);
        assert_eq!((kept.len(), left_out, kept[0].ttft_ms), (1, 1, None));
    }
}
