//! The load generator: for the gateway, for a replica, for any OpenAI endpoint.
//!
//! In an open loop request `i` is due at `i / rate`, its latency counts from that
//! moment, and a late one is sent at once and never skipped, so that a stalled server cannot hide
//! what it did to those who would have come meanwhile (no coordinated omission). In a closed loop
//! each of N connections sends its next request when the last one has ended.
//!
//! Each answer is judged while it is measured: its framing always, and every token of it when the
//! server's words are known ([`Options::words`]).
//!
//! A bench owns its threads; each has a runtime, connections and histograms of its own, which meet
//! when it ends. It resolves names before the first request and never writes to the terminal.

mod answer;
mod drive;
mod failure;
mod metronome;
mod prompt;
mod report;
mod tally;
mod target;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::net::{self, Driver, DriverChoice};

pub use failure::Kind;
pub use report::Report;
pub use tally::{Histo, Tally};
pub use target::{Probe, Target, probe};

/// Word `index` of the answer to `tag`, as the simulator's `token_text`.
pub type Words = fn(tag: u64, index: u64) -> [u8; 7];

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Open loop: so many a second, whatever the answers do.
    Rate(f64),
    /// Closed loop: so many connections, each busy all the time.
    Concurrency(usize),
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
    /// Tokens of a prompt, at four bytes a token; at least the tag's 6.
    pub prompt_tokens: usize,
    /// `max_tokens` of a request.
    pub output_tokens: u64,
    /// Tokens at the start of a prompt that it shares with others.
    pub prefix_tokens: usize,
    /// How many such beginnings there are.
    pub prefixes: usize,
    /// Share of the requests (0 to 1) that have the first of them; the rest have the others, each
    /// as often. At 0 all of them are as frequent.
    pub hot: f64,
    /// Streams, whole bodies, or both.
    pub answers: Answers,
    /// Streams ask for their usage event.
    pub usage: bool,
    /// Which API is called.
    pub api: Api,
    /// Tags and prefixes follow from it.
    pub seed: u64,
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
            prompt_tokens: 64,
            output_tokens: 32,
            prefix_tokens: 0,
            prefixes: 1,
            hot: 0.0,
            answers: Answers::Streams,
            usage: true,
            api: Api::Chat,
            seed: 1,
            threads: 1,
            timeout: Duration::from_secs(120),
            words: None,
        }
    }
}

/// What a running bench tells and is told.
#[derive(Debug, Default)]
struct Live {
    done: AtomicU64,
    failed: AtomicU64,
    stop: AtomicBool,
}

/// A bench under way; dropping it ends it.
#[derive(Debug)]
pub struct Bench {
    live: Arc<Live>,
    threads: Vec<JoinHandle<std::io::Result<drive::Share>>>,
    streams: bool,
}

impl Bench {
    /// Starts the load.
    ///
    /// # Errors
    /// No driver, no thread, or no socket for the metronome.
    pub fn start(options: Options) -> std::io::Result<Bench> {
        let driver = driver()?;
        let streams = options.answers != Answers::Whole;
        let most = match options.load {
            Load::Concurrency(n) => n.max(1),
            Load::Rate(_) => usize::MAX,
        };
        let threads = options.threads.clamp(1, most);
        let options = Arc::new(Options { threads, ..options });
        let mut bench = Bench { live: Arc::default(), threads: Vec::new(), streams };
        for index in 0..threads {
            let (options, live) = (Arc::clone(&options), Arc::clone(&bench.live));
            let thread = std::thread::Builder::new().name(format!("bench-{index}"));
            let run = move || drive::run(driver, index, &options, live);
            bench.threads.push(thread.spawn(run)?);
        }
        Ok(bench)
    }

    /// Requests that have ended, and how many of them failed.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.live.done.load(Relaxed), self.live.failed.load(Relaxed))
    }

    /// Ends it early: what is under way is given up and not counted.
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
        let mut report = Report::new(self.streams);
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
