//! What a picker remembers of its own picks while the view does not show them yet.
//!
//! A view that is scraped shows the same numbers until the next scrape: without memory every
//! request in between goes to the replica that looked best, and a herd forms. A ledger shows a
//! dispatch at once: there nothing is remembered, lest what has ended since counts for ever. Owned
//! by one picker.

use super::types::Candidate;

/// Picks since a replica's numbers last changed.
#[derive(Clone, Copy, Debug, Default)]
struct Echo {
    /// Requests, pending tokens and decodes when the picks were made.
    seen: (u64, u64, u64),
    tokens: u64,
    requests: u64,
}

/// The echoes of a fleet, by index.
#[derive(Debug, Default)]
pub(super) struct Echoes(Vec<Echo>);

impl Echoes {
    /// Adds to `candidate` what the view does not show yet.
    pub(super) fn add_to(&mut self, index: usize, candidate: &mut Candidate) {
        let seen = (candidate.requests, candidate.pending_tokens, candidate.decodes);
        if index >= self.0.len() {
            self.0.resize(index + 1, Echo::default());
        }
        let Some(echo) = self.0.get_mut(index) else { return };
        if echo.seen != seen {
            // Of what was sent before it was read, half may still wait.
            *echo = Echo { seen, tokens: echo.tokens / 2, requests: echo.requests / 2 };
        }
        candidate.pending_tokens = candidate.pending_tokens.saturating_add(echo.tokens);
        candidate.pending_requests = candidate.pending_requests.saturating_add(echo.requests);
        candidate.requests = candidate.requests.saturating_add(echo.requests);
    }

    /// A request with so many uncached tokens was picked for replica `index`.
    pub(super) fn picked(&mut self, index: usize, uncached: u64) {
        if let Some(echo) = self.0.get_mut(index) {
            echo.tokens = echo.tokens.saturating_add(uncached);
            echo.requests = echo.requests.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pick_is_remembered_while_the_view_does_not_move_and_by_half_after() {
        let mut echoes = Echoes::default();
        let shown = Candidate { requests: 3, pending_tokens: 10, ..Candidate::default() };
        let mut first = shown;
        echoes.add_to(5, &mut first);
        assert_eq!(first, shown);
        echoes.picked(5, 700);
        echoes.picked(5, 70);
        let mut second = shown;
        echoes.add_to(5, &mut second);
        assert_eq!((second.pending_tokens, second.pending_requests, second.requests), (780, 2, 5));
        let mut moved = Candidate { requests: 5, ..shown };
        echoes.add_to(5, &mut moved);
        assert_eq!((moved.pending_tokens, moved.requests), (10 + 385, 6));
    }
}
