//! `plan capacity`: the rate within the limits, by hit ratio or by a published sketch's pools.

use std::process::ExitCode;

use super::common::{Model, Output, Profile, hit, positive};
use super::progress;
use crate::plan::Slo;
use crate::plan::fleet;
use crate::plan::sheet::Sheet;
use crate::plan::sweep::Sweep;

/// Requests a second within the limits by hit ratio: a fluid and a replay
#[derive(clap::Args)]
#[command(after_help = "Examples:
  expedite plan capacity --prompt-tokens 2048 --hit 0,0.25,0.5,0.75,0.9
  expedite plan capacity --model llama-3-70b --gpus 8 --weights fp8 --no-replay
  expedite plan capacity --fleet --html fleet.html

Without --model the engine is one that was profiled; with it, one by the roofline of the data sheet,
an estimate. --fleet is 64 replicas of a published design sketch: 16 of 70B, 40 of 8B, 8 with
adapters.")]
pub(super) struct Args {
    /// The three pools of a published design sketch instead
    #[arg(long, conflicts_with_all = ["model", "model_config", "no_replay", "hit"])]
    fleet: bool,
    /// A profiled engine
    #[arg(long, value_enum, default_value = "a100-8b",
        conflicts_with_all = ["model", "model_config"])]
    engine: Profile,
    #[command(flatten)]
    model: Model,
    /// Replicas
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    replicas: u16,
    /// Tokens of a prompt
    #[arg(long, default_value_t = 2048,
        value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    prompt_tokens: u32,
    /// Mean tokens of an answer
    #[arg(long, default_value_t = 300,
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    output_tokens: u32,
    /// Shares of the prompt that others begin with too
    #[arg(long, value_name = "SHARE,...", value_delimiter = ',', value_parser = hit,
        default_values_t = [0.0, 0.25, 0.5, 0.75, 0.9])]
    hit: Vec<f64>,
    /// Limit on the time to the first token
    #[arg(long, value_name = "MS", default_value_t = 400.0, value_parser = positive)]
    slo_ttft_ms: f64,
    /// Limit on the mean time of the tokens after it
    #[arg(long, value_name = "MS", default_value_t = 50.0, value_parser = positive)]
    slo_tpot_ms: f64,
    /// Seconds of a replay in which requests come
    #[arg(long, value_name = "S", default_value_t = 120.0, value_parser = seconds)]
    seconds: f64,
    /// All draws follow from it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The fluid alone
    #[arg(long)]
    no_replay: bool,
    #[command(flatten)]
    output: Output,
}

fn seconds(text: &str) -> Result<f64, &'static str> {
    positive(text).ok().filter(|&s| s <= 86_400.0).ok_or("must be seconds, at most a day")
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    let sheet = if args.fleet { Ok(pools(args)) } else { sweep(args) };
    args.output.print("plan capacity", sheet)
}

fn pools(args: &Args) -> Sheet {
    let pools = fleet::pools();
    let rows = progress::beside(pools.len(), |place, tick| {
        pools.get(place).map(|pool| pool.row(args.seed, args.seconds, tick))
    });
    let rows: Vec<_> = rows.into_iter().flatten().collect();
    fleet::sheet(&rows, args.seed, args.seconds)
}

fn sweep(args: &Args) -> Result<Sheet, String> {
    let engine = args.model.engine(args.engine)?;
    let blocks = engine.params.blocks * engine.params.block_tokens;
    let tokens = u64::from(args.prompt_tokens) + u64::from(args.output_tokens);
    if tokens > blocks {
        return Err(format!("a request of {tokens} tokens exceeds the replica's {blocks}"));
    }
    let asked = Sweep {
        engine: engine.params,
        engine_name: engine.name,
        engine_source: engine.source,
        replicas: usize::from(args.replicas),
        gpus: engine.gpus,
        prompt_tokens: args.prompt_tokens,
        output_tokens: args.output_tokens,
        slo: Slo { ttft_ms: args.slo_ttft_ms, tpot_ms: args.slo_tpot_ms },
        seconds: args.seconds,
        seed: args.seed,
        replay: !args.no_replay,
    };
    let rows = progress::beside(args.hit.len(), |place, tick| {
        asked.row(args.hit.get(place).copied().unwrap_or(0.0), tick)
    });
    Ok(asked.sheet(&rows))
}
