//! The policies that know no prompt: each in turn, the fewest requests, the better of two.

use super::choose::least;
use super::types::{Candidate, FleetView, Rng};

fn count(view: &impl FleetView) -> usize {
    (0..view.len()).filter(|&i| view.candidate(i).eligible).count()
}

fn nth(view: &impl FleetView, n: usize) -> Option<(usize, Candidate)> {
    (0..view.len()).map(|i| (i, view.candidate(i))).filter(|(_, c)| c.eligible).nth(n)
}

/// The eligible replica whose turn it is.
pub(super) fn in_turn(view: &impl FleetView, turn: u64) -> Option<usize> {
    let at = turn.checked_rem(count(view) as u64)?;
    nth(view, at as usize).map(|(index, _)| index)
}

/// The less loaded of two drawn at random, by tokens in flight over weight.
pub(super) fn two_choices(view: &impl FleetView, rng: &mut Rng) -> Option<usize> {
    let count = count(view);
    if count < 2 {
        return nth(view, 0).map(|(index, _)| index);
    }
    let first = rng.usize(..count);
    // A second draw from the others: shifted past the first.
    let second = rng.usize(..count - 1);
    let second = if second >= first { second + 1 } else { second };
    let ((a, one), (b, other)) = (nth(view, first)?, nth(view, second)?);
    Some(if load(&other) < load(&one) { b } else { a })
}

fn load(candidate: &Candidate) -> f64 {
    let weight = candidate.weight;
    candidate.load_tokens as f64 / if weight > 0.0 { weight } else { 1.0 }
}

/// The fewest requests, ties at random.
pub(super) fn least_requests(view: &impl FleetView, rng: &mut Rng) -> Option<usize> {
    least(view, rng, |_, candidate| candidate.requests as f64)
}
