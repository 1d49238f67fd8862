//! Cost of the engine model: `cargo bench --bench engine`.
//!
//! Forty engines with sessions that share system prompts, about as scenario M of the routing bars:
//! prints processor time a request and a virtual second on one thread. Asserts that every request
//! ended, that every book is right at the end, and a share of hits that says the cache was used.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use expedite::engine::{Engine, EngineParams, Progress, Work};
use expedite::prompt::blocks::BlockHash;

const ENGINES: usize = 40;
const SECONDS: f64 = 120.0;
const SESSIONS_A_SECOND: f64 = 184.0;
const SYSTEM_PROMPTS: usize = 400;
const THINK_SECONDS: f64 = 12.0;

/// A request: when, where, what.
type Arrival = (u64, usize, Work);

struct Mix {
    rng: fastrand::Rng,
    systems: Vec<u64>,
    weights: Vec<f64>,
}

impl Mix {
    fn new() -> Mix {
        let mut mix = Mix {
            rng: fastrand::Rng::with_seed(1),
            systems: Vec::new(),
            weights: (1..=SYSTEM_PROMPTS).map(|rank| 1.0 / rank as f64).collect(),
        };
        mix.systems = (0..SYSTEM_PROMPTS).map(|_| mix.lognormal(900.0)).collect();
        mix
    }

    fn lognormal(&mut self, mean: f64) -> u64 {
        let (a, b) = (self.rng.f64().max(1e-12), self.rng.f64());
        let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
        (mean * (0.8 * normal - 0.32).exp()).clamp(1.0, 8000.0) as u64
    }

    fn system(&mut self) -> usize {
        let mut rest = self.rng.f64() * self.weights.iter().sum::<f64>();
        let past = |weight: &f64| {
            rest -= weight;
            rest < 0.0
        };
        self.weights.iter().position(past).unwrap_or(0)
    }

    /// All arrivals by time. A session stays on one engine; a prompt's sessions are spread over as
    /// many engines as its share of the traffic needs.
    fn arrivals(&mut self) -> Vec<Arrival> {
        let (mut all, mut id, mut at_s) = (Vec::new(), 0, 0.0);
        let total: f64 = self.weights.iter().sum();
        for session in 1_u64.. {
            at_s -= self.rng.f64().max(1e-12).ln() / SESSIONS_A_SECOND;
            if at_s > SECONDS {
                break;
            }
            let system = self.system();
            let spread = (self.weights[system] / total * ENGINES as f64).ceil() as usize;
            let engine = (system * 7 + self.rng.usize(..spread)) % ENGINES;
            let (mut context, mut turn_s) = (self.systems[system], at_s);
            for _ in 0..if self.rng.f64() < 0.4 { 3 } else { 1 } {
                let prompt_tokens = context + self.lognormal(230.0);
                let output_tokens = self.lognormal(300.0);
                context = prompt_tokens + output_tokens;
                let shared = self.systems[system] / 16;
                let hashes: Arc<[BlockHash]> = (0..context / 16)
                    .map(|i| hash(if i < shared { system as u64 } else { session << 16 }, i))
                    .collect();
                id += 1;
                let (width, adapter) = (1, 0);
                let work = Work {
                    id,
                    hashes,
                    prompt_tokens,
                    output_tokens,
                    width,
                    adapter,
                    received_tokens: 0,
                };
                all.push(((turn_s * 1e6) as u64, engine, work));
                turn_s += THINK_SECONDS + output_tokens as f64 * 0.03;
            }
        }
        all.retain(|arrival| arrival.0 < (SECONDS * 1e6) as u64);
        all.sort_by_key(|arrival| arrival.0);
        all
    }
}

fn hash(of: u64, block: u64) -> BlockHash {
    let mut mixed =
        of.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ block.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 29).wrapping_mul(0x94D0_49BB_1331_11EB);
    BlockHash::from(mixed ^ mixed >> 32) << 32 | BlockHash::from(block & 0xffff_ffff)
}

/// Processor time of this thread in seconds.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).expect("a number") / 1e9
}

fn run(engines: &mut [Engine], arrivals: Vec<Arrival>) -> (usize, u64) {
    let mut arrivals = arrivals.into_iter().peekable();
    let mut due: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut queued = vec![false; engines.len()];
    let (mut out, mut finished, mut turns) = (Vec::new(), 0, 0);
    loop {
        let next_us = due.peek().map_or(u64::MAX, |Reverse((us, _))| *us);
        let at = match arrivals.next_if(|arrival| arrival.0 <= next_us) {
            Some((us, at, work)) => {
                engines[at].submit(us, work);
                at
            }
            None => {
                let Some(Reverse((us, at))) = due.pop() else { return (finished, turns) };
                queued[at] = false;
                engines[at].advance(us, &mut out);
                turns += 1;
                let ends = out.drain(..).filter(|p| matches!(p, Progress::Finished { .. }));
                finished += ends.count();
                at
            }
        };
        if !queued[at]
            && let Some(us) = engines[at].next_us()
        {
            due.push(Reverse((us, at)));
            queued[at] = true;
        }
    }
}

fn main() {
    for round in 0..3 {
        let arrivals = Mix::new().arrivals();
        let requests = arrivals.len();
        let mean = |tokens: fn(&Work) -> u64| {
            arrivals.iter().map(|a| tokens(&a.2)).sum::<u64>() / requests as u64
        };
        let (prompt, output) = (mean(|w| w.prompt_tokens), mean(|w| w.output_tokens));
        let mut engines: Vec<_> =
            (0..ENGINES).map(|_| Engine::new(EngineParams::a100_8b())).collect();
        let begun_s = cpu_s();
        let (finished, steps) = run(&mut engines, arrivals);
        let took_s = cpu_s() - begun_s;
        assert_eq!(finished, requests);
        let (mut queried, mut hit) = (0, 0);
        for engine in &engines {
            engine.check().expect("the books are right");
            let (queries, hits) = engine.prefix_tokens();
            (queried, hit) = (queried + queries, hit + hits);
        }
        let hits = hit as f64 / queried as f64;
        assert!(hits > 0.7, "{hits}");
        if round == 0 {
            println!(
                "{requests} requests of {prompt} in, {output} out, {:.0} a second on {ENGINES} \
                 engines, {steps} steps, hits {hits:.2}",
                requests as f64 / SECONDS
            );
        }
        println!(
            "{:.2} us a request, {:.2} ms a virtual second, {:.0} ns a step",
            took_s * 1e6 / requests as f64,
            took_s * 1e3 / SECONDS,
            took_s * 1e9 / steps as f64
        );
    }
}
