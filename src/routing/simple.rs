//! The policies that know no prompt: each in turn, the fewest requests, the better of two.

use super::types::{FleetView, Rng};

fn count(view: &impl FleetView) -> usize {
    (0..view.len()).filter(|&i| view.candidate(i).eligible).count()
}

fn nth(view: &impl FleetView, n: usize) -> Option<usize> {
    (0..view.len()).filter(|&i| view.candidate(i).eligible).nth(n)
}

/// The eligible replica whose turn it is.
pub(super) fn in_turn(view: &impl FleetView, turn: u64) -> Option<usize> {
    let at = turn.checked_rem(count(view) as u64)?;
    nth(view, at as usize)
}

/// The less loaded of two drawn at random, by tokens in flight over weight.
pub(super) fn two_choices(view: &impl FleetView, rng: &mut Rng) -> Option<usize> {
    let count = count(view);
    if count < 2 {
        return nth(view, 0);
    }
    let first = rng.usize(..count);
    // A second draw from the others: shifted past the first.
    let second = rng.usize(..count - 1);
    let second = if second >= first { second + 1 } else { second };
    let (a, b) = (nth(view, first)?, nth(view, second)?);
    let load = |i: usize| {
        let c = view.candidate(i);
        c.load_tokens as f64 / if c.weight > 0.0 { c.weight } else { 1.0 }
    };
    Some(if load(b) < load(a) { b } else { a })
}

/// The fewest requests, ties at random.
pub(super) fn least_requests(view: &impl FleetView, rng: &mut Rng) -> Option<usize> {
    let mut best: Option<(u64, usize)> = None;
    let mut ties = 0;
    for i in 0..view.len() {
        let candidate = view.candidate(i);
        if !candidate.eligible {
            continue;
        }
        let requests = candidate.requests;
        match best {
            Some((least, _)) if requests > least => {}
            Some((least, _)) if requests == least => {
                ties += 1;
                if rng.usize(..ties) == 0 {
                    best = Some((requests, i));
                }
            }
            _ => {
                ties = 1;
                best = Some((requests, i));
            }
        }
    }
    best.map(|(_, i)| i)
}
