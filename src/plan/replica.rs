//! A simulated replica: the engine model, and whether it lives.

use crate::engine::{Engine, EngineParams, Gaps, Progress, Work};

use super::books::Scraped;

/// One replica of the fleet.
pub(super) struct Replica {
    engine: Engine,
    params: EngineParams,
    alive: bool,
    /// Of engines that died.
    preemptions: u64,
    gaps: Gaps,
    /// The step's end that is on the agenda.
    pub(super) scheduled_us: Option<u64>,
}

impl Replica {
    /// A replica whose steps take `factor` times as long as the engine's.
    pub(super) fn new(params: &EngineParams, factor: f64) -> Replica {
        let params = EngineParams { step: params.step.slowed(factor), ..params.clone() };
        let engine = Engine::new(params.clone());
        Replica {
            engine,
            params,
            alive: true,
            preemptions: 0,
            gaps: Gaps::default(),
            scheduled_us: None,
        }
    }

    /// Takes a request; a dead one takes it to the grave.
    pub(super) fn submit(&mut self, now_us: u64, work: Work) {
        if self.alive {
            self.engine.submit(now_us, work);
        }
    }

    /// Lets the engine come to `now_us`.
    pub(super) fn advance(&mut self, now_us: u64, out: &mut Vec<Progress>) {
        self.engine.advance(now_us, out);
    }

    /// When the engine has something to say next, unless that is on the agenda already.
    pub(super) fn newly_due(&mut self) -> Option<u64> {
        let next_us = if self.alive { self.engine.next_us() } else { None };
        let fresh = next_us != self.scheduled_us;
        self.scheduled_us = next_us;
        next_us.filter(|_| fresh)
    }

    pub(super) fn crash(&mut self) {
        self.preemptions += self.engine.preemptions();
        self.gaps.merge(self.engine.gaps());
        self.engine = Engine::new(self.params.clone());
        self.alive = false;
        self.scheduled_us = None;
    }

    pub(super) fn come_back(&mut self) {
        self.alive = true;
    }

    /// What its metrics say.
    pub(super) fn scrape(&self) -> Scraped {
        Scraped {
            running: self.engine.running(),
            waiting: self.engine.waiting(),
            blocks_used: (self.engine.kv_usage() * self.params.blocks as f64).round() as u64,
        }
    }

    pub(super) fn is_alive(&self) -> bool {
        self.alive
    }

    /// Share of the KV blocks that live requests hold.
    pub(super) fn kv_usage(&self) -> f64 {
        self.engine.kv_usage()
    }

    /// Share of the KV blocks that is room in held blocks without a token in it.
    pub(super) fn kv_empty(&self) -> f64 {
        let room = self.params.blocks.saturating_mul(self.params.block_tokens);
        self.engine.empty_tokens() as f64 / room.max(1) as f64
    }

    pub(super) fn preemptions(&self) -> u64 {
        self.preemptions + self.engine.preemptions()
    }

    /// Adds how long decodes waited for their tokens.
    pub(super) fn add_gaps(&self, all: &mut Gaps) {
        all.merge(&self.gaps);
        all.merge(self.engine.gaps());
    }

    /// The engine's own check, and that nothing runs or waits.
    #[cfg(test)]
    pub(super) fn check_at_rest(&self) -> Result<(), String> {
        self.engine.check()?;
        let (running, waiting) = (self.engine.running(), self.engine.waiting());
        match running + waiting {
            0 => Ok(()),
            _ => Err(format!("{running} run and {waiting} wait")),
        }
    }
}
