//! `check`: validates a configuration and shows what the gateway would run with.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::config::{Config, ConfigError, Flags};
use crate::gateway::{load_identity, load_trusts, remark_on_identity};
use crate::prompt::model::Model;

/// Validate a configuration; print each value with its origin
#[derive(clap::Args)]
#[command(after_help = "Example:
  expedite check --config gateway.toml

Prints the effective configuration as TOML, with FILE:LINE, env, or default behind each value.
Warnings and mistakes (FILE:LINE: what, and the nearest right key) go to stderr; a tokenizer or
certificate that is not on this machine is a warning. Exits 2 on a mistake.")]
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
    let (config, mut errors) = match Config::open(Some(&args.config), &Flags::default()) {
        Ok(config) => (Some(config), Vec::new()),
        Err(errors) => (None, errors.0),
    };
    let mut warnings = config.as_ref().map(|c| c.warnings.clone()).unwrap_or_default();
    if let Some(config) = &config {
        tokenizers(config, &mut warnings, &mut errors);
        certificates(config, &mut warnings, &mut errors);
        trusts(config, &mut warnings, &mut errors);
    }
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

/// Reads what TLS clients would be shown, as the start does, and whether key and certificate are of
/// one another. A file that is not on this machine is a warning, and so is a certificate that does
/// not hold now.
fn certificates(config: &Config, warnings: &mut Vec<String>, errors: &mut Vec<ConfigError>) {
    let Some(tls) = &config.server.tls else { return };
    let files = [Some(&tls.cert), Some(&tls.key), tls.client_ca.as_ref()];
    if absent("tls in [server]", files, warnings) {
        return;
    }
    match load_identity(config) {
        Ok(Some(identity)) => warnings.extend(remark_on_identity(config, &identity)),
        Ok(None) => {}
        Err(error) => {
            let key = format!("tls.{}", error.part);
            errors.push(config.error_at("server", 0, &key, error.to_string()));
        }
    }
}

/// The same with whom the pools believe as replicas.
fn trusts(config: &Config, warnings: &mut Vec<String>, errors: &mut Vec<ConfigError>) {
    let of_pools = config.pools.iter().filter_map(|pool| Some((&pool.name, pool.tls.as_ref()?)));
    let mut missing = false;
    for (name, tls) in of_pools {
        let files = [tls.ca.as_ref(), tls.cert.as_ref(), tls.key.as_ref()];
        missing |= absent(&format!("tls of pool \"{name}\""), files, warnings);
    }
    if !missing && let Err((at, error)) = load_trusts(config) {
        let key = format!("tls.{}", error.part);
        errors.push(config.error_at("pool", at, &key, error.to_string()));
    }
}

/// Warns of files that are not on this machine. True: there is one.
fn absent(owner: &str, files: [Option<&String>; 3], warnings: &mut Vec<String>) -> bool {
    let before = warnings.len();
    let absent = files.into_iter().flatten().filter(|file| !Path::new(file).exists());
    warnings
        .extend(absent.map(|file| format!("{owner}: {file} is not there: serve would not start")));
    warnings.len() > before
}

/// Loads the tokenizers that the pools name, as the start does. One that is not on this machine is
/// a warning, since a file is often checked elsewhere than where it is used; so is what a loaded
/// one remarks.
fn tokenizers(config: &Config, warnings: &mut Vec<String>, errors: &mut Vec<ConfigError>) {
    for (n, pool) in config.pools.iter().enumerate() {
        let Some(folder) = &pool.tokenizer else { continue };
        let template = pool.chat_template.as_ref().map(PathBuf::from);
        let absent = [Some(PathBuf::from(folder)), template.clone()].into_iter().flatten();
        let absent: Vec<_> = absent.filter(|path| !path.exists()).collect();
        for path in &absent {
            let (name, path) = (&pool.name, path.display());
            warnings.push(format!("pool \"{name}\": {path} is not there: serve would not start"));
        }
        if !absent.is_empty() {
            continue;
        }
        match Model::load(Path::new(folder), template.as_deref()) {
            Ok(model) => {
                let told = model.remarks().into_iter();
                warnings.extend(told.map(|what| format!("tokenizer {folder}: {what}")));
            }
            Err(what) => errors.push(config.error_at("pool", n, "tokenizer", what)),
        }
    }
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
