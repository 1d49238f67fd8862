//! `explain`: why a request would go where it goes, asked of a running gateway or of a snapshot.

use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;

use super::Failed;
use super::admin::Admin;
use crate::config::Config;
use crate::gateway;

/// Explain which replica a request would be sent to
#[derive(clap::Args)]
#[command(after_help = "Examples:
  expedite explain --config gateway.toml --request body.json
  expedite explain --admin 127.0.0.1:9090 --request body.json --json
  curl -s http://127.0.0.1:9090/snapshot > fleet.json
  expedite explain --config gateway.toml --request body.json --snapshot fleet.json

Asks the admin listener of a running gateway, which counts the prompt and prices every replica as
a core would, and sends nothing. If that wants a secret, it is admin_secret of the file or the
variable EXPEDITE_ADMIN_SECRET. With --snapshot no gateway is asked; a snapshot does not hold the
prefix index, so that nothing counts as cached.")]
pub(super) struct Args {
    /// The configuration file; its server.admin is asked
    #[arg(long, value_name = "FILE", required_unless_present = "admin")]
    config: Option<PathBuf>,
    /// The request's body in JSON; `-` is standard input
    #[arg(long, value_name = "BODY.json")]
    request: PathBuf,
    /// The path that the request is meant for
    #[arg(long, value_name = "PATH", default_value = "/v1/chat/completions")]
    path: String,
    /// The tenant whose request it is: where tenants do not share cached prefixes, that decides
    /// what counts as cached
    #[arg(long, value_name = "ID", conflicts_with = "snapshot")]
    tenant: Option<String>,
    /// Ask this admin listener, an address or http://ADDRESS
    #[arg(long, value_name = "URL", conflicts_with = "snapshot")]
    admin: Option<String>,
    /// Explain by a saved answer of GET /snapshot
    #[arg(long, value_name = "FILE", requires = "config")]
    snapshot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: Args) -> ExitCode {
    match explained(&args) {
        Ok(said) if args.json => super::print(&format!("{said:#}\n")),
        Ok(said) => super::print(&table(&said)),
        Err((code, what)) => {
            eprintln!("expedite: {what}");
            ExitCode::from(code)
        }
    }
}

fn explained(args: &Args) -> Result<Value, Failed> {
    let body = read(&args.request)?;
    let config = args.config.as_ref().map(Config::load).transpose();
    let config = config.map_err(|errors| (super::EXIT_USAGE, errors.to_string()))?;
    if let (Some(path), Some(config)) = (&args.snapshot, &config) {
        let snapshot = serde_json::from_slice(&read(path)?)
            .map_err(|error| (1, format!("{} is no JSON: {error}", path.display())))?;
        return gateway::explain_snapshot(config, &snapshot, &args.path, &body)
            .map_err(|what| (1, what));
    }
    let admin = Admin::of(args.admin.as_deref(), config.as_ref())?;
    let tenant = args.tenant.as_deref().map(|id| format!("&tenant={id}")).unwrap_or_default();
    let line = format!("POST /explain?path={}{tenant}", args.path);
    admin.ask(&line, &body).map_err(|what| (1, what))
}

fn read(path: &Path) -> Result<Vec<u8>, Failed> {
    let mut bytes = Vec::new();
    let read = match path == Path::new("-") {
        true => std::io::stdin().read_to_end(&mut bytes).map(|_| bytes),
        false => std::fs::read(path),
    };
    read.map_err(|error| (1, format!("cannot read {}: {error}", path.display())))
}

/// The explanation for people.
fn table(said: &Value) -> String {
    let mut out = String::new();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let (prompt, request) = (&said["prompt"], &said["request"]);
    let _ = writeln!(
        out,
        "pool {}, policy {}: {} prompt tokens ({}), {} blocks of {}, some {} output tokens",
        text(&said["pool"]),
        text(&said["policy"]),
        prompt["tokens"],
        text(&prompt["basis"]),
        prompt["blocks"],
        prompt["block_tokens"],
        request["expected_output_tokens"],
    );
    let _ = writeln!(
        out,
        "limits: {} ms to the first token, {} ms a token",
        request["ttft_limit_ms"], request["tpot_limit_ms"],
    );
    if let Some(note) = said["note"].as_str() {
        let _ = writeln!(out, "{note}");
    }
    let _ = writeln!(
        out,
        "\n{:<28} {:>10} {:>8} {:>9} {:>8} {:>10}  terms, or why not",
        "replica", "cost", "cached", "ttft ms", "tpot ms", "prefill ms"
    );
    for it in said["candidates"].as_array().into_iter().flatten() {
        let rank = it["rank"].as_u64().map(|rank| format!(" rank {rank}")).unwrap_or_default();
        let ms = |key: &str| it[key].as_f64().unwrap_or(f64::NAN);
        let _ = writeln!(
            out,
            "{:<28} {:>10.4} {:>8} {:>9.1} {:>8.1} {:>10.1}  {}",
            format!("{}{rank}", text(&it["replica"])),
            ms("cost"),
            it["cached_tokens"],
            ms("ttft_ms"),
            ms("tpot_ms"),
            ms("prefill_ms"),
            reason(it),
        );
    }
    out
}

fn reason(candidate: &Value) -> String {
    if let Some(why) = candidate["infeasible"].as_str() {
        return why.to_owned();
    }
    let terms = candidate["terms"].as_object().into_iter().flatten();
    let shown: Vec<_> = terms
        .filter_map(|(name, value)| Some((name, value.as_f64().filter(|v| v.abs() >= 5e-5)?)))
        .map(|(name, value)| format!("{name} {value:.4}"))
        .collect();
    shown.join(", ")
}
