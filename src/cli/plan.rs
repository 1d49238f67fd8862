//! `expedite plan`: what a fleet will do, before it is there.

mod capacity;
mod common;
mod cost;
mod knobs;
mod pd;
mod progress;
mod replay;
mod size;

use std::process::ExitCode;

use clap::Subcommand;

/// Plan a fleet: what fits, what it serves, what it costs; replays in virtual time
#[derive(clap::Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  expedite plan size --model llama-3-70b --gpus 8 --weights fp8 --kv-cache fp8
  expedite plan capacity --prompt-tokens 2048 --hit 0,0.5,0.9
  expedite plan cost --tokens-day 500e6 --gpu-hour 2.5 --gpus 8 --replica-tps 4000 --peak 2
  expedite plan pd --link-gbit 400 --slo-tpot-ms 15
  expedite plan replay --workload mix --rate 332 --policy cost,lmetric"
)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Size(Box<size::Args>),
    Capacity(Box<capacity::Args>),
    Cost(Box<cost::Args>),
    Pd(Box<pd::Args>),
    Replay(Box<replay::Args>),
}

/// Runs the command.
pub(super) fn run(args: Args) -> ExitCode {
    match args.what {
        What::Size(args) => size::run(&args),
        What::Capacity(args) => capacity::run(&args),
        What::Cost(args) => cost::run(&args),
        What::Pd(args) => pd::run(&args),
        What::Replay(args) => replay::run(&args),
    }
}
