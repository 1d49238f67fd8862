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

#[cfg(test)]
mod tests {
    use super::super::fleet::{Fleet, decide, pick, usual};
    use super::super::{Decision, Model, Picker, Policy};
    use super::*;
    use crate::engine::StepModel;

    fn loaded(loads: &[u64]) -> Fleet {
        let one =
            |&load: &u64| Candidate { load_tokens: load, requests: load, ..Candidate::default() };
        Fleet(loads.iter().map(one).collect())
    }

    fn spread(policy: Policy, fleet: &Fleet, picks: u64) -> Vec<u64> {
        let mut counts = vec![0; fleet.0.len()];
        (0..picks).for_each(|seed| counts[pick(policy, &usual(), fleet, seed)] += 1);
        counts
    }

    #[test]
    fn two_choices_never_take_the_most_loaded() {
        let counts = spread(Policy::P2c, &loaded(&[900, 10, 20, 30]), 6000);
        assert_eq!(counts[0], 0);
        // Ranked 2nd, 3rd, 4th of four: drawn best in 3, 2, 1 of the 6 pairs.
        assert!(counts[1] > counts[2] && counts[2] > counts[3] && counts[3] > 500, "{counts:?}");
        // By weight: 30 over 4 is less than 10.
        let mut fleet = loaded(&[10, 30]);
        fleet.0[1].weight = 4.0;
        assert_eq!(spread(Policy::P2c, &fleet, 50), [0, 50]);
    }

    #[test]
    fn the_fewest_requests_ties_at_random() {
        let counts = spread(Policy::LeastRequests, &loaded(&[5, 1, 1, 9]), 1000);
        assert_eq!((counts[0], counts[3]), (0, 0));
        assert!(counts[1] > 400 && counts[2] > 400, "{counts:?}");
    }

    #[test]
    fn each_in_turn_and_the_ineligible_left_out() {
        let mut fleet = loaded(&[0, 0, 0]);
        fleet.0[1].eligible = false;
        let step = StepModel::a100_8b();
        let model = Model { step: &step, step_tokens_max: 2048 };
        let (mut picker, mut rng) = (Picker::new(Policy::RoundRobin), Rng::with_seed(1));
        let mut counts = [0; 3];
        for _ in 0..10 {
            match picker.pick(&usual(), &fleet, &model, 0, &mut rng) {
                Decision::Pick(pick) => counts[pick.replica] += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(counts, [5, 0, 5]);
        fleet.0[0].eligible = false;
        fleet.0[2].eligible = false;
        assert_eq!(decide(Policy::RoundRobin, &usual(), &fleet, 1), Decision::Nobody);
    }
}
