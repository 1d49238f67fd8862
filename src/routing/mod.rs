//! Picks one replica for a request. Pure: the view of the fleet, the request and the random number
//! are arguments; no I/O, no clock.
//!
//! Today's policies balance by what this gateway has in flight. The predicted-time cost of the
//! cache-aware router takes the same [`FleetView`] and [`Pick`].

/// How a pool chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The less loaded of two replicas drawn at random (Mitzenmacher 2001): near the best balance
    /// without the herd that "always the least" makes of stale numbers.
    #[default]
    P2c,
    /// Each in turn.
    RoundRobin,
    /// The fewest requests in flight, ties at random.
    LeastRequests,
}

/// What a policy sees of a pool.
pub trait FleetView {
    /// Number of replicas, eligible or not.
    fn len(&self) -> usize;
    /// True when there is no replica at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// May replica `index` take this request now (up, not tried before, holds the model)?
    fn eligible(&self, index: usize) -> bool;
    /// Tokens in flight at replica `index`, divided by its configured weight.
    fn load_tokens(&self, index: usize) -> u64;
    /// Requests in flight at replica `index`.
    fn requests(&self, index: usize) -> u64;
}

/// The chosen replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Index in the pool.
    pub replica: usize,
}

/// Chooses among the eligible replicas; `None` when there is none.
///
/// `random` is a fresh uniform number; `turn` counts the picks of this core for round robin.
pub fn pick(policy: Policy, view: &impl FleetView, random: u64, turn: u64) -> Option<Pick> {
    let replica = match policy {
        Policy::P2c => two_choices(view, random),
        Policy::RoundRobin => in_turn(view, turn),
        Policy::LeastRequests => least_requests(view, random),
    }?;
    Some(Pick { replica })
}

/// A small generator for the draws within one pick (SplitMix64, Steele et al. 2014).
fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *random;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Uniform in `0..bound` (Lemire's multiplication; the bias of 2^-64 is below notice).
fn below(random: &mut u64, bound: usize) -> usize {
    ((u128::from(next(random)) * bound as u128) >> 64) as usize
}

fn nth_eligible(view: &impl FleetView, n: usize) -> Option<usize> {
    (0..view.len()).filter(|&i| view.eligible(i)).nth(n)
}

fn two_choices(view: &impl FleetView, mut random: u64) -> Option<usize> {
    let count = (0..view.len()).filter(|&i| view.eligible(i)).count();
    match count {
        0 => None,
        1 => nth_eligible(view, 0),
        _ => {
            let first = below(&mut random, count);
            // A second draw from the others: shifted past the first.
            let mut second = below(&mut random, count - 1);
            if second >= first {
                second += 1;
            }
            let (a, b) = (nth_eligible(view, first)?, nth_eligible(view, second)?);
            let (load_a, load_b) = (view.load_tokens(a), view.load_tokens(b));
            Some(if load_b < load_a { b } else { a })
        }
    }
}

fn in_turn(view: &impl FleetView, turn: u64) -> Option<usize> {
    let count = (0..view.len()).filter(|&i| view.eligible(i)).count();
    let nth = turn.checked_rem(count as u64)?;
    nth_eligible(view, nth as usize)
}

fn least_requests(view: &impl FleetView, mut random: u64) -> Option<usize> {
    let mut best: Option<(u64, usize)> = None;
    let mut ties = 0;
    for i in (0..view.len()).filter(|&i| view.eligible(i)) {
        let requests = view.requests(i);
        match best {
            Some((least, _)) if requests > least => {}
            Some((least, _)) if requests == least => {
                ties += 1;
                if below(&mut random, ties) == 0 {
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Fleet {
        load: Vec<u64>,
        up: Vec<bool>,
    }

    impl FleetView for Fleet {
        fn len(&self) -> usize {
            self.load.len()
        }
        fn eligible(&self, index: usize) -> bool {
            self.up[index]
        }
        fn load_tokens(&self, index: usize) -> u64 {
            self.load[index]
        }
        fn requests(&self, index: usize) -> u64 {
            self.load[index]
        }
    }

    fn spread(policy: Policy, fleet: &Fleet, picks: u64) -> Vec<u64> {
        let mut counts = vec![0; fleet.load.len()];
        for turn in 0..picks {
            if let Some(p) = pick(policy, fleet, turn.wrapping_mul(0x1234_5678_9abc_def1), turn) {
                counts[p.replica] += 1;
            }
        }
        counts
    }

    #[test]
    fn nobody_eligible_is_none() {
        for policy in [Policy::P2c, Policy::RoundRobin, Policy::LeastRequests] {
            assert_eq!(pick(policy, &Fleet { load: vec![], up: vec![] }, 1, 1), None);
            assert_eq!(pick(policy, &Fleet { load: vec![3, 4], up: vec![false; 2] }, 1, 1), None);
        }
    }

    #[test]
    fn the_ineligible_get_nothing() {
        let fleet = Fleet { load: vec![0, 0, 0, 0], up: vec![true, false, true, true] };
        for policy in [Policy::P2c, Policy::RoundRobin, Policy::LeastRequests] {
            let counts = spread(policy, &fleet, 3000);
            assert_eq!(counts[1], 0);
            assert_eq!(counts.iter().sum::<u64>(), 3000);
            assert!(counts.iter().enumerate().all(|(i, &c)| i == 1 || c > 800), "{counts:?}");
        }
    }

    #[test]
    fn two_choices_never_take_the_most_loaded() {
        let fleet = Fleet { load: vec![900, 10, 20, 30], up: vec![true; 4] };
        let counts = spread(Policy::P2c, &fleet, 6000);
        assert_eq!(counts[0], 0);
        // Ranked 2nd, 3rd, 4th of four: drawn best in 3, 2, 1 of the 6 pairs.
        assert!(counts[1] > counts[2] && counts[2] > counts[3] && counts[3] > 500, "{counts:?}");
    }

    #[test]
    fn least_requests_takes_the_least() {
        let fleet = Fleet { load: vec![5, 1, 1, 9], up: vec![true; 4] };
        let counts = spread(Policy::LeastRequests, &fleet, 1000);
        assert_eq!((counts[0], counts[3]), (0, 0));
        assert!(counts[1] > 400 && counts[2] > 400, "{counts:?}");
    }
}
