//! Choosing the least of something among the eligible, ties at random.

use super::types::{Candidate, FleetView, Rng};

/// The eligible candidate of the least `score`, ties at random; what is not a number comes last.
pub(super) fn least(
    view: &impl FleetView,
    rng: &mut Rng,
    mut score: impl FnMut(usize, &Candidate) -> f64,
) -> Option<usize> {
    let mut best: Option<(f64, usize)> = None;
    let mut ties = 0;
    for index in 0..view.len() {
        let candidate = view.candidate(index);
        if !candidate.eligible {
            continue;
        }
        let value = score(index, &candidate);
        let value = if value.is_nan() { f64::INFINITY } else { value };
        match best {
            Some((least, _)) if value > least => {}
            Some((least, _)) if value == least => {
                ties += 1;
                if rng.usize(..ties) == 0 {
                    best = Some((value, index));
                }
            }
            _ => {
                ties = 1;
                best = Some((value, index));
            }
        }
    }
    best.map(|(_, index)| index)
}
