//! `check`: validates a configuration and shows what the gateway would run with.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::config::{Config, ConfigError, Flags};
use crate::prompt::model::Model;

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
    let (mut config, mut errors) = match Config::inspect(Some(&args.config), &Flags::default()) {
        Ok((config, refusals)) => (Some(config), refusals),
        Err(errors) => (None, errors.0),
    };
    if let Some(config) = &mut config {
        tokenizers(config, &mut errors);
    }
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

/// Loads what the pools name, as the start does; what it remarks is a warning.
fn tokenizers(config: &mut Config, errors: &mut Vec<ConfigError>) {
    for (n, pool) in config.pools.iter().enumerate() {
        let Some(folder) = &pool.tokenizer else { continue };
        let template = pool.chat_template.as_deref().map(Path::new);
        match Model::load(Path::new(folder), template) {
            Ok(model) => {
                let told = model.remarks().into_iter();
                config.warnings.extend(told.map(|what| format!("tokenizer {folder}: {what}")));
            }
            Err(what) => errors.push(config.error_at("pool", n, "tokenizer", what)),
        }
    }
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
