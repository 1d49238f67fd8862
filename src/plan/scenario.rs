//! What a run is about besides its workload: the fleet, the gateways, what fails, the limits.

use crate::engine::{EngineParams, Step};

/// A replica that dies and comes back with an empty cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crash {
    /// When.
    pub at_us: u64,
    /// Who, from 0.
    pub replica: usize,
    /// For how long.
    pub down_us: u64,
}

/// A replica whose steps take longer than the others'.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slow {
    /// Who, from 0.
    pub replica: usize,
    /// Its step time over that of the others.
    pub factor: f64,
}

/// Limits that a good request meets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// Time to the first token in ms, for prompts up to [`Slo::PLAIN_TOKENS`].
    pub ttft_ms: f64,
    /// Mean time of the tokens after it in ms.
    pub tpot_ms: f64,
}

impl Slo {
    /// Prompts up to here have the plain limit.
    pub const PLAIN_TOKENS: u64 = 4000;
    /// What each token above adds to it, in ms.
    pub const TOKEN_MS: f64 = 0.15;

    /// Limit on the time to the first token of a prompt.
    #[must_use]
    pub fn ttft_limit_ms(&self, prompt_tokens: u64) -> f64 {
        let above = prompt_tokens.saturating_sub(Slo::PLAIN_TOKENS);
        self.ttft_ms + Slo::TOKEN_MS * above as f64
    }
}

/// Everything that a run needs besides workload and policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Draws of the router follow from it.
    pub seed: u64,
    /// Replicas of the fleet.
    pub replicas: usize,
    /// Each one's engine.
    pub engine: EngineParams,
    /// Gateways; requests come to them in turn.
    pub gateways: usize,
    /// How often they tell each other what they dispatched and have in flight; 0 = never.
    pub gossip_us: u64,
    /// How often they read the replicas' metrics.
    pub scrape_us: u64,
    /// They keep account of what they have in flight. Without, they know what they last read.
    pub ledger: bool,
    /// A gateway's own time before it picks.
    pub gateway_us: u64,
    /// Between gateway and replica, each way.
    pub network_us: u64,
    /// They may refuse what would miss its limits.
    pub shed: bool,
    /// Tenants whose shares are kept fair, all of the same weight.
    pub tenants: usize,
    /// Share of a replica's KV blocks that is kept free.
    pub headroom: f64,
    /// What comes in this time is served like all else and counted nowhere: a run begins with
    /// empty caches, which few requests take long to fill.
    pub warmup_us: u64,
    /// The limits.
    pub slo: Slo,
    /// Replicas that die.
    pub crashes: Vec<Crash>,
    /// Replicas that are slow.
    pub slow: Vec<Slow>,
}

impl Scenario {
    /// A death shows this long after it.
    pub const CRASH_SEEN_US: u64 = 1_000_000;
    /// Times that a request is sent, while nothing of an answer has come.
    pub const ATTEMPTS_MAX: u32 = 3;
    /// Longest that a gateway keeps a request for which no replica has room.
    pub const QUEUE_MS_MAX: u64 = 2_000;
    /// After the last arrival, the time in which requests may end.
    pub const DRAIN_US: u64 = 300_000_000;

    /// Forty replicas of the 8B model behind one gateway that keeps account.
    #[must_use]
    pub fn new() -> Scenario {
        Scenario {
            seed: 1,
            replicas: 40,
            engine: EngineParams::a100_8b(),
            gateways: 1,
            gossip_us: 0,
            scrape_us: 500_000,
            ledger: true,
            gateway_us: 6_000,
            network_us: 1_000,
            shed: false,
            tenants: 1,
            headroom: 0.0,
            warmup_us: 0,
            slo: Slo { ttft_ms: 400.0, tpot_ms: 50.0 },
            crashes: Vec::new(),
            slow: Vec::new(),
        }
    }
}

impl Scenario {
    /// About what a later token takes, in ms, at `rate` requests a second of the mix of which a
    /// share is `long`: the step with as many decodes as that time makes, three rounds from an
    /// idle one, which is as far as a fleet that begins idle gets in the mean of a minute. One that
    /// may refuse stays below its limit.
    #[must_use]
    pub fn tpot_ms(&self, rate: f64, long: f64) -> f64 {
        /// Of the mix: answer, KV of a sequence that decodes, prompt that no cache spares.
        const ANSWER: f64 = 297.0;
        const KV: f64 = 1885.0;
        const UNCACHED: u64 = 380;
        const ROUNDS: u32 = 3;
        const SHED_SHARE: f64 = 0.8;
        let step = &self.engine.step;
        let rate = rate / self.replicas.max(1) as f64;
        let full = self.engine.step_tokens_max.max(1);
        let prefill_ms = |tokens: u64| {
            let tokens = tokens as f64;
            let dense = tokens * step.dense(full) / full as f64;
            dense + step.attention_ms * tokens * tokens / 2.0
        };
        let long_ms = prefill_ms(u64::from(super::mix::LONG_TOKENS));
        let mean_ms = (1.0 - long) * prefill_ms(UNCACHED) + long * long_ms;
        let rest = (1.0 - rate * mean_ms / 1e3).max(0.2);
        let mut ms = step.ms(&Step { tokens: 1, sequences: 1, ..Step::default() });
        for _ in 0..ROUNDS {
            let decodes = (rate * ANSWER * ms / 1e3).clamp(1.0, self.engine.sequences_max as f64);
            let (tokens, kv_tokens) = (decodes as u64, (decodes * KV) as u64);
            let one = Step { tokens, sequences: tokens, kv_tokens, ..Step::default() };
            ms = step.ms(&one) / rest;
        }
        if self.shed { ms.min(SHED_SHARE * self.slo.tpot_ms) } else { ms }
    }

    /// Whether it makes sense.
    ///
    /// # Errors
    /// A replica that is not there.
    pub fn check(&self) -> Result<(), String> {
        let failing = self.crashes.iter().map(|crash| crash.replica);
        let slow = self.slow.iter().map(|slow| slow.replica);
        match failing.chain(slow).find(|&replica| replica >= self.replicas) {
            Some(replica) => Err(format!(
                "replica {replica} is not there: {} replicas are numbered from 0",
                self.replicas
            )),
            None => Ok(()),
        }
    }
}

impl Default for Scenario {
    fn default() -> Scenario {
        Scenario::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_replicas_that_are_there_fail() {
        let slow =
            |replica| Scenario { slow: vec![Slow { replica, factor: 2.0 }], ..Scenario::new() };
        assert_eq!(slow(39).check(), Ok(()));
        assert!(slow(40).check().expect_err("no such").contains("replica 40"));
    }

    #[test]
    fn a_token_takes_longer_the_busier_the_fleet() {
        let scenario = Scenario::new();
        let ms = |rate| scenario.tpot_ms(rate, 0.0);
        assert!((11.0..13.0).contains(&ms(1.0)), "idle: {}", ms(1.0));
        assert!(ms(100.0) < ms(200.0) && ms(200.0) < ms(300.0));
        assert!((33.0..40.0).contains(&ms(332.0)), "{}", ms(332.0));
        assert!(scenario.tpot_ms(200.0, 0.01) > ms(200.0) * 1.1);
        let sheds = Scenario { shed: true, ..Scenario::new() };
        assert_eq!(sheds.tpot_ms(900.0, 0.0), 40.0);
    }

    #[test]
    fn a_long_prompt_has_longer() {
        let slo = Scenario::new().slo;
        assert_eq!(slo.ttft_limit_ms(100), 400.0);
        assert_eq!(slo.ttft_limit_ms(4000), 400.0);
        assert_eq!(slo.ttft_limit_ms(6000), 700.0);
    }
}
