//! How a pool's real times compare with the model's, learned online from what was predicted at
//! dispatch and what came: a scale for the pool, a slowness for each replica.
//!
//! Shared by the cores as relaxed atomics: a lost update costs one observation. All in logarithms,
//! so that twice as slow and twice as fast weigh the same. A single time says little: most of what
//! it differs from its prediction is the luck of a queue. So a replica's slowness is the median of
//! its last observations, and nothing while even one in eight of them is within a dead zone: taking
//! luck for slowness moves traffic, and its prefixes with it, which costs more than it finds. A
//! first token that comes early says that a queue was shorter than thought, never that an engine is
//! fast; the later ones say that. A replica that is not asked drifts back to its pool, and so gets
//! asked again.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Slowness stays within this factor of 1, either way.
const SLOWNESS_MAX: f64 = 8.0;
/// A pool's scale stays within this factor of its preset. Far wider than a replica's slowness: what
/// a narrow bound left over would look like the slowness of whoever was asked first. A small model
/// on a new GPU is a hundred times as fast as a large one on an old one.
const SCALE_MAX: f64 = 1000.0;
/// An observation within this factor of its pool's is no slowness: queues alone make as much.
const DEAD_ZONE: f64 = 2.0;
/// One in so many observations must be within it for a replica to be as its pool.
const ONE_IN: usize = 8;
/// Observations whose median is taken; fewer than [`RECENT_MIN`] say nothing.
const RECENT: usize = 9;
const RECENT_MIN: usize = 3;
/// Age in ms at which an observation is forgotten.
const AGE_MAX_MS: u32 = 15_000;
/// Time in ms in which an unobserved slowness halves, as a logarithm.
const HALF_LIFE_MS: f64 = 5000.0;
/// Observations by which the pool's scale is first set; later ones count one in [`POOL_SAMPLES`].
const FIRST_SAMPLES: u32 = 32;
const POOL_SAMPLES: f64 = 256.0;
/// Most that one observation says to the pool, as a logarithm, once it has its scale.
const SURPRISE_MAX: f64 = 0.5;

/// Which time was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// To the first token.
    Ttft,
    /// Of each later token.
    Tpot,
}

/// A prediction and what came.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// Which time.
    pub kind: Kind,
    /// As predicted, divided by the slowness that the prediction took.
    pub predicted_ms: f64,
    /// As it was.
    pub actual_ms: f64,
}

/// An `f64` shared by relaxed loads and stores.
#[derive(Debug, Default)]
struct Cell(AtomicU64);

impl Cell {
    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Relaxed))
    }
    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Relaxed);
    }
}

/// A pool's scale.
#[derive(Debug, Default)]
pub struct Scale {
    ttft: Common,
    tpot: Common,
}

#[derive(Debug, Default)]
struct Common {
    log: Cell,
    samples: AtomicU32,
}

impl Common {
    /// The mean at first, then slow and robust.
    fn learn(&self, log: f64) {
        let samples = self.samples.load(Relaxed);
        let known = self.log.get();
        let next = if samples < FIRST_SAMPLES {
            self.samples.store(samples + 1, Relaxed);
            known + (log - known) / f64::from(samples + 1)
        } else {
            known + (log - known).clamp(-SURPRISE_MAX, SURPRISE_MAX) / POOL_SAMPLES
        };
        self.log.set(next.clamp(-SCALE_MAX.ln(), SCALE_MAX.ln()));
    }
}

impl Scale {
    /// Observed over predicted time of a later token, over the pool.
    #[must_use]
    pub fn tpot(&self) -> f64 {
        self.tpot.log.get().exp()
    }

    /// Observed over predicted time to the first token, over the pool.
    #[must_use]
    pub fn ttft(&self) -> f64 {
        self.ttft.log.get().exp()
    }

    /// Enough was seen of a time for its predictions to be this pool's and not its preset's.
    #[must_use]
    pub fn is_fitted(&self, kind: Kind) -> bool {
        self.common(kind).samples.load(Relaxed) >= FIRST_SAMPLES
    }

    fn common(&self, kind: Kind) -> &Common {
        match kind {
            Kind::Ttft => &self.ttft,
            Kind::Tpot => &self.tpot,
        }
    }
}

/// A replica's slowness against its pool.
#[derive(Debug, Default)]
pub struct Slowness {
    log: Cell,
    at_ms: AtomicU64,
    next: AtomicU32,
    /// When (ms, above) and what (bits of an `f32`, below), each in one word so that none is torn.
    recent: [AtomicU64; RECENT],
}

impl Slowness {
    /// Observed over predicted time at `now_ms`: of this replica and its pool.
    #[must_use]
    pub fn get(&self, pool: &Scale, now_ms: u64) -> f64 {
        let relative = self.relative(now_ms).exp().clamp(1.0 / SLOWNESS_MAX, SLOWNESS_MAX);
        relative * pool.tpot()
    }

    /// Enters an observation at `now_ms`; nonsense is ignored.
    pub fn observe(&self, pool: &Scale, seen: Observation, now_ms: u64) {
        let log = (seen.actual_ms / seen.predicted_ms).ln();
        let sane = seen.actual_ms > 0.0 && seen.predicted_ms > 0.0 && log.is_finite();
        if !sane {
            return;
        }
        let common = pool.common(seen.kind);
        common.learn(log);
        let own = log - common.log.get();
        let own = if seen.kind == Kind::Ttft { own.max(0.0) } else { own } as f32;
        let at = self.next.fetch_add(1, Relaxed) as usize % RECENT;
        // Never 0, which says that there is none.
        let now = (now_ms as u32).max(1);
        if let Some(slot) = self.recent.get(at) {
            slot.store(u64::from(now) << 32 | u64::from(own.to_bits()), Relaxed);
        }
        self.log.set(self.agreed(now));
        self.at_ms.store(now_ms, Relaxed);
    }

    /// Forgets: the replica has started anew.
    pub fn reset(&self) {
        self.log.set(0.0);
        for slot in &self.recent {
            slot.store(0, Relaxed);
        }
    }

    /// The median of the last observations where nearly all of them say the same.
    fn agreed(&self, now: u32) -> f64 {
        let mut logs = [0f32; RECENT];
        let mut count = 0;
        for word in self.recent.iter().map(|slot| slot.load(Relaxed)) {
            let (at, log) = ((word >> 32) as u32, f32::from_bits(word as u32));
            let fresh = at != 0 && now.wrapping_sub(at) <= AGE_MAX_MS;
            if let Some(place) = logs.get_mut(count).filter(|_| fresh) {
                *place = log;
                count += 1;
            }
        }
        if count < RECENT_MIN {
            return 0.0;
        }
        let Some(logs) = logs.get_mut(..count) else { return 0.0 };
        logs.sort_unstable_by(f32::total_cmp);
        let at = |i: usize| logs.get(i).map_or(0.0, |&log| f64::from(log));
        let but = count / ONE_IN;
        let (least, most) = (at(but), at(count - 1 - but));
        let zone = DEAD_ZONE.ln();
        if least >= zone || most <= -zone { at(count / 2) } else { 0.0 }
    }

    fn relative(&self, now_ms: u64) -> f64 {
        let log = self.log.get();
        if log == 0.0 {
            return 0.0;
        }
        let age_ms = now_ms.saturating_sub(self.at_ms.load(Relaxed)) as f64;
        log * (-age_ms / HALF_LIFE_MS).exp2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(kind: Kind, ratio: f64) -> Observation {
        Observation { kind, predicted_ms: 100.0, actual_ms: 100.0 * ratio }
    }

    /// A pool that is as the model says, and a replica in it with a healthy past.
    fn settled() -> (Scale, Slowness) {
        let (pool, replica) = (Scale::default(), Slowness::default());
        for i in 0..100 {
            // Queues make it vary by a third.
            let ratio = [0.75, 1.0, 1.33][i % 3];
            let kind = if i % 2 == 0 { Kind::Ttft } else { Kind::Tpot };
            replica.observe(&pool, seen(kind, ratio), i as u64 * 100);
        }
        (pool, replica)
    }

    #[test]
    fn luck_is_no_slowness() {
        let (pool, replica) = settled();
        assert!((0.9..1.1).contains(&replica.get(&pool, 10_000)), "{replica:?}");
        // One cold start of ten times, and three unlucky queues.
        for (i, ratio) in [10.0, 2.5, 2.5, 2.5].into_iter().enumerate() {
            replica.observe(&pool, seen(Kind::Ttft, ratio), 10_000 + i as u64);
        }
        assert!((0.9..1.1).contains(&replica.get(&pool, 10_010)), "{replica:?}");
    }

    #[test]
    fn three_times_slow_is_seen_within_a_few_requests_and_forgotten_within_ten_seconds() {
        let (pool, replica) = settled();
        for i in 0..8 {
            replica.observe(&pool, seen(Kind::Ttft, 3.0), 10_000 + i * 50);
        }
        assert!((2.5..3.5).contains(&replica.get(&pool, 10_350)), "{replica:?}");
        // A fresh one needs three.
        let fresh = Slowness::default();
        (0..3).for_each(|i| fresh.observe(&pool, seen(Kind::Ttft, 3.0), 10_000 + i));
        assert!((2.5..3.5).contains(&fresh.get(&pool, 10_003)));

        // Unasked it drifts back; asked and fast, it is back as soon.
        assert!(replica.get(&pool, 20_350) < 1.4);
        for i in 0..6 {
            replica.observe(&pool, seen(Kind::Tpot, 1.0), 12_000 + i * 50);
        }
        assert!((0.9..1.1).contains(&replica.get(&pool, 12_250)), "{replica:?}");
    }

    #[test]
    fn early_first_tokens_say_that_a_queue_was_short_and_early_later_ones_that_an_engine_is_fast() {
        let (pool, replica) = settled();
        (0..9).for_each(|i| replica.observe(&pool, seen(Kind::Ttft, 0.2), 10_000 + i));
        assert_eq!(replica.get(&pool, 10_010), pool.tpot());
        (0..9).for_each(|i| replica.observe(&pool, seen(Kind::Tpot, 0.2), 10_000 + i));
        assert!(replica.get(&pool, 10_010) < 0.3, "{replica:?}");
    }

    #[test]
    fn a_run_of_bad_luck_with_two_exceptions_is_luck() {
        let (pool, replica) = settled();
        for ratio in [3.0, 4.0, 1.2, 5.0, 3.0, 1.5, 3.0, 4.0, 5.0] {
            replica.observe(&pool, seen(Kind::Ttft, ratio), 10_000);
        }
        assert_eq!(replica.get(&pool, 10_010), pool.tpot());
    }

    #[test]
    fn a_restart_forgets() {
        let (pool, replica) = settled();
        (0..9).for_each(|i| replica.observe(&pool, seen(Kind::Ttft, 5.0), 10_000 + i));
        assert!(replica.get(&pool, 10_010) > 4.0);
        replica.reset();
        assert_eq!(replica.get(&pool, 10_010), pool.tpot());
    }

    #[test]
    fn a_wrong_preset_is_the_pools_and_nobodys_slowness() {
        // A GPU that is 30 times as fast as the preset: whoever is asked first is not better.
        let pool = Scale::default();
        let (asked, unasked) = (Slowness::default(), Slowness::default());
        for i in 0..40 {
            asked.observe(&pool, seen(Kind::Tpot, 1.0 / 30.0), i * 100);
        }
        let (one, other) = (asked.get(&pool, 4000), unasked.get(&pool, 4000));
        assert!((one / other - 1.0).abs() < 0.05, "{one} {other}");
        assert!((0.03..0.037).contains(&other), "{other}");
        // One slow replica does not make the pool look slow.
        let (pool, _) = settled();
        let slow = Slowness::default();
        (0..40).for_each(|i| slow.observe(&pool, seen(Kind::Tpot, 8.0), i));
        assert!(pool.tpot() < 1.15, "{}", pool.tpot());
        for kind in [Kind::Ttft, Kind::Tpot] {
            assert!(pool.is_fitted(kind) && !Scale::default().is_fitted(kind));
        }
    }

    #[test]
    fn nonsense_is_ignored() {
        let (pool, replica) = settled();
        let before = (replica.get(&pool, 10_000), pool.tpot(), pool.ttft());
        for actual_ms in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            for predicted_ms in [0.0, -3.0, f64::NAN, f64::INFINITY, 100.0] {
                if (actual_ms, predicted_ms) != (100.0, 100.0) {
                    let seen = Observation { kind: Kind::Tpot, predicted_ms, actual_ms };
                    replica.observe(&pool, seen, 10_000);
                }
            }
        }
        assert_eq!(before, (replica.get(&pool, 10_000), pool.tpot(), pool.ttft()));
    }
}
