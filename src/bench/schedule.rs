//! When the requests of an open loop are due. Pure: both the dispatcher and the metronome of a
//! thread run through the same times, each for itself.

use std::sync::Arc;

use crate::plan::random::{exponential, stream};

/// How requests of a rate follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spacing {
    /// At equal distances.
    #[default]
    Fixed,
    /// As a Poisson process: many users who know nothing of each other.
    Poisson,
}

/// The times at which one thread's conversations are due, in order: nanoseconds of the clock.
#[derive(Clone, Debug)]
pub(super) enum Schedule {
    Fixed {
        start_ns: u64,
        period_ns: f64,
        next: u64,
        count: u64,
    },
    Poisson {
        rng: fastrand::Rng,
        period_ns: f64,
        at_ns: f64,
        end_ns: f64,
        left: u64,
    },
    /// Each `step`-th of the listed times, which are after `start_ns`.
    Listed {
        start_ns: u64,
        times_ns: Arc<[u64]>,
        next: usize,
        step: usize,
    },
}

/// What share of a load a thread has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) index: usize,
    pub(super) threads: usize,
    /// When the load begins.
    pub(super) begin_ns: u64,
    pub(super) duration_ns: u64,
    /// Most conversations of this thread.
    pub(super) most: u64,
}

impl Schedule {
    /// `rate` conversations a second over all threads.
    pub(super) fn of(rate: f64, spacing: Spacing, seed: u64, place: Place) -> Schedule {
        let Place { index, threads, begin_ns, duration_ns, most } = place;
        let period_ns = 1e9 * threads as f64 / rate;
        match spacing {
            Spacing::Fixed => {
                let count = ((duration_ns as f64 / period_ns).ceil() as u64).min(most);
                // The threads take turns.
                let start_ns = begin_ns + (period_ns * index as f64 / threads as f64) as u64;
                Schedule::Fixed { start_ns, period_ns, next: 0, count }
            }
            // The sum of the threads' processes is a Poisson process of the whole rate.
            Spacing::Poisson => Schedule::Poisson {
                rng: stream(seed, 0xa11 + index as u64),
                period_ns,
                at_ns: begin_ns as f64,
                end_ns: begin_ns as f64 + duration_ns as f64,
                left: most,
            },
        }
    }

    /// A recorded one: times in nanoseconds after its begin.
    pub(super) fn listed(times_ns: &Arc<[u64]>, place: Place) -> Schedule {
        let times_ns = Arc::clone(times_ns);
        let Place { index, threads, begin_ns, .. } = place;
        Schedule::Listed { start_ns: begin_ns, times_ns, next: index, step: threads.max(1) }
    }
}

impl Iterator for Schedule {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        match self {
            Schedule::Fixed { start_ns, period_ns, next, count } => {
                let i = *next;
                (i < *count).then(|| {
                    *next += 1;
                    start_ns.saturating_add((i as f64 * *period_ns) as u64)
                })
            }
            Schedule::Poisson { rng, period_ns, at_ns, end_ns, left } => {
                *at_ns += exponential(rng) * *period_ns;
                *left = left.checked_sub(1)?;
                (*at_ns < *end_ns).then_some(*at_ns as u64)
            }
            Schedule::Listed { start_ns, times_ns, next, step } => {
                let at_ns = times_ns.get(*next)?;
                *next += *step;
                Some(start_ns.saturating_add(*at_ns))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn place(index: usize, threads: usize) -> Place {
        let (begin_ns, duration_ns) = (5 * SECOND, 100 * SECOND);
        Place { index, threads, begin_ns, duration_ns, most: u64::MAX }
    }

    #[test]
    fn the_threads_of_a_fixed_schedule_take_turns() {
        let of = |index| Schedule::of(10.0, Spacing::Fixed, 1, place(index, 2));
        let mut both: Vec<u64> = of(0).chain(of(1)).collect();
        both.sort_unstable();
        assert_eq!(both.len(), 1000);
        assert!(both.iter().enumerate().all(|(i, at)| *at == 5 * SECOND + i as u64 * SECOND / 10));
    }

    #[test]
    fn a_poisson_process_has_its_rate_and_as_much_variance() {
        let of = |index, seed| Schedule::of(200.0, Spacing::Poisson, seed, place(index, 4));
        let mut all: Vec<u64> = (0..4).flat_map(|index| of(index, 1)).collect();
        all.sort_unstable();
        assert!((19_500..20_500).contains(&all.len()), "{}", all.len());
        let gaps: Vec<f64> = all.windows(2).map(|w| (w[1] - w[0]) as f64 / 5e6).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((0.97..1.03).contains(&mean) && (0.93..1.07).contains(&variance), "{variance}");
        assert!(of(0, 1).eq(of(0, 1)) && !of(0, 1).eq(of(0, 2)) && !of(0, 1).eq(of(1, 1)));
    }

    #[test]
    fn bounds_hold_for_each_kind() {
        let few = Place { most: 3, ..place(0, 1) };
        for spacing in [Spacing::Fixed, Spacing::Poisson] {
            assert_eq!(Schedule::of(10.0, spacing, 1, few).count(), 3);
        }
        let listed: Arc<[u64]> = [0, 7, 7, 9].into();
        let of = |index| Schedule::listed(&listed, place(index, 3)).collect::<Vec<_>>();
        let at = |ns: u64| 5 * SECOND + ns;
        assert_eq!((of(0), of(1), of(2)), (vec![at(0), at(9)], vec![at(7)], vec![at(7)]));
    }
}
