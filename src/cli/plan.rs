//! `expedite plan`: what a fleet will do, before it is there.

mod replay;

use std::process::ExitCode;

use clap::Subcommand;

/// Plan a fleet: replay a workload through the router in virtual time
#[derive(clap::Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Example:
  expedite plan replay --workload mix --rate 332 --policy cost,lmetric"
)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Replay(Box<replay::Args>),
}

/// Runs the command.
pub(super) fn run(args: Args) -> ExitCode {
    match args.what {
        What::Replay(args) => replay::run(&args),
    }
}
