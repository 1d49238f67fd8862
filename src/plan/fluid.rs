//! A replica as a fluid: the steady step at a rate of like requests, and the highest rate within
//! the limits. No chance and no queue: what comes out is about the most that any routing reaches
//! in the long run, and the reason for it. The replay (`capacity`) says what is left of it when
//! requests come at random; one that begins idle and is short can come out above.
//!
//! At a rate r of prompts with u uncached tokens and answers of o tokens, a step of length T has
//! r u T prefill tokens and r (o - 1) T decodes (Little); T is what the engine model takes for it.

use crate::engine::{EngineParams, Step, StepModel};

use super::scenario::{Scenario, Slo};

/// Like requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Tokens of a prompt.
    pub prompt_tokens: f64,
    /// Tokens of an answer.
    pub output_tokens: f64,
    /// Share of the prompt that the cache holds.
    pub hit: f64,
}

/// A steady step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    /// Requests a second.
    pub rps: f64,
    /// Length of a step: the time of a later token.
    pub step_ms: f64,
    /// Decodes in a step.
    pub decodes: f64,
    /// Prefill tokens in a step.
    pub prefill_tokens: f64,
    /// Share of the KV blocks that running requests hold, each for itself.
    pub kv_share: f64,
    /// Time to the first token of a request that finds no queue, gateway and network included.
    pub ttft_ms: f64,
}

/// What keeps a replica from more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The time of a later token.
    Tpot,
    /// The time to the first token.
    Ttft,
    /// KV blocks.
    Memory,
    /// `max_num_seqs`.
    Sequences,
    /// `max_num_batched_tokens`.
    StepTokens,
    /// No steady step: more comes than is computed.
    Compute,
}

impl Limit {
    /// In a word or two.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Limit::Tpot => "TPOT",
            Limit::Ttft => "TTFT",
            Limit::Memory => "KV blocks",
            Limit::Sequences => "max_num_seqs",
            Limit::StepTokens => "step tokens",
            Limit::Compute => "compute",
        }
    }
}

/// A step longer than this is not steady.
const STEP_MS_MAX: f64 = 60_000.0;
/// Highest rate of a replica that is looked for.
const RPS_MAX: f64 = 1e5;

impl Load {
    /// Tokens that a prefill computes: the last one always.
    #[must_use]
    pub fn uncached_tokens(&self) -> f64 {
        (self.prompt_tokens * (1.0 - self.hit)).max(1.0)
    }

    /// KV tokens that a decode reads, in the mean of its answer.
    fn kv_tokens(&self) -> f64 {
        self.prompt_tokens + self.output_tokens / 2.0
    }

    /// KV tokens that a running request holds for itself: what hits the cache may be anyone's.
    fn own_tokens(&self) -> f64 {
        self.uncached_tokens() + self.output_tokens / 2.0
    }
}

/// The step at a rate.
///
/// # Errors
/// Which limit of the engine does not hold.
pub fn steady(engine: &EngineParams, load: &Load, rps: f64) -> Result<Steady, Limit> {
    let step = |ms: f64| mixed(&engine.step, load, rps, ms);
    // From below to the smallest length that is as long as what it lets come.
    let (mut low, mut high) = (step(0.0), STEP_MS_MAX);
    if step(high) > high {
        return Err(Limit::Compute);
    }
    if step(low) > low {
        for _ in 0..200 {
            let middle = f64::midpoint(low, high);
            if step(middle) > middle { low = middle } else { high = middle }
        }
    } else {
        high = low;
    }
    let a_step = rps * high / 1e3;
    let decodes = a_step * (load.output_tokens - 1.0).max(0.0);
    let prefill_tokens = a_step * load.uncached_tokens();
    let block = engine.block_tokens.max(1) as f64;
    let blocks = (load.own_tokens() / block).ceil();
    let all_blocks = ((load.prompt_tokens + load.output_tokens) / block).ceil();
    let ttft_ms = first_token_ms(engine, load, decodes, high);
    // A request holds its blocks while it decodes and while it is computed.
    let running = decodes + rps * ttft_ms / 1e3;
    let kv_share = running * blocks / engine.blocks.max(1) as f64;
    if decodes + prefill_tokens > engine.step_tokens_max as f64 {
        return Err(Limit::StepTokens);
    }
    if running > engine.sequences_max as f64 {
        return Err(Limit::Sequences);
    }
    if kv_share > 1.0 || all_blocks > engine.blocks as f64 {
        return Err(Limit::Memory);
    }
    Ok(Steady { rps, step_ms: high, decodes, prefill_tokens, kv_share, ttft_ms })
}

/// The highest rate of a replica within the limits, its step, and what ends it. `None` when not
/// even a lone request is within them; then the limit says why.
#[must_use]
pub fn most(engine: &EngineParams, load: &Load, slo: &Slo) -> (Option<Steady>, Limit) {
    let within = |rps: f64| {
        let steady = steady(engine, load, rps)?;
        if steady.step_ms > slo.tpot_ms && load.output_tokens > 1.0 {
            return Err(Limit::Tpot);
        }
        if steady.ttft_ms > slo.ttft_limit_ms(load.prompt_tokens as u64) {
            return Err(Limit::Ttft);
        }
        Ok(steady)
    };
    let mut best = match within(1e-6) {
        Ok(steady) => steady,
        Err(limit) => return (None, limit),
    };
    let (mut low, mut high, mut limit) = (1e-6, RPS_MAX, Limit::Compute);
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        match within(middle) {
            Ok(steady) => (best, low) = (steady, middle),
            Err(why) => (limit, high) = (why, middle),
        }
    }
    (Some(best), limit)
}

/// Time of a step in which a share of the requests of `ms` at a rate is computed.
fn mixed(model: &StepModel, load: &Load, rps: f64, ms: f64) -> f64 {
    let a_step = rps * ms / 1e3;
    let decodes = a_step * (load.output_tokens - 1.0).max(0.0);
    let uncached = load.uncached_tokens();
    let prefill = a_step * uncached;
    let context = load.prompt_tokens - uncached / 2.0;
    dense(model, (decodes + prefill).max(1.0))
        + model.overhead_ms
        + model.sequence_ms * (decodes + a_step).max(1.0)
        + model.kv_read_ms * decodes * load.kv_tokens()
        + model.attention_ms * prefill * context
}

/// The dense part at a fraction of tokens.
fn dense(model: &StepModel, tokens: f64) -> f64 {
    let whole = tokens.floor();
    let (at, next) = (model.dense(whole as u64), model.dense(whole as u64 + 1));
    at + (next - at) * (tokens - whole)
}

/// Half of the running step, then chunks of the prompt beside the decodes.
fn first_token_ms(engine: &EngineParams, load: &Load, decodes: f64, step_ms: f64) -> f64 {
    let around_ms = (Scenario::new().gateway_us + 2 * Scenario::new().network_us) as f64 / 1e3;
    let chunk = (engine.step_tokens_max as f64 - decodes).max(1.0);
    let chunks = (load.uncached_tokens() / chunk).ceil().min(1e5);
    around_ms + step_ms / 2.0 + prefill_ms(&engine.step, load, decodes, chunks)
}

/// Time of a prompt in so many steps that have `decodes` each.
#[must_use]
pub fn prefill_ms(model: &StepModel, load: &Load, decodes: f64, chunks: f64) -> f64 {
    let uncached = load.uncached_tokens();
    let each = Step::default();
    let base = model.ms(&each) + model.sequence_ms * (decodes + 1.0);
    let read = model.kv_read_ms * decodes * load.kv_tokens();
    let attention = model.attention_ms * uncached * (load.prompt_tokens - uncached / 2.0);
    chunks * (base + dense(model, decodes + uncached / chunks.max(1.0)) + read) + attention
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLO: Slo = Slo { ttft_ms: 400.0, tpot_ms: 50.0 };
    const MIX: Load = Load { prompt_tokens: 1736.0, output_tokens: 297.0, hit: 0.775 };

    #[test]
    fn an_idle_replica_is_as_fast_as_its_step() {
        let engine = EngineParams::a100_8b();
        let steady = steady(&engine, &MIX, 1e-6).expect("idle");
        // The single stream of the profile: 84 tokens/s.
        assert!((1e3 / steady.step_ms - 84.0).abs() < 2.0, "{steady:?}");
        // A cold prompt of 1,800 tokens on the 70B takes some 640 ms, and the way there 8 ms.
        let cold = Load { prompt_tokens: 1800.0, output_tokens: 30.0, hit: 0.0 };
        let large = super::steady(&EngineParams::a100_70b_tp2(), &cold, 1e-6).expect("idle");
        assert!((large.ttft_ms - large.step_ms / 2.0 - 648.0).abs() < 30.0, "{large:?}");
    }

    #[test]
    fn the_mix_comes_out_near_what_replays_reach() {
        let (steady, limit) = most(&EngineParams::a100_8b(), &MIX, &SLO);
        let fleet = 40.0 * steady.expect("within").rps;
        // Replays of 40 replicas: 338 to 348.
        assert!((340.0..480.0).contains(&fleet), "{fleet}");
        assert_eq!(limit, Limit::Tpot);
    }

    #[test]
    fn hits_carry_more_and_limits_have_names() {
        let engine = EngineParams::a100_8b();
        let rps = |hit, slo: &Slo| most(&engine, &Load { hit, ..MIX }, slo).0.map(|s| s.rps);
        assert!(rps(0.0, &SLO) < rps(0.5, &SLO) && rps(0.5, &SLO) < rps(0.9, &SLO));
        let large = EngineParams::a100_70b_tp2();
        // A step of the 70B alone takes 50 ms; its KV ends what looser limits allow.
        let (within, limit) = most(&large, &MIX, &SLO);
        assert!(within.is_none_or(|s| s.rps < 0.1) && limit == Limit::Tpot, "{within:?}");
        let loose = Slo { ttft_ms: 10_000.0, tpot_ms: 2_000.0 };
        let (within, limit) = most(&large, &MIX, &loose);
        assert!(within.is_some_and(|s| s.kv_share <= 1.0), "{within:?}");
        assert_eq!(limit, Limit::Memory);
        let cold = Load { prompt_tokens: 8000.0, output_tokens: 10.0, hit: 0.0 };
        let hasty = Slo { ttft_ms: 1.0, ..SLO };
        assert_eq!(most(&engine, &cold, &hasty), (None, Limit::Ttft));
        let few = EngineParams { sequences_max: 4, ..EngineParams::a100_8b() };
        assert_eq!(most(&few, &MIX, &SLO).1, Limit::Sequences);
        let long = Load { prompt_tokens: 1e6, ..MIX };
        assert_eq!(steady(&engine, &long, 1e-6), Err(Limit::Memory));
    }

    #[test]
    fn a_step_holds_what_comes_while_it_runs() {
        let engine = EngineParams::a100_8b();
        let s = steady(&engine, &MIX, 7.0).expect("steady");
        assert!((s.decodes - 7.0 * 296.0 * s.step_ms / 1e3).abs() < 1e-6);
        assert!((mixed(&engine.step, &MIX, 7.0, s.step_ms) - s.step_ms).abs() < 1e-6);
        assert_eq!(steady(&engine, &MIX, 1e4), Err(Limit::Compute));
    }
}
