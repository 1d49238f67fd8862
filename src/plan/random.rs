//! Draws of workloads, the planner's and the load generator's: seeded, so that a seed gives the
//! same workload anywhere.

use fastrand::Rng;

/// A generator for one purpose: streams of one seed do not repeat each other.
pub(crate) fn stream(seed: u64, purpose: u64) -> Rng {
    Rng::with_seed(mix(mix(seed) ^ purpose))
}

/// SplitMix64's finalizer (Steele et al. 2014): every input bit moves every output bit.
pub(crate) const fn mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Uniform in (0, 1].
fn open(rng: &mut Rng) -> f64 {
    1.0 - rng.f64()
}

/// Exponential with mean 1.
pub(crate) fn exponential(rng: &mut Rng) -> f64 {
    -open(rng).ln()
}

/// A lognormal length in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths {
    /// Mean before the bounds are applied.
    pub(crate) mean: f64,
    /// Standard deviation of the logarithm.
    pub(crate) sigma: f64,
    pub(crate) min: u32,
    pub(crate) max: u32,
}

impl Lengths {
    pub(crate) fn draw(&self, rng: &mut Rng) -> u32 {
        // Box and Muller; the second number is left, so that a draw takes two always.
        let normal = (-2.0 * open(rng).ln()).sqrt() * (std::f64::consts::TAU * rng.f64()).cos();
        let mu = self.mean.ln() - self.sigma * self.sigma / 2.0;
        let tokens = (mu + self.sigma * normal).exp().round();
        (tokens as u32).clamp(self.min, self.max)
    }
}

/// Zipf's law over `0..n`.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    /// With exponent 1.
    pub(crate) fn new(n: u32) -> Zipf {
        Zipf::of(n, 1.0)
    }

    /// With any exponent; 0 = all alike.
    pub(crate) fn of(n: u32, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let mut cumulative: Vec<f64> = (1..=n.max(1))
            .map(|rank| {
                sum += 1.0 / f64::from(rank).powf(exponent);
                sum
            })
            .collect();
        cumulative.iter_mut().for_each(|c| *c /= sum);
        Zipf { cumulative }
    }

    /// Share of `rank`, from 0.
    pub(crate) fn share(&self, rank: usize) -> f64 {
        let at = |i: usize| self.cumulative.get(i).copied().unwrap_or(1.0);
        at(rank) - if rank == 0 { 0.0 } else { at(rank - 1) }
    }

    pub(crate) fn draw(&self, rng: &mut Rng) -> u32 {
        let u = rng.f64();
        let last = self.cumulative.len().saturating_sub(1);
        self.cumulative.partition_point(|&c| c <= u).min(last) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_draws_have_their_means() {
        let mut rng = stream(1, 2);
        let n = 200_000;
        let mean = (0..n).map(|_| exponential(&mut rng)).sum::<f64>() / f64::from(n);
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        let lengths = Lengths { mean: 230.0, sigma: 0.8, min: 1, max: 100_000 };
        let mean = (0..n).map(|_| f64::from(lengths.draw(&mut rng))).sum::<f64>() / f64::from(n);
        assert!((mean - 230.0).abs() < 3.0, "{mean}");
        let capped = Lengths { min: 100, max: 400, ..lengths };
        assert!((0..1000).all(|_| (100..=400).contains(&capped.draw(&mut rng))));
    }

    #[test]
    fn the_second_is_half_of_the_first() {
        let (zipf, mut rng) = (Zipf::new(400), stream(3, 0));
        let mut counts = [0u32; 400];
        (0..400_000).for_each(|_| counts[zipf.draw(&mut rng) as usize] += 1);
        let ratio = f64::from(counts[0]) / f64::from(counts[1]);
        assert!((1.9..2.1).contains(&ratio), "{ratio}");
        assert!((f64::from(counts[0]) / 400_000.0 - zipf.share(0)).abs() < 0.003);
        assert!(counts[399] > 0);
        let sum: f64 = (0..400).map(|rank| zipf.share(rank)).sum();
        assert!((sum - 1.0).abs() < 1e-9);
    }

    #[test]
    fn an_exponent_bends_the_law() {
        let ratio = |exponent| Zipf::of(10, exponent).share(0) / Zipf::of(10, exponent).share(1);
        for (exponent, of) in [(0.0, 1.0), (1.0, 2.0), (2.0, 4.0)] {
            assert!((ratio(exponent) - of).abs() < 1e-9, "{exponent}");
        }
    }

    #[test]
    fn streams_of_a_seed_differ_and_repeat() {
        let first = |seed, purpose| stream(seed, purpose).u64(..);
        assert_eq!(first(1, 1), first(1, 1));
        assert_ne!(first(1, 1), first(1, 2));
        assert_ne!(first(1, 1), first(2, 1));
    }
}
