//! The arguments of `bench`, and the options that they make.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;

use super::super::{EXIT_USAGE, Failed, trace};
use super::diff;
use crate::bench::{Answers, Api, Lengths, Load, Options, Slo, Spacing, TOKENS_MAX, Target};
use crate::config::Secret;
use crate::runtime::clock;

/// Connections of a closed loop when no load is stated.
const CONCURRENCY_DEFAULT: usize = 16;
/// Where a search begins when `--rate` does not say.
const SEARCH_RATE_DEFAULT: f64 = 10.0;
/// Seconds when neither `--duration` nor `--requests` is given.
const SECONDS_DEFAULT: f64 = 10.0;
/// A bound for `--requests` alone: a week.
const SECONDS_MAX: f64 = 604_800.0;

/// Put load on an OpenAI endpoint and measure it
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:
  expedite bench --target http://127.0.0.1:8080 --key sk-... --rate 200 --duration 30
  expedite bench --target http://127.0.0.1:8080 --direct http://10.0.0.1:8000 --concurrency 64
  expedite bench --target http://10.0.0.1:8000 --rates 10,20,40 --html report.html --json r.json
  expedite bench --target http://10.0.0.1:8000 --search --slo-ttft-ms 400 --slo-tpot-ms 50
  expedite bench --target http://10.0.0.1:8000 --trace trace.jsonl.gz --speed 2
  expedite bench --target http://10.0.0.1:8000 --rate 20 --schedule poisson --turns 3 \\
      --prompt-tokens lognormal:800,0.9 --prefix-tokens 512 --prefixes 40 --zipf 1 --cancel 0.05
  expedite bench diff before.json after.json

--rate is an open loop: latency counts from the moment a request was due. --concurrency is a closed
loop. With --direct every second request goes there instead, and the difference is what the target
adds. A server that speaks the simulator's tag protocol has every token checked. Two calls with one
--seed ask the same prompts, which a server may still have in its cache: without it no two do. Exit
code 1 if any request failed, or if a search found no rate."
)]
pub(in super::super) struct Args {
    #[command(subcommand)]
    pub(super) what: Option<What>,
    /// Endpoint under load, http://HOST:PORT or https://HOST[:PORT]
    #[arg(long, value_name = "URL", required = true)]
    target: Option<String>,
    /// Endpoint for comparison: every second request goes there
    #[arg(long, value_name = "URL")]
    direct: Option<String>,
    /// Model to ask for [default: the first that /v1/models lists]
    #[arg(long)]
    model: Option<String>,
    /// Models or adapters to ask for, by Zipf's law in this order if --zipf is given
    #[arg(long, value_name = "A,B,...", value_delimiter = ',')]
    models: Vec<String>,
    /// Bearer key of the target [default: the variable EXPEDITE_KEY, which `ps` does not show]
    #[arg(long)]
    key: Option<String>,
    /// Bearer key of the direct endpoint
    #[arg(long, value_name = "KEY")]
    direct_key: Option<String>,
    /// Root certificates of https endpoints, or theirs themselves, in PEM [default: the system's]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Requests a second, open loop; where a search begins
    #[arg(long, value_name = "RPS", conflicts_with_all = ["concurrency", "rates"],
          value_parser = positive)]
    rate: Option<f64>,
    /// One run after the other at these rates
    #[arg(long, alias = "rate-steps", value_name = "RPS,...", value_delimiter = ',',
          conflicts_with = "concurrency", value_parser = positive)]
    rates: Vec<f64>,
    /// Search for the highest rate within the limits
    #[arg(long, conflicts_with_all = ["concurrency", "rates"])]
    pub(super) search: bool,
    /// Limit on the time to the first token, which 99 % of the requests have to meet
    #[arg(long, value_name = "MS", value_parser = positive)]
    slo_ttft_ms: Option<f64>,
    /// Limit on the time per later token, which 95 % have to meet
    #[arg(long, value_name = "MS", value_parser = positive)]
    slo_tpot_ms: Option<f64>,
    /// Busy connections, closed loop [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: Option<u32>,
    /// How requests of a rate follow each other
    #[arg(long, value_enum, default_value_t = Schedule::Fixed)]
    schedule: Schedule,
    /// Recorded requests at their times and with their lengths: Mooncake's or Bailian's form, or
    /// lengths alone (.gz too)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "rates", "search", "concurrency",
          "prompt_tokens", "output_tokens", "prefix_tokens", "turns", "long"])]
    trace: Option<PathBuf>,
    /// Plays the trace so many times as fast
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "trace",
          value_parser = positive)]
    speed: f64,
    /// Seconds in which requests begin, of each run [default: 10, unless --requests is given; a
    /// trace whole]
    #[arg(long, value_name = "S", value_parser = positive)]
    duration: Option<f64>,
    /// Most requests, of each run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Tokens of a prompt, at four bytes each: N, uniform:A-B or lognormal:MEDIAN,SIGMA
    #[arg(long, value_name = "LENGTH", default_value = "64")]
    prompt_tokens: Lengths,
    /// Tokens of an answer (max_tokens), likewise
    #[arg(long, value_name = "LENGTH", default_value = "32")]
    output_tokens: Lengths,
    /// Go on to max_tokens whatever the model says (vLLM)
    #[arg(long)]
    ignore_eos: bool,
    /// Ask for whole bodies
    #[arg(long)]
    no_stream: bool,
    /// Tokens at the start of a prompt that are shared
    #[arg(long, value_name = "N", default_value_t = 0)]
    prefix_tokens: usize,
    /// How many different shared beginnings there are
    #[arg(long, value_name = "K", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    prefixes: u32,
    /// Share of the requests that have the first of them; the others share the rest evenly
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share,
          conflicts_with = "zipf")]
    hot: f64,
    /// Beginnings and models are chosen by Zipf's law with this exponent; 0 = each as often
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = exponent)]
    zipf: f64,
    /// Requests of a conversation, each with all that was said before it; --rate counts requests
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
    /// Between an answer's end and the next turn
    #[arg(long, value_name = "MS", default_value_t = 0)]
    think_ms: u64,
    /// Share of the prompts that have so many tokens and share nothing, as in 0.01:32768
    #[arg(long, value_name = "SHARE:TOKENS", value_parser = long)]
    long: Option<(f64, u64)>,
    /// Share of the requests that are given up, each at a random moment of its answer
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    cancel: f64,
    /// Do not ask for the usage event of streams
    #[arg(long)]
    no_usage: bool,
    /// Tags, beginnings, lengths and times follow from it [default: the time; the JSON tells it]
    #[arg(long)]
    seed: Option<u64>,
    /// Threads, each with its share of the load
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Seconds after which a request is given up and counted as failed
    #[arg(long, value_name = "S", default_value_t = 120.0, value_parser = positive)]
    timeout: f64,
    /// Which API is called
    #[arg(long, value_enum, default_value_t = Path::Chat)]
    path: Path,
    /// A name for the result
    #[arg(long, value_name = "TEXT")]
    pub(super) label: Option<String>,
    /// Write the result as JSON, with the field names of `vllm bench serve`; "-" is stdout
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Write the result as one HTML page that needs no network
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

#[derive(clap::Subcommand)]
pub(super) enum What {
    Diff(diff::Args),
}

#[derive(Clone, Copy, ValueEnum)]
enum Path {
    #[value(name = "/v1/chat/completions")]
    Chat,
    #[value(name = "/v1/completions")]
    Completions,
}

#[derive(Clone, Copy, ValueEnum)]
enum Schedule {
    /// At equal distances
    Fixed,
    /// As a Poisson process
    Poisson,
}

/// What was asked for makes no sense.
fn usage(what: String) -> Failed {
    (EXIT_USAGE, what)
}

/// It does, and a server did not answer as it should.
pub(super) fn failed(what: String) -> Failed {
    (1, what)
}

/// A key as a field of a request can have it; an error does not repeat it.
fn secret(key: Option<String>) -> Result<Option<Secret>, String> {
    let plain = |key: &String| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    match key {
        Some(key) if !plain(&key) => Err("a key must be visible ASCII".to_owned()),
        key => Ok(key.map(Secret::new)),
    }
}

fn positive(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
    number.ok_or("must be a number above 0")
}

fn share(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|n: &f64| (0.0..=1.0).contains(n));
    number.ok_or("must be a share between 0 and 1")
}

fn exponent(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|n: &f64| (0.0..=10.0).contains(n));
    number.ok_or("must be an exponent between 0 and 10")
}

fn long(text: &str) -> Result<(f64, u64), String> {
    let read = text.split_once(':').and_then(|(part, tokens)| {
        let tokens = tokens.parse().ok().filter(|n| (1..=TOKENS_MAX).contains(n))?;
        Some((share(part).ok()?, tokens))
    });
    read.ok_or_else(|| "say SHARE:TOKENS, as in 0.01:32768".to_owned())
}

impl Args {
    /// The rates to run at one after the other; none where there is one load.
    pub(super) fn rates(&self) -> &[f64] {
        &self.rates
    }

    /// Where a search begins.
    pub(super) fn first_rate(&self) -> f64 {
        self.rate.unwrap_or(SEARCH_RATE_DEFAULT)
    }

    /// The options, with the target's model asked for.
    pub(super) fn options(&self) -> Result<Options, Failed> {
        let slo = Slo { ttft_ms: self.slo_ttft_ms, tpot_ms: self.slo_tpot_ms };
        let wrong = |what: &str| Err(usage(what.to_owned()));
        if self.search && !slo.is_stated() {
            return wrong("--search needs a limit: --slo-ttft-ms or --slo-tpot-ms");
        }
        if self.no_stream && slo.tpot_ms.is_some() {
            return wrong("--slo-tpot-ms needs streams: whole bodies tell no token's time");
        }
        let (target, direct) = self.targets()?;
        let (load, whole) = self.load().map_err(usage)?;
        let unbounded = if self.requests.is_some() { SECONDS_MAX } else { SECONDS_DEFAULT };
        let seconds = |s: f64| Duration::from_secs_f64(s.min(SECONDS_MAX));
        Ok(Options {
            direct,
            load,
            duration: seconds(self.duration.or(whole).unwrap_or(unbounded)),
            requests: self.requests,
            spacing: match self.schedule {
                Schedule::Fixed => Spacing::Fixed,
                Schedule::Poisson => Spacing::Poisson,
            },
            prompt_tokens: match self.prompt_tokens {
                Lengths::Fixed(n) => Lengths::Fixed(n.max(self.prefix_tokens as u64)),
                law => law,
            },
            output_tokens: self.output_tokens,
            prefix_tokens: self.prefix_tokens,
            prefixes: self.prefixes as usize,
            hot: self.hot,
            zipf: self.zipf,
            models: self.models.clone(),
            turns: self.turns,
            think: Duration::from_millis(self.think_ms),
            long: self.long,
            cancel: self.cancel,
            ignore_eos: self.ignore_eos,
            slo,
            answers: if self.no_stream { Answers::Whole } else { Answers::Streams },
            usage: !self.no_usage,
            api: match self.path {
                Path::Chat => Api::Chat,
                Path::Completions => Api::Completions,
            },
            seed: self.seed.unwrap_or_else(clock::unix_ms),
            threads: self.threads as usize,
            timeout: seconds(self.timeout),
            ..Options::new(target)
        })
    }

    fn targets(&self) -> Result<(Target, Option<Target>), Failed> {
        let key = self.key.clone().or_else(|| std::env::var("EXPEDITE_KEY").ok());
        let url = self.target.as_deref().unwrap_or_default();
        let read =
            |path: &PathBuf| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
        let ca = self.ca.as_ref().map(read).transpose().map_err(usage)?;
        let named = |url: &str, key: Option<String>| {
            let key = secret(key)?;
            Target::believing(url, key, ca.as_deref())
        };
        let mut target = named(url, key).map_err(usage)?;
        let wanted = self.model.as_deref().or(self.models.first().map(String::as_str));
        target.choose_model(wanted, true).map_err(failed)?;
        let direct = self.direct.as_ref().map(|url| {
            let mut direct = named(url, self.direct_key.clone()).map_err(usage)?;
            direct.choose_model(Some(&target.model), false).map_err(failed)?;
            Ok::<_, Failed>(direct)
        });
        Ok((target, direct.transpose()?))
    }

    /// The load, and how many seconds a trace lasts.
    fn load(&self) -> Result<(Load, Option<f64>), String> {
        if let Some(path) = &self.trace {
            let trace = trace::read(path)?;
            let workload = trace.workload(trace.rate() * self.speed, self.duration);
            let seconds = workload.end_us as f64 / 1e6;
            return Ok((Load::Trace(Arc::new(workload)), Some(seconds)));
        }
        if self.search {
            return Ok((Load::Rate(self.first_rate()), None));
        }
        let concurrency = self.concurrency.map_or(CONCURRENCY_DEFAULT, |n| n as usize);
        let rate = self.rate.or(self.rates.first().copied());
        Ok((rate.map_or(Load::Concurrency(concurrency), Load::Rate), None))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Cli;
    use super::*;
    use clap::{CommandFactory, Parser};

    fn parses(args: &[&str]) -> bool {
        Cli::try_parse_from([&["expedite", "bench"], args].concat()).is_ok()
    }

    #[test]
    fn loads_exclude_each_other_and_a_target_is_needed() {
        Cli::command().debug_assert();
        let target = ["--target", "http://h:1"];
        let with = |more: &[&str]| parses(&[&target, more].concat());
        assert!(!parses(&[]) && !parses(&["--rate", "1"]) && with(&[]));
        assert!(parses(&["diff", "a.json", "b.json"]) && !parses(&["diff", "a.json"]));
        assert!(with(&["--rates", "1,2.5,3"]) && with(&["--rate-steps", "1,2"]));
        assert!(with(&["--trace", "t", "--speed", "2"]) && !with(&["--speed", "2"]));
        assert!(with(&["--search", "--rate", "5", "--slo-ttft-ms", "400"]));
        for bad in [
            &["--rate", "1", "--concurrency", "2"][..],
            &["--rate", "1", "--rates", "2"],
            &["--rates", "1,0"],
            &["--search", "--concurrency", "2"],
            &["--trace", "t", "--rate", "1"],
            &["--trace", "t", "--turns", "2"],
            &["--hot", "0.5", "--zipf", "1"],
            &["--prompt-tokens", "normal:1"],
            &["--cancel", "1.1"],
            &["--zipf", "-1"],
            &["--threads", "0"],
            &["--requests", "0"],
        ] {
            assert!(!with(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_key_that_no_field_can_have_is_refused_and_not_repeated() {
        assert!(secret(None).is_ok_and(|none| none.is_none()));
        assert!(secret(Some("sk-1".to_owned())).is_ok_and(|some| some.is_some()));
        for bad in ["canary\r\nx: y", "canary\n", "canary 1", "", "canary\u{e9}"] {
            let what = secret(Some(bad.to_owned())).err().unwrap();
            assert!(!what.contains("canary"), "{what}");
        }
    }

    #[test]
    fn a_share_of_long_prompts_has_a_length() {
        assert_eq!(long("0.01:32768"), Ok((0.01, 32_768)));
        for bad in ["0.01", "2:5", "0.1:0", "0.1:99999999", ":"] {
            assert!(long(bad).unwrap_err().contains("0.01:32768"), "{bad}");
        }
    }
}
