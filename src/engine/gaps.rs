//! How long sequences that decode waited for their tokens: each step gives every one of them a
//! token, so a step's time counts once for each. A histogram; a preemption's gap is not in it.

/// Width of a bucket in us, and their number: up to 4 s, what is longer counts as that.
const BUCKET_US: u64 = 500;
const BUCKETS: usize = 8192;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Gaps(Vec<u64>);

impl Gaps {
    /// A step of so many us in which so many sequences decode.
    pub(super) fn add(&mut self, step_us: u64, decodes: u64) {
        let at = ((step_us / BUCKET_US) as usize).min(BUCKETS - 1);
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        if let Some(count) = self.0.get_mut(at) {
            *count += decodes;
        }
    }

    /// Adds another engine's.
    pub fn merge(&mut self, other: &Gaps) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(count, more)| *count += more);
    }

    /// Quantile in ms, to half a ms; 0 of none.
    #[must_use]
    pub fn ms(&self, q: f64) -> f64 {
        let all: u64 = self.0.iter().sum();
        let rank = ((q * all as f64).ceil() as u64).max(1);
        let mut sum = 0;
        let at = self.0.iter().position(|count| {
            sum += count;
            sum >= rank
        });
        at.map_or(0.0, |at| (at as u64 + 1) as f64 * BUCKET_US as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_step_counts_for_each_that_waits() {
        let (mut one, mut other) = (Gaps::default(), Gaps::default());
        assert_eq!(one.ms(0.99), 0.0);
        one.add(9_900, 90);
        other.add(144_000, 9);
        other.add(60_000_000, 1);
        one.merge(&other);
        assert_eq!((one.ms(0.5), one.ms(0.9), one.ms(0.99)), (10.0, 10.0, 144.5));
        assert_eq!(one.ms(1.0), 4096.0);
    }
}
