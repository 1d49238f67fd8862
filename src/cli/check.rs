//! `check`: validates a configuration and shows what the gateway would run with.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::config::{Config, ConfigError, Flags};

/// Validate a configuration; print each value with its origin
#[derive(clap::Args)]
#[command(after_help = "Example:
  expedite check --config gateway.toml

Prints the effective configuration as TOML, with FILE:LINE, env, or default behind each value.
Warnings and mistakes (FILE:LINE: what, and the nearest right key) go to stderr; a tokenizer that is
not on this machine is a warning. Exits 2 on a mistake.")]
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
    let warnings = config.as_ref().map(warnings).unwrap_or_default();
    let report = || format!("{:#}\n", report(config.as_ref(), &warnings, &errors));
    let printed = match (args.json, &config) {
        (true, _) => super::print(&report()),
        (false, Some(config)) => super::print(&config.effective()),
        (false, None) => ExitCode::SUCCESS,
    };
    if !args.json {
        for warning in &warnings {
            eprintln!("warning: {warning}");
        }
        errors.iter().for_each(|error| eprintln!("{error}"));
    }
    if errors.is_empty() { printed } else { ExitCode::from(super::EXIT_USAGE) }
}

/// The configuration's own, and the files of tokenizers that `serve` would not find here.
fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = config.warnings.clone();
    for pool in &config.pools {
        let tokenizer =
            pool.tokenizer.as_ref().map(|folder| Path::new(folder).join("tokenizer.json"));
        let template = pool.chat_template.as_ref().map(PathBuf::from);
        for path in [tokenizer, template].into_iter().flatten() {
            if let Err(error) = std::fs::File::open(&path) {
                warnings.push(format!("pool \"{}\": {}: {error}", pool.name, path.display()));
            }
        }
    }
    warnings
}

fn report(config: Option<&Config>, warnings: &[String], errors: &[ConfigError]) -> Value {
    let error = |error: &ConfigError| {
        let ConfigError { file, line, what } = error;
        json!({ "file": file, "line": line, "what": what })
    };
    json!({
        "config": config.map(Config::effective_json),
        "warnings": warnings,
        "errors": errors.iter().map(error).collect::<Vec<_>>(),
    })
}
