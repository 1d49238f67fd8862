//! `plan capacity --fleet`: the article's three pools, each with the mix and the limits it can be
//! held to, against the traffic that the article names.

use crate::engine::EngineParams;
use crate::routing::Policy;

use super::capacity;
use super::fluid::{self, Limit, Load, Steady};
use super::mix::Mix;
use super::outcome::{CAPACITY_RATIOS, Outcome};
use super::scenario::{Scenario, Slo};
use super::sheet::{Cell, Sheet, Table, number, words};

/// A pool of the fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// What it serves, and with what limits.
    pub name: &'static str,
    /// Replicas.
    pub replicas: usize,
    /// GPUs of each.
    pub gpus: u64,
    /// Each one's engine.
    pub engine: EngineParams,
    /// Adapters that its traffic asks for.
    pub adapters: u32,
    /// The limits.
    pub slo: Slo,
    /// Share of the requests that must have their first token in time; 0.95 the later ones.
    pub ttft_share: f64,
    /// Where a search begins, in requests a second.
    pub first_rps: f64,
    /// Whether its rate counts for the fleet; no when a pool is shown with other limits.
    pub counts: bool,
}

/// What is found of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The pool.
    pub pool: Pool,
    /// The fluid's rate of a replica at the replay's hit ratio, and what ends it.
    pub fluid: (Option<Steady>, Limit),
    /// At the highest rate within the limits, if there is one; `capacity_rps` is of the pool.
    pub replay: Outcome,
}

/// Requests a second that the article names, and their tokens in and out.
const PEAK_RPS: f64 = 5000.0;
const TOKENS: (f64, f64) = (1800.0, 300.0);
/// Output tokens a minute that it names beside them.
const OUTPUT_TPM: f64 = 1.5e6;
/// With 60 adapters in 8 slots more than one request in a hundred waits for an adapter to load.
const LORA_SHARE: f64 = 0.94;
/// What it says the fleet costs, in $/h, and its GPUs.
const GPUS: f64 = 80.0;
const FLEET_DOLLARS_H: f64 = 2600.0;

/// The article's pools.
#[must_use]
pub fn pools() -> Vec<Pool> {
    let slo = |ttft_ms, tpot_ms| Slo { ttft_ms, tpot_ms };
    let large = Pool {
        name: "70B, TP2, limits 400/50 ms",
        replicas: 16,
        gpus: 2,
        engine: EngineParams::a100_70b_tp2(),
        adapters: 0,
        slo: slo(400.0, 50.0),
        ttft_share: CAPACITY_RATIOS.0,
        first_rps: 4.0,
        counts: false,
    };
    let (mut loose, mut small, mut lora) = (large.clone(), large.clone(), large.clone());
    (loose.name, loose.slo) = ("70B, TP2, limits 2 s/100 ms", slo(2000.0, 100.0));
    (loose.first_rps, loose.counts) = (18.0, true);
    (small.name, small.replicas, small.gpus) = ("8B", 40, 1);
    (small.engine, small.first_rps, small.counts) = (EngineParams::a100_8b(), 335.0, true);
    (lora.name, lora.replicas, lora.gpus) = ("8B, 60 adapters, 8 slots", 8, 1);
    (lora.engine, lora.adapters) = (EngineParams::a100_8b_lora(), 60);
    (lora.first_rps, lora.counts, lora.ttft_share) = (40.0, true, LORA_SHARE);
    vec![large, loose, small, lora]
}

impl Pool {
    /// Searches the highest rate; `tick` is called with virtual time now and then.
    #[must_use]
    pub fn row(&self, seed: u64, seconds: f64, tick: &mut dyn FnMut(u64)) -> Row {
        let scenario = Scenario {
            seed,
            replicas: self.replicas,
            engine: self.engine.clone(),
            slo: self.slo,
            ..Scenario::new()
        };
        let workload = |rate: f64| {
            let token_ms = scenario.tpot_ms(rate, 0.0);
            let (hot, long, adapters) = (0.0, 0.0, self.adapters);
            let (tenants, flood) = (1, 1.0);
            Mix { seed, rate, seconds, hot, long, adapters, tenants, flood, token_ms }.workload()
        };
        let (first, policy) = (self.first_rps, Policy::Cost);
        let within = |run: &Outcome| {
            run.ttft_ok_ratio >= self.ttft_share && run.tpot_ok_ratio >= CAPACITY_RATIOS.1
        };
        let found = capacity::capacity_where(&scenario, policy, first, &workload, tick, within);
        let rate = if found > 0.0 { found } else { first };
        let mut replay = Outcome::of(&scenario, &workload(rate), policy, tick);
        replay.capacity_rps = Some(found);
        let load = Load {
            prompt_tokens: replay.prompt_tokens_mean,
            output_tokens: replay.output_tokens_mean.max(1.0),
            hit: replay.hit_ratio,
        };
        let fluid = fluid::most(&self.engine, &load, &self.slo);
        Row { pool: self.clone(), fluid, replay }
    }
}

/// All that the command says.
#[must_use]
pub fn sheet(rows: &[Row], seed: u64, seconds: f64) -> Sheet {
    let mut sheet = Sheet {
        command: "plan capacity --fleet",
        title: "plan capacity --fleet: 64 replicas in three pools on 80 A100-80G".to_owned(),
        ..Sheet::default()
    };
    sheet.input(("peak_rps", "asked, at peak", "rps"), number(PEAK_RPS, 0), "the article");
    let how = "the article, a request, in the mean";
    sheet.input(("input_tokens", "prompt", "tokens"), number(TOKENS.0, 0), how);
    sheet.input(("output_tokens", "answer", "tokens"), number(TOKENS.1, 0), how);
    let source = format!("the mix of `plan replay`, policy cost, seed {seed}");
    sheet.input(("seconds", "replay", "s"), number(seconds, 0), source);

    let counted = || rows.iter().filter(|row| row.pool.counts);
    let rps: f64 = counted().map(Row::rps).sum();
    let output: f64 = counted().map(Row::output_tps).sum();
    sheet.result(("fleet_rps", "fleet within limits", "rps"), number(rps, 0), "sum of the pools");
    let how = "sum of rate x mean answer";
    sheet.result(("fleet_output_tps", "output", "tok/s"), number(output, 0), how);
    let minute = number(output * 60.0 / 1e6, 2);
    sheet.result(("fleet_output_mtpm", "  a minute", "M tok"), minute, "x 60");
    let asked = PEAK_RPS * TOKENS.1;
    let how = format!("{PEAK_RPS:.0} x {:.0}", TOKENS.1);
    sheet.result(("asked_output_tps", "asked output", "tok/s"), number(asked, 0), how);
    let how = "asked rps / fleet's rps";
    let times = if rps > 0.0 { number(PEAK_RPS / rps, 1) } else { Cell::Nothing };
    sheet.result(("short_by", "fleets of this size needed", "x"), times, how);
    let floor = OUTPUT_TPM / 60.0 / TOKENS.1;
    let how = format!("{:.1} M a minute / 60 / {:.0}", OUTPUT_TPM / 1e6, TOKENS.1);
    sheet.result(("floor_rps", "the article's tokens a minute", "rps"), number(floor, 0), how);
    if output > 0.0 {
        let cost = FLEET_DOLLARS_H / (output * 3600.0 / 1e6);
        let how = format!("${FLEET_DOLLARS_H:.0}/h / (output x 3,600 / 1 M)");
        let key = ("output_dollars_m", "cost of output at full load", "$/M tok");
        sheet.result(key, number(cost, 2), how);
    }
    sheet.tables.push(table(rows));
    notes(&mut sheet);
    sheet
}

fn table(rows: &[Row]) -> Table {
    let cells = |row: &Row| {
        let bound = row.fluid.0.map(|steady| steady.rps * row.pool.replicas as f64);
        let replay = &row.replay;
        vec![
            words(row.pool.name),
            number(row.pool.replicas as f64, 0),
            number(row.pool.replicas as f64 * row.pool.gpus as f64, 0),
            bound.map_or(Cell::Nothing, |rps| number(rps, 1)),
            words(row.fluid.1.name()),
            number(row.rps(), 1),
            number(row.output_tps(), 0),
            row.dollars().map_or(Cell::Nothing, |dollars| number(dollars, 2)),
            number(replay.hit_ratio, 3),
            number(replay.ttft_ok_ratio, 3),
            number(replay.ttft_p99_ms, 0),
            number(replay.tpot_p95_ms, 1),
        ]
    };
    let columns = vec![
        ("pool", "pool"),
        ("replicas", "replicas"),
        ("gpus", "GPUs"),
        ("fluid_rps", "fluid rps"),
        ("limit", "ended by"),
        ("replay_rps", "replay rps"),
        ("output_tps", "out tok/s"),
        ("output_dollars_m", "$/M out"),
        ("hit_ratio", "hit"),
        ("ttft_ok", "TTFT in time"),
        ("ttft_p99_ms", "p99 ms"),
        ("tpot_p95_ms", "TPOT p95 ms"),
    ];
    Table {
        key: "pools",
        title: "Highest rate within the limits, by pool".to_owned(),
        columns,
        rows: rows.iter().map(cells).collect(),
        bars: Some(5),
    }
}

fn notes(sheet: &mut Sheet) {
    let mut note = |text: &str| sheet.notes.push(text.to_owned());
    note(
        "5,000 rps of 300 tokens are 1.5 M output tokens a second, not a minute as the article has \
         it: a minute's worth is 83 rps. Its GPUs cannot serve 5,000 rps by any routing; that rate \
         is the gateway's target, shown with simulated engines.",
    );
    note(
        "A step of the 70B model on two A100 takes 50 ms by itself, so it cannot be held to 50 ms \
         a token; it counts with 2 s and 100 ms.",
    );
    note(
        "$2,600/h for 80 GPUs are $32.50 a GPU-hour and $22.8 M a year; a gap of 20 % is \
         $4.6 M, not $12.5 M. At that price neither $9 (70B) nor $0.80 (8B) a million output \
         tokens can be met, full load or not; at a tenth of it both can. `plan cost` takes the \
         price as an input.",
    );
    note(
        "The fluid is of like requests at the replay's hit ratio (`plan capacity` without --fleet) \
         and knows neither chance nor adapters; the replay begins idle, which flatters a short \
         one. \
         99 % must have their first token in time (adapters: 94 %, for they load) and 95 % the \
         later ones.",
    );
}

impl Row {
    /// Requests a second within the limits.
    #[must_use]
    pub fn rps(&self) -> f64 {
        self.replay.capacity_rps.unwrap_or(0.0)
    }

    /// Dollars for a million output tokens at full load, at the article's price of a GPU.
    fn dollars(&self) -> Option<f64> {
        let gpus = self.pool.replicas as f64 * self.pool.gpus as f64;
        let output = self.output_tps();
        (output > 0.0).then(|| FLEET_DOLLARS_H / GPUS * gpus / 3600.0 / output * 1e6)
    }

    fn output_tps(&self) -> f64 {
        self.rps() * self.replay.output_tokens_mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_articles_fleet_is_64_replicas_on_80_gpus() {
        let counted: Vec<Pool> = pools().into_iter().filter(|pool| pool.counts).collect();
        assert_eq!(counted.iter().map(|pool| pool.replicas).sum::<usize>(), 64);
        assert_eq!(counted.iter().map(|p| p.replicas as u64 * p.gpus).sum::<u64>(), 80);
    }

    #[test]
    fn the_slips_are_reckoned() {
        let mut pool = pools().remove(3);
        (pool.replicas, pool.first_rps) = (2, 8.0);
        let row = pool.row(1, 8.0, &mut |_| {});
        assert!((1.0..40.0).contains(&row.rps()), "{}", row.rps());
        let sheet = sheet(std::slice::from_ref(&row), 1, 8.0);
        assert_eq!(sheet.of("asked_output_tps"), Some(1.5e6));
        assert_eq!(sheet.of("floor_rps").map(f64::round), Some(83.0));
        assert_eq!(sheet.of("fleet_rps"), Some(row.rps()));
    }
}
