//! `plan capacity`: the rate within the limits by hit ratio, by the fluid and by replay. Rows are
//! made one by one, so that a command can run them beside each other.

use crate::engine::EngineParams;
use crate::routing::Policy;

use super::capacity;
use super::fluid::{self, Limit, Load, Steady};
use super::outcome::Outcome;
use super::scenario::{Scenario, Slo};
use super::sheet::{Cell, Sheet, Table, number, words};
use super::uniform::Uniform;

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// Each replica's engine.
    pub engine: EngineParams,
    /// Its name, and where its figures come from.
    pub engine_name: String,
    /// The same.
    pub engine_source: String,
    /// Replicas.
    pub replicas: usize,
    /// GPUs of each.
    pub gpus: u64,
    /// Tokens of a prompt.
    pub prompt_tokens: u32,
    /// Mean tokens of an answer.
    pub output_tokens: u32,
    /// The limits.
    pub slo: Slo,
    /// Seconds of a replay.
    pub seconds: f64,
    /// Of its draws.
    pub seed: u64,
    /// Whether to replay at all.
    pub replay: bool,
}

/// What is found at a hit ratio.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Share of the prompt that others begin with.
    pub hit: f64,
    /// The fluid's rate of a replica, and what ends it.
    pub fluid: (Option<Steady>, Limit),
    /// The replay at the highest rate within the limits; its `capacity_rps` is of all replicas.
    pub replay: Option<Outcome>,
}

/// A replay's search begins at this share of the fluid.
const FIRST_SHARE: f64 = 0.8;
/// Where the fluid finds nothing, at this rate a replica.
const FIRST_RPS: f64 = 0.5;

impl Sweep {
    /// A row; `tick` is called with virtual time now and then.
    #[must_use]
    pub fn row(&self, hit: f64, tick: &mut dyn FnMut(u64)) -> Row {
        let load = self.load(hit);
        let fluid = fluid::most(&self.engine, &load, &self.slo);
        let replay = self.replay.then(|| self.replayed(hit, fluid.0, tick));
        Row { hit, fluid, replay }
    }

    fn load(&self, hit: f64) -> Load {
        let (prompt, output) = (f64::from(self.prompt_tokens), f64::from(self.output_tokens));
        Load { prompt_tokens: prompt, output_tokens: output, hit }
    }

    fn replayed(&self, hit: f64, bound: Option<Steady>, tick: &mut dyn FnMut(u64)) -> Outcome {
        let scenario = Scenario {
            seed: self.seed,
            replicas: self.replicas,
            engine: self.engine.clone(),
            slo: self.slo,
            ..Scenario::new()
        };
        let Sweep { seed, seconds, prompt_tokens, output_tokens, .. } = *self;
        let workload = |rate: f64| {
            Uniform { seed, rate, seconds, prompt_tokens, output_tokens, shared: hit }.workload()
        };
        let each = bound.map_or(FIRST_RPS, |steady| (steady.rps * FIRST_SHARE).max(1e-3));
        let first = each * self.replicas as f64;
        let policy = Policy::Cost;
        let found = capacity::capacity(&scenario, policy, first, &workload, tick);
        let rate = if found > 0.0 { found } else { first };
        let mut outcome = Outcome::of(&scenario, &workload(rate), policy, tick);
        outcome.capacity_rps = Some(found);
        outcome
    }

    /// All that the command says.
    #[must_use]
    pub fn sheet(&self, rows: &[Row]) -> Sheet {
        let mut sheet = Sheet {
            command: "plan capacity",
            title: format!(
                "plan capacity: {} x {}, prompts of {} tokens, answers of {}",
                self.replicas, self.engine_name, self.prompt_tokens, self.output_tokens
            ),
            ..Sheet::default()
        };
        self.inputs(&mut sheet);
        let best = rows.iter().filter_map(|row| row.capacity(self)).fold(0.0, f64::max);
        let worst = rows.first().and_then(|row| row.capacity(self));
        if let (Some(cold), true) = (worst, best > 0.0) {
            let how = "highest rate of the table / its first";
            let gain = if cold > 0.0 { number(best / cold, 2) } else { Cell::Nothing };
            sheet.result(("gain", "what hits are worth", "x"), gain, how);
        }
        sheet.tables.push(self.table(rows));
        for row in rows.iter().filter(|row| row.fluid.0.is_none_or(|s| s.rps < 0.05)) {
            sheet.warnings.push(format!(
                "At a hit ratio of {} not even lone requests are within the limits ({}): other \
                 GPUs, a smaller model or other limits.",
                row.hit,
                row.fluid.1.name()
            ));
        }
        self.notes(&mut sheet);
        sheet
    }

    fn inputs(&self, sheet: &mut Sheet) {
        let name = words(self.engine_name.clone());
        sheet.input(("engine", "engine", ""), name, self.engine_source.clone());
        let replicas = number(self.replicas as f64, 0);
        sheet.input(("replicas", "replicas", ""), replicas, format!("of {} GPUs", self.gpus));
        let blocks = number(self.engine.blocks as f64, 0);
        let source = format!("of {} tokens, a replica", self.engine.block_tokens);
        sheet.input(("blocks", "KV blocks", ""), blocks, source);
        let tokens = number(self.engine.step_tokens_max as f64, 0);
        sheet.input(("step_tokens", "step", "tokens"), tokens, "max_num_batched_tokens");
        let ttft = number(self.slo.ttft_ms, 0);
        sheet.input(("slo_ttft_ms", "limit on TTFT", "ms"), ttft, "for 99 % of the requests");
        let tpot = number(self.slo.tpot_ms, 0);
        sheet.input(("slo_tpot_ms", "limit on TPOT", "ms"), tpot, "for 95 % of the requests");
        if self.replay {
            let source = format!("Poisson arrivals, policy cost, seed {}", self.seed);
            sheet.input(("seconds", "replay", "s"), number(self.seconds, 0), source);
        }
    }

    fn table(&self, rows: &[Row]) -> Table {
        let cells = |row: &Row| {
            let steady = |of: &dyn Fn(&Steady) -> f64, digits| {
                row.fluid.0.as_ref().map_or(Cell::Nothing, |s| number(of(s), digits))
            };
            let replicas = self.replicas as f64;
            let mut cells = vec![
                number(row.hit, 2),
                steady(&|s| s.rps * replicas, 1),
                words(row.fluid.1.name()),
            ];
            if let Some(replay) = &row.replay {
                let rps = replay.capacity_rps.unwrap_or(0.0);
                let a_gpu = rps / (replicas * self.gpus as f64);
                cells.push(number(rps, 1));
                cells.push(number(a_gpu * f64::from(self.output_tokens), 0));
                cells.push(number(replay.ttft_p50_ms, 0));
                cells.push(number(replay.ttft_p99_ms, 0));
                cells.push(number(replay.tpot_p95_ms, 1));
                cells.push(number(replay.hit_ratio, 3));
            }
            cells
        };
        let mut columns =
            vec![("hit", "shared"), ("fluid_rps", "fluid rps"), ("limit", "ended by")];
        if self.replay {
            columns.extend([
                ("replay_rps", "replay rps"),
                ("output_tps_a_gpu", "out tok/s/GPU"),
                ("ttft_p50_ms", "TTFT p50 ms"),
                ("ttft_p99_ms", "p99 ms"),
                ("tpot_p95_ms", "TPOT p95 ms"),
                ("hit_ratio", "hit"),
            ]);
        }
        let title = "Highest rate within the limits, all replicas, by the share of each prompt \
                     that others begin with";
        Table {
            key: "by_hit_ratio",
            title: title.to_owned(),
            columns,
            rows: rows.iter().map(cells).collect(),
            bars: Some(if self.replay { 3 } else { 1 }),
        }
    }

    fn notes(&self, sheet: &mut Sheet) {
        let mut note = |text: &str| sheet.notes.push(text.to_owned());
        note(
            "The fluid: at r requests a second a step of T ms has r u T prefill tokens (u = \
             uncached tokens of a prompt) and r (o - 1) T decodes, and T is what the engine takes \
             for them; r rises until a limit is met. No queue, no chance: about the most in the \
             long run.",
        );
        if self.replay {
            note(
                "The replay sends Poisson arrivals through the gateway's own router to simulated \
                 engines, from idle: a run that is short beside an answer's time flatters. The \
                 times are those at the rate found.",
            );
        }
        note("Neither is a measurement: `expedite bench` on the real fleet is.");
    }
}

impl Row {
    /// The rate found: by replay if there was one.
    fn capacity(&self, sweep: &Sweep) -> Option<f64> {
        match &self.replay {
            Some(replay) => replay.capacity_rps,
            None => self.fluid.0.map(|steady| steady.rps * sweep.replicas as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(replay: bool) -> Sweep {
        Sweep {
            engine: EngineParams::a100_8b(),
            engine_name: "a100-8b".to_owned(),
            engine_source: "profile".to_owned(),
            replicas: 2,
            gpus: 1,
            prompt_tokens: 1024,
            output_tokens: 60,
            slo: Slo { ttft_ms: 400.0, tpot_ms: 50.0 },
            seconds: 15.0,
            seed: 2,
            replay,
        }
    }

    #[test]
    fn the_replay_is_near_the_fluid_and_hits_what_was_shared() {
        let asked = sweep(true);
        let row = asked.row(0.5, &mut |_| {});
        let (bound, replay) = (row.fluid.0.expect("within"), row.replay.clone().expect("replayed"));
        let rps = replay.capacity_rps.expect("searched");
        assert!(rps > 0.4 * 2.0 * bound.rps && rps < 1.1 * 2.0 * bound.rps, "{rps} {bound:?}");
        assert!((0.35..=0.5).contains(&replay.hit_ratio), "{}", replay.hit_ratio);
        let json = asked.sheet(&[row]).json();
        assert_eq!(json["tables"]["by_hit_ratio"][0]["replay_rps"], (rps * 10.0).round() / 10.0);
    }

    #[test]
    fn a_fleet_that_cannot_is_told_so() {
        let mut asked = sweep(false);
        asked.slo.tpot_ms = 5.0;
        let sheet = asked.sheet(&[asked.row(0.0, &mut |_| {})]);
        assert!(sheet.warnings[0].contains("TPOT"), "{:?}", sheet.warnings);
        asked.slo.tpot_ms = 50.0;
        let rows = [0.0, 0.9].map(|hit| asked.row(hit, &mut |_| {}));
        let sheet = asked.sheet(&rows);
        assert!(sheet.warnings.is_empty() && sheet.of("gain").is_some_and(|gain| gain > 1.2));
    }
}
