//! `demo`: a simulated fleet, a gateway and a load in this process; what it all did, as a table.
//!
//! The gateway has one core, the simulator and the load share another, so that what is measured is
//! the gateway's own work. Everything listens on free loopback ports; the usage records go to a
//! folder that is removed at the end.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::bench::{Answers, Bench, Lengths, Load, Options, Report, Target};
use crate::config::{Config, KeyDigest, Secret};
use crate::gateway::Gateway;
use crate::runtime::{affinity, descriptors};
use crate::sim::{EngineKind, Fault, Fleet, Kind, SimConfig, SimHandle, token_text};

const REPLICAS: usize = 4;
const TTFT_MS: u64 = 20;
const ITL_MS: u64 = 5;
const MODEL: &str = "demo-8b";
const ALIAS: &str = "demo-fast";
/// Half of the rate of the first act goes through the gateway, half around it.
const RATE: f64 = 400.0;
/// How long the gateway may take to have seen its replicas.
const READY_LIMIT: Duration = Duration::from_secs(5);

/// Simulated fleet, gateway and load in one process: see what it does
#[derive(clap::Args)]
#[command(after_help = "Example:
  expedite demo --seconds 5

Starts four simulated vLLM replicas and a gateway, sends half of the requests through the gateway
and half past it, then lets one replica die under load: its connections are reset, its port is
closed. Every token of every answer is checked. Exit code 1 if any request failed.")]
pub(super) struct Args {
    /// Seconds under load, 1 to 60
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: Args) -> ExitCode {
    descriptors::raise();
    let folder = match folder() {
        Ok(folder) => folder,
        Err(error) => return fail(&error),
    };
    let play = folder.clone();
    super::interruptible(|| remove(&folder), move || shown(&args, play))
}

fn shown(args: &Args, folder: PathBuf) -> ExitCode {
    let mut stage = match Stage::start(folder) {
        Ok(stage) => stage,
        Err(error) => return fail(&error),
    };
    if !args.json {
        super::print(&format!(
            "{REPLICAS} simulated vLLM replicas (first token after {TTFT_MS} ms, then one every \
             {ITL_MS} ms),\na gateway on one core ({}), tenant keys and usage records on; {} s of \
             load ...\n\n",
            stage.driver, args.seconds
        ));
    }
    match stage.play(Duration::from_secs(args.seconds)) {
        Ok(told) => {
            let text = if args.json { format!("{:#}\n", told.json()) } else { told.table() };
            let printed = super::print(&text);
            if told.is_good() { printed } else { ExitCode::FAILURE }
        }
        Err(error) => fail(&error),
    }
}

fn fail(error: &str) -> ExitCode {
    eprintln!("expedite demo: {error}");
    ExitCode::FAILURE
}

/// Everything that runs, and the folder of the records.
struct Stage {
    fleet: SimHandle,
    gateway: Option<Gateway>,
    driver: &'static str,
    through: Target,
    direct: Target,
    folder: Folder,
}

/// Gone when this is.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Best effort: it is a temporary folder. Who still writes to it may make a file meanwhile.
fn remove(folder: &std::path::Path) {
    let _ = (0..3).find(|_| std::fs::remove_dir_all(folder).is_ok());
}

impl Stage {
    fn start(folder: PathBuf) -> Result<Stage, String> {
        let folder = Folder(folder);
        let cpus = affinity::allowed().map_err(|e| e.to_string())?;
        let (first, last) = (cpus.first().copied().unwrap_or(0), cpus.last().copied().unwrap_or(0));
        // What this thread starts inherits its CPU; the gateway's core chooses its own.
        affinity::pin(last).map_err(|e| format!("cannot pin to CPU {last}: {e}"))?;
        let fleet = Fleet::start(SimConfig {
            ports: vec![0; REPLICAS],
            model: MODEL.to_owned(),
            engine: EngineKind::Fixed {
                ttft: Duration::from_millis(TTFT_MS),
                itl: Duration::from_millis(ITL_MS),
            },
            ..SimConfig::default()
        });
        let fleet = fleet.map_err(|e| format!("cannot start the fleet: {e}"))?;
        let secret = secret()?;
        let config = config(&fleet, first, &secret, &folder.0.join("usage.jsonl"))?;
        let gateway = Gateway::start(config)?;
        let addr = gateway.addrs.first().ok_or("the gateway has no address")?;
        let mut through = Target::from_url(&format!("http://{addr}"), Some(secret))?;
        let mut direct = Target::from_url(&format!("http://{}", fleet.addr(0)), None)?;
        MODEL.clone_into(&mut direct.model);
        let begun = Instant::now();
        while let Err(error) = through.choose_model(Some(ALIAS), false) {
            if begun.elapsed() > READY_LIMIT {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        ALIAS.clone_into(&mut through.model);
        let driver = gateway.driver.name();
        Ok(Stage { fleet, gateway: Some(gateway), driver, through, direct, folder })
    }

    /// Runs both acts, ends the gateway and reads its records.
    fn play(&mut self, time: Duration) -> Result<Told, String> {
        let begun = Instant::now();
        let options = Options {
            load: Load::Rate(RATE),
            duration: time.mul_f64(0.6),
            prompt_tokens: Lengths::Fixed(256),
            prefix_tokens: 160,
            prefixes: 8,
            output_tokens: Lengths::Fixed(32),
            answers: Answers::MixedEvery(4),
            words: Some(token_text),
            ..Options::new(self.through.clone())
        };
        let paired = Options { direct: Some(self.direct.clone()), ..options.clone() };
        let calm = bench(paired)?.finish().map_err(|e| e.to_string())?;
        let stormy = bench(Options {
            load: Load::Rate(RATE / 2.0),
            duration: time.mul_f64(0.4),
            seed: 2,
            ..options
        })?;
        // It dies in two steps: connections are reset before any answer, then the port is closed.
        std::thread::sleep(time.mul_f64(0.1));
        self.fleet.fault(1, Fault::new(Kind::ResetBeforeHead));
        std::thread::sleep(time.mul_f64(0.1));
        self.fleet.fault(1, Fault::new(Kind::Refuse));
        let storm = stormy.finish().map_err(|e| e.to_string())?;
        if let Some(gateway) = self.gateway.take() {
            gateway.stop();
        }
        let records = Records::read(&self.folder.0.join("usage.jsonl"))?;
        Ok(Told { calm, storm, records, seconds: begun.elapsed().as_secs_f64() })
    }
}

fn bench(options: Options) -> Result<Bench, String> {
    Bench::start(options).map_err(|e| format!("cannot start the load: {e}"))
}

fn folder() -> Result<PathBuf, String> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|e| format!("no random bytes: {e}"))?;
    let name = format!("expedite-demo-{:016x}", u64::from_le_bytes(random));
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

fn secret() -> Result<Secret, String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|e| format!("no random bytes: {e}"))?;
    Ok(Secret::new(format!("sk-{:032x}", u128::from_le_bytes(random))))
}

fn config(
    fleet: &SimHandle,
    cpu: usize,
    secret: &Secret,
    usage: &std::path::Path,
) -> Result<Config, String> {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let urls = (0..fleet.replicas()).map(|i| quoted(&format!("http://{}", fleet.addr(i))));
    let urls = urls.collect::<Vec<_>>().join(", ");
    let digest = KeyDigest::of(secret.expose().as_bytes()).to_text();
    let text = format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nadmin = \"none\"\ncores = [{cpu}]\n\
         [[pool]]\nname = \"demo\"\nmodel = \"{MODEL}\"\naliases = [\"{ALIAS}\"]\n\
         replicas = [{urls}]\n\
         [[tenant]]\nid = \"acme\"\nkeys = [\"{digest}\"]\n\
         [usage]\npath = {}\n[log]\nlevel = \"error\"\n",
        quoted(&usage.to_string_lossy())
    );
    Config::from_text("demo", &text).map_err(|e| e.to_string())
}

/// What the usage log says.
#[derive(Debug, Default)]
struct Records {
    lines: u64,
    ok: u64,
    /// Attempts beyond the first.
    retries: u64,
    input_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
}

impl Records {
    fn read(path: &std::path::Path) -> Result<Records, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("usage records: {e}"))?;
        let mut sum = Records::default();
        for line in text.lines() {
            let record: serde_json::Value =
                serde_json::from_str(line).map_err(|e| format!("usage record: {e}"))?;
            // The log also has lines that open a request and lines about itself.
            let Some(outcome) = record["outcome"].as_str() else { continue };
            let number = |name: &str| record[name].as_u64().unwrap_or(0);
            sum.lines += 1;
            sum.ok += u64::from(outcome == "ok");
            sum.retries += number("attempts").saturating_sub(1);
            sum.input_tokens += number("input_tokens");
            sum.cached_tokens += number("cached_tokens");
            sum.output_tokens += number("output_tokens");
        }
        Ok(sum)
    }
}

/// What there is to tell.
struct Told {
    /// Half through the gateway, half past it.
    calm: Report,
    /// Through the gateway, while a replica goes.
    storm: Report,
    records: Records,
    seconds: f64,
}

impl Told {
    /// Requests through the gateway.
    fn through(&self) -> u64 {
        let both = [&self.calm.target, &self.storm.target];
        both.iter().map(|side| side.completed + side.failed()).sum()
    }

    fn is_good(&self) -> bool {
        let failed = self.calm.failed() + self.storm.failed();
        failed == 0 && self.records.lines == self.through() && self.records.ok == self.through()
    }

    fn json(&self) -> serde_json::Value {
        let records = &self.records;
        serde_json::json!({
            "good": self.is_good(),
            "seconds": self.seconds,
            "calm": self.calm.json(),
            "replica_down": self.storm.json(),
            "requests_through": self.through(),
            "usage_records": records.lines,
            "usage_records_ok": records.ok,
            "retries": records.retries,
            "input_tokens": records.input_tokens,
            "cached_tokens": records.cached_tokens,
            "output_tokens": records.output_tokens,
        })
    }

    fn table(&self) -> String {
        use std::fmt::Write as _;
        let mut out = String::new();
        let nothing = crate::bench::Tally::default();
        let direct = self.calm.direct.as_ref().unwrap_or(&nothing);
        let (through, down) = (&self.calm.target, &self.storm.target);
        let line = format!("{:-<24}{:->13}{:->13}{:->13}{:->15}\n", "", "", "", "", "");
        let _ = writeln!(
            out,
            "{:<24}{:>13}{:>13}{:>13}{:>15}",
            "", "direct", "gateway", "added", "replica down"
        );
        out += &line;
        let sides = [direct, through, down];
        let counts = |f: fn(&crate::bench::Tally) -> u64| sides.map(f);
        let [a, b, c] = counts(|side| side.completed);
        let _ = writeln!(out, "{:<24}{a:>13}{b:>13}{:>13}{c:>15}", "requests answered", "");
        let [a, b, c] = counts(|side| side.failed());
        let _ = writeln!(out, "{:<24}{a:>13}{b:>13}{:>13}{c:>15}", "requests failed", "");
        for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
            let [a, b, c] = sides.map(|side| side.ttft.quantile_ms(quantile));
            row(&mut out, &format!("first token {name}, ms"), a, b, c);
        }
        let [a, b, c] = sides.map(|side| side.tpot.quantile_ms(0.5));
        row(&mut out, "per token p50, ms", a, b, c);
        for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
            let [a, b, c] = sides.map(|side| side.total.quantile_ms(quantile));
            row(&mut out, &format!("whole answer {name}, ms"), a, b, c);
        }
        out += &line;
        self.facts(&mut out);
        out
    }
}

fn row(out: &mut String, name: &str, direct: f64, through: f64, down: f64) {
    use std::fmt::Write as _;
    let added = through - direct;
    let _ = writeln!(out, "{name:<24}{direct:>13.2}{through:>13.2}{added:>+13.2}{down:>15.2}");
}

impl Told {
    fn facts(&self, out: &mut String) {
        let records = &self.records;
        let percent = 100.0 * records.cached_tokens as f64 / records.input_tokens.max(1) as f64;
        let tokens = self.calm.target.output_tokens + self.storm.target.output_tokens;
        let mut fact = |name: &str, what: String| *out += &format!("{name:<24}  {what}\n");
        fact("tokens checked", format!("{tokens} through the gateway, each in its place"));
        let (cached, input) = (records.cached_tokens, records.input_tokens);
        fact("tokens cached", format!("{cached} of {input} prompt tokens ({percent:.0} %)"));
        let (lines, ok, through) = (records.lines, records.ok, self.through());
        fact("usage records", format!("{lines} for {through} requests, {ok} of them ok"));
        let (retries, failed) = (records.retries, self.storm.target.failed());
        let seen = format!("{retries} requests tried elsewhere, {failed} errors seen by clients");
        fact("a replica died", seen);
        fact("time", format!("{:.1} s in all", self.seconds));
        let sides = [Some(&self.calm.target), self.calm.direct.as_ref(), Some(&self.storm.target)];
        for (kind, (count, detail)) in sides.into_iter().flatten().flat_map(|s| &s.failures) {
            fact("failed", format!("{count} {kind}; the first: {}", detail.escape_debug()));
        }
    }
}
