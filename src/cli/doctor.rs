//! `doctor`: is this host ready, and what mends it where it is not.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::config::Config;
use crate::doctor::{self, Level, Tree};
use crate::gateway::load_identity;

/// Examine this host: kernel, limits, network, CPUs; say what mends it
#[derive(clap::Args)]
#[command(after_help = "Examples:
  expedite doctor
  expedite doctor --config gateway.toml --json

Each line is ok, warn (it runs, but slower or for fewer clients), fail (it does not start as
configured) or unknown (not to be seen from here), with the command that mends it. With --config
also the ports, tokenizers, certificate, usage log and replicas of that file. Changes nothing, needs
no rights. Exits 1 when something fails. `tuning/host` shows and applies the settings of a host.")]
pub(super) struct Args {
    /// The configuration that is to run here
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Where /proc, /sys and /run are, for a recorded tree
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

/// Runs the command.
pub(super) fn run(args: Args) -> ExitCode {
    let config = match args.config.as_ref().map(Config::load).transpose() {
        Ok(config) => config,
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::from(super::EXIT_USAGE);
        }
    };
    let shown = config.as_ref().filter(|config| config.server.tls.is_some()).map(|config| {
        load_identity(config).map(|identity| identity.and_then(|identity| identity.validity()))
    });
    let report = doctor::examine(&Tree::at(&args.root), config.as_ref(), shown.as_ref());
    let printed = match args.json {
        true => super::print(&format!("{:#}\n", report.json())),
        false => super::print(&report.text()),
    };
    if report.count(Level::Fail) > 0 { ExitCode::FAILURE } else { printed }
}
