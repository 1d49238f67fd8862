//! What a picker remembers of its own picks while the view does not show them yet.
//!
//! A view that is scraped shows the same numbers until the next scrape: without memory every
//! request in between goes to the replica that looked best, and a herd forms. So a pick counts as
//! pending until its predicted first token, and then as a decode until the numbers have moved,
//! which is when they have it among what runs. A ledger shows a dispatch at once: there nothing is
//! remembered, lest what has ended since counts for ever. Owned by one picker; time is an argument.

use std::collections::VecDeque;

use super::types::Candidate;

/// Picks that are remembered of a replica; past that the oldest goes.
const PICKS_MAX: usize = 64;

/// A pick that the view may not show.
#[derive(Clone, Copy, Debug)]
struct Picked {
    /// When its first token is due.
    first_us: u64,
    /// Uncached tokens of its prompt.
    uncached: u64,
    /// KV tokens that it has when it decodes.
    kv_tokens: u64,
    /// The numbers have moved since: it runs or waits there by their count.
    shown: bool,
}

/// Picks of one replica that still count.
#[derive(Clone, Debug, Default)]
struct Echo {
    /// Requests, blocks and decodes when the last picks were made.
    seen: (u64, u64, u64),
    picks: VecDeque<Picked>,
}

impl Echo {
    fn add_to(&mut self, candidate: &mut Candidate, now_us: u64) {
        let seen = (candidate.requests, candidate.blocks_used, candidate.decodes);
        if self.seen != seen {
            self.seen = seen;
            self.picks.retain(|pick| pick.first_us > now_us);
            self.picks.iter_mut().for_each(|pick| pick.shown = true);
        }
        for pick in &self.picks {
            let waits = pick.first_us > now_us;
            if waits {
                candidate.pending_tokens = candidate.pending_tokens.saturating_add(pick.uncached);
            }
            if pick.shown {
                continue;
            }
            candidate.requests = candidate.requests.saturating_add(1);
            if waits {
                candidate.pending_requests = candidate.pending_requests.saturating_add(1);
            } else {
                candidate.decodes = candidate.decodes.saturating_add(1);
                let kv_tokens = candidate.decode_kv_tokens.saturating_add(pick.kv_tokens);
                candidate.decode_kv_tokens = kv_tokens;
            }
        }
    }
}

/// The echoes of a fleet, by index.
#[derive(Debug, Default)]
pub(super) struct Echoes(Vec<Echo>);

impl Echoes {
    /// Adds to `candidate` what the view does not show yet.
    pub(super) fn add_to(&mut self, index: usize, candidate: &mut Candidate, now_us: u64) {
        if index >= self.0.len() {
            self.0.resize_with(index + 1, Echo::default);
        }
        if let Some(echo) = self.0.get_mut(index) {
            echo.add_to(candidate, now_us);
        }
    }

    /// A request was picked for replica `index`: its first token is expected in `ttft_ms`.
    pub(super) fn picked(
        &mut self,
        index: usize,
        (uncached, kv_tokens): (u64, u64),
        ttft_ms: f64,
        now_us: u64,
    ) {
        let Some(echo) = self.0.get_mut(index) else { return };
        if echo.picks.len() >= PICKS_MAX {
            echo.picks.pop_front();
        }
        let first_us = now_us.saturating_add((ttft_ms.max(0.0) * 1e3) as u64);
        echo.picks.push_back(Picked { first_us, uncached, kv_tokens, shown: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests, those of them that wait, tokens that wait, decodes and their KV at `now_us`.
    fn seen(echoes: &mut Echoes, mut shown: Candidate, now_us: u64) -> [u64; 5] {
        echoes.add_to(5, &mut shown, now_us);
        let Candidate { requests, pending_requests, pending_tokens, .. } = shown;
        [requests, pending_requests, pending_tokens, shown.decodes, shown.decode_kv_tokens]
    }

    #[test]
    fn a_pick_waits_then_decodes_until_the_view_has_it() {
        let mut echoes = Echoes::default();
        let kv = 100;
        let shown =
            Candidate { requests: 3, decodes: 3, decode_kv_tokens: kv, ..Candidate::default() };
        assert_eq!(seen(&mut echoes, shown, 0), [3, 0, 0, 3, 100]);
        echoes.picked(5, (700, 900), 50.0, 0);
        echoes.picked(5, (70, 800), 90.0, 0);
        assert_eq!(seen(&mut echoes, shown, 10_000), [5, 2, 770, 3, 100]);
        assert_eq!(seen(&mut echoes, shown, 60_000), [5, 1, 70, 4, 1000]);
        // Scraped: both run there by its count; the second one's prompt is still to be computed.
        let moved = Candidate { requests: 5, decodes: 5, decode_kv_tokens: 1800, ..shown };
        assert_eq!(seen(&mut echoes, moved, 70_000), [5, 0, 70, 5, 1800]);
        assert_eq!(seen(&mut echoes, moved, 90_000), [5, 0, 0, 5, 1800]);
    }

    #[test]
    fn the_oldest_of_many_picks_goes() {
        let mut echoes = Echoes::default();
        seen(&mut echoes, Candidate::default(), 0);
        (0..100).for_each(|_| echoes.picked(5, (1, 1), f64::NAN, 0));
        echoes.picked(9, (1, 1), 1.0, 0);
        assert_eq!(seen(&mut echoes, Candidate::default(), 0), [64, 0, 0, 64, 64]);
    }
}
