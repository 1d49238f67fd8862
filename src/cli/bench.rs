//! `bench`: load on a gateway, a replica, any OpenAI endpoint; a table, JSON, an HTML page.

mod args;
mod diff;
mod host;
mod watch;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;

pub(super) use args::Args;

use super::{Failed, print};
use crate::bench::document::{self, Facts, Step, document};
use crate::bench::{Bench, Load, Options, Probe, page, probe};
use crate::plan::capacity;
use crate::runtime::{clock, descriptors};
use crate::sim::token_text;

/// A search goes on with rates so much higher, then twice as much higher, and so on.
const STRIDE: f64 = 0.5;
/// How near the edge it ends, as a share of it: runs of one rate differ by more than less.
const NEARNESS: f64 = 0.03;
/// Between two runs, so that what was given up is gone from the server.
const PAUSE: Duration = Duration::from_millis(200);
/// A run of a search is ended so long after its last request was due, in limits of the first token
/// and at least in seconds: what has not come by then has missed its limits.
const GRACE_LIMITS: f64 = 20.0;
const GRACE_SECONDS: f64 = 5.0;

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    if let Some(args::What::Diff(args)) = &args.what {
        return diff::run(args);
    }
    descriptors::raise();
    let options = match args.options().and_then(probed) {
        Ok(options) => options,
        Err((code, error)) => {
            eprintln!("expedite bench: {error}");
            return ExitCode::from(code);
        }
    };
    let mut runs = Runs::new(options, args);
    let cpu_before = host::cpu_seconds();
    let searched = match runs.all(args) {
        Ok(searched) => searched,
        Err(error) => {
            eprintln!("expedite bench: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let (Some(before), Some(after)) = (cpu_before, host::cpu_seconds()) {
        runs.facts.host["generator_cpu_seconds"] = json!(after - before);
    }
    runs.facts.searched = searched;
    runs.tell(args)
}

/// Whether the server's words are known, so that each token can be checked.
fn probed(mut options: Options) -> Result<Options, Failed> {
    let told =
        |error: std::io::Error| args::failed(format!("{}: {error}", options.target.authority));
    if probe(&options, token_text).map_err(told)? == Probe::Words {
        options.words = Some(token_text);
    } else {
        eprintln!("expedite bench: not a simulator: framing is checked, the text is not");
    }
    Ok(options)
}

/// The runs of one call.
struct Runs {
    options: Options,
    facts: Facts,
    steps: Vec<Step>,
    interrupted: bool,
}

impl Runs {
    fn new(options: Options, args: &Args) -> Runs {
        let facts = Facts {
            date: host::date(clock::unix_ms()),
            label: args.label.clone(),
            target_version: options.target.version(),
            host: host::facts(),
            searched: None,
        };
        Runs { options, facts, steps: Vec::new(), interrupted: false }
    }

    /// Makes them; what a search found.
    fn all(&mut self, args: &Args) -> std::io::Result<Option<f64>> {
        if args.search {
            return self.search(args.first_rate()).map(Some);
        }
        if args.rates().is_empty() {
            self.one(self.options.load.clone(), "", None)?;
        }
        for rate in args.rates() {
            if self.interrupted {
                break;
            }
            self.one(Load::Rate(*rate), &format!("{rate}/s: "), None)?;
        }
        Ok(None)
    }

    /// The highest rate within the limits; 0 for none.
    fn search(&mut self, first: f64) -> std::io::Result<f64> {
        let ttft = self.options.slo.ttft_ms.unwrap_or(0.0) / 1e3;
        let grace = Duration::from_secs_f64((ttft * GRACE_LIMITS).max(GRACE_SECONDS));
        let until = self.options.duration.saturating_add(grace);
        let mut failed = None;
        let found = capacity::search(first, STRIDE, NEARNESS, |rate| {
            if self.interrupted || failed.is_some() {
                return false;
            }
            match self.one(Load::Rate(rate), &format!("{rate:.2}/s: "), Some(until)) {
                Ok(within) => {
                    let word = if within { "within" } else { "not within" };
                    eprintln!("expedite bench: {rate:.2} requests/s: {word} the limits");
                    within
                }
                Err(error) => {
                    failed = Some(error);
                    false
                }
            }
        });
        failed.map_or(Ok(found), Err)
    }

    /// One run; whether it was within its limits.
    fn one(&mut self, load: Load, title: &str, until: Option<Duration>) -> std::io::Result<bool> {
        if !self.steps.is_empty() {
            std::thread::sleep(PAUSE);
        }
        let rate = match &load {
            Load::Rate(rate) => Some(*rate),
            Load::Trace(workload) => {
                Some(workload.sessions.len() as f64 * 1e6 / workload.end_us.max(1) as f64)
            }
            Load::Concurrency(_) => None,
        };
        let run = self.steps.len() as u64;
        let options = Options { load, run, ..self.options.clone() };
        let seconds = options.duration.as_secs();
        let watched = watch::watch(Bench::start(options)?, title, seconds, until)?;
        self.interrupted |= watched.interrupted;
        let within = watched.report.is_within() && !watched.interrupted;
        self.steps.push(Step { rate, report: watched.report });
        Ok(within)
    }

    /// Writes what was asked for.
    fn tell(&self, args: &Args) -> ExitCode {
        let limited = self.options.slo.is_stated();
        let Some(shown) = self.steps.get(document::shown(&self.steps, limited)) else {
            return ExitCode::FAILURE;
        };
        let all = document(&self.options, &self.steps, &self.facts);
        let written = args.html.as_deref().map_or(Ok(()), |path| write(path, &page::page(&all)));
        let printed = match args.json.as_deref() {
            Some(path) if path.as_os_str() == "-" => Ok(print(&document::text(&all))),
            path => {
                let written = path.map_or(Ok(()), |path| write(path, &document::text(&all)));
                let text = document::table(&self.steps, &self.facts) + &shown.report.table();
                written.map(|()| print(&text))
            }
        };
        match written.and(printed) {
            Err(error) => {
                eprintln!("expedite bench: {error}");
                ExitCode::FAILURE
            }
            Ok(code) if self.is_good(args) => code,
            Ok(_) => ExitCode::FAILURE,
        }
    }

    /// No request failed; of a search, where that is its way, a rate was found.
    fn is_good(&self, args: &Args) -> bool {
        if args.search {
            return self.facts.searched.is_some_and(|rate| rate > 0.0);
        }
        self.steps.iter().all(|step| step.report.failed() == 0)
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
