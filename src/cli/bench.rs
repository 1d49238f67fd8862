//! `expedite bench`: the load generator against any OpenAI endpoint.

use std::io::{Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::bench::{self, Load, Pace, Report, Target};
use crate::sim::token_text;

/// Load an OpenAI endpoint and check every answer
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  expedite bench --target http://127.0.0.1:8080 --rate 100 \
                        --direct http://127.0.0.1:9101 --duration 10")]
pub(super) struct Args {
    /// Server to load, http://HOST:PORT
    #[arg(long, value_name = "URL")]
    target: String,
    /// A server to send every other request to: what the target adds is the difference
    #[arg(long, value_name = "URL")]
    direct: Option<String>,
    /// Model to ask for; default: the first that the server lists
    #[arg(long)]
    model: Option<String>,
    /// API key
    #[arg(long)]
    key: Option<String>,
    /// Requests a second on a fixed schedule (open loop)
    #[arg(long, conflicts_with = "concurrency", default_value_t = 50.0)]
    rate: f64,
    /// Requests at a time, each followed by the next (closed loop)
    #[arg(long)]
    concurrency: Option<usize>,
    /// Seconds
    #[arg(long, default_value_t = 10.0)]
    duration: f64,
    /// At most so many requests
    #[arg(long)]
    requests: Option<u64>,
    /// Tokens a prompt (four bytes each)
    #[arg(long, default_value_t = 400)]
    prompt_tokens: usize,
    /// Tokens asked for
    #[arg(long, default_value_t = 16)]
    output_tokens: u64,
    /// Whole answers instead of streams
    #[arg(long)]
    no_stream: bool,
    /// Of the prompt's tokens, shared with other prompts
    #[arg(long, default_value_t = 0)]
    prefix_tokens: usize,
    /// Number of different shared prefixes
    #[arg(long, default_value_t = 8)]
    prefixes: u64,
    /// /v1/completions instead of /v1/chat/completions
    #[arg(long)]
    completions: bool,
    /// The target is a fleet of `expedite sim`: check every token
    #[arg(long)]
    sim: bool,
    /// First tag of the prompts
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the reports as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the load.
pub(super) fn run(args: Args) -> ExitCode {
    match load(&args).and_then(|load| bench::run(load).map_err(|e| e.to_string())) {
        Ok(reports) => finish(&args, &reports),
        Err(error) => {
            eprintln!("expedite: {error}");
            ExitCode::FAILURE
        }
    }
}

fn finish(args: &Args, reports: &[Report]) -> ExitCode {
    if let Some(path) = &args.json {
        let value: Vec<_> = reports.iter().map(Report::json).collect();
        if let Err(error) = std::fs::write(path, format!("{:#}\n", serde_json::json!(value))) {
            eprintln!("expedite: {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    let shown = super::print(&table(reports));
    let failed = reports.iter().any(|r| r.failed() > 0 || r.completed == 0);
    if failed { ExitCode::FAILURE } else { shown }
}

fn load(args: &Args) -> Result<Load, String> {
    let mut targets = vec![target(args, &args.target, "target")?];
    if let Some(direct) = &args.direct {
        targets.push(target(args, direct, "direct")?);
    }
    let finite = |value: f64, name: &str| match value.is_finite() && value > 0.0 {
        true => Ok(value),
        false => Err(format!("--{name} must be over 0")),
    };
    Ok(Load {
        targets,
        pace: match args.concurrency {
            Some(n) => Pace::Concurrency(n.max(1)),
            None => Pace::Rate(finite(args.rate, "rate")?),
        },
        duration: Duration::try_from_secs_f64(finite(args.duration, "duration")?)
            .map_err(|e| format!("--duration: {e}"))?,
        requests_max: args.requests.unwrap_or(u64::MAX),
        prompt_tokens: args.prompt_tokens,
        prefix_tokens: args.prefix_tokens,
        prefixes: args.prefixes,
        output_tokens: args.output_tokens,
        stream_share: if args.no_stream { 0.0 } else { 1.0 },
        completions: args.completions,
        seed: args.seed,
        word: args.sim.then_some(|tag, i, out| out.extend_from_slice(&token_text(tag, i))),
    })
}

fn target(args: &Args, url: &str, name: &str) -> Result<Target, String> {
    let authority = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
    let addr = authority.to_socket_addrs().map_err(|e| format!("{url}: {e}"))?;
    let addr = addr.into_iter().next().ok_or_else(|| format!("{url}: no address"))?;
    // The alias of a gateway means nothing to the replica behind it.
    let model = match (&args.model, name) {
        (Some(model), "target") => model.clone(),
        _ => first_model(addr, authority, args.key.as_deref())?,
    };
    let (authority, key) = (authority.to_owned(), args.key.clone());
    Ok(Target { name: name.to_owned(), addr, authority, model, key })
}

/// The first model that a server lists.
fn first_model(addr: SocketAddr, authority: &str, key: Option<&str>) -> Result<String, String> {
    let say = |what: String| format!("{authority}/v1/models: {what}");
    let key = key.map(|k| format!("authorization: Bearer {k}\r\n")).unwrap_or_default();
    let head =
        format!("GET /v1/models HTTP/1.1\r\nhost: {authority}\r\n{key}connection: close\r\n\r\n");
    let mut answer = Vec::new();
    let mut socket = std::net::TcpStream::connect(addr).map_err(|e| say(e.to_string()))?;
    let patience = Some(Duration::from_secs(10));
    let asked = socket
        .set_read_timeout(patience)
        .and_then(|()| socket.write_all(head.as_bytes()))
        .and_then(|()| socket.read_to_end(&mut answer));
    asked.map_err(|e| say(e.to_string()))?;
    let body = memchr::memmem::find(&answer, b"\r\n\r\n").and_then(|at| answer.get(at + 4..));
    let entries = crate::openai::models::parse(body.unwrap_or_default());
    let first = entries.ok().and_then(|list| list.into_iter().next());
    first.map(|entry| entry.id).ok_or_else(|| say("no model listed".to_owned()))
}

fn table(reports: &[Report]) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<10}{:>10}{:>8}{:>10}{:>12}{:>12}",
        "", "completed", "failed", "req/s", "tokens in", "tokens out"
    );
    for r in reports {
        let _ = writeln!(
            out,
            "{:<10}{:>10}{:>8}{:>10.1}{:>12}{:>12}",
            r.name,
            r.completed,
            r.failed(),
            r.rate(),
            r.input_tokens,
            r.output_tokens
        );
    }
    let _ = writeln!(
        out,
        "\n{:<18}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "ms", "mean", "p50", "p90", "p99", "max"
    );
    for r in reports {
        let rows = [("TTFT", r.ttft()), ("gap", r.itl()), ("TPOT", r.tpot()), ("total", r.total())];
        for (what, q) in rows {
            let name = format!("{} {what}", r.name);
            let _ = writeln!(
                out,
                "{name:<18}{:>10.2}{:>10.2}{:>10.2}{:>10.2}{:>10.2}",
                q.mean, q.p50, q.p90, q.p99, q.max
            );
        }
    }
    if let [target, direct] = reports {
        let added = |of: fn(&Report) -> f64| of(target) - of(direct);
        let _ = writeln!(
            out,
            "\nadded by the target: TTFT p50 {:+.3} ms, p99 {:+.3} ms; total p50 {:+.3} ms",
            added(|r| r.ttft().p50),
            added(|r| r.ttft().p99),
            added(|r| r.total().p50),
        );
    }
    for (kind, n) in reports.iter().flat_map(|r| &r.errors) {
        let _ = writeln!(out, "error: {kind} ({n} times)");
    }
    out
}
