//! The load generator: for the gateway, for a replica, for any OpenAI endpoint.
//!
//! In an open loop requests are due at times that are known beforehand, by a rate or by a trace;
//! their latency counts from that moment, and a late one is sent at once and never skipped, so that
//! a stalled server cannot hide what it did to those who would have come meanwhile (no coordinated
//! omission). In a closed loop each of N connections sends its next request when the last one has
//! ended.
//!
//! Each answer is judged while it is measured: its framing always, and every token of it when the
//! server's words are known ([`Options::words`]).
//!
//! - `schedule`, `lengths`, `prompt` (of `text`): what is asked, and when.
//! - `drive`, `wire`, `answer`, `failure`: one thread, one connection, one answer.
//! - `tally`, `series`: what was measured; [`report`]: as a table and as figures.
//! - [`document`]: all of it as one JSON object; [`page`]: that object as an HTML page; [`diff`]:
//!   two of them side by side.
//!
//! A bench owns its threads; each has a runtime, connections and histograms of its own, which meet
//! when it ends. It resolves names before the first request and never writes to the terminal.

mod answer;
pub mod diff;
pub mod document;
mod drive;
mod failure;
mod lengths;
mod metronome;
pub mod page;
mod prompt;
pub mod report;
mod schedule;
mod series;
mod tally;
mod target;
mod text;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::net::{self, Driver, DriverChoice};
use crate::plan::Workload;
use crate::runtime::clock;

pub use failure::Kind;
pub use lengths::{Lengths, TOKENS_MAX};
pub use report::Report;
pub use schedule::Spacing;
pub use series::Series;
pub use tally::{Histo, Tally};
pub use target::{Probe, Target, probe};

/// Word `index` of the answer to `tag`, as the simulator's `token_text`.
pub type Words = fn(tag: u64, index: u64) -> [u8; 7];

/// When requests are sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// Open loop: so many a second, whatever the answers do.
    Rate(f64),
    /// Closed loop: so many connections, each busy all the time.
    Concurrency(usize),
    /// Open loop: these sessions, each at its time.
    Trace(Arc<Workload>),
}

/// Limits that a good answer meets, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slo {
    /// On the time from due to the first token; of whole bodies, to the end.
    pub ttft_ms: Option<f64>,
    /// On the time per output token after the first.
    pub tpot_ms: Option<f64>,
}

impl Slo {
    /// A run is within its limits when so many of its requests meet that of the first token, and
    /// so many that of the later ones; as `plan` has it.
    pub const SHARES: [f64; 2] = [0.99, 0.95];

    fn allows(limit_ms: Option<f64>, ns: u64) -> bool {
        limit_ms.is_none_or(|ms| ns as f64 <= ms * 1e6)
    }

    /// Whether anything is limited.
    #[must_use]
    pub fn is_stated(&self) -> bool {
        self.ttft_ms.is_some() || self.tpot_ms.is_some()
    }
}

/// Which API is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    #[default]
    Chat,
    /// `/v1/completions`
    Completions,
}

/// Which answers are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answers {
    /// Event streams.
    #[default]
    Streams,
    /// Whole bodies.
    Whole,
    /// Every `n`-th (at least 2nd) request asks for a whole body, the others for a stream.
    MixedEvery(u64),
}

/// What a bench does.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the load goes.
    pub target: Target,
    /// Every second request goes here instead, for comparison.
    pub direct: Option<Target>,
    /// When requests are sent.
    pub load: Load,
    /// No request begins after this time; those under way are waited for.
    pub duration: Duration,
    /// Most requests, if bounded.
    pub requests: Option<u64>,
    /// How the requests of a rate follow each other.
    pub spacing: Spacing,
    /// Tokens of a prompt, at four bytes a token; at least the tag's 6. A later turn of a
    /// conversation adds as many, less the shared beginning.
    pub prompt_tokens: Lengths,
    /// `max_tokens` of a request, at least 1.
    pub output_tokens: Lengths,
    /// Tokens at the start of a prompt that it shares with others.
    pub prefix_tokens: usize,
    /// How many such beginnings there are.
    pub prefixes: usize,
    /// Share of the requests (0 to 1) that have the first of them; the rest have the others, each
    /// as often. At 0 all of them are as frequent.
    pub hot: f64,
    /// Exponent of Zipf's law by which beginnings and models are chosen; 0 = each as often.
    pub zipf: f64,
    /// Models (adapters) that are asked for instead of the target's own; none = that one.
    pub models: Vec<String>,
    /// Requests of a conversation, each with all that was said before it.
    pub turns: u32,
    /// Between an answer's end and the next turn.
    pub think: Duration,
    /// Share of the conversations that are one prompt of so many tokens, which shares nothing.
    pub long: Option<(f64, u64)>,
    /// Share of the requests that are given up on purpose, half at a random share of the time that
    /// an answer takes, half after a random event of a stream.
    pub cancel: f64,
    /// Asks vLLM to go on to `max_tokens` whatever the model says.
    pub ignore_eos: bool,
    /// What a good answer is.
    pub slo: Slo,
    /// Streams, whole bodies, or both.
    pub answers: Answers,
    /// Streams ask for their usage event.
    pub usage: bool,
    /// Which API is called.
    pub api: Api,
    /// Tags, beginnings and times follow from it.
    pub seed: u64,
    /// Which of several runs with one seed: the beginnings are the same in all of them, what
    /// follows is not, so that no run finds the prompts of another in a cache.
    pub run: u64,
    /// Threads, each with its share of the load.
    pub threads: usize,
    /// A request that takes longer is given up and counted as `timeout`.
    pub timeout: Duration,
    /// Checks every token; only for a server that says these words.
    pub words: Option<Words>,
}

impl Options {
    /// A closed loop of 16 connections for ten seconds, short streams.
    #[must_use]
    pub fn new(target: Target) -> Options {
        Options {
            target,
            direct: None,
            load: Load::Concurrency(16),
            duration: Duration::from_secs(10),
            requests: None,
            spacing: Spacing::Fixed,
            prompt_tokens: Lengths::Fixed(64),
            output_tokens: Lengths::Fixed(32),
            prefix_tokens: 0,
            prefixes: 1,
            hot: 0.0,
            zipf: 0.0,
            models: Vec::new(),
            turns: 1,
            think: Duration::ZERO,
            long: None,
            cancel: 0.0,
            ignore_eos: false,
            slo: Slo::default(),
            answers: Answers::Streams,
            usage: true,
            api: Api::Chat,
            seed: 1,
            run: 0,
            threads: 1,
            timeout: Duration::from_secs(120),
            words: None,
        }
    }
}

/// What a running bench tells and is told.
#[derive(Debug, Default)]
struct Live {
    /// When it began, by the clock.
    origin_ns: u64,
    done: AtomicU64,
    failed: AtomicU64,
    ttft_ns: AtomicU64,
    ttfts: AtomicU64,
    tpot_ns: AtomicU64,
    tpots: AtomicU64,
    tokens: AtomicU64,
    stop: AtomicBool,
}

impl Live {
    fn completed(&self, measured: &tally::Measured) {
        self.done.fetch_add(1, Relaxed);
        self.tokens.fetch_add(measured.output_tokens, Relaxed);
        if let Some(ns) = measured.ttft_ns {
            self.ttft_ns.fetch_add(ns, Relaxed);
            self.ttfts.fetch_add(1, Relaxed);
        }
        if let Some(ns) = measured.tpot_ns {
            self.tpot_ns.fetch_add(ns, Relaxed);
            self.tpots.fetch_add(1, Relaxed);
        }
    }
}

/// How far a bench is: sums since its begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Requests that have ended.
    pub done: u64,
    /// Of these, those that failed.
    pub failed: u64,
    /// Tokens of answers.
    pub tokens: u64,
    /// Times to the first token, and how many they are.
    pub ttft_ns: (u64, u64),
    /// Times per token after it, likewise.
    pub tpot_ns: (u64, u64),
}

/// A bench under way; dropping it ends it.
#[derive(Debug)]
pub struct Bench {
    live: Arc<Live>,
    threads: Vec<JoinHandle<std::io::Result<drive::Share>>>,
    streams: bool,
    slo: Slo,
}

impl Bench {
    /// Starts the load.
    ///
    /// # Errors
    /// No driver, no thread, or no socket for the metronome.
    pub fn start(options: Options) -> std::io::Result<Bench> {
        let driver = driver()?;
        let streams = options.answers != Answers::Whole;
        let most = match &options.load {
            Load::Concurrency(n) => (*n).max(1),
            Load::Rate(_) | Load::Trace(_) => usize::MAX,
        };
        let live = Live { origin_ns: clock::now_ns(), ..Live::default() };
        let threads = options.threads.clamp(1, most);
        let options = Arc::new(Options { threads, ..options });
        let slo = options.slo;
        let mut bench = Bench { live: Arc::new(live), threads: Vec::new(), streams, slo };
        for index in 0..threads {
            let (options, live) = (Arc::clone(&options), Arc::clone(&bench.live));
            let thread = std::thread::Builder::new().name(format!("bench-{index}"));
            let run = move || drive::run(driver, index, &options, live);
            bench.threads.push(thread.spawn(run)?);
        }
        Ok(bench)
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let Live { done, failed, ttft_ns, ttfts, tpot_ns, tpots, tokens, .. } = &*self.live;
        let [done, failed, tokens] = [done, failed, tokens].map(|n| n.load(Relaxed));
        let [ttft_ns, tpot_ns] =
            [(ttft_ns, ttfts), (tpot_ns, tpots)].map(|(a, b)| (a.load(Relaxed), b.load(Relaxed)));
        Progress { done, failed, tokens, ttft_ns, tpot_ns }
    }

    /// Ends it early: what is under way is given up and counted as unfinished.
    pub fn stop(&self) {
        self.live.stop.store(true, Relaxed);
    }

    /// True once every thread has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits for the end and tells what was measured.
    ///
    /// # Errors
    /// A thread could not run.
    pub fn finish(mut self) -> std::io::Result<Report> {
        let mut report = Report::new(self.streams, self.slo);
        for thread in self.threads.drain(..) {
            let share = thread.join().map_err(|_| std::io::Error::other("a thread died"))??;
            report.add(share);
        }
        Ok(report)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn driver() -> std::io::Result<Driver> {
    Ok(DriverChoice::Auto.resolve().map_err(std::io::Error::other)?.0)
}

/// Runs one future on a runtime of its own; for what comes before the load.
fn block_on<F: Future>(main: F) -> std::io::Result<F::Output> {
    net::run(driver()?, main)
}
