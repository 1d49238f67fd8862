//! `plan replay`: a workload against a simulated fleet, by the gateway's own router, in virtual
//! time; policies side by side.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;

use super::super::{EXIT_USAGE, print, trace};
use super::knobs::Knobs;
use super::progress;
use crate::engine::EngineParams;
use crate::plan::{Crash, Mix, Outcome, Scenario, Slo, Slow, Trace, Workload};
use crate::plan::{capacity, html, report};
use crate::routing::Policy;

/// Seconds of the mix, unless told otherwise. A file is taken whole.
const MIX_SECONDS: f64 = 50.0;

/// Replay a workload through the real router against simulated vLLM replicas, in virtual time
#[derive(clap::Args)]
#[command(after_help = "Examples:
  expedite plan replay --workload mix --rate 332 --policy cost,lmetric,cache_aware
  expedite plan replay --workload mix --rate 300 --capacity --hot 0.8 --json
  expedite plan replay --workload mix --rate 245 --fail '15,3,20;22,7,15' --slow 11,3
  expedite plan replay --workload mix --rate 45 --replicas 8 --engine a100-8b-lora --adapters 60
  expedite plan replay --workload mix --rate 60 --replicas 8 --batch-tokens 512 --capacity
  expedite plan replay --workload trace.jsonl.gz --rate 9 --slo-tpot-ms 100 --html report.html

The workload `mix` is a chat service: 400 system prompts by Zipf's law, sessions of one or three
turns, prompts of 1,736 tokens and answers of 297 in the mean. A FILE has one request a line, as
Mooncake and Bailian publish them, or lengths alone. The limit on the first token grows by 0.15 ms
with each prompt token above 4,000. A request is good when it meets both limits; capacity is the
highest rate at which 99 % meet the first and 95 % the second.")]
pub(super) struct Args {
    /// `mix`, or a trace as JSON lines (.gz too)
    #[arg(long, value_name = "mix|FILE", default_value = "mix")]
    workload: String,
    /// All draws follow from it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Requests a second [default: a FILE's own]
    #[arg(long, value_name = "RPS", value_parser = positive)]
    rate: Option<f64>,
    /// Replicas of the fleet
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..=4000))]
    replicas: u16,
    /// Model and GPU of a replica
    #[arg(long, value_enum, default_value = "a100-8b")]
    engine: Engine,
    #[command(flatten)]
    knobs: Knobs,
    /// Policies to compare, or `all`
    #[arg(long, value_name = "NAME,...", default_value = "cost", value_parser = policies)]
    policy: Policies,
    /// Seconds in which requests come [default: 50 of the mix, a FILE whole]
    #[arg(long, value_name = "S", value_parser = positive)]
    seconds: Option<f64>,
    /// Serve the first seconds and count them nowhere: a run begins with empty caches
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = not_negative)]
    warmup: f64,
    /// Share of the mix's traffic on one system prompt
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    hot: f64,
    /// Share of the mix's prompts that are 32,768 tokens and share nothing
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    long: f64,
    /// Adapters of the mix, by Zipf's law; needs an engine with adapter slots
    #[arg(long, value_name = "N", default_value_t = 0)]
    adapters: u32,
    /// Tenants with equal shares of the mix, each with its own system prompts
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=400))]
    tenants: u16,
    /// The first tenant sends this many times its share; --rate is without it
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = positive)]
    flood: f64,
    /// Gateways; requests come to them in turn
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    gateways: u16,
    /// How often gateways share dispatches and load [default: never]
    #[arg(long, value_name = "MS", value_parser = positive)]
    gossip_ms: Option<f64>,
    /// How often gateways read the replicas' metrics
    #[arg(long, value_name = "MS", default_value_t = 500.0, value_parser = positive)]
    scrape_ms: f64,
    /// Gateways know of load only what they last read in the metrics
    #[arg(long)]
    no_ledger: bool,
    /// Replicas that die: second, replica from 0, seconds until it is back
    #[arg(long, value_name = "T,REPLICA,DOWN;...", value_parser = crashes)]
    fail: Option<Crashes>,
    /// Replicas whose steps take longer, by a factor
    #[arg(long, value_name = "REPLICA,FACTOR;...", value_parser = slow_ones)]
    slow: Option<SlowOnes>,
    /// Refuse what would miss its limits, and who floods before the others
    #[arg(long)]
    shed: bool,
    /// Limit on the time to the first token
    #[arg(long, value_name = "MS", default_value_t = 400.0, value_parser = positive)]
    slo_ttft_ms: f64,
    /// Limit on the mean time of the tokens after it
    #[arg(long, value_name = "MS", default_value_t = 50.0, value_parser = positive)]
    slo_tpot_ms: f64,
    /// Search for the highest rate within the limits
    #[arg(long)]
    capacity: bool,
    /// One JSON object a policy, one a line
    #[arg(long)]
    json: bool,
    /// Write a report as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Engine {
    #[value(name = "a100-8b")]
    Small,
    #[value(name = "a100-70b-tp2")]
    Large,
    #[value(name = "a100-8b-lora")]
    Lora,
}

#[derive(Clone, Debug)]
struct Policies(Vec<Policy>);
#[derive(Clone, Debug)]
struct Crashes(Vec<Crash>);
#[derive(Clone, Debug)]
struct SlowOnes(Vec<Slow>);

fn positive(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0 && *n < 1e9);
    number.ok_or("must be a number above 0")
}

fn not_negative(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|n: &f64| (0.0..1e9).contains(n));
    number.ok_or("must be a number, 0 or more")
}

fn share(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|n: &f64| (0.0..=1.0).contains(n));
    number.ok_or("must be a share between 0 and 1")
}

fn policies(text: &str) -> Result<Policies, String> {
    if text == "all" {
        return Ok(Policies(Policy::ALL.to_vec()));
    }
    let known = || Policy::ALL.map(Policy::name).join(" ");
    let one = |name: &str| {
        Policy::of_name(name.trim()).ok_or_else(|| format!("`{name}` is none of: {}", known()))
    };
    text.split(',').map(one).collect::<Result<_, _>>().map(Policies)
}

/// Fields of `a,b,c;a,b,c`, each entry with as many as `N`.
fn entries<const N: usize>(text: &str, form: &str) -> Result<Vec<[f64; N]>, String> {
    let wrong = |entry: &str| format!("`{entry}`: say {form}");
    let entry = |entry: &str| {
        let fields: Option<Vec<f64>> = entry.split(',').map(|f| f.trim().parse().ok()).collect();
        let fields = fields.filter(|f| f.iter().all(|n| n.is_finite() && *n >= 0.0 && *n < 1e9));
        fields.and_then(|f| f.try_into().ok()).ok_or_else(|| wrong(entry))
    };
    text.split(';').filter(|entry| !entry.trim().is_empty()).map(entry).collect()
}

fn crashes(text: &str) -> Result<Crashes, String> {
    let us = |seconds: f64| (seconds * 1e6) as u64;
    let entries = entries(text, "T,REPLICA,DOWN, as in 15,3,20")?;
    let crash = |[at, replica, down]: [f64; 3]| Crash {
        at_us: us(at),
        replica: replica as usize,
        down_us: us(down).max(1),
    };
    Ok(Crashes(entries.into_iter().map(crash).collect()))
}

fn slow_ones(text: &str) -> Result<SlowOnes, String> {
    let entries: Vec<[f64; 2]> = entries(text, "REPLICA,FACTOR, as in 3,2.5")?;
    if entries.iter().any(|[_, factor]| *factor < 0.01) {
        return Err("a factor must be 0.01 or more".to_owned());
    }
    let slow = |[replica, factor]: [f64; 2]| Slow { replica: replica as usize, factor };
    Ok(SlowOnes(entries.into_iter().map(slow).collect()))
}

/// Where the sessions come from.
enum Source {
    Mix(Mix),
    Trace(Trace, Option<f64>),
}

impl Source {
    fn workload(&self, rate: f64, scenario: &Scenario) -> Workload {
        match self {
            Source::Mix(mix) => {
                let token_ms = scenario.tpot_ms(rate, mix.long);
                Mix { rate, token_ms, ..*mix }.workload()
            }
            Source::Trace(trace, seconds) => trace.workload(rate, *seconds),
        }
    }
}

/// What is to be run.
struct Plan {
    scenario: Scenario,
    source: Source,
    rate: f64,
    policies: Vec<Policy>,
    capacity: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    let plan = match plan(args) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("expedite plan replay: {error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let outcomes = outcomes(&plan);
    let title = title(args, &plan);
    if let Some(path) = &args.html {
        let page = html::page(&title, &outcomes, &plan.scenario.slo);
        if let Err(error) = std::fs::write(path, page) {
            eprintln!("expedite plan replay: {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    if args.json {
        let lines: Vec<String> = outcomes.iter().map(|o| format!("{}\n", o.json())).collect();
        return print(&lines.concat());
    }
    print(&report::table(&title, &outcomes))
}

fn plan(args: &Args) -> Result<Plan, String> {
    let engine = match args.engine {
        Engine::Small => EngineParams::a100_8b(),
        Engine::Large => EngineParams::a100_70b_tp2(),
        Engine::Lora => EngineParams::a100_8b_lora(),
    };
    let us = |ms: f64| (ms * 1e3).round().max(1.0) as u64;
    let scenario = Scenario {
        seed: args.seed,
        replicas: usize::from(args.replicas),
        engine: args.knobs.of(engine),
        gateways: usize::from(args.gateways),
        gossip_us: args.gossip_ms.map_or(0, us),
        scrape_us: us(args.scrape_ms),
        ledger: !args.no_ledger,
        shed: args.shed,
        tenants: usize::from(args.tenants),
        headroom: args.knobs.headroom,
        warmup_us: (args.warmup * 1e6) as u64,
        slo: Slo { ttft_ms: args.slo_ttft_ms, tpot_ms: args.slo_tpot_ms },
        crashes: args.fail.as_ref().map_or(Vec::new(), |crashes| crashes.0.clone()),
        slow: args.slow.as_ref().map_or(Vec::new(), |slow| slow.0.clone()),
        ..Scenario::new()
    };
    scenario.check()?;
    let seconds = args.seconds.or((args.workload == "mix").then_some(MIX_SECONDS));
    if seconds.is_some_and(|seconds| args.warmup >= seconds) {
        return Err("--warmup leaves nothing to count: it must end before --seconds".into());
    }
    let bent = args.hot > 0.0 || args.long > 0.0 || args.adapters > 0;
    let mix_only = bent || args.tenants > 1 || args.flood > 1.0;
    if args.flood > 1.0 && args.tenants < 2 {
        return Err("--flood needs others who do not: --tenants 8".into());
    }
    if args.adapters > 0 && scenario.engine.adapter_slots == 0 {
        return Err("--adapters needs an engine with adapter slots: --engine a100-8b-lora".into());
    }
    let (source, rate) = match (args.workload.as_str(), args.rate) {
        ("mix", None) => return Err("--rate is missing: requests a second of the mix".into()),
        ("mix", Some(rate)) => {
            let Args { seed, hot, long, adapters, flood, .. } = *args;
            let tenants = u32::from(args.tenants);
            let seconds = args.seconds.unwrap_or(MIX_SECONDS);
            let token_ms = scenario.tpot_ms(rate, long);
            let mix = Mix { seed, rate, seconds, hot, long, adapters, tenants, flood, token_ms };
            (Source::Mix(mix), rate)
        }
        _ if mix_only => {
            let what = "--hot, --long, --adapters, --tenants and --flood shape the mix, no FILE";
            return Err(what.into());
        }
        (file, rate) => {
            let trace = trace::read(Path::new(file))?;
            let rate = rate.unwrap_or(trace.rate());
            (Source::Trace(trace, args.seconds), rate)
        }
    };
    let longest = source.workload(rate, &scenario).longest_tokens();
    let room = scenario.engine.blocks.saturating_mul(scenario.engine.block_tokens);
    if longest > room {
        return Err(format!("a request of {longest} tokens exceeds a replica's {room}"));
    }
    let policies = args.policy.0.clone();
    Ok(Plan { scenario, source, rate, policies, capacity: args.capacity })
}

fn title(args: &Args, plan: &Plan) -> String {
    let engine = args.engine.to_possible_value();
    let engine = engine.map_or(String::new(), |value| value.get_name().to_owned());
    let gateways = match args.gateways {
        1 => "1 gateway".to_owned(),
        n => format!("{n} gateways"),
    };
    format!(
        "{}: {:.1} requests/s on {} x {engine} behind {gateways}, seed {}; limits {} ms and {} ms",
        args.workload, plan.rate, args.replicas, args.seed, args.slo_ttft_ms, args.slo_tpot_ms
    )
}

/// One outcome a policy, in the order of the policies.
fn outcomes(plan: &Plan) -> Vec<Outcome> {
    let workload = plan.source.workload(plan.rate, &plan.scenario);
    progress::beside(plan.policies.len(), |place, tick| {
        let policy = plan.policies.get(place).copied().unwrap_or(Policy::Cost);
        let mut outcome = Outcome::of(&plan.scenario, &workload, policy, tick);
        if plan.capacity {
            let workload = |rate| plan.source.workload(rate, &plan.scenario);
            let found = capacity::capacity(&plan.scenario, policy, plan.rate, &workload, tick);
            outcome.capacity_rps = Some(found);
        }
        outcome
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_three_fields_and_slow_ones_two() {
        let crash = |at_us, replica, down_us| Crash { at_us, replica, down_us };
        let read = crashes("15,3,20; 22,7,15.5").expect("two").0;
        assert_eq!(read, [crash(15_000_000, 3, 20_000_000), crash(22_000_000, 7, 15_500_000)]);
        assert_eq!(slow_ones("11,3").expect("one").0, [Slow { replica: 11, factor: 3.0 }]);
        for bad in ["1,2", "a,b,c", "1,2,3,4", "1,-2,3", "nan,1,1"] {
            assert!(crashes(bad).is_err(), "{bad}");
        }
        assert!(slow_ones("1,0").is_err());
    }

    #[test]
    fn policies_are_named_and_the_nearest_are_told() {
        assert_eq!(policies("cost, lmetric").expect("two").0, [Policy::Cost, Policy::Lmetric]);
        assert_eq!(policies("all").expect("all").0.len(), Policy::ALL.len());
        assert!(policies("best").expect_err("none").contains("round_robin"));
    }
}
