//! What traffic has taught routing of each pool: how long answers are, and how the engines' times
//! compare with the model's. Relaxed atomics that all cores write; a lost update costs a sample.
//!
//! The control thread makes one [`Learned`] a pool for each published fleet and takes over what is
//! known: a lane that stays keeps its evidence, as it keeps its ledger.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::{self, EngineKind};
use crate::engine::StepModel;
use crate::replicas::{Ledger, Pool};
use crate::routing::fit::{Kind, Observation, Scale, Slowness};
use crate::routing::output::Lengths;
use crate::routing::{Model, Request};

/// `max_num_batched_tokens`: vLLM's default for serving.
const STEP_TOKENS_MAX: u64 = 2_048;
/// Limits of a pool that names none.
const TTFT_LIMIT_MS: f64 = 400.0;
const TPOT_LIMIT_MS: f64 = 50.0;
/// A prompt longer than this gets so much more time for each token.
const LONG_TOKENS: u64 = 4_000;
const LONG_MS_A_TOKEN: f64 = 0.15;
/// Time that the network, the kernel and the gateway may add without saying anything of an engine:
/// added to both sides of a comparison, so that a millisecond of luck is no slowness of a fast
/// engine.
const TTFT_NOISE_MS: f64 = 10.0;
const TPOT_NOISE_MS: f64 = 2.0;
/// Fewer tokens than this say little of the time a token takes.
const TPOT_TOKENS_MIN: u64 = 8;

/// What is known of a pool's engines and answers.
pub(super) struct PoolModel {
    step: StepModel,
    engine: EngineKind,
    scale: Arc<Scale>,
    lengths: Arc<Lengths>,
    ttft_limit_ms: f64,
    tpot_limit_ms: f64,
}

impl PoolModel {
    /// Of a pool that nothing was observed of yet.
    pub(super) fn new(settings: &config::Pool) -> PoolModel {
        PoolModel {
            step: match settings.engine {
                EngineKind::A100_8b => StepModel::a100_8b(),
                EngineKind::A100_70bTp2 => StepModel::a100_70b_tp2(),
                EngineKind::A100_8bLora => StepModel::a100_8b_lora(),
            },
            engine: settings.engine,
            scale: Arc::default(),
            lengths: Arc::default(),
            ttft_limit_ms: settings.slo.ttft_ms.unwrap_or(TTFT_LIMIT_MS),
            tpot_limit_ms: settings.slo.tpot_ms.unwrap_or(TPOT_LIMIT_MS),
        }
    }

    /// The same after its settings may have changed: answers are as long as they were, and other
    /// limits change no engine.
    fn renewed(self: &Arc<Self>, settings: &config::Pool) -> Arc<PoolModel> {
        let new = PoolModel::new(settings);
        let limits = |it: &PoolModel| [it.ttft_limit_ms, it.tpot_limit_ms].map(f64::to_bits);
        if new.engine == self.engine && limits(&new) == limits(self) {
            return Arc::clone(self);
        }
        let same = new.engine == self.engine;
        let scale = if same { Arc::clone(&self.scale) } else { Arc::default() };
        Arc::new(PoolModel { scale, lengths: Arc::clone(&self.lengths), ..new })
    }

    /// The time model that predictions are made with.
    pub(super) fn model(&self) -> Model<'_> {
        Model { step: &self.step, step_tokens_max: STEP_TOKENS_MAX }
    }

    /// Sets the limits that a request of so many prompt tokens has.
    pub(super) fn limit(&self, request: &mut Request) {
        request.ttft_limit_ms = self.ttft_limit_ms(request.prompt_tokens);
        request.tpot_limit_ms = self.tpot_limit_ms;
    }

    /// The limit on the time to the first token of a prompt of so many tokens.
    pub(super) fn ttft_limit_ms(&self, prompt_tokens: u64) -> f64 {
        let long = prompt_tokens.saturating_sub(LONG_TOKENS) as f64;
        self.ttft_limit_ms + LONG_MS_A_TOKEN * long
    }

    /// Tokens that a sequence of at most `most` is expected to make for a tenant.
    pub(super) fn expected_tokens(&self, most: Option<u64>, tenant: u64) -> f64 {
        Lengths::expect(&self.lengths, most, tenant).mean
    }

    /// Observed over predicted time to the first token, where a prediction has the scale of later
    /// ones in it already; `None` before enough of both were seen to believe any.
    pub(super) fn ttft_scale(&self) -> Option<f64> {
        self.scale.is_fitted(Kind::Ttft).then(|| self.scale.ttft() / self.scale.tpot())
    }

    /// Was enough seen of the times of later tokens to believe a prediction of one?
    pub(super) fn knows_tpot(&self) -> bool {
        self.scale.is_fitted(Kind::Tpot)
    }

    /// Observed over predicted times, over the pool: to the first token, of a later one.
    pub(super) fn scale(&self) -> (f64, f64) {
        (self.scale.ttft(), self.scale.tpot())
    }
}

/// What is known of a pool and of its lanes, by index.
pub(super) struct Learned {
    pub pool: Arc<PoolModel>,
    lanes: Vec<Arc<Slowness>>,
}

impl Learned {
    /// For `pool` as published now; `old` is the pool as published before, with what was known.
    pub(super) fn new(
        pool: &Pool,
        settings: &config::Pool,
        old: Option<(&Pool, &Learned)>,
    ) -> Learned {
        let key = |ledger: &Arc<Ledger>| Arc::as_ptr(ledger);
        let known: HashMap<_, _> = old
            .iter()
            .flat_map(|(pool, learned)| pool.lanes.iter().zip(&learned.lanes))
            .map(|(lane, slowness)| (key(&lane.ledger), slowness))
            .collect();
        let lanes = pool.lanes.iter().map(|lane| {
            known.get(&key(&lane.ledger)).map_or_else(Arc::default, |known| Arc::clone(known))
        });
        Learned {
            pool: match old {
                Some((_, learned)) => learned.pool.renewed(settings),
                None => Arc::new(PoolModel::new(settings)),
            },
            lanes: lanes.collect(),
        }
    }

    /// Observed over predicted time of a lane.
    pub(super) fn slowness(&self, lane: usize, now_ms: u64) -> f64 {
        self.lanes.get(lane).map_or(1.0, |lane| lane.get(&self.pool.scale, now_ms))
    }

    /// What learns from a request that is sent to `lane`.
    pub(super) fn pupil(&self, lane: usize) -> Pupil {
        Pupil {
            pool: Arc::clone(&self.pool),
            lane: self.lanes.get(lane).map_or_else(Arc::default, Arc::clone),
        }
    }
}

/// What learns from one request: its pool and its lane.
pub(super) struct Pupil {
    pool: Arc<PoolModel>,
    lane: Arc<Slowness>,
}

impl Pupil {
    /// The first token came `actual_ms` after the request was sent; `predicted_ms` is without the
    /// lane's slowness.
    pub(super) fn first_token(&self, predicted_ms: f64, actual_ms: f64, now_ms: u64) {
        let seen = seen(Kind::Ttft, predicted_ms, actual_ms, TTFT_NOISE_MS);
        self.lane.observe(&self.pool.scale, seen, now_ms);
    }

    /// `tokens` tokens came, each `actual_ms` after the one before.
    pub(super) fn later_tokens(&self, tokens: u64, predicted_ms: f64, actual_ms: f64, now_ms: u64) {
        if tokens >= TPOT_TOKENS_MIN {
            let seen = seen(Kind::Tpot, predicted_ms, actual_ms, TPOT_NOISE_MS);
            self.lane.observe(&self.pool.scale, seen, now_ms);
        }
    }

    /// An answer of at most `tokens_max` is complete: so many tokens a sequence.
    pub(super) fn answer(&self, tokens_max: Option<u64>, tenant: u64, tokens: u64) {
        self.pool.lengths.observe(tokens_max, tenant, tokens);
    }
}

/// A comparison in which noise counts for little. Without a prediction it is none.
fn seen(kind: Kind, predicted_ms: f64, actual_ms: f64, noise_ms: f64) -> Observation {
    if predicted_ms > 0.0 {
        Observation { kind, predicted_ms: predicted_ms + noise_ms, actual_ms: actual_ms + noise_ms }
    } else {
        Observation { kind, predicted_ms, actual_ms }
    }
}
