//! `expedite demo`: a simulated fleet, the gateway and a load, in one process.

use std::io::Read;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use crate::bench::{self, Load, Pace, Report, Target};
use crate::config::{Config, KeyDigest};
use crate::gateway::Gateway;
use crate::runtime::affinity;
use crate::sim::{EngineKind, Fault, Fleet, Kind, SimConfig, SimHandle, token_text};

/// See the gateway at work on this machine: no other program, no configuration
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  expedite demo --seconds 3")]
pub(super) struct Args {
    /// Length of each of the two acts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// One JSON object instead of the tables
    #[arg(long)]
    json: bool,
}

const KEY: &str = "sk-demo";
const REPLICAS: usize = 4;
const RATE: f64 = 200.0;

/// What the demo found.
struct Found {
    direct: Report,
    through: Report,
    killed: Report,
    records: usize,
    requests: u64,
}

/// Runs the demo.
pub(super) fn run(args: Args) -> ExitCode {
    match play(&args) {
        Ok(found) => {
            let text = match args.json {
                true => format!("{}\n", json(&found)),
                false => table(&found),
            };
            let failed = found.through.failed() + found.killed.failed() + found.direct.failed();
            let shown = super::print(&text);
            if failed == 0 && found.records as u64 == found.requests {
                shown
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("expedite: {error}");
            ExitCode::FAILURE
        }
    }
}

fn play(args: &Args) -> Result<Found, String> {
    let folder = std::env::temp_dir().join(format!("expedite-demo-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let usage = folder.join("usage.jsonl");
    let played = acts(args, &usage);
    let _ = std::fs::remove_dir_all(&folder);
    played
}

fn acts(args: &Args, usage: &std::path::Path) -> Result<Found, String> {
    let pace = Duration::from_millis(20);
    let fleet = Fleet::start(SimConfig {
        ports: vec![0; REPLICAS],
        model: "demo-8b".to_owned(),
        engine: EngineKind::Fixed { ttft: pace, itl: pace / 4 },
        ..SimConfig::default()
    });
    let fleet = fleet.map_err(|e| format!("the simulated fleet does not start: {e}"))?;
    let gateway = Gateway::start(config(&fleet, usage)?)?;
    let addr = *gateway.addrs.first().ok_or("the gateway has no address")?;
    wait_until_ready(addr)?;
    let duration = Duration::from_secs(args.seconds);

    let target = |name: &str, addr: SocketAddr, model: &str, key: Option<&str>| Target {
        name: name.to_owned(),
        addr,
        authority: addr.to_string(),
        model: model.to_owned(),
        key: key.map(str::to_owned),
    };
    let mut load = Load {
        targets: vec![
            target("direct", fleet.addr(0), "demo-8b", None),
            target("through the gateway", addr, "gpt-fast", Some(KEY)),
        ],
        pace: Pace::Rate(RATE),
        duration,
        requests_max: u64::MAX,
        prompt_tokens: 400,
        prefix_tokens: 300,
        prefixes: 8,
        output_tokens: 16,
        stream_share: 0.75,
        completions: false,
        seed: 1,
        word: Some(|tag, index, out| out.extend_from_slice(&token_text(tag, index))),
    };
    let run = |load: &Load| bench::run(load.clone()).map_err(|e| format!("the load: {e}"));
    let mut reports = run(&load)?.into_iter();
    let (Some(direct), Some(through)) = (reports.next(), reports.next()) else {
        return Err("the load gave no report".to_owned());
    };

    // Second act: a replica dies in the middle.
    load.targets.remove(0);
    load.seed = 1_000_000;
    let killed = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(duration / 3);
            fleet.fault(REPLICAS - 1, Fault::new(Kind::Refuse));
        });
        run(&load)
    })?;
    let killed = killed.into_iter().next().ok_or("the load gave no report")?;
    gateway.stop();
    fleet.stop();
    let text = std::fs::read_to_string(usage).map_err(|e| format!("the usage log: {e}"))?;
    let requests = through.completed + through.failed() + killed.completed + killed.failed();
    Ok(Found { direct, through, killed, records: text.lines().count(), requests })
}

fn config(fleet: &SimHandle, usage: &std::path::Path) -> Result<Config, String> {
    let replicas: Vec<_> = (0..REPLICAS).map(|i| format!("\"http://{}\"", fleet.addr(i))).collect();
    let core = affinity::allowed().ok().and_then(|cpus| cpus.last().copied()).unwrap_or(0);
    let text = format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nadmin = \"none\"\ncores = [{core}]\n\
         [[pool]]\nname = \"demo\"\naliases = [\"gpt-fast\"]\nreplicas = [{}]\n\
         [routing]\npolicy = \"p2c\"\n[[tenant]]\nid = \"demo\"\nkeys = [\"{}\"]\n\
         [usage]\npath = \"{}\"\n[log]\nlevel = \"error\"\n",
        replicas.join(", "),
        KeyDigest::of(KEY.as_bytes()).to_text(),
        usage.display(),
    );
    Config::from_text("demo", &text).map_err(|e| e.to_string())
}

/// Waits until the model of the fleet has been learned.
fn wait_until_ready(addr: SocketAddr) -> Result<(), String> {
    use std::io::Write;
    for _ in 0..200 {
        let mut answer = String::new();
        let asked = std::net::TcpStream::connect(addr).and_then(|mut s| {
            let head = format!(
                "GET /v1/models/gpt-fast HTTP/1.1\r\nhost: demo\r\n\
                 authorization: Bearer {KEY}\r\nconnection: close\r\n\r\n"
            );
            s.write_all(head.as_bytes())?;
            s.read_to_string(&mut answer)
        });
        if asked.is_ok() && answer.starts_with("HTTP/1.1 200") {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    Err("the gateway did not learn its models".to_owned())
}

fn json(found: &Found) -> serde_json::Value {
    serde_json::json!({
        "direct": found.direct.json(),
        "through": found.through.json(),
        "replica_killed": found.killed.json(),
        "usage_records": found.records,
        "requests": found.requests,
    })
}

fn table(found: &Found) -> String {
    use std::fmt::Write;
    let (d, t, k) = (&found.direct, &found.through, &found.killed);
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{REPLICAS} simulated vLLM replicas (first token 20 ms, then 5 ms a token), gateway with \
         keys,\nalias and usage records, {RATE} requests/s, 400 tokens in, 16 out, 3 of 4 \
         streamed; every\nanswer checked token by token\n"
    );
    let _ = writeln!(out, "{:<34}{:>12}{:>12}{:>14}", "", "direct", "gateway", "replica dies");
    let mut row = |name: &str, of: &dyn Fn(&Report) -> String| {
        let _ = writeln!(out, "{name:<34}{:>12}{:>12}{:>14}", of(d), of(t), of(k));
    };
    row("requests", &|r| (r.completed + r.failed()).to_string());
    row("errors seen by a client", &|r| r.failed().to_string());
    row("requests moved to another replica", &|r| r.retried.to_string());
    row("TTFT p50 / ms", &|r| format!("{:.2}", r.ttft().p50));
    row("TTFT p99 / ms", &|r| format!("{:.2}", r.ttft().p99));
    row("TPOT p50 / ms", &|r| format!("{:.2}", r.tpot().p50));
    row("whole request p50 / ms", &|r| format!("{:.2}", r.total().p50));
    row("input tokens from the cache", &|r| {
        format!("{:.0} %", 100.0 * r.cached_tokens as f64 / r.input_tokens.max(1) as f64)
    });
    let added = |q: fn(&Report) -> f64| (q(t) - q(d)) * 1e3;
    let _ = writeln!(
        out,
        "\nadded by the gateway: TTFT p50 {:+.0} us, p99 {:+.0} us; whole request p50 {:+.0} us",
        added(|r| r.ttft().p50),
        added(|r| r.ttft().p99),
        added(|r| r.total().p50),
    );
    let _ = writeln!(
        out,
        "usage records: {} for {} requests through the gateway",
        found.records, found.requests
    );
    for (kind, n) in t.errors.iter().chain(&k.errors) {
        let _ = writeln!(out, "error: {kind} ({n} times)");
    }
    out
}
