//! The commands: one small file each, with its `Args` (clap) and `run(args) -> ExitCode`.
//!
//! Runs on the main thread, or beside it where Ctrl-C is to end it. Exit codes: 0 fine, 1 failed, 2
//! wrong usage or configuration, which a file that cannot be read is too. A command is listed once
//! it works.

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

use std::io::{IsTerminal, Write};
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
        Command::Plan(args) => interruptible(|| {}, move || plan::run(args)),
        Command::Quota(args) => quota::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Tokens(args) => interruptible(|| {}, move || tokens::run(args)),
        Command::Usage(args) => interruptible(|| {}, move || usage::run(args)),
    }
}

/// Runs `work` on a thread beside this one. Ctrl-C and SIGTERM end the process at any moment of it,
/// after `tidy` and with a word: it has failed.
fn interruptible(
    tidy: impl FnOnce(),
    work: impl FnOnce() -> ExitCode + Send + 'static,
) -> ExitCode {
    use tokio::signal::unix::{SignalKind, signal};
    let (done, ended) = tokio::sync::oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let watched = runtime.and_then(|runtime| {
        let inside = runtime.enter();
        let signals = [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?];
        drop(inside);
        // As large a stack as the first thread's.
        let thread = std::thread::Builder::new().name("work".to_owned()).stack_size(8 << 20);
        thread.spawn(move || {
            // Nobody waits any more once it is interrupted.
            let _ = done.send(work());
        })?;
        Ok((runtime, signals))
    });
    let (runtime, [mut interrupt, mut terminate]) = match watched {
        Ok(watched) => watched,
        Err(error) => {
            eprintln!("expedite: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(async {
        tokio::select! {
            biased;
            // A panic has told of itself.
            code = ended => return code.unwrap_or(ExitCode::FAILURE),
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        tidy();
        let clear = if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
        eprintln!("{clear}expedite: interrupted");
        ExitCode::FAILURE
    })
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
