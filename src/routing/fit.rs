//! How a pool's real times compare with the model's, learned online from what was predicted at
//! dispatch and what came: a scale for the pool, a slowness for each replica.
//!
//! Shared by the cores as relaxed atomics: a lost update costs one observation. All in logarithms,
//! so that twice as slow and twice as fast weigh the same; every single surprise counts only so
//! much, so that a cold start or a long step of a neighbour is no verdict. A replica that is not
//! asked drifts back to the pool's, and so gets asked again.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Slowness stays within this factor of 1, either way.
const SLOWNESS_LOG_MAX: f64 = 2.079_441_541_679_835_7; // ln 8
/// Most that one observation says.
const SURPRISE_MAX: f64 = 1.4;
/// Share of a surprise that a replica learns from one observation.
const REPLICA_RATE: f64 = 0.25;
/// Share that the pool learns.
const POOL_RATE: f64 = 0.01;
/// Time in ms in which an unobserved slowness halves, as a logarithm.
const HALF_LIFE_MS: f64 = 5000.0;

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
    ttft: Cell,
    tpot: Cell,
}

impl Scale {
    /// Observed over predicted time of a later token, over the pool.
    #[must_use]
    pub fn tpot(&self) -> f64 {
        self.tpot.get().exp()
    }

    /// Observed over predicted time to the first token, over the pool.
    #[must_use]
    pub fn ttft(&self) -> f64 {
        self.ttft.get().exp()
    }

    fn cell(&self, kind: Kind) -> &Cell {
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
}

impl Slowness {
    /// Observed over predicted time at `now_ms`: of this replica and its pool.
    #[must_use]
    pub fn get(&self, pool: &Scale, now_ms: u64) -> f64 {
        (self.relative(now_ms) + pool.tpot.get()).clamp(-SLOWNESS_LOG_MAX, SLOWNESS_LOG_MAX).exp()
    }

    /// Enters an observation at `now_ms`; nonsense is ignored.
    pub fn observe(&self, pool: &Scale, seen: Observation, now_ms: u64) {
        let log = (seen.actual_ms / seen.predicted_ms).ln();
        let sane = seen.actual_ms > 0.0 && seen.predicted_ms > 0.0 && log.is_finite();
        if !sane {
            return;
        }
        let scale = pool.cell(seen.kind);
        let own = self.relative(now_ms);
        let surprise = log - scale.get() - own;
        let step = surprise.clamp(-SURPRISE_MAX, SURPRISE_MAX);
        let next = (own + REPLICA_RATE * step).clamp(-SLOWNESS_LOG_MAX, SLOWNESS_LOG_MAX);
        self.log.set(next);
        self.at_ms.store(now_ms, Relaxed);
        // Clamped harder, so that one slow replica does not make the pool look slow.
        let common = (log - scale.get()).clamp(-0.5, 0.5);
        scale.set(scale.get() + POOL_RATE * common);
    }

    /// Forgets: the replica has started anew.
    pub fn reset(&self, now_ms: u64) {
        self.log.set(0.0);
        self.at_ms.store(now_ms, Relaxed);
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
