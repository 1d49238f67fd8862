//! `check`: validates a configuration and shows what the gateway would run with.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::config::{Config, ConfigError, Flags};

/// Validate a configuration; print each value with its origin
#[derive(clap::Args)]
#[command(after_help = "Example:
  expedite check --config gateway.toml

Prints the effective configuration as TOML, with FILE:LINE, env, or default behind each value.
Warnings and mistakes (FILE:LINE: what, and the nearest right key) go to stderr.
Exits 2 on a mistake.")]
pub(super) struct Args {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Print JSON: config, warnings, errors
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: Args) -> ExitCode {
    let (config, errors) = match Config::inspect(Some(&args.config), &Flags::default()) {
        Ok((config, refusals)) => (Some(config), refusals),
        Err(errors) => (None, errors.0),
    };
    let printed = match (args.json, &config) {
        (true, config) => super::print(&format!("{:#}\n", report(config.as_ref(), &errors))),
        (false, Some(config)) => super::print(&config.effective()),
        (false, None) => ExitCode::SUCCESS,
    };
    if !args.json {
        for warning in config.iter().flat_map(|config| &config.warnings) {
            eprintln!("warning: {warning}");
        }
        errors.iter().for_each(|error| eprintln!("{error}"));
    }
    if errors.is_empty() { printed } else { ExitCode::from(super::EXIT_USAGE) }
}

fn report(config: Option<&Config>, errors: &[ConfigError]) -> Value {
    let error = |error: &ConfigError| {
        let ConfigError { file, line, what } = error;
        json!({ "file": file, "line": line, "what": what })
    };
    json!({
        "config": config.map(Config::effective_json),
        "warnings": config.map(|config| config.warnings.as_slice()).unwrap_or_default(),
        "errors": errors.iter().map(error).collect::<Vec<_>>(),
    })
}
