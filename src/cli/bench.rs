//! `bench`: load on a gateway, a replica, any OpenAI endpoint; a table or JSON.

use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use super::EXIT_USAGE;
use crate::bench::{Answers, Api, Bench, Load, Options, Probe, Report, Target, probe};
use crate::config::Secret;
use crate::sim::token_text;

/// Connections of a closed loop when neither `--rate` nor `--concurrency` is given.
const CONCURRENCY_DEFAULT: usize = 16;
/// Seconds when neither `--duration` nor `--requests` is given.
const SECONDS_DEFAULT: f64 = 10.0;
/// A bound for `--requests` alone: a week.
const SECONDS_MAX: f64 = 604_800.0;
/// How often the progress line is drawn anew.
const REDRAW: Duration = Duration::from_millis(200);

/// Put load on an OpenAI endpoint and measure it
#[derive(clap::Args)]
#[command(after_help = "Examples:
  expedite bench --target http://127.0.0.1:8080 --key sk-... --rate 200 --duration 30
  expedite bench --target http://127.0.0.1:8080 --direct http://10.0.0.1:8000 --concurrency 64
  expedite bench --target http://10.0.0.1:8000 --requests 1000 --json result.json

--rate is an open loop: latency counts from the moment a request was due. --concurrency is a closed
loop. With --direct every second request goes there instead, and the difference is what the target
adds. A server that speaks the simulator's tag protocol has every token checked. Exit code 1 if any
request failed.")]
pub(super) struct Args {
    /// Endpoint under load, http://HOST:PORT
    #[arg(long, value_name = "URL")]
    target: String,
    /// Endpoint for comparison: every second request goes there
    #[arg(long, value_name = "URL")]
    direct: Option<String>,
    /// Model to ask for [default: the first that /v1/models lists]
    #[arg(long)]
    model: Option<String>,
    /// Bearer key of the target [default: the variable EXPEDITE_KEY, which `ps` does not show]
    #[arg(long)]
    key: Option<String>,
    /// Bearer key of the direct endpoint
    #[arg(long, value_name = "KEY")]
    direct_key: Option<String>,
    /// Requests a second, open loop
    #[arg(long, value_name = "RPS", conflicts_with = "concurrency", value_parser = positive)]
    rate: Option<f64>,
    /// Busy connections, closed loop [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: Option<u32>,
    /// Seconds in which requests begin [default: 10, unless --requests is given]
    #[arg(long, value_name = "S", value_parser = positive)]
    duration: Option<f64>,
    /// Most requests
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// Tokens of a prompt, at four bytes each
    #[arg(long, value_name = "N", default_value_t = 64)]
    prompt_tokens: usize,
    /// Tokens of an answer (max_tokens)
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u64).range(1..))]
    output_tokens: u64,
    /// Ask for whole bodies
    #[arg(long)]
    no_stream: bool,
    /// Tokens at the start of a prompt that are shared
    #[arg(long, value_name = "N", default_value_t = 0)]
    prefix_tokens: usize,
    /// How many different shared beginnings there are
    #[arg(long, value_name = "K", default_value_t = 1)]
    prefixes: usize,
    /// Share of the requests that have the first of them; the others share the rest evenly
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    hot: f64,
    /// Do not ask for the usage event of streams
    #[arg(long)]
    no_usage: bool,
    /// Tags and prefixes follow from it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads, each with its share of the load
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Seconds after which a request is given up
    #[arg(long, value_name = "S", default_value_t = 120.0, value_parser = positive)]
    timeout: f64,
    /// Which API is called
    #[arg(long, value_enum, default_value_t = Path::Chat)]
    path: Path,
    /// Write the result as JSON, with the field names of `vllm bench serve`; "-" is stdout
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Path {
    #[value(name = "/v1/chat/completions")]
    Chat,
    #[value(name = "/v1/completions")]
    Completions,
}

fn positive(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
    number.ok_or("must be a number above 0")
}

fn share(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|n: &f64| (0.0..=1.0).contains(n));
    number.ok_or("must be a share between 0 and 1")
}

/// Runs the command.
pub(super) fn run(args: Args) -> ExitCode {
    let json = args.json.clone();
    let started = options(args).and_then(|options| {
        let bench = Bench::start(options.clone()).map_err(|e| e.to_string())?;
        Ok((options, bench))
    });
    let (options, bench) = match started {
        Ok(started) => started,
        Err(error) => {
            eprintln!("expedite bench: {error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    match watch(bench, &options) {
        Ok(report) => tell(&report, json),
        Err(error) => {
            eprintln!("expedite bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options(args: Args) -> Result<Options, String> {
    let secret = |key: Option<String>| key.map(Secret::new);
    let key = args.key.or_else(|| std::env::var("EXPEDITE_KEY").ok());
    let mut target = Target::from_url(&args.target, secret(key))?;
    let wanted = args.model.as_deref();
    target.choose_model(wanted, true)?;
    let direct = args.direct.map(|url| {
        let mut direct = Target::from_url(&url, secret(args.direct_key))?;
        direct.choose_model(Some(&target.model), false)?;
        Ok::<_, String>(direct)
    });
    let direct = direct.transpose()?;
    let unbounded = if args.requests.is_some() { SECONDS_MAX } else { SECONDS_DEFAULT };
    let seconds = |s: f64| Duration::from_secs_f64(s.min(SECONDS_MAX));
    let mut options = Options {
        direct,
        load: match args.rate {
            Some(rate) => Load::Rate(rate),
            None => Load::Concurrency(args.concurrency.map_or(CONCURRENCY_DEFAULT, |n| n as usize)),
        },
        duration: seconds(args.duration.unwrap_or(unbounded)),
        requests: args.requests,
        prompt_tokens: args.prompt_tokens.max(args.prefix_tokens),
        output_tokens: args.output_tokens,
        prefix_tokens: args.prefix_tokens,
        prefixes: args.prefixes,
        hot: args.hot,
        answers: if args.no_stream { Answers::Whole } else { Answers::Streams },
        usage: !args.no_usage,
        api: match args.path {
            Path::Chat => Api::Chat,
            Path::Completions => Api::Completions,
        },
        seed: args.seed,
        threads: args.threads.max(1),
        timeout: seconds(args.timeout),
        ..Options::new(target)
    };
    if probe(&options, token_text).map_err(|e| format!("{}: {e}", args.target))? == Probe::Words {
        options.words = Some(token_text);
    } else {
        eprintln!("expedite bench: not a simulator: framing is checked, the text is not");
    }
    Ok(options)
}

/// Waits for the end, draws the progress line; Ctrl-C and SIGTERM end it early.
fn watch(bench: Bench, options: &Options) -> std::io::Result<Report> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stderr = std::io::stderr();
    let shown = stderr.is_terminal();
    let begun = Instant::now();
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut drawn = begun;
        while !bench.is_finished() {
            tokio::select! {
                _ = interrupt.recv() => bench.stop(),
                _ = terminate.recv() => bench.stop(),
                () = tokio::time::sleep(Duration::from_millis(10)) => {}
            }
            if shown && drawn.elapsed() >= REDRAW {
                drawn = Instant::now();
                let (done, failed) = bench.progress();
                let (seconds, all) = (begun.elapsed().as_secs(), options.duration.as_secs());
                let _ = write!(
                    stderr.lock(),
                    "\r\x1b[K{seconds} s of {all}: {done} requests ended, {failed} failed"
                );
            }
        }
        Ok::<(), std::io::Error>(())
    })?;
    if shown {
        let _ = write!(stderr.lock(), "\r\x1b[K");
    }
    bench.finish()
}

fn tell(report: &Report, json: Option<PathBuf>) -> ExitCode {
    let told = match json {
        Some(path) if path.as_os_str() == "-" => super::print(&format!("{:#}\n", report.json())),
        Some(path) => match std::fs::write(&path, format!("{:#}\n", report.json())) {
            Ok(()) => super::print(&report.table()),
            Err(error) => {
                eprintln!("expedite bench: {}: {error}", path.display());
                ExitCode::FAILURE
            }
        },
        None => super::print(&report.table()),
    };
    if report.failed() > 0 { ExitCode::FAILURE } else { told }
}
