//! The commands: one small file each.

mod serve;
mod sim;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A gateway in front of fleets of vLLM replicas.
#[derive(Parser, Debug)]
#[command(name = "expedite", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the gateway
    Serve(serve::Args),
    /// Run a simulated vLLM fleet
    Sim(sim::Args),
}

/// Runs the command that argv names; exit code 0 ok, 1 failed, 2 wrong usage or configuration.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::run(args),
        Command::Sim(args) => sim::run(args),
    }
}
