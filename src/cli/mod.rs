//! The commands: one small file each, with its `Args` (clap) and `run(args) -> ExitCode`.
//!
//! Runs on the main thread. Exit codes: 0 fine, 1 failed, 2 wrong usage or configuration. A command
//! is listed once it works.

mod admin;
mod bench;
mod check;
mod demo;
mod doctor;
mod explain;
mod key;
mod plan;
mod quota;
mod serve;
mod sim;
mod tokens;
mod trace;
mod usage;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Exit code of wrong usage or configuration, as clap's own.
const EXIT_USAGE: u8 = 2;

/// The exit code, and what is said on standard error.
type Failed = (u8, String);

/// A gateway in front of fleets of vLLM replicas.
#[derive(Parser)]
#[command(name = "expedite", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(Box<bench::Args>),
    Check(check::Args),
    Demo(demo::Args),
    Doctor(doctor::Args),
    Explain(explain::Args),
    Key(key::Args),
    Plan(plan::Args),
    Quota(quota::Args),
    Serve(serve::Args),
    Sim(sim::Args),
    Tokens(tokens::Args),
    Usage(usage::Args),
}

/// Runs the command that argv names.
pub fn main() -> ExitCode {
    let _ = crate::runtime::clock::now_ns(); // The first reading is the zero point.
    match Cli::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::Check(args) => check::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Key(args) => key::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Quota(args) => quota::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Tokens(args) => tokens::run(args),
        Command::Usage(args) => usage::run(args),
    }
}

/// Writes to stdout. A reader that has gone (`| head`) is no failure.
fn print(text: &str) -> ExitCode {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("expedite: stdout: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_has_an_example_in_its_help() {
        let cli = Cli::command();
        cli.clone().debug_assert();
        for command in cli.get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let call = format!("expedite {}", command.get_name());
            assert!(help.contains("Example") && help.contains(&call), "{call}: {help}");
            assert!(command.get_about().is_some(), "{call}");
        }
    }
}
